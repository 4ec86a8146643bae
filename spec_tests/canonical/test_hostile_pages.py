"""What nobody should give to canonical pages, and what is said then: by name, before any change."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from kvoffload import (
    AttentionLayer,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CanonicalPageMapping,
    CopyRun,
    DirectRun,
    Encoding,
    HeadShare,
    InvalidValueError,
    KVParallelConfig,
    LatentLayer,
    LayoutId,
    MappingError,
    OpaqueLayer,
    PackedLayers,
    PageCopy,
    PageNotReadyError,
    PagePool,
    Resharding,
    TilingError,
    canonical_kv_caches,
    derive_mapping,
    derive_mappings,
    layout_id,
    normal_form,
    recognise,
    verify_tiling,
)
from kvoffload.canonical.pages import MAX_PAGE_SIZE_BYTES
from kvoffload.canonical.tiling import verify_page
from spec_tests.memory import Place, dense

Call = Callable[[Any], object]

LAYER = AttentionLayer(
    total_kv_heads=4, head_size=4, element_size_bytes=2, encoding=Encoding.PACKED_NHD
)
FOUR = KVParallelConfig(tp_size=4, block_size=4)
MAPPINGS = derive_mappings(LAYER, FOUR)
RUN = CopyRun(0, 0, 8, 1, 8, 8)
WHOLE = CanonicalPageMapping(8, 8, (RUN,), 1, 0, parallelism_agnostic=True)
SHARE = HeadShare(4, 8, 1)
TENSOR = dense(5, 4, 4, 8, size=2)
PAGES = PagePool(4, 256)
PAGE_STORE = PAGES.begin_store(0, MAPPINGS)

NO_NUMBERS: list[object] = [
    None,
    True,
    1.0,
    float("nan"),
    "1",
    b"1",
    1j,
    [],
    np.int64(1),
    np.uint8(1),
    -1,
]
NO_VALUES: list[object] = [None, True, 1, 1.0, "layer", object(), np.zeros(2), (1,), (None,)]


TAKES_A_NUMBER: dict[str, tuple[Call, str]] = {
    "total_kv_heads": (lambda n: evolve(LAYER, total_kv_heads=n), "total_kv_heads"),
    "head_size": (lambda n: evolve(LAYER, head_size=n), "head_size"),
    "element_size_bytes": (lambda n: evolve(LAYER, element_size_bytes=n), "element_size_bytes"),
    "row": (lambda n: LatentLayer(row_elements=n, element_size_bytes=1), "row_elements"),
    "opaque": (lambda n: OpaqueLayer(page_size_bytes=n), "page_size_bytes"),
    "tp_size": (lambda n: evolve(FOUR, tp_size=n), "tp_size"),
    "interleave": (lambda n: evolve(FOUR, interleave=n), "interleave"),
    "rank": (FOUR.at, "rank"),
    "tp_rank_of": (FOUR.tp_rank_of, "rank"),
    "cp_rank_of": (FOUR.cp_rank_of, "rank"),
    "canonical_token": (FOUR.canonical_token, "token"),
    "share of heads": (lambda n: HeadShare(n, 8, 1), "total_kv_heads"),
    "share of tp": (lambda n: HeadShare(8, n, 1), "tp_size"),
    "share of dcp": (lambda n: HeadShare(8, 8, n), "dcp_size"),
    "shard": (SHARE.shard, "tp_rank"),
    "writer_index": (SHARE.writer_index, "tp_rank"),
    "fragment_size": (lambda n: evolve(RUN, fragment_size=n), "fragment_size"),
    "canonical_size": (
        lambda n: evolve(WHOLE, canonical_page_size_bytes=n),
        "canonical_page_size_bytes",
    ),
    "num_writers": (lambda n: evolve(WHOLE, num_writers=n), "num_writers"),
    "is_writer": (WHOLE.is_writer, "block_id"),
    "copies": (Resharding(MAPPINGS, MAPPINGS).copies, "block_id"),
    "source_rank": (lambda n: PageCopy(n, 0, ()), "source_rank"),
    "chunk": (lambda n: layout_id(LAYER, FOUR, blocks_per_chunk=n), "blocks_per_chunk"),
    "num_pages": (lambda n: PagePool(n, 8), "num_pages"),
    "page_size": (lambda n: PagePool(1, n), "page_size_bytes"),
    "page_id": (PAGES.is_loadable, "page_id"),
    "drop": (PAGES.drop, "page_id"),
    "begin_store": (lambda n: PAGES.begin_store(n, MAPPINGS), "page_id"),
    "write": (lambda n: PAGES.write(PAGE_STORE, n, bytes(64)), "rank"),
    "load": (lambda n: PAGES.load(n, MAPPINGS[0]), "page_id"),
}


@pytest.mark.parametrize("number", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("call", TAKES_A_NUMBER)
def test_a_number_is_an_int_and_nothing_else(call: str, number: object) -> None:
    """numpy's are refused everywhere: what is counted with them overflows without a word."""
    take, field = TAKES_A_NUMBER[call]
    with pytest.raises(InvalidValueError, match=f"^{field} must be ") as raised:
        take(number)
    assert raised.value.field == field
    assert raised.value.value is number


def test_v_heads_are_counted_as_k_heads_are() -> None:
    for size in (4.0, np.int64(4), True, 0, "4"):
        wrong: Any = size
        with pytest.raises(InvalidValueError, match="value_head_size"):
            evolve(LAYER, value_head_size=wrong)
    assert evolve(LAYER, value_head_size=4).value_head_size == 4


TAKES_A_VALUE: dict[str, Call] = {
    "derive": lambda value: derive_mapping(value, FOUR),
    "derive under": lambda value: derive_mappings(LAYER, value),
    "verify": verify_tiling,
    "verify one": lambda value: verify_tiling([value]),
    "verify page": verify_page,
    "normal form": normal_form,
    "normal form of one": lambda value: normal_form([value]),
    "runs": lambda value: evolve(WHOLE, runs=value),
    "layers": lambda value: PackedLayers(layers=value),
    "source": lambda value: Resharding(value, MAPPINGS),
    "target": lambda value: Resharding(MAPPINGS, value),
    "runs of a copy": lambda value: PageCopy(0, 0, value),
    "layout_id": lambda value: layout_id(value, FOUR),
    "layout_id under": lambda value: layout_id(LAYER, value),
    "fields of an id": lambda value: LayoutId("0" * 32, value),
    "recognise": lambda value: recognise(value, FOUR, TENSOR),
    "recognise under": lambda value: recognise(LAYER, value, TENSOR),
    "recognise in": lambda value: recognise(LAYER, FOUR, value),
    "caches": lambda value: canonical_kv_caches(value, [], FOUR),
    "caches of groups": lambda value: canonical_kv_caches({}, value, FOUR),
    "caches of a group": lambda value: canonical_kv_caches({}, [value], FOUR),
    "caches under": lambda value: canonical_kv_caches({}, [], value),
    "tensor": lambda value: CanonicalKVCacheTensor(value, 8),
    "tensors": lambda value: CanonicalKVCaches(value, []),
    "groups": lambda value: CanonicalKVCaches([], value),
    "group": lambda value: CanonicalKVCaches([], [value]),
    "config": lambda value: KVParallelConfig.from_offloading(value, block_size=4),
    "store": lambda value: PAGES.write(value, 0, bytes(64)),
    "store of": lambda value: PAGES.begin_store(0, value),
    "page": lambda value: PAGES.write(PAGE_STORE, 0, value),
    "load": lambda value: PAGES.load(0, value),
}


@pytest.mark.parametrize("value", NO_VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("call", TAKES_A_VALUE)
def test_what_is_none_of_its_kind_is_refused(call: str, value: object) -> None:
    with pytest.raises(InvalidValueError):
        TAKES_A_VALUE[call](value)
    assert PAGE_STORE.awaited == {0, 1, 2, 3}


def test_the_wrong_one_of_many_is_named_by_its_place() -> None:
    wrong: Any = [*MAPPINGS[:3], RUN]
    with pytest.raises(InvalidValueError, match=r"^mappings\[3\] must be a CanonicalPageMapping, "):
        verify_tiling(wrong)


@pytest.mark.parametrize("name", [None, 0, b"layer"])
def test_a_name_is_text(name: object) -> None:
    wrong: Any = name
    for call in (
        lambda: derive_mappings(LAYER, FOUR, name=wrong),
        lambda: verify_tiling(MAPPINGS, name=wrong),
        lambda: recognise(LAYER, FOUR, TENSOR, name=wrong),
        lambda: Resharding(MAPPINGS, MAPPINGS, wrong),
    ):
        with pytest.raises(InvalidValueError, match=r"^name must be a"):
            call()
    for tensors, groups in (({wrong: TENSOR}, [{"a": LAYER}]), ({"a": TENSOR}, [{wrong: LAYER}])):
        with pytest.raises(InvalidValueError, match="must be a str"):
            canonical_kv_caches(tensors, groups, FOUR)


def test_what_can_be_gone_through_once_is_taken() -> None:
    verify_tiling(mapping for mapping in MAPPINGS)
    assert normal_form(run for run in WHOLE.runs) == WHOLE.runs
    assert Resharding(iter(MAPPINGS), iter(MAPPINGS)) == Resharding(MAPPINGS, MAPPINGS)
    assert PackedLayers(layers=iter([LAYER])) == PackedLayers(layers=(LAYER,))
    pool = PagePool(1, 256)
    assert pool.begin_store(0, iter(MAPPINGS)).mappings == MAPPINGS


def test_no_group_is_lost_that_could_be_gone_through_only_once() -> None:
    groups: Any = (group for group in [{"a": LAYER}])
    with pytest.raises(InvalidValueError, match="groups must be a Sequence"):
        canonical_kv_caches({"a": TENSOR}, groups, FOUR)


class TestHugeNumbers:
    @pytest.mark.parametrize("size", [1 << 62, 1 << 63, 10**30])
    @pytest.mark.parametrize("field", ["total_kv_heads", "head_size", "element_size_bytes"])
    def test_a_page_is_no_longer_than_offsets_can_say(self, field: str, size: int) -> None:
        change: dict[str, Any] = {field: size}
        layer = evolve(LAYER, **change)
        packed = PackedLayers(layers=(layer, LAYER))
        for refused in (layer, packed):
            for call in (derive_mappings, layout_id):
                with pytest.raises(InvalidValueError, match="canonical_page_size_bytes must be"):
                    call(refused, KVParallelConfig(tp_size=2, block_size=4))

    def test_the_longest_page_is_spread_and_moved(self) -> None:
        layer = LatentLayer(row_elements=MAX_PAGE_SIZE_BYTES // 2, element_size_bytes=1)
        two = derive_mappings(layer, KVParallelConfig(tp_size=2, dcp_size=2, block_size=1))
        alone = derive_mappings(layer, KVParallelConfig(block_size=2))
        half = MAX_PAGE_SIZE_BYTES // 2
        assert [copy.runs for copy in Resharding(two, alone).copies()] == [
            (DirectRun(0, place * half, half, 1, half, half),) for place in (0, 1)
        ]
        packed = PackedLayers(
            layers=(OpaqueLayer(page_size_bytes=1), OpaqueLayer(page_size_bytes=half))
        )
        assert derive_mapping(packed, KVParallelConfig(block_size=2)).runs == (
            CopyRun(0, 0, half + 1, 1, half + 1, half + 1),
        )

    @pytest.mark.parametrize("many", [1 << 17, 1 << 62, 10**30])
    def test_workers_without_end(self, many: int) -> None:
        for workers in (
            KVParallelConfig(tp_size=many, block_size=4),
            KVParallelConfig(pcp_size=many, block_size=4),
        ):
            for layer in (LAYER, OpaqueLayer(page_size_bytes=8)):
                with pytest.raises(MappingError, match=f"= {many} workers, .* at most 65536"):
                    derive_mapping(layer, workers)

    def test_runs_without_end(self) -> None:
        """Heads apart from each other, and a turn for every two tokens."""
        spread = KVParallelConfig(tp_size=2, pcp_size=2, interleave=2, block_size=1 << 40)
        with pytest.raises(MappingError, match=r"549,755,813,888 runs in all, at most 262,144"):
            derive_mappings(LAYER, spread)
        # In each page few enough, in all too many.
        with pytest.raises(MappingError, match=r"1,048,576 runs in all, at most 262,144"):
            derive_mappings(LAYER, evolve(spread, tp_size=4, block_size=1 << 18))

    @pytest.mark.parametrize("many", [1 << 31, 1 << 61])
    def test_fragments_without_end_are_proved_and_not_written_out(self, many: int) -> None:
        run = CopyRun(0, 0, 1, many, 1, 2)
        mappings = [
            CanonicalPageMapping(2 * many, many, (evolve(run, canonical_offset=place),), 1, 0, True)
            for place in (0, 1)
        ]
        verify_tiling(mappings)
        with pytest.raises(MappingError, match=f"{many:,} fragments, at most 4,194,304"):
            normal_form([run])
        with pytest.raises(MappingError, match=f"{2 * many:,} fragments, at most 4,194,304"):
            Resharding(mappings, mappings).copies()

    @pytest.mark.parametrize("far", [1 << 62, 1 << 63, 10**30])
    def test_runs_that_end_beyond_every_page(self, far: int) -> None:
        for run in (
            CopyRun(far, 0, 8, 1, 8, 8),
            CopyRun(0, far, 8, 1, 8, 8),
            CopyRun(0, 0, far + 1, 1, 0, 0),
            CopyRun(0, 0, 8, 3, far, 8),
        ):
            with pytest.raises(MappingError, match="ends beyond 4611686018427387904 bytes"):
                normal_form([run])

    def test_the_strides_of_a_lone_fragment_may_say_anything(self) -> None:
        assert normal_form([CopyRun(0, 0, 8, 1, 10**30, 1 << 63)]) == (RUN,)
        wild = evolve(WHOLE, runs=(CopyRun(0, 0, 8, 1, 10**30, 0),))
        assert Resharding([wild], [wild]).copies()[0].runs == (DirectRun(0, 0, 8, 1, 8, 8),)

    @pytest.mark.parametrize("many", [10**9, 1 << 63])
    def test_turns_that_nobody_takes_are_not_counted_one_by_one(self, many: int) -> None:
        for index, missing in ((0, 1), (many - 1, 0)):
            mapping = evolve(WHOLE, num_writers=many, writer_index=index)
            with pytest.raises(TilingError, match=f"no worker takes turn {missing} "):
                verify_tiling([mapping])

    def test_pages_of_a_pool_take_memory_when_they_are_stored(self) -> None:
        assert PagePool(10**30, 1 << 60).num_pages == 10**30
        with pytest.raises(InvalidValueError, match="page_size_bytes"):
            PagePool(1, 1 << 63)


class TestNormalForm:
    @pytest.mark.parametrize(
        ("runs", "doubled"),
        [
            ([RUN, RUN], r"\[0, 8\)"),
            ([CopyRun(4, 16, 8, 1, 8, 8), RUN], r"\[4, 8\)"),
            ([CopyRun(0, 0, 8, 2, 16, 16), CopyRun(17, 40, 2, 1, 2, 2)], r"\[17, 19\)"),
        ],
    )
    def test_bytes_that_two_runs_fill_are_refused(self, runs: list[CopyRun], doubled: str) -> None:
        with pytest.raises(MappingError, match=f"two fragments cover bytes {doubled} of the page"):
            normal_form(runs)


class TestTensors:
    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"shape": (5.0, 4, 4, 8)}, "shape must be a sequence of ints"),
            ({"shape": (np.int64(5), 4, 4, 8)}, "shape must be a sequence of ints"),
            ({"shape": "abcd"}, "shape must be a sequence of ints"),
            ({"shape": lambda: (5, 4, 4, 8)}, "shape must be a sequence of ints, got <function"),
            ({"steps": (1.5, 32, 8, 1)}, r"stride\(\) must be a sequence of ints"),
            ({"size": 0.5}, r"element_size\(\) must be an int >= 1, got 0.5"),
            ({"size": None}, r"element_size\(\) must be an int >= 1"),
            ({"start": -1}, r"storage_offset\(\) must be an int >= 0, got -1"),
            ({"start": "0"}, r"storage_offset\(\) must be an int >= 0, got '0'"),
            ({"start": 1.5}, r"storage_offset\(\) must be an int >= 0, got 1.5"),
        ],
    )
    def test_sizes_are_ints(self, change: dict[str, Any], why: str) -> None:
        with pytest.raises(InvalidValueError, match=rf"^keys: {why}"):
            recognise(LAYER, KVParallelConfig(block_size=4), evolve(TENSOR, **change), name="keys")

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"shape": (5, -4, 4, 8)}, "has no blocks"),
            ({"shape": ()}, "has no blocks"),
            ({"steps": (128, 32, 8)}, r"has the strides \(128, 32, 8\)"),
            ({"steps": (-128, 32, 8, 1)}, "run backwards"),
            ({"steps": (128, 32, -8, 1)}, "run backwards"),
            ({"steps": (0, 32, 8, 1)}, "blocks lie 0 bytes apart"),
        ],
    )
    @pytest.mark.parametrize("layer", [LAYER, OpaqueLayer(page_size_bytes=256), None])
    def test_blocks_follow_each_other(
        self, change: dict[str, Any], why: str, layer: AttentionLayer | OpaqueLayer | None
    ) -> None:
        tensor = evolve(evolve(TENSOR, steps=(128, 32, 8, 1)), **change)
        if "shape" in change:
            tensor = evolve(tensor, steps=(1,) * len(change["shape"]))
        with pytest.raises(MappingError, match=rf"^keys: .*{why}"):
            canonical_kv_caches({"keys": tensor}, [{"keys": layer}], KVParallelConfig(block_size=4))

    def test_an_array_is_refused_by_its_type_and_not_shown(self) -> None:
        array: Any = np.zeros((5, 4, 4, 8), dtype=np.float16)
        with pytest.raises(InvalidValueError, match=r"element_size\(\).*<class 'numpy.ndarray'>$"):
            recognise(LAYER, FOUR, array)

    def test_parts_of_a_page_share_their_storage(self) -> None:
        """Elsewhere, the bytes of the second part would never be stored."""
        layer = OpaqueLayer(page_size_bytes=256)
        part = Place((5, 64), (128, 1), 2)
        recognise(layer, FOUR, [part, evolve(part, start=64)])
        apart = [part, evolve(part, start=64, address=1 << 20)]
        for described in (layer, None):
            with pytest.raises(MappingError, match="keys: 2 tensors in 2 storages"):
                canonical_kv_caches({"keys": apart}, [{"keys": described}], FOUR)
        packed = PackedLayers(layers=(OpaqueLayer(page_size_bytes=128),) * 2)
        with pytest.raises(MappingError, match="2 tensors in 2 storages"):
            recognise(packed, FOUR, apart)

    def test_tensors_without_memory_are_recognised_and_no_caches(self) -> None:
        """Two of them would be taken for one."""
        tensor = evolve(TENSOR, address=0)
        alone = KVParallelConfig(block_size=4)
        assert recognise(evolve(LAYER, encoding=None), alone, tensor) is not None
        with pytest.raises(MappingError, match=r"a: data_ptr\(\) is 0"):
            canonical_kv_caches({"a": tensor, "b": tensor}, [{"a": LAYER, "b": LAYER}], alone)


class TestPool:
    def test_a_page_is_bytes(self) -> None:
        pool = PagePool(1, 256)
        store = pool.begin_store(0, MAPPINGS)
        for page in (np.zeros(64, dtype=np.int64), [0] * 64, "x" * 64, memoryview(bytes(64))):
            wrong: Any = page
            with pytest.raises(InvalidValueError, match=r"^page must be a bytes or bytearray"):
                pool.write(store, 0, wrong)
        assert store.awaited == {0, 1, 2, 3}

    def test_a_mapping_that_is_none_of_a_page_loads_nothing(self) -> None:
        pool = PagePool(2, 8)
        assert pool.write(pool.begin_store(0, [WHOLE]), 0, b"abcdefgh")
        assert pool.load(0, WHOLE) == b"abcdefgh"
        with pytest.raises(TilingError, match=r"no run covers bytes \[0, 8\)"):
            pool.load(0, evolve(WHOLE, runs=()))
        doubled = evolve(WHOLE, local_page_size_bytes=16, runs=(RUN, evolve(RUN, local_offset=8)))
        with pytest.raises(TilingError, match="writes twice"):
            pool.load(0, doubled)
        with pytest.raises(PageNotReadyError):
            pool.load(1, WHOLE)

    @pytest.mark.clause("MAP-8")
    def test_opaque_pages_are_loaded_by_those_who_stored_them(self) -> None:
        pool = PagePool(1, 8)
        two = derive_mappings(
            OpaqueLayer(page_size_bytes=4), KVParallelConfig(tp_size=2, block_size=1)
        )
        (alone,) = derive_mappings(OpaqueLayer(page_size_bytes=8), KVParallelConfig(block_size=1))
        store = pool.begin_store(0, two)
        for rank, page in enumerate((b"abcd", b"efgh")):
            assert pool.write(store, rank, page)
        assert [pool.load(0, mapping) for mapping in two] == [b"abcd", b"efgh"]
        for other in (alone, WHOLE):
            with pytest.raises(MappingError, match="page 0: its bytes depend on the configuration"):
                pool.load(0, other)


VALUES: list[object] = [
    LAYER,
    LatentLayer(row_elements=3, element_size_bytes=1, second_row_bytes=2),
    OpaqueLayer(page_size_bytes=3, padded_page_size_bytes=4),
    PackedLayers(layers=(LAYER, LAYER)),
    FOUR,
    SHARE,
    RUN,
    MAPPINGS[1],
    CanonicalKVCacheRef(0, 8, WHOLE),
    CanonicalKVCacheTensor(TENSOR, 256),
    Resharding(MAPPINGS, MAPPINGS),
    Resharding(MAPPINGS, MAPPINGS).copies()[0],
    layout_id(LAYER, FOUR),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_copied_pickled_compared_and_hashed(value: object) -> None:
    twins = [copy.copy(value), pickle.loads(pickle.dumps(value)), copy.deepcopy(value)]
    for twin in twins:
        assert type(twin) is type(value)
        assert repr(twin) == repr(value)
    # A tensor is the same only if it is the same memory.
    same = twins[:1] if isinstance(value, CanonicalKVCacheTensor) else twins
    for twin in same:
        assert twin == value
        assert hash(twin) == hash(value)
    assert value != object()


class Elementwise(Place):
    """Compares as tensors of torch do: element by element, which is neither True nor False."""

    __hash__ = None  # type: ignore[assignment]  # as whatever says what is equal without a hash

    def __eq__(self, other: object) -> Any:
        raise TypeError("neither true nor false")


def test_caches_are_compared_without_a_look_at_their_elements() -> None:
    one, other = (Elementwise((5, 8), (8, 1)) for _ in range(2))
    assert CanonicalKVCacheTensor(one, 8) == CanonicalKVCacheTensor(one, 8)
    assert CanonicalKVCacheTensor(one, 8) != CanonicalKVCacheTensor(other, 8)
    assert len({CanonicalKVCacheTensor(one, 8), CanonicalKVCacheTensor(one, 8)}) == 1


ERRORS: list[Call] = [
    lambda _: derive_mappings(LAYER, KVParallelConfig(tp_size=3, block_size=4)),
    lambda _: verify_tiling(MAPPINGS[:2]),
    lambda _: verify_tiling((MAPPINGS[0],) * 4),
    lambda _: PagePool(0, 1),
    lambda _: PagePool(1, 1).load(0, WHOLE),
]


@pytest.mark.parametrize("call", ERRORS)
def test_errors_are_copied_and_pickled(call: Call) -> None:
    with pytest.raises((MappingError, InvalidValueError, PageNotReadyError)) as raised:
        call(None)
    for twin in (copy.copy(raised.value), pickle.loads(pickle.dumps(raised.value))):
        assert type(twin) is type(raised.value)
        assert str(twin) == str(raised.value)
        assert vars(twin) == vars(raised.value)
