"""vLLM's manager behind the interface of this project: everything translated, nothing repaired."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeAlias
from weakref import ref

import pytest
from attrs import evolve

from kvoffload import (
    CPULoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadPolicy,
    PrepareStoreOutput,
    ReqContext,
    ScheduleEndContext,
    TierFilter,
    TierMatcher,
    make_offload_key,
)
from kvoffload.policies.lru import LRUCachePolicy
from kvoffload.vllm.control_plane import ControlPlane
from stateful_models.manager_drivers import ManagerOptions
from stateful_models.policy_tap import Tap
from stateful_models.programs import keys
from stateful_models.subjects import takes_tickets
from stateful_models.vllm.manager import VLLMManager, VLLMManagerDriver

A, B, C = keys("a b c/1")


TWO = ManagerOptions(num_chunks=2)

Build: TypeAlias = Callable[[ManagerOptions], VLLMManager]


@pytest.fixture
def build(control_plane: ControlPlane) -> Build:
    return VLLMManagerDriver(control_plane).build


def stored(manager: VLLMManager, context: ReqContext, *named: bytes) -> PrepareStoreOutput:
    offered = [key for key in (A, B, C) if key in named]
    output = manager.prepare_store(offered, context)
    assert output is not None
    manager.complete_store(offered, context)
    return output


def test_keys_are_the_same_bytes(control_plane: ControlPlane) -> None:
    assert control_plane.make_offload_key(b"hash", 7) == make_offload_key(b"hash", 7)


def test_a_store_and_a_load(build: Build) -> None:
    manager, context = build(TWO), ReqContext("r")
    assert isinstance(manager, OffloadingManager)
    assert manager.on_new_request(context).policy is OffloadPolicy.CHUNK_LEVEL
    assert manager.lookup(A, context) is LookupResult.MISS
    output = manager.prepare_store([A, C], context)
    assert output is not None
    assert (output.keys_to_store, output.evicted_keys, output.ticket) == ([A, C], [], None)
    assert isinstance(output.store_spec, CPULoadStoreSpec)
    assert output.store_spec.block_ids.tolist() == [0, 1]
    assert manager.lookup(A, context) is LookupResult.HIT_PENDING
    manager.complete_store([A, C], context)
    assert manager.lookup(A, context) is LookupResult.HIT
    spec = manager.prepare_load([C, A, C], context)
    assert (spec.block_ids.tolist(), spec.ticket) == ([1, 0, 1], None)
    assert manager.prepare_store([B], ReqContext("other")) is None
    manager.complete_load([C, A, C], context)
    assert list(manager.take_events()) == [OffloadingEvent([A, C], Medium.CPU, False)]


def test_figures_have_the_names_and_kinds_of_ours(build: Build) -> None:
    manager, context = build(ManagerOptions(num_chunks=4, store_threshold=2)), ReqContext("r")
    manager.prepare_store([A], context)
    manager.prepare_store([A], context)
    stats = manager.get_stats()
    assert stats is not None
    assert stats.reduce() == {
        "vllm:kv_offload_cpu_cache_usage_perc": 0.25,
        "vllm:kv_offload_cpu_cache_write_usage_perc": 0.25,
        "vllm:kv_offload_cpu_cache_read_usage_perc": 0.0,
        "vllm:kv_offload_cpu_allocation_size_count": 1,
        "vllm:kv_offload_cpu_allocation_size_sum": 1,
        "vllm:kv_offload_stores_skipped": 1,
    }
    assert [len(part) for part in (stats.gauges, stats.counters, stats.histograms)] == [3, 1, 1]


def test_a_request_has_one_context_of_vllms_while_its_own_lives(
    build: Build,
) -> None:
    manager, context = build(TWO), ReqContext("r")
    theirs = manager.context_of(context)
    assert manager.context_of(context) is theirs
    assert manager.context_of(ReqContext("r")) is not theirs
    watched = ref(theirs)
    del theirs, context
    gc.collect()
    assert watched() is None


def test_a_context_is_told_what_the_request_says_by_now(
    control_plane: ControlPlane, build: Build
) -> None:
    manager = build(TWO)
    context = ReqContext("r", {"session": 1})
    theirs = manager.context_of(context)
    assert type(theirs) is control_plane.context_class
    assert theirs.kv_transfer_params is context.kv_transfer_params
    assert theirs.load_tier_filter is control_plane.all_tiers
    assert theirs.kv_hints is None
    assert theirs.get_offload_key_position(A) is None

    context.set_offload_key_position(A, 16)
    context.kv_transfer_params = None
    context.load_tier_filter = TierFilter(matchers=(TierMatcher(Medium.STORAGE),))
    hints = control_plane.hints_envelope(protocol_version="1", message_id="m", actions=[])
    context.set_state(hints)
    manager.lookup(A, context)
    assert theirs.get_offload_key_position(A) == 16
    assert theirs.kv_transfer_params is None
    assert theirs.kv_hints is hints
    storage = control_plane.tier_matcher(control_plane.medium["STORAGE"], None)
    assert theirs.load_tier_filter == control_plane.tier_filter((storage,))


def test_positions_decide_who_goes_first(build: Build) -> None:
    manager, context = build(TWO), ReqContext("r")
    for key, end in ((A, 32), (B, 16)):
        context.set_offload_key_position(key, end)
    stored(manager, context, A, B)
    output = manager.prepare_store([C], ReqContext("other"))
    assert output is not None
    # The tail of the prompt.
    assert output.evicted_keys == [A]


def test_exceptions_are_vllms_own(build: Build) -> None:
    manager, context = build(TWO), ReqContext("r")
    with pytest.raises(AssertionError, match="not found"):
        manager.prepare_load([A], context)
    with pytest.raises(ValueError, match="nosuch"):
        build(evolve(TWO, cache_policy="nosuch"))


def test_what_announces_nothing_is_kept_apart(build: Build) -> None:
    manager, context = build(TWO), ReqContext("r")
    manager.prepare_store([A, B], context)
    manager.complete_store([A], context, success=False)
    manager.complete_store([B], context)
    assert list(manager.take_events()) == [OffloadingEvent([B], Medium.CPU, False)]
    assert manager.take_metadata_only() == [OffloadingEvent([A], Medium.CPU, True)]
    assert manager.take_metadata_only() == []


def test_events_are_taken_as_they_are_read(build: Build) -> None:
    manager, context = build(TWO), ReqContext("r")
    stored(manager, context, A)
    manager.take_events()
    assert len(list(manager.take_events())) == 1


def test_a_reset_and_the_calls_that_do_nothing(build: Build) -> None:
    manager, context = build(TWO), ReqContext("r")
    stored(manager, context, A)
    manager.reset_cache()
    manager.on_reset_flushed()
    assert manager.lookup(A, context) is LookupResult.MISS
    manager.on_schedule_end(ScheduleEndContext(["r"], []))
    manager.on_request_finished(context)
    with manager.lock:
        assert not manager.has_pending_work()
    manager.shutdown()


def test_it_says_what_it_can(control_plane: ControlPlane, build: Build) -> None:
    driver = VLLMManagerDriver(control_plane)
    able = driver.capabilities
    assert driver.policies == ("lru", "arc")
    assert (able.events, able.reuse_threshold, able.tracker_size, able.tap) == (True,) * 4
    assert not able.reference
    assert not takes_tickets(build(TWO))


def test_a_policy_of_ours_decides_in_it(build: Build) -> None:
    tap = Tap("lru")
    manager, context = build(evolve(TWO, cache_policy=tap.policy_cls)), ReqContext("r")
    tap.drain()
    stored(manager, context, A, B)
    assert [one.verb for one in tap.drain()] == [
        "on_store_miss",
        "on_request_access",
        "insert",
        "insert",
        "mark_evictable",
        "mark_evictable",
    ]
    manager = build(evolve(TWO, cache_policy=LRUCachePolicy))
    stored(manager, context, A, B)
    output = manager.prepare_store([C], context)
    assert output is not None
    assert output.evicted_keys == [A]
