"""MAP-6 on tensors of torch itself: what they say of themselves is what the stand-ins say."""

import pytest
import torch

from kvoffload import (
    AttentionLayer,
    CanonicalKVCacheTensor,
    Encoding,
    KVParallelConfig,
    LatentLayer,
    MappingError,
    OpaqueLayer,
    PackedLayers,
    canonical_kv_caches,
    recognise,
)
from kvoffload.canonical.pages import BlockTensor

BLOCKS, TOKENS, HEADS, HEAD_SIZE = 5, 4, 3, 8
SINGLE = KVParallelConfig(block_size=TOKENS)


def attention(encoding: Encoding | None, element_size_bytes: int = 2) -> AttentionLayer:
    return AttentionLayer(
        total_kv_heads=HEADS,
        head_size=HEAD_SIZE,
        element_size_bytes=element_size_bytes,
        encoding=encoding,
    )


def shown(encoding: Encoding, dtype: torch.dtype) -> torch.Tensor:
    """A cache in that encoding, in the shape in which vLLM shows it."""
    match encoding:
        case Encoding.PACKED_HND:
            return torch.zeros(BLOCKS, HEADS, TOKENS, 2 * HEAD_SIZE, dtype=dtype)
        case Encoding.PACKED_NHD:
            return torch.zeros(BLOCKS, TOKENS, HEADS, 2 * HEAD_SIZE, dtype=dtype).transpose(1, 2)
        case Encoding.SPLIT_NHD:
            return torch.zeros(BLOCKS, 2, TOKENS, HEADS, HEAD_SIZE, dtype=dtype)
        case Encoding.SPLIT_HND:
            return torch.zeros(BLOCKS, 2, HEADS, TOKENS, HEAD_SIZE, dtype=dtype).transpose(2, 3)


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
def test_a_cache_confirms_its_own_encoding_and_no_other(
    encoding: Encoding, dtype: torch.dtype
) -> None:
    tensor = shown(encoding, dtype)
    size = dtype.itemsize
    assert recognise(attention(None, size), SINGLE, tensor) == attention(encoding, size)
    for other in Encoding:
        if other is not encoding:
            with pytest.raises(MappingError, match=f"the tensor is {encoding.value}"):
                recognise(attention(other, size), SINGLE, tensor)
    flat = torch.zeros(BLOCKS, 2 * TOKENS * HEADS * HEAD_SIZE * size, dtype=torch.int8)
    assert isinstance(recognise(attention(encoding, size), SINGLE, flat), OpaqueLayer)


def test_caches_of_a_model() -> None:
    """Two groups that share memory, latent rows, and two layers packed in one block."""
    shared = shown(Encoding.PACKED_HND, torch.float16)
    page = shared[0].numel()
    block = torch.zeros(BLOCKS, 2 * page, dtype=torch.float16)
    first, second = (
        half.view(BLOCKS, HEADS, TOKENS, 2 * HEAD_SIZE)
        for half in (block[:, :page], block[:, page:])
    )
    tensors: dict[str, BlockTensor | list[BlockTensor]] = {
        "a": shared,
        "b": shared.view(torch.int16),
        "latent": torch.zeros(BLOCKS, TOKENS, 16, dtype=torch.bfloat16),
        "packed": [first, second],
    }
    packed = attention(Encoding.PACKED_HND)
    caches = canonical_kv_caches(
        tensors,
        [
            {"a": attention(None), "latent": LatentLayer(row_elements=16, element_size_bytes=2)},
            {"b": packed, "packed": PackedLayers(layers=(packed, attention(None)))},
        ],
        SINGLE,
    )
    assert [tensor.page_size_bytes for tensor in caches.tensors] == [2 * page, 128, 4 * page]
    assert [[ref.tensor_idx for ref in refs] for refs in caches.group_data_refs] == [[0, 1], [0, 2]]
    for refs in caches.group_data_refs:
        for ref in refs:
            assert ref.mapping is not None
            assert ref.mapping.parallelism_agnostic


def test_tensors_without_memory_are_recognised_and_are_no_caches() -> None:
    tensor = shown(Encoding.PACKED_HND, torch.float16).to("meta")
    packed = attention(Encoding.PACKED_HND)
    assert recognise(attention(None), SINGLE, tensor) == packed
    with pytest.raises(MappingError, match=r"a: data_ptr\(\) is 0"):
        canonical_kv_caches({"a": tensor}, [{"a": packed}], SINGLE)


def test_parts_of_a_page_share_their_storage() -> None:
    block = torch.zeros(BLOCKS, 64, dtype=torch.int8)
    layer = OpaqueLayer(page_size_bytes=64)
    halves: list[BlockTensor] = [block[:, :32].view(torch.float16), block[:, 32:]]
    assert recognise(layer, SINGLE, halves) is layer
    with pytest.raises(MappingError, match="2 tensors in 2 storages"):
        recognise(layer, SINGLE, [halves[0], block.clone()[:, 32:]])


def test_caches_are_compared_without_a_look_at_their_elements() -> None:
    one, other = (torch.zeros(BLOCKS, 64) for _ in range(2))
    assert CanonicalKVCacheTensor(one, 256) == CanonicalKVCacheTensor(one, 256)
    assert CanonicalKVCacheTensor(one, 256) != CanonicalKVCacheTensor(other, 256)
