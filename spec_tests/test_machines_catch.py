"""The machines find what is broken: a machine that cannot fail proves nothing."""

from collections.abc import Iterable, Mapping, Sequence, Set
from fractions import Fraction
from itertools import count

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import DeadlineExceeded, FailedHealthCheck
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from hypothesis.strategies import SearchStrategy
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
from spec_tests.lots import by_lot
from spec_tests.profiles import times
from stateful_models import operations as op
from stateful_models.drivers import Driver
from stateful_models.engines.hints import hostile_values
from stateful_models.gallery import BREAKS
from stateful_models.gallery.broken_policies.base import Plain
from stateful_models.gallery.managers import SETUPS
from stateful_models.gallery.reports import Evt3DeliversWhenRead
from stateful_models.machines import (
    ARCPolicyMachine,
    LRUManagerMachine,
    LRUPolicyMachine,
    ManagerConfig,
    PolicyMachine,
    machine_test,
)
from stateful_models.machines.testing import rule_names
from stateful_models.models import LRUModel, PolicyModel

# Finding is enough here; making the program short would take most of the time.
FIND = settings(settings(), max_examples=1_500, phases=[Phase.generate], report_multiple_bugs=False)


def objection(machine: type[RuleBasedStateMachine]) -> str:
    """What the machine says against its subject."""
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(machine, settings=FIND)
    return str(caught.value)


# Those whose answers are wrong. What a manager tells its policy, or does when it is asked for more
# than the machine asks, is judged in the trials of managers.
WRONG_ANSWERS = [
    cls
    for cls in BREAKS
    if cls.__module__.rpartition(".")[2] in ("completions", "loads", "stores", "reports")
    and cls not in SETUPS
    # The machine reads every drain to its end.
    and cls is not Evt3DeliversWhenRead
]


# By its invariants, which are the machine's too, `test_gallery` convicts all of them in CI.
@pytest.mark.parametrize("manager_cls", by_lot(WRONG_ANSWERS, one_of=6))
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


class TakesPinsWhenShort(Plain):
    """Right while there are enough idle chunks; where there are not, pinned ones go as well."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = super().evict(n, protected)
        if victims is not None:
            return victims
        # All but those that are still being stored.
        left = [key for key, c in self.chunks.items() if c.ref_cnt >= 0 and key not in protected]
        if len(left) < n:
            return None
        return [(key, self.chunks.pop(key)) for key in left[:n]]


class NeverReadsPriority(Plain):
    """Takes a priority of any client for a number."""

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        hints = req_context.kv_transfer_params
        if hints is not None and isinstance(hints.get("priority", 0), str):
            raise TypeError("a priority is a number")
        super().insert(key, chunk, req_context)


class RemembersLanes(Plain):
    """Takes a hint of its own, which no driver mentions, for something that can be a key."""

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        lanes = {(req_context.kv_transfer_params or {}).get("lane")}
        super().insert(key, chunk, req_context)
        lanes.clear()


@pytest.mark.parametrize(
    ("policy_cls", "clause", "message", "factor"),
    [
        (TakesPinsWhenShort, "POL-2", "is pinned", 1),
        (RemembersLanes, "POL-7", "unhashable type", 1),
        # Of all that is wrong only a text will do.
        (NeverReadsPriority, "POL-7", "a priority is a number", 5),
    ],
)
def test_few_examples_find_what_few_situations_show(
    policy_cls: type[CachePolicy], clause: str, message: str, factor: int
) -> None:
    """So many times those of the profile `ci`, whatever profile this runs under."""

    class Machine(PolicyMachine[CachePolicy]):
        @override
        def make_policy(self, capacity: int) -> CachePolicy:
            return policy_cls(cache_capacity=capacity)

    examples = times(factor, settings.get_profile("ci"))
    with pytest.raises(AssertionError, match=message) as caught:
        machine_test(Machine, settings=examples)()
    assert str(caught.value).startswith(clause)


def test_any_rule_can_be_left_out() -> None:
    for name in rule_names(PolicyMachine):
        machine_test(
            PolicyMachine,
            without=[name],
            settings=settings(max_examples=2, stateful_step_count=20),
        )()


def test_nothing_fails_for_being_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on a busy day: to Hypothesis every look at the clock takes seconds."""
    seconds = count(step=3)
    monkeypatch.setattr("time.perf_counter", lambda: float(next(seconds)))
    strict = settings(
        max_examples=20,
        stateful_step_count=10,
        deadline=200,
        suppress_health_check=[],
        phases=[Phase.generate],
        database=None,
    )
    with pytest.raises((FailedHealthCheck, DeadlineExceeded)):
        run_state_machine_as_test(LRUPolicyMachine, settings=strict)
    machine_test(LRUPolicyMachine, settings=strict)()


class OpensAtOnce(Driver[CachePolicy]):
    """Remembers what its requests carried when they began."""

    def __init__(self) -> None:
        super().__init__(LRUCachePolicy)
        self.started: list[tuple[str, object]] = []

    @override
    def contexts(self) -> SearchStrategy[Mapping[str, object] | None]:
        return st.fixed_dictionaries({"lane": st.sampled_from(["fast", "slow"])})

    @override
    def request_started(self, policy: CachePolicy, context: ReqContext) -> None:
        hints = context.kv_transfer_params
        self.started.append((context.req_id, None if hints is None else hints.get("lane")))


def test_every_request_is_announced_once_with_hints_of_the_driver_or_wrong_ones() -> None:
    drivers: list[OpensAtOnce] = []

    class Machine(PolicyMachine[CachePolicy]):
        @override
        def make_driver(self) -> Driver[CachePolicy]:
            drivers.append(OpensAtOnce())
            return drivers[-1]

        @override
        def _place(self, request: op.RequestId, slot: int, data: st.DataObject) -> None:
            before = len(drivers[-1].started)
            super()._place(request, slot, data)
            assert [name for name, _ in drivers[-1].started[before:]] == [request]

    machine_test(Machine, settings=settings(settings.get_profile("ci"), max_examples=40))()
    for driver in drivers:
        names = [name for name, _ in driver.started]
        assert len(names) == len(set(names))
    assert max(len(driver.started) for driver in drivers) >= 3
    lanes = [lane for driver in drivers for _, lane in driver.started]
    assert all(lane in lanes for lane in ("fast", "slow", None))
    hostile = {repr(value) for value in hostile_values()}
    assert len(hostile.intersection(map(repr, lanes))) > len(hostile) / 2
    # A share of requests that no one may call rare, nor the others.
    assert 1 / 4 < sum(lane in ("fast", "slow") for lane in lanes) / len(lanes) < 3 / 4


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

    run_state_machine_as_test(Machine, settings=times(Fraction(1, 6)))
