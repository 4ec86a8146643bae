"""The machines find what is broken: a machine that cannot fail proves nothing."""

from collections.abc import Iterable, Sequence, Set

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from typing_extensions import override

from kvoffload import (
    CachePolicy,
    ChunkStatus,
    CPUOffloadingManager,
    OffloadingManager,
    OffloadKey,
    ReqContext,
)
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.gallery import BREAKS
from stateful_models.machines import (
    ARCPolicyMachine,
    LRUManagerMachine,
    LRUPolicyMachine,
    ManagerConfig,
    PolicyMachine,
)
from stateful_models.models import LRUModel, PolicyModel

# Finding is enough here; making the program short would take most of the time.
FIND = settings(settings(), max_examples=1_500, phases=[Phase.generate], report_multiple_bugs=False)


def objection(machine: type[RuleBasedStateMachine]) -> str:
    """What the machine says against its subject."""
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(machine, settings=FIND)
    return str(caught.value)


@pytest.mark.parametrize("manager_cls", BREAKS)
def test_the_manager_machine_objects_to_every_broken_manager(
    manager_cls: type[CPUOffloadingManager],
) -> None:
    class Machine(LRUManagerMachine):
        @override
        def make_manager(self, config: ManagerConfig) -> OffloadingManager:
            return manager_cls(
                config.num_chunks,
                self.policy,
                enable_events=config.enable_events,
                store_threshold=config.store_threshold,
                max_tracker_size=config.max_tracker_size,
            )

    assert "the program:" in objection(Machine)


Victims = list[tuple[OffloadKey, ChunkStatus]]


class IgnoresProtection(LRUCachePolicy):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return super().evict(n, set())


class OneTooFew(LRUCachePolicy):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return super().evict(max(1, n - 1), protected)


class RefusesTheLast(LRUCachePolicy):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return super().evict(n, protected) if n < 3 else None


class LosesWhatItRefuses(LRUCachePolicy):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = super().evict(n, protected)
        if victims is None:
            super().evict(1, protected)
        return victims


class SurvivesClear(LRUCachePolicy):
    @override
    def clear(self) -> None:
        return None


class AnotherChunk(LRUCachePolicy):
    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        found = super().get(key)
        return None if found is None else ChunkStatus(found.chunk_id, found.ref_cnt)


class RaisesOnStrangers(LRUCachePolicy):
    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = list(keys)
        if any(self.get(key) is None for key in keys):
            raise KeyError(keys)
        super().touch(keys, req_context)


@pytest.mark.parametrize(
    ("policy_cls", "clause"),
    [
        (IgnoresProtection, "POL-2"),
        (OneTooFew, "POL-2"),
        (RefusesTheLast, "POL-3"),
        (LosesWhatItRefuses, "POL-"),
        (SurvivesClear, "POL-"),
        (AnotherChunk, "POL-1"),
        (RaisesOnStrangers, "POL-7"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_the_policy_machine_convicts_without_a_model(
    policy_cls: type[CachePolicy], clause: str
) -> None:
    class Machine(PolicyMachine[CachePolicy]):
        @override
        def make_policy(self, capacity: int) -> CachePolicy:
            return policy_cls(cache_capacity=capacity)

    assert objection(Machine).startswith(clause)


class TouchesBackwards(LRUCachePolicy):
    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        super().touch(list(keys)[::-1], req_context)


class TouchesWhatIsPinned(LRUCachePolicy):
    """The order in which pins end decides who goes (POL-9)."""

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        super().mark_evictable(key)
        super().touch([key], ReqContext("nobody"))


class NeverAdapts(ARCCachePolicy):
    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        return None


class PromotesInsertions(ARCCachePolicy):
    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        used = insertion_only_keys | reused_keys
        super().on_request_finished(key_groups, set(), used, req_context)


@pytest.mark.parametrize("policy_cls", [TouchesBackwards, TouchesWhatIsPinned])
def test_the_policy_machine_convicts_by_its_model(policy_cls: type[CachePolicy]) -> None:
    """LRU-1 and POL-9."""

    class Machine(LRUPolicyMachine):
        @override
        def make_policy(self, capacity: int) -> CachePolicy:
            return policy_cls(cache_capacity=capacity)

    assert "expected" in objection(Machine)


@pytest.mark.parametrize("policy_cls", [NeverAdapts, PromotesInsertions])
def test_the_policy_machine_convicts_arc_by_its_model(policy_cls: type[CachePolicy]) -> None:
    """ARC-2 and ARC-1."""

    class Machine(ARCPolicyMachine):
        @override
        def make_policy(self, capacity: int) -> CachePolicy:
            return policy_cls(cache_capacity=capacity)

    assert "expected" in objection(Machine)


def test_a_model_of_ones_own_can_be_given() -> None:
    class Machine(PolicyMachine[CachePolicy]):
        @override
        def make_model(self, capacity: int) -> PolicyModel | None:
            return LRUModel(capacity)

    run_state_machine_as_test(Machine)
