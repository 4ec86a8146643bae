"""COPY-1, COPY-2, COPY-3, COPY-6: what a plan moves, against copying byte by byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvoffload import (
    AttentionLayer,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CopyRun,
    CPULoadStoreSpec,
    Encoding,
    GPULoadStoreSpec,
    InvalidValueError,
    KVParallelConfig,
    MappingError,
    TilingError,
    derive_mappings,
)
from kvoffload.canonical.pages import CanonicalPageMapping
from kvoffload.copying.host import copy_rows
from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
from kvoffload.copying.plans import (
    CopyPlan,
    Direction,
    Memory,
    PagePlan,
    plan_load,
    plan_store,
)
from kvoffload.errors import (
    BlockOutOfRangeError,
    DoubledDestinationError,
    PartialChunkError,
    TransferCountError,
)
from spec_tests.memory import dense

Bytes = NDArray[np.uint8]
POISON = 0xEE


class Block(NamedTuple):
    """One block of a transfer, as a caller thinks of it."""

    group: int
    logical: int
    gpu_block: int
    slot: int


class Transfer(NamedTuple):
    """A drawn transfer: blocks with their slots, and how specs say so."""

    blocks: list[Block]
    gpu: GPULoadStoreSpec
    cpu: CPULoadStoreSpec
    null_blocks: Mapping[int, set[int]]


class World(NamedTuple):
    """Memory on both sides, and what is copied between."""

    layout: CopyLayout
    gpu: list[Bytes]
    host: list[Bytes]


@st.composite
def page_runs(draw: st.DrawFn, tensor: int) -> PageRuns:
    """A page cut into fragments that lie in another order, and apart, on the host."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(sizes))))
    place: dict[int, int] = {}
    there = draw(st.integers(0, 2))
    for index in order:
        place[index] = there
        there += sizes[index] + draw(st.integers(0, 2))
    runs: list[CopyRun] = []
    at = 0
    for index, size in enumerate(sizes):
        runs.append(CopyRun(at, place[index], size, 1, 0, 0))
        at += size
    if draw(st.booleans()):
        # A run of several fragments behind them.
        number = draw(st.integers(2, 3))
        runs.append(CopyRun(at, there + 1, 2, number, 2, draw(st.integers(2, 5))))
    return PageRuns(tensor, tuple(runs))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Groups with tensors of their own or shared ones, padded rows, several blocks a chunk."""
    num_tensors = draw(st.integers(1, 3))
    factor = draw(st.integers(1, 3))
    num_blocks, num_slots = draw(st.integers(6, 9)), draw(st.integers(5, 7))
    groups: list[tuple[PageRuns, ...]] = []
    for _ in range(draw(st.integers(1, 3))):
        tensors = draw(st.sets(st.integers(0, num_tensors - 1), min_size=1))
        groups.append(tuple(draw(page_runs(tensor)) for tensor in sorted(tensors)))
    pages = [page for group in groups for page in group]
    gpu_sizes, host_sizes = [1] * num_tensors, [1] * num_tensors
    for page in pages:
        for run in page.runs:
            gpu_sizes[page.tensor] = max(gpu_sizes[page.tensor], run.local_end)
            host_sizes[page.tensor] = max(host_sizes[page.tensor], run.canonical_end)
    layout = CopyLayout(
        gpu=[Rows(num_blocks, size) for size in gpu_sizes],
        host=[Rows(num_slots * factor, size) for size in host_sizes],
        groups=tuple(groups),
        blocks_per_chunk=factor,
    )
    noise = np.random.default_rng(draw(st.integers(0, 5)))
    padding = draw(st.integers(0, 3))
    gpu = [
        noise.integers(0, 200, (num_blocks, size + padding), dtype=np.uint8) for size in gpu_sizes
    ]
    host = [np.full((num_slots * factor, size + 1), POISON, dtype=np.uint8) for size in host_sizes]
    return World(layout, gpu, host)


@st.composite
def transfers(draw: st.DrawFn, layout: CopyLayout) -> Transfer:
    """Blocks and slots in any order, groups of any size that begin anywhere in a chunk."""
    factor = layout.blocks_per_chunk
    free_blocks = list(draw(st.permutations(range(layout.gpu[0].num_rows))))
    free_slots = list(draw(st.permutations(range(layout.num_slots))))
    blocks: list[Block] = []
    sizes: list[int] = []
    firsts: list[int] = []
    slots: list[int] = []
    null_blocks: dict[int, set[int]] = {}
    for group in range(len(layout.groups)):
        first = draw(st.integers(0, 5))
        size = draw(st.integers(0, min(4, len(free_blocks))))
        held: dict[int, int] = {}
        for index in range(first, first + size):
            chunk = index // factor
            if chunk not in held:
                if not free_slots:
                    size = index - first
                    break
                held[chunk] = free_slots.pop()
                slots.append(held[chunk])
            blocks.append(Block(group, index, free_blocks.pop(), held[chunk]))
        sizes.append(size)
        firsts.append(first)
        covered = range(first, first + size)
        null_blocks[group] = {
            index
            for chunk in held
            for index in range(chunk * factor, (chunk + 1) * factor)
            if index not in covered
        }
    gpu = GPULoadStoreSpec([block.gpu_block for block in blocks], sizes, firsts)
    return Transfer(blocks, gpu, CPULoadStoreSpec(slots), null_blocks)


def copied(world: World, transfer: Transfer, *, store: bool) -> tuple[list[Bytes], list[Bytes]]:
    """Both sides after the transfer, copied byte by byte."""
    gpu = [side.copy() for side in world.gpu]
    host = [side.copy() for side in world.host]
    factor = world.layout.blocks_per_chunk
    for block in transfer.blocks:
        for page in world.layout.groups[block.group]:
            near = gpu[page.tensor][block.gpu_block]
            far = host[page.tensor][block.slot * factor + block.logical % factor]
            for run in page.runs:
                for i in range(run.num_fragments):
                    for byte in range(run.fragment_size):
                        here = run.local_offset + i * run.local_stride + byte
                        there = run.canonical_offset + i * run.canonical_stride + byte
                        if store:
                            far[there] = near[here]
                        else:
                            near[here] = far[there]
    return gpu, host


def run_addresses(plan: CopyPlan, gpu: list[Bytes], host: list[Bytes]) -> int:
    """Carry a plan out by its addresses, in a flat memory; answers the bytes moved."""
    sides = [*gpu, *host]
    starts = np.cumsum([0, *(side.size for side in sides)]).tolist()
    flat = np.concatenate([side.ravel() for side in sides])
    memories = [Memory(start, side.shape[1]) for start, side in zip(starts, sides, strict=False)]
    pieces = plan.written_out(memories[: len(gpu)], memories[len(gpu) :])
    assert len(pieces.size) == plan.num_fragments
    moved = 0
    for source, target, size in zip(*(part.tolist() for part in pieces), strict=True):
        flat[target : target + size] = flat[source : source + size]
        moved += size
    for start, side in zip(starts, sides, strict=False):
        side[:] = flat[start : start + side.size].reshape(side.shape)
    return moved


@pytest.mark.clause("COPY-1")
@given(worlds(), st.data())
def test_storing_and_loading_moves_what_it_should_and_nothing_else(
    world: World, data: st.DataObject
) -> None:
    """Poison, padding and all other rows included; by rows and by addresses alike."""
    stored = data.draw(transfers(world.layout))
    plan = plan_store(world.layout, stored.gpu, stored.cpu, null_blocks=stored.null_blocks)
    expected = copied(world, stored, store=True)
    by_address = World(world.layout, [a.copy() for a in world.gpu], [a.copy() for a in world.host])
    assert run_addresses(plan, by_address.gpu, by_address.host) == plan.num_bytes
    copy_rows(plan, world.gpu, world.host)
    for found in (world, by_address):
        assert_equal(found.gpu, expected[0])
        assert_equal(found.host, expected[1])

    loaded = data.draw(transfers(world.layout))
    plan = plan_load(world.layout, loaded.cpu, loaded.gpu)
    expected = copied(world, loaded, store=False)
    by_address = World(world.layout, [a.copy() for a in world.gpu], [a.copy() for a in world.host])
    assert run_addresses(plan, by_address.gpu, by_address.host) == plan.num_bytes
    copy_rows(plan, world.gpu, world.host)
    for found in (world, by_address):
        assert_equal(found.gpu, expected[0])
        assert_equal(found.host, expected[1])


def assert_equal(found: list[Bytes], expected: list[Bytes]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def plain(*group_tensors: int, blocks_per_chunk: int = 1, num_slots: int = 4) -> CopyLayout:
    """Groups of one tensor each, pages of 8 bytes, 8 blocks."""
    run = CopyRun(0, 0, 8, 1, 8, 8)
    tensors = max(group_tensors) + 1
    return CopyLayout(
        gpu=[Rows(8, 8)] * tensors,
        host=[Rows(num_slots * blocks_per_chunk, 8)] * tensors,
        groups=tuple((PageRuns(tensor, (run,)),) for tensor in group_tensors),
        blocks_per_chunk=blocks_per_chunk,
    )


@pytest.mark.clause("COPY-2")
def test_a_group_may_begin_and_end_inside_a_chunk() -> None:
    layout = plain(0, blocks_per_chunk=3)
    gpu = GPULoadStoreSpec([7, 5, 6, 1, 0], None, [2])
    plan = plan_load(layout, CPULoadStoreSpec([3, 1, 2]), gpu)
    (page,) = plan.pages
    assert page.gpu_rows.tolist() == [7, 5, 6, 1, 0]
    # Sub-block 2 of slot 3, all of slot 1, sub-block 0 of slot 2.
    assert page.host_rows.tolist() == [11, 3, 4, 5, 6]
    assert plan.direction is Direction.LOAD
    assert plan.num_bytes == 40


@pytest.mark.clause("COPY-2")
def test_a_group_of_no_blocks_uses_no_chunk() -> None:
    layout = plain(0, 1, blocks_per_chunk=2)
    gpu = GPULoadStoreSpec([4, 5], [0, 2], [5, 6])
    (page,) = plan_load(layout, CPULoadStoreSpec([3]), gpu).pages
    assert (page.tensor, page.host_rows.tolist()) == (1, [6, 7])
    assert plan_load(layout, CPULoadStoreSpec([]), GPULoadStoreSpec([], [0, 0], [0, 1])).pages == ()


@pytest.mark.clause("COPY-2")
@pytest.mark.parametrize(
    ("gpu", "slots", "why"),
    [
        (GPULoadStoreSpec([0, 1], None, [0]), [1, 2], "2 slots for blocks that lie in 1 chunks"),
        (GPULoadStoreSpec([0, 1], None, [1]), [1], "1 slots for blocks that lie in 2 chunks"),
        (GPULoadStoreSpec([0, 1], [1, 1], [0, 0]), [1, 2], "2 groups in the transfer, 1 in the"),
    ],
)
def test_counts_that_disagree_are_refused(
    gpu: GPULoadStoreSpec, slots: list[int], why: str
) -> None:
    with pytest.raises(TransferCountError, match=why):
        plan_load(plain(0, blocks_per_chunk=2), CPULoadStoreSpec(slots), gpu)


@pytest.mark.clause("COPY-3")
def test_what_no_tensor_has_is_refused() -> None:
    layout = plain(0)
    with pytest.raises(BlockOutOfRangeError, match="block 8 is not below the 8 that tensor 0 has"):
        plan_store(layout, GPULoadStoreSpec([8], None, [0]), CPULoadStoreSpec([0]))
    with pytest.raises(BlockOutOfRangeError, match="slot 4 is not below the 4 that tensor 0 has"):
        plan_load(layout, CPULoadStoreSpec([4]), GPULoadStoreSpec([0], None, [0]))
    doubled = plain(0, blocks_per_chunk=2)
    with pytest.raises(BlockOutOfRangeError, match="slot 4 is not below the 4"):
        plan_load(doubled, CPULoadStoreSpec([4]), GPULoadStoreSpec([0], None, [0]))


@pytest.mark.clause("COPY-3")
def test_nothing_is_written_twice() -> None:
    layout = plain(0, 0, blocks_per_chunk=2)
    with pytest.raises(DoubledDestinationError, match=r"load: block 3 of .* 2 times"):
        plan_load(layout, CPULoadStoreSpec([1]), GPULoadStoreSpec([3, 3], [2, 0], [0, 0]))
    # Two groups that share a tensor.
    with pytest.raises(DoubledDestinationError, match="load: block 3"):
        plan_load(layout, CPULoadStoreSpec([1, 2]), GPULoadStoreSpec([3, 3], [1, 1], [0, 0]))
    with pytest.raises(DoubledDestinationError, match="store: row 2"):
        plan_store(layout, GPULoadStoreSpec([0, 1, 2, 3], [2, 2], [0, 0]), CPULoadStoreSpec([1, 1]))
    with pytest.raises(DoubledDestinationError, match="load: block 5 of tensor 1"):
        plan_load(
            plain(0, 1), CPULoadStoreSpec([0, 1, 2]), GPULoadStoreSpec([3, 5, 5], [1, 2], [0, 0])
        )
    # Reading twice is nobody's harm.
    plan_store(layout, GPULoadStoreSpec([3, 3], [2, 0], [0, 0]), CPULoadStoreSpec([1]))
    assert plan_load(
        plain(0, 1), CPULoadStoreSpec([1, 1]), GPULoadStoreSpec([3, 3], [1, 1], [0, 0])
    ).pages


@pytest.mark.clause("COPY-6")
def test_a_store_of_part_of_a_chunk_is_refused_unless_the_rest_holds_nothing() -> None:
    layout = plain(0, blocks_per_chunk=3)
    gpu, cpu = GPULoadStoreSpec([0, 1, 2], None, [1]), CPULoadStoreSpec([2, 3])
    with pytest.raises(PartialChunkError, match=r"blocks \[0, 4, 5\] are not known to"):
        plan_store(layout, gpu, cpu)
    with pytest.raises(PartialChunkError, match=r"blocks \[5\] are not known"):
        plan_store(layout, gpu, cpu, null_blocks={0: {0, 4}, 1: {5}})
    assert plan_store(layout, gpu, cpu, null_blocks={0: {0, 4, 5}}).num_bytes == 24
    # A load may begin and end where it likes.
    assert plan_load(layout, cpu, gpu).num_bytes == 24


ATTENTION = AttentionLayer(
    total_kv_heads=2, head_size=2, element_size_bytes=1, encoding=Encoding.SPLIT_NHD
)


def caches(*mappings: CanonicalPageMapping | None, padding: int = 0) -> CanonicalKVCaches:
    """One group whose layers have these mappings."""
    size = 16
    refs = [
        CanonicalKVCacheRef(index, m.local_page_size_bytes if m else size, m)
        for index, m in enumerate(mappings)
    ]
    tensors = [
        CanonicalKVCacheTensor(dense(8, ref.page_size_bytes), ref.page_size_bytes + padding)
        for ref in refs
    ]
    return CanonicalKVCaches(tensors, [refs])


@pytest.mark.clause("MAP-3")
def test_workers_that_keep_the_same_bytes_write_in_turn_and_all_read() -> None:
    mappings = derive_mappings(ATTENTION, KVParallelConfig(block_size=2, tp_size=4))
    written: list[list[int]] = []
    for mapping in mappings:
        layout = CopyLayout.canonical_of(caches(mapping), num_slots=3, blocks_per_chunk=2)
        gpu, cpu = GPULoadStoreSpec([0, 1, 2, 3], None, [0]), CPULoadStoreSpec([2, 1])
        (page,) = plan_store(layout, gpu, cpu).pages
        written.append(page.host_rows.tolist())
        (page,) = plan_load(layout, cpu, gpu).pages
        assert page.host_rows.tolist() == [4, 5, 2, 3]
    assert written == [[4, 2], [5, 3], [4, 2], [5, 3]]


@pytest.mark.clause("MAP-3")
def test_a_worker_that_writes_nothing_has_an_empty_plan() -> None:
    mapping = derive_mappings(ATTENTION, KVParallelConfig(block_size=2, tp_size=4))[1]
    layout = CopyLayout.canonical_of(caches(mapping), num_slots=3)
    plan = plan_store(layout, GPULoadStoreSpec([5], None, [0]), CPULoadStoreSpec([2]))
    assert (plan.pages, plan.num_bytes, plan.num_fragments) == ((), 0, 0)


@pytest.mark.clause("COPY-3")
def test_rows_follow_from_the_caches() -> None:
    mapping = derive_mappings(ATTENTION, KVParallelConfig(block_size=2, tp_size=2))[0]
    direct = CopyLayout.direct(caches(mapping, None, padding=4), num_slots=3, blocks_per_chunk=2)
    assert direct.gpu == (Rows(8, 12), Rows(8, 20))
    assert direct.host == (Rows(6, 8), Rows(6, 16))
    assert direct.num_slots == 3
    # Padding is not copied.
    assert [page.num_bytes for page in direct.groups[0]] == [8, 16]
    shared = CopyLayout.canonical_of(caches(mapping), num_slots=3)
    assert shared.host == (Rows(3, 16),)
    with pytest.raises(MappingError, match="group 0, tensor 1: a layer without a mapping"):
        CopyLayout.canonical_of(caches(mapping, None), num_slots=3)
    half = CanonicalPageMapping(16, 8, mapping.runs[:1], 1, 0, True)
    torn = CanonicalPageMapping(16, 8, (CopyRun(0, 0, 4, 1, 4, 4),), 1, 0, True)
    assert half.runs == mapping.runs
    with pytest.raises(TilingError, match="no run covers bytes"):
        CopyLayout.canonical_of(caches(torn), num_slots=3)


@pytest.mark.clause("COPY-3")
def test_runs_stay_in_their_rows() -> None:
    run = CopyRun(0, 0, 8, 1, 8, 8)
    with pytest.raises(MappingError, match="ends 8 bytes into a row of 7 on the GPU"):
        CopyLayout([Rows(1, 7)], [Rows(1, 8)], ((PageRuns(0, (run,)),),))
    with pytest.raises(MappingError, match="ends 8 bytes into a row of 7 in host memory"):
        CopyLayout([Rows(1, 8)], [Rows(1, 7)], ((PageRuns(0, (run,)),),))
    with pytest.raises(MappingError, match="refers to tensor 1, there are 1"):
        CopyLayout([Rows(1, 8)], [Rows(1, 8)], ((PageRuns(1, (run,)),),))
    with pytest.raises(MappingError, match="several pages in one row"):
        CopyLayout([Rows(1, 8)], [Rows(1, 8)], ((PageRuns(0, (run,)),) * 2,))
    with pytest.raises(MappingError, match="2 tensors on the GPU and 1 in host memory"):
        CopyLayout([Rows(1, 8)] * 2, [Rows(1, 8)], ())
    with pytest.raises(MappingError, match="3 rows in host memory, no multiple of 2"):
        CopyLayout([Rows(1, 8)], [Rows(3, 8)], (), blocks_per_chunk=2)


@pytest.mark.clause("COPY-1")
def test_a_plan_stays_compressed() -> None:
    """Layers of a group share the pairs of rows; nothing is written out before a device asks."""
    run = CopyRun(0, 0, 1, 512, 1, 2)
    layout = CopyLayout(
        gpu=[Rows(4096, 512)] * 64,
        host=[Rows(4096, 1024)] * 64,
        groups=(tuple(PageRuns(tensor, (run,)) for tensor in range(64)),),
    )
    ids = list(range(4096))
    plan = plan_store(layout, GPULoadStoreSpec(ids, None, [0]), CPULoadStoreSpec(ids))
    assert plan.num_fragments == 64 * 4096 * 512
    rows = {id(page.gpu_rows): page.gpu_rows.nbytes for page in plan.pages}
    rows |= {id(page.host_rows): page.host_rows.nbytes for page in plan.pages}
    assert sum(rows.values()) <= 64 * 4096


@pytest.mark.clause("COPY-3")
def test_what_a_layout_cannot_mean_is_refused() -> None:
    rows = [Rows(6, 16)]
    half = CopyRun(0, 0, 8, 1, 8, 8)
    for runs, side in (
        ((half, CopyRun(7, 8, 8, 1, 8, 8)), "on the GPU"),
        ((half, CopyRun(8, 0, 8, 1, 8, 8)), "in host memory"),
        ((CopyRun(0, 0, 2, 4, 4, 4), CopyRun(5, 3, 1, 1, 1, 1)), "on the GPU"),
    ):
        with pytest.raises(MappingError, match=f"two fragments cover bytes .* {side}"):
            CopyLayout(gpu=rows, host=rows, groups=((PageRuns(0, runs),),))
    for groups in (None, 3, ("text",), ((half,),), (None,)):
        with pytest.raises(InvalidValueError, match="groups"):
            CopyLayout(gpu=rows, host=rows, groups=groups)  # type: ignore[arg-type]  # refused
    assert hash(CopyLayout(gpu=rows, host=rows, groups=[[PageRuns(0, (half,))]]))


@pytest.mark.clause("MAP-3")
def test_a_writer_whose_turn_never_comes_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="writer_index must be below num_writers, 2, got 2"):
        PageRuns(0, (CopyRun(0, 0, 8, 1, 8, 8),), 2, 2)


@pytest.mark.clause("COPY-2")
def test_specs_and_null_blocks_that_are_none_are_refused_by_name() -> None:
    page = PageRuns(0, (CopyRun(0, 0, 8, 1, 8, 8),))
    layout = CopyLayout(gpu=[Rows(6, 8)], host=[Rows(6, 8)], groups=((page,),), blocks_per_chunk=2)
    block, slot = GPULoadStoreSpec([1], None, [0]), CPULoadStoreSpec([1])
    for source, target, name in ((slot, slot, "source"), (block, block, "target")):
        with pytest.raises(InvalidValueError, match=name):
            plan_store(layout, source, target)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InvalidValueError, match="source"):
        plan_load(layout, block, block)
    with pytest.raises(InvalidValueError, match="target"):
        plan_load(layout, slot, None)  # type: ignore[arg-type]  # what is refused
    for null_blocks in (3, {0: None}, [1]):
        with pytest.raises(InvalidValueError, match="null_blocks"):
            plan_store(layout, block, slot, null_blocks=null_blocks)  # type: ignore[arg-type]
    # A request so long that no int64 holds its blocks.
    far = GPULoadStoreSpec([1], None, [2**70 + 1])
    assert plan_load(layout, slot, far).pages[0].host_rows.tolist() == [3]


@pytest.mark.clause("COPY-3")
def test_a_plan_knows_whether_it_stays_inside() -> None:
    rows, far = np.array([0, 3]), np.array([-1, 2])
    page = PagePlan(1, rows, rows, (CopyRun(2, 0, 4, 2, 5, 4),))
    plan = CopyPlan(Direction.STORE, (page,))
    plan.require_inside([(0, 0), (4, 11)], [(0, 0), (4, 8)])
    for gpu, host in (
        ([(0, 0), (3, 11)], [(0, 0), (4, 8)]),
        ([(0, 0), (4, 10)], [(0, 0), (4, 8)]),
        ([(0, 0), (4, 11)], [(0, 0), (4, 7)]),
        ([(0, 0), (4, 11)], [(4, 8)]),
    ):
        with pytest.raises(BlockOutOfRangeError):
            plan.require_inside(gpu, host)
    with pytest.raises(BlockOutOfRangeError, match="rows -1 to 2"):
        CopyPlan(Direction.LOAD, (evolve(page, host_rows=far),)).require_inside(
            [(0, 0), (4, 11)], [(0, 0), (4, 8)]
        )
