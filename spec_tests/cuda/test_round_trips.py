"""COPY-1, COPY-4, ORD-1 on a GPU: every path, pinned or not, behind kernels that take time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvoffload import (
    AttentionLayer,
    CopyRun,
    CPULoadStoreSpec,
    Encoding,
    GPULoadStoreSpec,
    KVParallelConfig,
    LatentLayer,
    Layer,
    derive_mappings,
)
from kvoffload.copying.cuda.paths import CopyPath
from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
from kvoffload.copying.plans import plan_load, plan_store
from spec_tests.clauses.test_copying import World, copied, transfers, worlds
from spec_tests.cuda.stand import Stand, array_of, host_tensor, make_stand, sleep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

# Every path, and torch's also from memory that is not pinned: the others need it pinned.
WAYS = [(path, True) for path in CopyPath] + [(CopyPath.TORCH, False), (CopyPath.DRIVER, False)]
POISON = 0xEE


def require(stand: Stand, path: CopyPath) -> None:
    if path not in stand.device.available:
        pytest.skip(f"the path {path.value} is not available on this machine")


def assert_sides(stand: Stand, gpu: list[np.ndarray], host: list[np.ndarray]) -> None:
    for found, wanted in zip([*stand.gpu, *stand.host], [*gpu, *host], strict=True):
        np.testing.assert_array_equal(array_of(found), wanted)


@pytest.mark.parametrize(("path", "pinned"), WAYS)
@given(world=worlds(), data=st.data())
def test_any_transfer(path: CopyPath, pinned: bool, world: World, data: st.DataObject) -> None:
    """Groups, factors, padding, odd sizes; poison around, and nothing else changed."""
    host = [host_tensor(array, pinned=pinned) for array in world.host]
    stand = make_stand(world.layout, world.gpu, host, path)
    require(stand, path)
    stored = data.draw(transfers(world.layout))
    expected = copied(world, stored, store=True)
    plan = plan_store(world.layout, stored.gpu, stored.cpu, null_blocks=stored.null_blocks)
    stream = stand.device.new_stream("test")
    stand.device.copy(stream, plan, "store")
    stream.stream.synchronize()
    assert_sides(stand, *expected)
    world = World(world.layout, *expected)
    loaded = data.draw(transfers(world.layout))
    expected = copied(world, loaded, store=False)
    stand.device.copy(stream, plan_load(world.layout, loaded.cpu, loaded.gpu), "load")
    stream.stream.synchronize()
    assert_sides(stand, *expected)
    stand.worker.shutdown()


def plain_layout(page: int, blocks: int, slots: int) -> CopyLayout:
    run = CopyRun(0, 0, page, 1, page, page)
    return CopyLayout([Rows(blocks, page)], [Rows(slots, page)], ((PageRuns(0, (run,)),),))


@pytest.mark.parametrize(("path", "pinned"), WAYS)
@pytest.mark.parametrize("page", [1, 3, 511, 4096, 65_537, 1 << 20, 64 << 20])
def test_pages_of_all_sizes_behind_a_slow_kernel(path: CopyPath, pinned: bool, page: int) -> None:
    """A store that does not wait would keep what was there before the kernel wrote."""
    noise = np.random.default_rng(page).integers(0, 200, (3, page), dtype=np.uint8)
    host = host_tensor(np.full((4, page), POISON, dtype=np.uint8), pinned=pinned)
    stand = make_stand(plain_layout(page, 3, 4), [np.zeros_like(noise)], [host], path)
    require(stand, path)
    written = torch.as_tensor(noise).cuda()
    torch.cuda.synchronize()

    sleep()
    stand.gpu[0].copy_(written)
    assert stand.worker.submit_store(1, blocks(2, 0), slots(1, 3))
    stand.finish(1)
    expected = np.full((4, page), POISON, dtype=np.uint8)
    expected[1], expected[3] = noise[2], noise[0]
    assert_sides(stand, [noise], [expected])

    # A load that does not wait would be read by a kernel enqueued before it, and overwritten.
    seen = torch.empty_like(written)
    sleep()
    seen.copy_(stand.gpu[0])
    stand.gpu[0].zero_()
    assert stand.worker.submit_load(2, slots(3, 1), blocks(1, 2), expedited=True)
    stand.finish(2)
    np.testing.assert_array_equal(array_of(seen), noise)
    after = np.zeros_like(noise)
    after[1], after[2] = noise[0], noise[2]
    assert_sides(stand, [after], [expected])
    stand.worker.shutdown()


@pytest.mark.parametrize("path", list(CopyPath))
def test_transfers_of_different_lanes_keep_their_order(path: CopyPath) -> None:
    """Store, load into the stored block, store again, load elsewhere: each after the last."""
    page = 1 << 20
    noise = np.random.default_rng(7).integers(0, 256, (4, page), dtype=np.uint8)
    host = host_tensor(np.zeros((4, page), dtype=np.uint8), pinned=True)
    host[3].copy_(torch.as_tensor(noise[3]))
    stand = make_stand(plain_layout(page, 4, 4), [noise], [host], path)
    require(stand, path)
    sleep()
    assert stand.worker.submit_store(1, blocks(0), slots(0))
    assert stand.worker.submit_load(2, slots(3), blocks(0))
    assert stand.worker.submit_store(3, blocks(0), slots(1))
    assert stand.worker.submit_load(4, slots(1), blocks(1), expedited=True)
    assert stand.worker.submit_store(5, blocks(1), slots(0))
    stand.finish(1, 2, 3, 4, 5)
    assert (array_of(stand.host[0]) == noise[3]).all()
    assert (array_of(stand.host[1]) == noise[3]).all()
    assert (array_of(stand.gpu[1]) == noise[3]).all()
    stand.worker.shutdown()


LAYERS: list[Layer] = [
    *(
        AttentionLayer(total_kv_heads=4, head_size=64, element_size_bytes=2, encoding=encoding)
        for encoding in Encoding
    ),
    LatentLayer(row_elements=576, element_size_bytes=2, second_row_bytes=132),
]
CONFIGURATIONS = [
    KVParallelConfig(block_size=16),
    KVParallelConfig(block_size=16, tp_size=2),
    KVParallelConfig(block_size=8, tp_size=8, dcp_size=2, interleave=4),
    KVParallelConfig(block_size=8, tp_size=2, pcp_size=2, interleave=1),
]


@pytest.mark.parametrize("path", list(CopyPath))
@pytest.mark.parametrize("layer", LAYERS)
def test_canonical_pages_across_ranks(path: CopyPath, layer: Layer) -> None:
    """Stored by all ranks of one configuration, loaded by all ranks of every other."""
    num_slots = 3
    size = derive_mappings(layer, CONFIGURATIONS[0])[0].canonical_page_size_bytes
    content = np.random.default_rng(11).integers(0, 256, (num_slots, size), dtype=np.uint8)
    for storing in CONFIGURATIONS:
        host = host_tensor(np.full((num_slots, size), POISON, dtype=np.uint8), pinned=True)
        for rank_pages, layout in _ranks(layer, storing, content):
            stand = make_stand(layout, [rank_pages], [host], path)
            require(stand, path)
            assert stand.worker.submit_store(1, blocks(0, 1, 2), slots(0, 1, 2))
            stand.finish(1)
            stand.worker.shutdown()
        np.testing.assert_array_equal(array_of(host), content)
        for loading in CONFIGURATIONS:
            for rank_pages, layout in _ranks(layer, loading, content):
                stand = make_stand(layout, [np.zeros_like(rank_pages)], [host], path)
                assert stand.worker.submit_load(1, slots(0, 1, 2), blocks(0, 1, 2))
                stand.finish(1)
                np.testing.assert_array_equal(array_of(stand.gpu[0]), rank_pages)
                stand.worker.shutdown()


def _ranks(
    layer: Layer, parallel: KVParallelConfig, content: np.ndarray
) -> list[tuple[np.ndarray, CopyLayout]]:
    """Each rank's pages of the content, cut byte by byte along its runs, and its layout."""
    found: list[tuple[np.ndarray, CopyLayout]] = []
    for mapping in derive_mappings(layer, parallel):
        pages = np.zeros((len(content), mapping.local_page_size_bytes), dtype=np.uint8)
        for run in mapping.runs:
            for i in range(run.num_fragments):
                near = run.local_offset + i * run.local_stride
                far = run.canonical_offset + i * run.canonical_stride
                pages[:, near : near + run.fragment_size] = content[
                    :, far : far + run.fragment_size
                ]
        page = PageRuns(0, mapping.runs, mapping.num_writers, mapping.writer_index)
        layout = CopyLayout(
            gpu=[Rows(len(content), mapping.local_page_size_bytes)],
            host=[Rows(len(content), mapping.canonical_page_size_bytes)],
            groups=((page,),),
        )
        found.append((pages, layout))
    return found


def blocks(*ids: int) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(ids, None, [0])


def slots(*ids: int) -> CPULoadStoreSpec:
    return CPULoadStoreSpec(ids)
