"""Every value of the vocabulary is checked when it is built, and refused by field and value."""

from collections.abc import Callable

import attrs
import numpy as np
import pytest

from kvoffload import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CanonicalPageMapping,
    CopyRun,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    GPULoadStoreSpec,
    InvalidValueError,
    KVOffloadError,
    Locality,
    MappingError,
    Medium,
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingGroupConfig,
    OffloadingHistogramMetadata,
    OffloadingKVEventsConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
    OffloadingStats,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    TierFilter,
    TierMatcher,
    TransferResult,
)
from spec_tests.clauses.helpers import A

Build = Callable[..., object]


RUN = CopyRun(0, 0, 4, 2, 8, 4)
MAPPING = CanonicalPageMapping(16, 16, (RUN,), 2, 1, True)
GROUP = OffloadingGroupConfig(16)
MODEL = OffloadingModelConfig("model", "float16")
CACHE = OffloadingCacheConfig(16)
PARALLEL = OffloadingParallelConfig()

# Arguments that each can be built from; a test changes one of them, or adds it.
GOOD: dict[Build, dict[str, object]] = {
    TierMatcher: {},
    TierFilter: {},
    ReqContext: {"req_id": "r"},
    RequestOffloadingContext: {},
    ScheduleEndContext: {"new_req_ids": ["a"], "preempted_req_ids": ("b",)},
    CPULoadStoreSpec: {"block_ids": [1, 2]},
    GPULoadStoreSpec: {"block_ids": [1, 2], "group_sizes": [2], "block_indices": [0]},
    PrepareStoreOutput: {
        "keys_to_store": [A],
        "store_spec": CPULoadStoreSpec([0]),
        "evicted_keys": [],
    },
    TransferResult: {"job_id": 1, "success": True},
    OffloadingEvent: {"keys": [A], "medium": Medium.CPU, "removed": False},
    OffloadingKVEventsConfig: {
        "enable_kv_cache_events": True,
        "self_describing_kv_events": True,
    },
    OffloadingCounterMetadata: {"documentation": "text"},
    OffloadingHistogramMetadata: {"documentation": "text"},
    OffloadingGroupConfig: {"tokens_per_block": 16},
    OffloadingModelConfig: {"name": "model", "dtype": "float16"},
    OffloadingCacheConfig: {"tokens_per_hash": 16},
    OffloadingParallelConfig: {},
    OffloadingConfig: {
        "groups": (GROUP,),
        "worker_kv_bytes_per_block": 1,
        "enable_kv_cache_events": False,
        "extra_config": {},
        "engine_id": "engine",
        "model": MODEL,
        "cache": CACHE,
        "parallel": PARALLEL,
    },
    CopyRun: {
        "local_offset": 0,
        "canonical_offset": 0,
        "fragment_size": 4,
        "num_fragments": 2,
        "local_stride": 8,
        "canonical_stride": 4,
    },
    CanonicalPageMapping: {
        "canonical_page_size_bytes": 16,
        "local_page_size_bytes": 16,
        "runs": (RUN,),
        "num_writers": 2,
        "writer_index": 1,
        "parallelism_agnostic": True,
    },
    CanonicalKVCacheRef: {"tensor_idx": 0, "page_size_bytes": 1},
    CanonicalKVCaches: {"tensors": [], "group_data_refs": []},
    CPUOffloadingManager: {"num_chunks": 1},
}

REFUSED: list[tuple[Build, str, object]] = [
    (TierMatcher, "medium", "CPU"),
    (TierMatcher, "locality", Medium.CPU),
    (TierFilter, "matchers", (Medium.CPU,)),
    (ReqContext, "req_id", 3),
    (ReqContext, "kv_transfer_params", [1]),
    (ReqContext, "load_tier_filter", None),
    (RequestOffloadingContext, "policy", "block_level"),
    (ScheduleEndContext, "new_req_ids", "abc"),
    (ScheduleEndContext, "preempted_req_ids", [1]),
    (CPULoadStoreSpec, "block_ids", [-1]),
    (CPULoadStoreSpec, "block_ids", [2**31]),
    (CPULoadStoreSpec, "block_ids", [1.5]),
    (CPULoadStoreSpec, "block_ids", [[1]]),
    (CPULoadStoreSpec, "block_ids", [True]),
    (GPULoadStoreSpec, "block_ids", [-1, 2]),
    (GPULoadStoreSpec, "group_sizes", [1]),
    (GPULoadStoreSpec, "group_sizes", [-1]),
    (GPULoadStoreSpec, "group_sizes", [2.0]),
    (GPULoadStoreSpec, "block_indices", [0, 1]),
    (GPULoadStoreSpec, "block_indices", [-1]),
    (PrepareStoreOutput, "store_spec", None),
    (TransferResult, "success", 1),
    (TransferResult, "transfer_size", -1),
    (TransferResult, "transfer_size", 1.5),
    (TransferResult, "transfer_time", -0.5),
    (OffloadingEvent, "medium", "CPU"),
    (OffloadingEvent, "removed", 1),
    (OffloadingEvent, "locality", "LOCAL"),
    (OffloadingEvent, "ownership", 3),
    (OffloadingEvent, "removal_expected", None),
    (OffloadingKVEventsConfig, "self_describing_kv_events", 1),
    (OffloadingKVEventsConfig, "enable_kv_cache_events", "yes"),
    (OffloadingCounterMetadata, "documentation", None),
    (OffloadingCounterMetadata, "labelnames", (1,)),
    (OffloadingHistogramMetadata, "buckets", (2.0, 1.0)),
    (OffloadingHistogramMetadata, "buckets", ()),
    (OffloadingHistogramMetadata, "buckets", (1.0, 1.0)),
    (OffloadingGroupConfig, "tokens_per_block", 0),
    (OffloadingGroupConfig, "tokens_per_block", True),
    (OffloadingGroupConfig, "group_id", -1),
    (OffloadingGroupConfig, "layer_names", (3,)),
    (OffloadingGroupConfig, "sliding_window_size_in_chunks", 0),
    (OffloadingModelConfig, "name", None),
    (OffloadingModelConfig, "dtype", 16),
    (OffloadingModelConfig, "max_model_len", -1),
    (OffloadingCacheConfig, "tokens_per_hash", 0),
    (OffloadingCacheConfig, "blocks_per_chunk", 0),
    (OffloadingParallelConfig, "rank", 1),
    (OffloadingParallelConfig, "rank", -1),
    (OffloadingParallelConfig, "world_size", 0),
    (OffloadingParallelConfig, "tp_size", 0),
    (OffloadingParallelConfig, "pp_size", 0),
    (OffloadingParallelConfig, "pcp_size", 0),
    (OffloadingParallelConfig, "dcp_size", 1.0),
    (OffloadingParallelConfig, "data_parallel_index", 1),
    (OffloadingParallelConfig, "data_parallel_size", 0),
    (OffloadingParallelConfig, "data_parallel_rank_local", -1),
    (OffloadingParallelConfig, "is_parallelism_agnostic", 1),
    (OffloadingConfig, "groups", (16,)),
    (OffloadingConfig, "worker_kv_bytes_per_block", -1),
    (OffloadingConfig, "enable_kv_cache_events", 1),
    (OffloadingConfig, "extra_config", None),
    (OffloadingConfig, "engine_id", None),
    (OffloadingConfig, "model", "model"),
    (OffloadingConfig, "cache", None),
    (OffloadingConfig, "parallel", None),
    (OffloadingConfig, "replicated_layout", 0),
    (OffloadingConfig, "canonical_layout", 0),
    (OffloadingConfig, "kv_cache_layout", 3),
    (CopyRun, "local_offset", -1),
    (CopyRun, "canonical_offset", -1),
    (CopyRun, "fragment_size", 0),
    (CopyRun, "num_fragments", 0),
    (CopyRun, "local_stride", -1),
    (CopyRun, "canonical_stride", 1.5),
    (CanonicalPageMapping, "canonical_page_size_bytes", 0),
    (CanonicalPageMapping, "local_page_size_bytes", 0),
    (CanonicalPageMapping, "runs", (1,)),
    (CanonicalPageMapping, "num_writers", 0),
    (CanonicalPageMapping, "writer_index", -1),
    (CanonicalPageMapping, "parallelism_agnostic", 1),
    (CanonicalKVCacheRef, "tensor_idx", -1),
    (CanonicalKVCacheRef, "page_size_bytes", 0),
    (CanonicalKVCacheRef, "mapping", RUN),
    (CanonicalKVCaches, "tensors", [RUN]),
    (CPUOffloadingManager, "num_chunks", -1),
    (CPUOffloadingManager, "num_chunks", 1.0),
    (CPUOffloadingManager, "num_chunks", True),
    (CPUOffloadingManager, "store_threshold", -1),
    (CPUOffloadingManager, "max_tracker_size", -1),
    (CPUOffloadingManager, "max_tracker_size", None),
]


def label(case: object) -> str | None:
    """Names for the classes and values that a test is about."""
    return case.__name__ if isinstance(case, type) else None


@pytest.mark.parametrize("build", GOOD, ids=label)
def test_good_arguments_build_a_value(build: Build) -> None:
    assert build(**GOOD[build]) is not None


@pytest.mark.parametrize(("build", "field", "value"), REFUSED, ids=label)
def test_a_value_out_of_its_domain_is_refused_by_field_and_value(
    build: Build, field: str, value: object
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        build(**{**GOOD[build], field: value})
    error = caught.value
    assert isinstance(error, KVOffloadError)
    assert isinstance(error, ValueError)
    # An element of a collection may be named in its place.
    assert error.field.partition("[")[0] == field
    assert error.value == value or (isinstance(value, list | tuple) and error.value in value)
    assert field in str(error)
    assert repr(error.value) in str(error)


@pytest.mark.parametrize("size", [float("nan"), float("-inf")])
def test_a_transfer_takes_a_finite_time(size: float) -> None:
    with pytest.raises(InvalidValueError, match="transfer_time"):
        TransferResult(1, True, None, size)


@pytest.mark.parametrize(
    ("build", "field", "value"),
    [
        (CopyRun, "local_stride", 3),
        (CopyRun, "canonical_stride", 0),
        (CanonicalPageMapping, "writer_index", 2),
        (CanonicalPageMapping, "local_page_size_bytes", 11),
        (CanonicalPageMapping, "canonical_page_size_bytes", 7),
    ],
    ids=label,
)
def test_pages_that_contradict_themselves_are_refused_with_the_figures(
    build: Build, field: str, value: int
) -> None:
    with pytest.raises(MappingError, match=rf"\b{value}\b"):
        build(**{**GOOD[build], field: value})


class Tensor:
    """Shape and place of a tensor, without a library of tensors."""

    shape = (4, 8)

    def stride(self) -> tuple[int, int]:
        return 8, 1

    def storage_offset(self) -> int:
        return 0

    def element_size(self) -> int:
        return 1

    def data_ptr(self) -> int:
        return 0


def test_references_to_tensors_that_are_not_there_or_too_small_are_refused() -> None:
    tensors = [CanonicalKVCacheTensor(Tensor(), 8)]
    CanonicalKVCaches(tensors, [[CanonicalKVCacheRef(0, 8)], []])
    with pytest.raises(MappingError, match="tensor 1"):
        CanonicalKVCaches(tensors, [[CanonicalKVCacheRef(1, 8)]])
    with pytest.raises(MappingError, match="9 bytes"):
        CanonicalKVCaches(tensors, [[], [CanonicalKVCacheRef(0, 9)]])


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        (
            TierMatcher(Medium.CPU, Locality.LOCAL),
            TierMatcher(locality=Locality.LOCAL, medium=Medium.CPU),
        ),
        (TierFilter((TierMatcher(),)), TierFilter(matchers=(TierMatcher(),))),
        (TransferResult(1, True), TransferResult(job_id=1, success=True)),
        (
            TransferResult(1, True, 2, 0.5),
            TransferResult(job_id=1, success=True, transfer_size=2, transfer_time=0.5),
        ),
        (
            OffloadingEvent([A], Medium.STORAGE, True, Locality.REMOTE, "disk", True),
            OffloadingEvent(
                keys=[A],
                medium=Medium.STORAGE,
                removed=True,
                locality=Locality.REMOTE,
                ownership="disk",
                removal_expected=True,
            ),
        ),
        (
            ScheduleEndContext(["a"], ["b"]),
            ScheduleEndContext(new_req_ids=["a"], preempted_req_ids=["b"]),
        ),
        (
            CopyRun(0, 1, 4, 2, 8, 4),
            CopyRun(
                local_offset=0,
                canonical_offset=1,
                fragment_size=4,
                num_fragments=2,
                local_stride=8,
                canonical_stride=4,
            ),
        ),
    ],
)
def test_values_built_with_the_documented_arguments_are_equal(
    positional: object, named: object
) -> None:
    assert positional == named


def test_values_do_not_change() -> None:
    values: list[tuple[object, str]] = [
        (TierFilter(), "matchers"),
        (OffloadingEvent([A], Medium.CPU, False), "removed"),
        (TransferResult(1, True), "success"),
        (RequestOffloadingContext(), "policy"),
        (GROUP, "tokens_per_block"),
        (RUN, "local_offset"),
        (MAPPING, "runs"),
    ]
    for value, name in values:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, name, None)


def test_block_ids_do_not_change() -> None:
    spec = CPULoadStoreSpec([1, 2])
    with pytest.raises(ValueError, match="read-only"):
        spec.block_ids[0] = 5
    assert spec.chunk_ids.tolist() == [1, 2]


def test_the_array_given_stays_the_callers_own() -> None:
    given = np.array([1, 2], dtype=np.int32)
    spec = CPULoadStoreSpec(given)
    given[0] = 7
    assert spec.block_ids.tolist() == [1, 2]


def test_a_fragment_lies_i_strides_behind_the_offset() -> None:
    assert (RUN.local_end, RUN.canonical_end) == (12, 8)
    lone = CopyRun(3, 5, 4, 1, 0, 0)
    assert (lone.local_end, lone.canonical_end) == (7, 9)


def test_writers_take_turns_by_block() -> None:
    assert [MAPPING.is_writer(block) for block in range(4)] == [False, True, False, True]


def test_an_empty_interval_has_no_figures() -> None:
    stats = OffloadingStats()
    assert stats.is_empty()
    assert stats.reduce() == {}
    stats.set_gauge("g", 1, ("label",))
    assert not stats.is_empty()
    assert stats.reduce() == {"g:('label',)": 1}
    with pytest.raises(InvalidValueError, match="times"):
        stats.observe_histogram("h", 1, times=0)
