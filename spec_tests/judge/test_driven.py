"""A driven policy behind our manager gets the calls that its own host would make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from kvoffload import CachePolicy, CPUOffloadingManager, OffloadKey, ReqContext
from kvoffload.errors import PolicyContractError
from kvoffload.judge.engine import Engine
from kvoffload.judge.under_load import UnderLoad
from kvoffload.judge.workload import Workload
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from kvoffload.replay import SAMPLE, Trace
from stateful_models.capabilities import NONE
from stateful_models.driven import DrivenManager, driven_manager
from stateful_models.drivers import Driver, registered
from stateful_models.gallery.legal_policies.group_evictor import GroupEvictor
from stateful_models.hosts import PROTOCOLS, VLLM_021, VLLM_023, VLLM_030, VLLM_033, HostProtocol


@pytest.fixture(scope="module")
def workload() -> Workload:
    with Trace(SAMPLE, limit=150).open() as requests:
        return Workload.of(requests)


class Listening(LRUCachePolicy):
    """Keeps the names of the calls that it gets, each once in a row."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.calls: list[str] = []

    def _hear(self, call: str) -> None:
        if self.calls[-1:] != [call]:
            self.calls.append(call)

    def insert(self, key: OffloadKey, chunk: Any, req_context: ReqContext) -> None:
        self._hear("insert")
        super().insert(key, chunk, req_context)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._hear("touch")
        super().touch(keys, req_context)

    def evict(self, n: int, protected: Any) -> Any:
        self._hear("evict")
        return super().evict(n, protected)

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._hear("on_store_miss")

    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._hear("on_request_access")

    def on_request_finished(
        self, key_groups: Any, insertion_only_keys: Any, reused_keys: Any, req_context: ReqContext
    ) -> None:
        self._hear("on_request_finished")

    def mark_evictable(self, key: OffloadKey) -> None:
        self._hear("mark_evictable")

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._hear("mark_non_evictable")

    def clear(self) -> None:
        self._hear("clear")
        super().clear()


class ListeningDriver(Driver[Listening]):
    def request_started(self, policy: Listening, context: ReqContext) -> None:
        policy.calls.append("started")

    def looked_up(
        self, policy: Listening, key: OffloadKey, found: bool, context: ReqContext
    ) -> None:
        policy.calls.append("found" if found else "not found")

    def before_store(
        self, policy: Listening, keys: Sequence[OffloadKey], context: ReqContext
    ) -> None:
        policy.calls.append("before_store")

    def before_insert(
        self, policy: Listening, key: OffloadKey, chunk: Any, context: ReqContext
    ) -> None:
        policy.calls.append("before_insert")

    def after_insert(
        self, policy: Listening, key: OffloadKey, chunk: Any, context: ReqContext
    ) -> None:
        policy.calls.append("after_insert")

    def request_finished(self, policy: Listening, context: ReqContext) -> None:
        policy.calls.append("finished")


def heard(host: HostProtocol) -> list[str]:
    """The calls of a request that stores, and of one that loads and stores in a full cache."""
    driver: Any = ListeningDriver(Listening)
    driver.host = host
    manager = driven_manager(driver, 2)
    assert isinstance(manager, DrivenManager)
    keys = [OffloadKey(bytes([n]) + bytes(4)) for n in range(3)]
    for name, loaded, stored in (("a", [], keys[:2]), ("b", keys[:1], keys[2:])):
        context = ReqContext(name)
        manager.on_new_request(context)
        manager.lookup((loaded or stored)[0], context)
        if loaded:
            manager.prepare_load(loaded, context)
            manager.complete_load(loaded, context)
        output = manager.prepare_store(stored, context)
        assert output is not None
        manager.complete_store(stored, context)
        manager.on_request_finished(context)
    manager.reset_cache()
    policy: Any = manager.driven.policy
    calls: list[str] = policy.calls
    return calls


A, B = ["started", "not found", "before_store"], ["started", "found"]
INSERT = ["before_insert", "insert", "after_insert"]


class TestCalls:
    def test_of_vllm_033(self) -> None:
        assert heard(VLLM_033) == [
            *(*A, "on_store_miss", "on_request_access", *INSERT, *INSERT, "mark_evictable"),
            *("on_request_finished", "finished"),
            *(*B, "mark_non_evictable", "on_request_access", "mark_evictable", "before_store"),
            *("on_store_miss", "on_request_access", "evict", *INSERT, "mark_evictable"),
            *("on_request_finished", "finished", "clear"),
        ]

    def test_of_vllm_030(self) -> None:
        assert heard(VLLM_030) == [
            *(*A, "touch", *INSERT, *INSERT, "mark_evictable", "finished"),
            *(*B, "touch", "mark_non_evictable", "mark_evictable", "before_store", "touch"),
            *("evict", *INSERT, "mark_evictable", "finished", "clear"),
        ]

    def test_of_vllm_023(self) -> None:
        calls = heard(VLLM_023)
        assert "evict" in calls
        assert not {"mark_evictable", "mark_non_evictable"} & set(calls)

    def test_a_host_that_never_clears_builds_anew(self) -> None:
        assert heard(VLLM_021) == []


@pytest.mark.parametrize("policy", [LRUCachePolicy, ARCCachePolicy])
def test_driven_or_not_the_calls_of_033_come_to_the_same(
    policy: type[CachePolicy], workload: Workload
) -> None:
    driver: Driver[CachePolicy] = Driver(policy)
    assert type(driven_manager(driver, 300)) is CPUOffloadingManager
    plain = Engine(driven_manager(driver, 300), workload).run()
    driven = Engine(DrivenManager(driver, 300), workload).run()
    assert plain.block_hits.sum() > 0
    assert list(plain.block_hits) == list(driven.block_hits)
    assert (plain.stored, plain.refused) == (driven.stored, driven.refused)


@pytest.mark.parametrize("host", PROTOCOLS, ids=lambda host: host.name)
def test_baselines_live_with_every_host(host: HostProtocol, workload: Workload) -> None:
    for name in ("lru", "arc"):
        driver = registered(name)
        driver.host = host
        manager = driven_manager(driver, 300)
        assert Engine(manager, workload).run().block_hits.sum() > 0
        manager.check()


def test_a_driven_policy_is_convicted_under_its_own_name() -> None:
    class Wrong(LRUCachePolicy):
        def evict(self, n: int, protected: Any) -> Any:
            super().evict(n, protected)
            return []

    driver: Driver[CachePolicy] = Driver(Wrong, {})
    driver.host = VLLM_030
    manager = driven_manager(driver, 1)
    keys = [OffloadKey(bytes([n]) + bytes(4)) for n in range(2)]
    context = ReqContext("a")
    manager.prepare_store(keys[:1], context)
    manager.complete_store(keys[:1], context)
    with pytest.raises(PolicyContractError, match=r"Wrong\.evict broke POL-2"):
        manager.prepare_store(keys[1:], context)


def test_more_may_go_than_was_asked_for_where_that_is_declared(workload: Workload) -> None:
    manager = driven_manager(Driver(GroupEvictor), 300)
    outcome = Engine(manager, workload).run()
    assert outcome.block_hits.sum() > 0
    manager.check()
    load = UnderLoad(driven_manager(Driver(GroupEvictor), 12).policy, 12)
    assert load.serve(8)
    # Of the eight only four had to go.
    assert load.serve(8)
    assert len(load.chunks) == 8
    # It is held to all else that victims are, and those who did not declare it to that as well.
    few = r"\d+ victims instead of"
    for wrong, said in ((Greedy, few), (Scant, few), (Twice, "a victim is named twice")):
        with pytest.raises(PolicyContractError, match=said):
            Engine(driven_manager(Driver(wrong), 300), workload).run()


class Greedy(GroupEvictor):
    capabilities = NONE


class Scant(GroupEvictor):
    def evict(self, n: int, protected: Any) -> Any:
        victims = super().evict(n, protected)
        return victims and victims[: n - 1]


class Twice(GroupEvictor):
    def evict(self, n: int, protected: Any) -> Any:
        victims = super().evict(n, protected)
        return victims and victims + victims[:1]
