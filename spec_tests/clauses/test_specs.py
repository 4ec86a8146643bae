"""SPECS-1 to SPECS-4: what travels to workers, and what a specification is."""

import mmap
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager

import attrs
import numpy as np
import pytest
from typing_extensions import override

from kvoffload import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    CPUOffloadingSpec,
    GPULoadStoreSpec,
    InvalidValueError,
    KVOffloadError,
    LoadStoreSpec,
    LookupResult,
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingKVEventsConfig,
    OffloadingManager,
    OffloadingModelConfig,
    OffloadingParallelConfig,
    OffloadingSpec,
    OffloadingWorker,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    TransferResult,
)
from spec_tests.clauses.helpers import A, put, request

MIB = 2**20


def config(
    extra: Mapping[str, object] | None = None,
    *,
    events: bool = False,
    bytes_per_block: int = 1000,
    blocks_per_chunk: int = 1,
    parallel: OffloadingParallelConfig | None = None,
) -> OffloadingConfig:
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block=16), OffloadingGroupConfig(32)),
        worker_kv_bytes_per_block=bytes_per_block,
        enable_kv_cache_events=events,
        extra_config={"cpu_bytes_to_use": MIB} if extra is None else extra,
        engine_id="engine",
        model=OffloadingModelConfig("model", "float16"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=blocks_per_chunk),
        parallel=parallel or OffloadingParallelConfig(),
    )


class NoWorker(OffloadingWorker):
    @override
    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return False

    @override
    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return False

    @override
    def get_finished(self) -> list[TransferResult]:
        return []

    @override
    def wait(self, job_ids: set[int]) -> None:
        return None


class SpecWithWorker(CPUOffloadingSpec):
    @override
    def create_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        return NoWorker()


# SPECS-1


@pytest.mark.clause("SPECS-1")
@pytest.mark.parametrize("ids", [[], [0], [3, 1, 2], [2**31 - 1]])
def test_block_ids_are_an_int32_array(ids: list[int]) -> None:
    specs: list[BlockIDsLoadStoreSpec] = [
        CPULoadStoreSpec(ids),
        GPULoadStoreSpec(ids, [len(ids)], [0]),
    ]
    for spec in specs:
        assert spec.block_ids.dtype == np.int32
        assert spec.block_ids.shape == (len(ids),)
        assert spec.block_ids.tolist() == ids


@pytest.mark.clause("SPECS-1")
def test_block_ids_of_a_manager_are_an_int32_array_too() -> None:
    manager = CPUOffloadingManager(2)
    output = put(manager, [A])
    assert isinstance(output.store_spec, CPULoadStoreSpec)
    for spec in (
        output.store_spec,
        manager.prepare_load([A], request()),
        manager.prepare_load([], request()),
    ):
        assert spec.block_ids.dtype == np.int32
        assert spec.block_ids.ndim == 1


@pytest.mark.clause("SPECS-1")
@pytest.mark.parametrize("bad", [-1, 2**31, 2**32, 2**70])
def test_overflowing_and_negative_block_ids_are_refused(bad: int) -> None:
    with pytest.raises(InvalidValueError, match="block_ids") as caught:
        CPULoadStoreSpec([0, bad])
    assert str(bad) in str(caught.value)
    with pytest.raises(InvalidValueError, match="block_ids"):
        GPULoadStoreSpec([0, bad], [2], [0])


@pytest.mark.clause("SPECS-1")
def test_group_sizes_sum_to_the_blocks() -> None:
    spec = GPULoadStoreSpec([5, 6, 7], [2, 0, 1], [4, 0, 9])
    assert list(spec.group_sizes) == [2, 0, 1]
    assert list(spec.block_indices) == [4, 0, 9]
    for sizes in ([2, 0], [4, 0, 1], [2, 2, -1]):
        with pytest.raises(ValueError, match="group_sizes"):
            GPULoadStoreSpec([5, 6, 7], sizes, [0] * len(sizes))


@pytest.mark.clause("SPECS-1")
@pytest.mark.parametrize("indices", [[], [4], [4, 0, 0]])
def test_each_group_has_one_block_index(indices: Sequence[int]) -> None:
    with pytest.raises(ValueError, match="block_indices"):
        GPULoadStoreSpec([5, 6, 7], [2, 1], indices)


@pytest.mark.clause("SPECS-1")
def test_no_group_sizes_mean_one_group() -> None:
    spec = GPULoadStoreSpec([5, 6, 7], None, [4])
    assert list(spec.group_sizes) == [3]
    with pytest.raises(ValueError, match="block_indices"):
        GPULoadStoreSpec([5, 6, 7], None, [4, 5])


# SPECS-2


@pytest.mark.clause("SPECS-2")
def test_a_spec_offloads_prompts_only_by_default() -> None:
    assert CPUOffloadingSpec(config()).offload_prompt_only is True
    asked = config({"cpu_bytes_to_use": MIB, "offload_prompt_only": False})
    assert CPUOffloadingSpec(asked).offload_prompt_only is False


@pytest.mark.clause("SPECS-2")
def test_a_spec_has_no_replicated_layout_by_default() -> None:
    assert CPUOffloadingSpec(config()).replicated_layout is False
    assert config().replicated_layout is False


@pytest.mark.clause("SPECS-2")
@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("self_describing", [False, True])
def test_events_are_captured_only_when_enabled_and_described_only_when_both(
    enabled: bool, self_describing: bool
) -> None:
    events = OffloadingKVEventsConfig(enabled, self_describing)
    assert events.captures is enabled
    assert events.captures_payloads is (enabled and self_describing)
    options = {"cpu_bytes_to_use": MIB, "self_describing_kv_events": self_describing}
    spec = CPUOffloadingSpec(config(options, events=enabled))
    assert spec.kv_events_config == events
    manager = spec.get_manager()
    put(manager, [A])
    assert bool(manager.take_events()) is enabled


@pytest.mark.clause("SPECS-2")
def test_a_spec_knows_its_geometry() -> None:
    spec = CPUOffloadingSpec(config(blocks_per_chunk=4))
    assert spec.tokens_per_block == (16, 32)
    assert spec.tokens_per_hash == 16
    assert spec.blocks_per_chunk == 4
    assert spec.config.engine_id == "engine"
    assert spec.extra_config == {"cpu_bytes_to_use": MIB}


@pytest.mark.clause("SPECS-2")
def test_get_manager_gives_the_same_object_each_time() -> None:
    spec = CPUOffloadingSpec(config())
    assert spec.get_manager() is spec.get_manager()
    assert CPUOffloadingSpec(config()).get_manager() is not spec.get_manager()


@pytest.mark.clause("SPECS-2")
def test_get_worker_gives_the_same_object_each_time() -> None:
    spec = SpecWithWorker(config())
    caches = CanonicalKVCaches([], [])
    assert spec.get_worker(caches) is spec.get_worker(caches)


@pytest.mark.clause("SPECS-2")
def test_options_reach_the_manager() -> None:
    manager = CPUOffloadingSpec(
        config({"cpu_bytes_to_use": MIB, "store_threshold": 3, "max_tracker_size": 5})
    ).get_manager()
    assert (manager.store_threshold, manager.max_tracker_size) == (3, 5)
    default = CPUOffloadingSpec(config()).get_manager()
    assert default.store_threshold < 2
    assert default.max_tracker_size == 64_000


@pytest.mark.clause("SPECS-2")
@pytest.mark.parametrize(
    "option",
    [
        {"offload_prompt_only": "false"},
        {"self_describing_kv_events": "no"},
        {"store_threshold": -1},
        {"max_tracker_size": 1.5},
        {"eviction_policy": 3},
    ],
)
def test_an_option_of_a_wrong_type_is_refused_by_name(option: dict[str, object]) -> None:
    [name] = option
    with pytest.raises(InvalidValueError, match=name) as caught:
        CPUOffloadingSpec(config({"cpu_bytes_to_use": MIB, **option}))
    assert caught.value.value == option[name]


# SPECS-3


class Bare(OffloadingManager):
    """Only what is abstract."""

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.MISS

    @override
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        return CPULoadStoreSpec([])

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        return None


class BareSpec(OffloadingSpec):
    @override
    def get_manager(self) -> OffloadingManager:
        return Bare()

    @override
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        return NoWorker()


@pytest.mark.clause("SPECS-3")
def test_completions_and_notices_do_nothing_unless_overridden() -> None:
    manager, context = Bare(), request()
    manager.touch([A], context)
    manager.complete_load([A], context)
    manager.complete_store([A], context, success=False)
    manager.on_request_finished(context)
    manager.on_schedule_end(ScheduleEndContext(["r"], []))
    manager.reset_cache()
    manager.on_reset_flushed()
    manager.shutdown()
    manager.shutdown()


@pytest.mark.clause("SPECS-3")
def test_nothing_is_pending_announced_or_counted_unless_overridden() -> None:
    manager = Bare()
    assert manager.has_pending_work() is False
    assert list(manager.take_events()) == []
    assert manager.get_stats() is None


@pytest.mark.clause("SPECS-3")
def test_the_lock_is_a_no_op_unless_overridden() -> None:
    manager = Bare()
    assert isinstance(manager.lock, AbstractContextManager)
    with manager.lock, manager.lock:
        assert manager.lookup(A, request()) is LookupResult.MISS


@pytest.mark.clause("SPECS-3")
def test_a_step_end_is_a_named_tuple() -> None:
    new, preempted = context = ScheduleEndContext(("a", "b"), {"c"})
    assert new == context.new_req_ids == ("a", "b")
    assert preempted == context.preempted_req_ids == {"c"}
    assert isinstance(context, tuple)


@pytest.mark.clause("SPECS-3")
def test_a_worker_shuts_down_and_a_spec_has_no_metrics_unless_overridden() -> None:
    NoWorker().shutdown()
    assert BareSpec.build_metric_definitions({}) == {}


@pytest.mark.clause("SPECS-3")
def test_the_cpu_manager_keeps_the_defaults_that_it_does_not_need() -> None:
    manager = CPUOffloadingManager(2)
    put(manager, [A])
    manager.on_schedule_end(ScheduleEndContext([], []))
    manager.on_reset_flushed()
    assert manager.has_pending_work() is False
    with manager.lock:
        assert manager.lookup(A, request()) is LookupResult.HIT


# SPECS-4


def num_chunks(
    cpu_bytes: int, *, block: int, chunk: int = 1, parallel: OffloadingParallelConfig | None = None
) -> int:
    return CPUOffloadingSpec(
        config(
            {"cpu_bytes_to_use": cpu_bytes},
            bytes_per_block=block,
            blocks_per_chunk=chunk,
            parallel=parallel,
        )
    ).num_chunks


@pytest.mark.clause("SPECS-4")
def test_a_chunk_is_all_workers_blocks_rounded_up_to_pages() -> None:
    page = mmap.PAGESIZE
    four = OffloadingParallelConfig(world_size=4)
    assert num_chunks(10 * page, block=page) == 10
    assert num_chunks(10 * page, block=1) == 10
    assert num_chunks(10 * page, block=page + 1) == 5
    assert num_chunks(10 * page, block=page // 4, parallel=four) == 10
    assert num_chunks(10 * page, block=page // 4, chunk=2, parallel=four) == 5
    # Rounded up once, not block by block or worker by worker.
    assert num_chunks(10 * page, block=10, chunk=3, parallel=four) == 10


@pytest.mark.clause("SPECS-4")
def test_what_does_not_fill_a_chunk_is_left_over() -> None:
    page = mmap.PAGESIZE
    assert num_chunks(page - 1, block=page) == 0
    assert num_chunks(3 * page - 1, block=page) == 2


@pytest.mark.clause("SPECS-4")
def test_the_manager_has_as_many_slots_as_chunks_fit() -> None:
    spec = CPUOffloadingSpec(config({"cpu_bytes_to_use": 7 * mmap.PAGESIZE}, bytes_per_block=9))
    assert spec.get_manager().num_chunks == spec.num_chunks == 7


@pytest.mark.clause("SPECS-4")
def test_every_rank_computes_the_same_number() -> None:
    one = OffloadingParallelConfig(world_size=6, tp_size=3, pp_size=2)
    assert (
        len({num_chunks(MIB, block=1234, parallel=attrs.evolve(one, rank=r)) for r in range(6)})
        == 1
    )


@pytest.mark.clause("SPECS-4")
@pytest.mark.parametrize("cpu_bytes", [0, -1, "1GiB", None, 1.5, True])
def test_a_non_positive_size_is_a_value_error(cpu_bytes: object) -> None:
    with pytest.raises(ValueError, match="cpu_bytes_to_use") as caught:
        CPUOffloadingSpec(config({"cpu_bytes_to_use": cpu_bytes}))
    assert isinstance(caught.value, KVOffloadError)


@pytest.mark.clause("SPECS-4")
def test_a_missing_size_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="cpu_bytes_to_use"):
        CPUOffloadingSpec(config({}))
