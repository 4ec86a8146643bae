"""What a type checker sees through the public names; `nox -s typing` is the judge of this file.

The functions run, too, so that a sample cannot drift away from what exists.
"""

from collections.abc import Iterable, Set
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from kvoffload import (
    CachePolicy,
    CachePolicyFactory,
    ChunkStatus,
    CopyLayout,
    CopyPlan,
    CopyRun,
    CopyWorker,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    CPUOffloadingWorker,
    Direction,
    GPULoadStoreSpec,
    HostDevice,
    HostMemory,
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadingStats,
    OffloadingWorker,
    OffloadKey,
    OrderedDevice,
    PageRuns,
    PrepareStoreOutput,
    PrivateMemory,
    Race,
    RegionError,
    RegionSpaceError,
    ReqContext,
    RequestOffloadingContext,
    Rows,
    ScheduleEndContext,
    TierMatcher,
    TransferCountError,
    TransferError,
    TransferResult,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
    plan_load,
    plan_store,
)


class Hints:
    """Something a tier keeps on a request."""

    expected_gap = 1.5


def test_keys_are_a_type_of_their_own() -> None:
    key = make_offload_key(b"hash", 3)
    assert_type(key, OffloadKey)
    assert_type(get_offload_block_hash(key), bytes)
    assert_type(get_offload_group_idx(key), int)


def test_request_state_has_the_type_that_was_asked_for() -> None:
    request = ReqContext("request")
    assert_type(request.get_state(Hints), Hints | None)
    assert_type(request.kv_transfer_params, dict[str, object] | None)
    request.set_state(Hints())
    hints = request.get_state(Hints)
    assert hints is not None
    assert_type(hints.expected_gap, float)


def test_tuples_unpack_to_typed_parts() -> None:
    medium, locality = TierMatcher(Medium.CPU)
    assert_type(medium, Medium | None)
    assert_type(locality, Locality | None)
    new, preempted = ScheduleEndContext(new_req_ids=("a",), preempted_req_ids=())
    assert [*new] == ["a"]
    assert [*preempted] == []


def test_the_manager_answers_in_its_own_types() -> None:
    manager = CPUOffloadingManager(num_chunks=1, enable_events=True)
    request = ReqContext("request")
    key = make_offload_key(b"hash", 0)
    assert_type(manager.on_new_request(request), RequestOffloadingContext)
    assert_type(manager.lookup(key, request), LookupResult)
    store = manager.prepare_store([key], request)
    assert_type(store, PrepareStoreOutput | None)
    assert store is not None
    assert_type(store.keys_to_store, list[OffloadKey])
    assert_type(store.ticket, int | None)
    manager.complete_store([key], request, ticket=store.ticket)
    load = manager.prepare_load([key], request)
    assert_type(load, CPULoadStoreSpec)
    assert_type(load.block_ids, NDArray[np.int32])
    manager.complete_load([key], request, ticket=load.ticket)
    events: Iterable[OffloadingEvent] = manager.take_events()
    assert [event.removed for event in events] == [False]
    stats = manager.get_stats()
    assert isinstance(stats, OffloadingStats)
    assert_type(stats.reduce(), dict[str, float])


def test_a_policy_of_others_needs_six_methods() -> None:
    class Never(CachePolicy):
        may_refuse = "keeps everything"

        def get(self, key: OffloadKey) -> ChunkStatus | None:
            return None

        def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
            pass

        def remove(self, key: OffloadKey) -> None:
            pass

        def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
            pass

        def evict(
            self, n: int, protected: Set[OffloadKey]
        ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
            return None

        def clear(self) -> None:
            pass

    policy: CachePolicy = Never(cache_capacity=3)
    assert_type(policy.evict(1, set()), list[tuple[OffloadKey, ChunkStatus]] | None)
    assert_type(CachePolicyFactory.get_cache_policy_cls("lru"), type[CachePolicy])


def test_a_manager_of_others_needs_four_methods() -> None:
    class Nothing(OffloadingManager):
        def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
            return RequestOffloadingContext()

        def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
            return LookupResult.MISS

        def prepare_load(
            self, keys: Iterable[OffloadKey], req_context: ReqContext
        ) -> CPULoadStoreSpec:
            return CPULoadStoreSpec([])

        def prepare_store(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
            return None

    ask_nothing_of(Nothing())


def test_what_moves_bytes_has_types_though_it_is_imported_later() -> None:
    page = PageRuns(0, (CopyRun(0, 0, 4, 1, 4, 4),))
    layout = CopyLayout([Rows(2, 4)], [Rows(2, 4)], ((page,),))
    assert_type(layout.groups, tuple[tuple[PageRuns, ...], ...])
    blocks, slots = GPULoadStoreSpec([1], None, [0]), CPULoadStoreSpec([0])
    assert_type(plan_store(layout, blocks, slots), CopyPlan)
    assert_type(plan_load(layout, slots, blocks).direction, Direction)
    gpu, host = np.full((2, 4), 7, dtype=np.uint8), np.zeros((2, 4), dtype=np.uint8)
    worker: OffloadingWorker = CopyWorker(layout, HostDevice([gpu], [host]))
    assert_type(worker.submit_store(1, blocks, slots), bool)
    worker.wait({1})
    assert_type(worker.get_finished(), list[TransferResult])
    worker.shutdown()
    assert host[0].tolist() == [7] * 4
    device = OrderedDevice([gpu], [host])
    assert_type(device.races, list[Race])
    memory: HostMemory = PrivateMemory(layout.host)
    assert_type(memory.rows(0), NDArray[np.uint8])
    memory.close()
    assert issubclass(TransferCountError, TransferError)
    assert issubclass(RegionSpaceError, RegionError)
    assert issubclass(CPUOffloadingWorker, CopyWorker)


def ask_nothing_of(manager: OffloadingManager) -> None:
    """Use any manager through the interface alone."""
    request = ReqContext("request")
    assert_type(manager.prepare_store([], request), PrepareStoreOutput | None)
    with manager.lock:
        assert manager.lookup(make_offload_key(b"hash", 0), request) is LookupResult.MISS
