"""COPY-1 with caches of torch: the worker reads and writes the very memory of the tensors."""

import pytest
import torch

from kvoffload import (
    AttentionLayer,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CPULoadStoreSpec,
    Encoding,
    GPULoadStoreSpec,
    KVParallelConfig,
    MappingError,
    canonical_kv_caches,
)
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.memory import PrivateMemory
from kvoffload.copying.tensors import byte_rows
from kvoffload.cpu.worker import host_worker

BLOCKS, TOKENS, HEADS, SIZE = 5, 4, 3, 8


def of_one_layer(tensor: torch.Tensor, page: int) -> CanonicalKVCaches:
    return CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, page)], [[CanonicalKVCacheRef(0, page)]]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int8])
@pytest.mark.parametrize("canonical", [False, True])
def test_tensors_of_any_type_are_stored_and_loaded(dtype: torch.dtype, canonical: bool) -> None:
    """Shown with heads before tokens, while memory has it the other way round."""
    numbers = torch.arange(BLOCKS * TOKENS * HEADS * 2 * SIZE) % 100
    content = numbers.to(torch.float32).to(dtype).view(BLOCKS, TOKENS, HEADS, 2 * SIZE)
    tensor = content.clone().transpose(1, 2)
    layer = AttentionLayer(
        total_kv_heads=HEADS,
        head_size=SIZE,
        element_size_bytes=dtype.itemsize,
        encoding=Encoding.PACKED_NHD,
    )
    caches = canonical_kv_caches(
        {"layer": tensor}, [{"layer": layer}], KVParallelConfig(block_size=TOKENS)
    )
    make = CopyLayout.canonical_of if canonical else CopyLayout.direct
    layout = make(caches, num_slots=3)
    worker = host_worker(caches, layout, PrivateMemory(layout.host))
    assert worker.submit_store(1, GPULoadStoreSpec([4, 1], None, [0]), CPULoadStoreSpec([2, 0]))
    worker.wait({1})
    tensor.view(torch.uint8)[:] = 0xEE
    assert worker.submit_load(2, CPULoadStoreSpec([0, 2]), GPULoadStoreSpec([3, 0], None, [0]))
    worker.wait({2})
    assert [result.success for result in worker.get_finished()] == [True, True]
    worker.shutdown()
    arrived, wanted = (
        one.transpose(1, 2).contiguous().view(torch.uint8)
        for one in (tensor, content.transpose(1, 2))
    )
    assert torch.equal(arrived[3], wanted[1])
    assert torch.equal(arrived[0], wanted[4])
    for block in (1, 2, 4):
        assert bool((arrived[block] == 0xEE).all())


def test_rows_are_where_the_tensor_is() -> None:
    whole = torch.arange(60, dtype=torch.int16).view(5, 12)
    view = whole[1:, 2:8]
    (rows,) = byte_rows(of_one_layer(view, page=12))
    assert rows.shape == (4, 12)
    rows[0] = 1
    expected = torch.tensor([12, 13, *[257] * 6, 20, 21, 22, 23], dtype=torch.int16)
    assert torch.equal(whole[1], expected)
    del whole, view
    assert rows[0].tolist() == [1] * 12


def test_memory_that_the_host_cannot_reach_is_refused() -> None:
    with pytest.raises(MappingError, match="tensor 0: a tensor without memory of its own"):
        byte_rows(of_one_layer(torch.zeros(3, 4).to_sparse(), page=16))
    with pytest.raises(MappingError, match="tensor 0: in the memory of meta"):
        byte_rows(of_one_layer(torch.zeros(2, 3, device="meta"), page=12))
    with pytest.raises(MappingError, match="tensor 0: the bytes of a block"):
        byte_rows(of_one_layer(torch.zeros(2, 6)[:, ::2], page=12))
