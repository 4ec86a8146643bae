"""MAP-6: what a tensor can confirm, contradict, or leave open."""

import pytest
from attrs import evolve

from kvoffload import (
    AttentionLayer,
    CanonicalKVCaches,
    Encoding,
    KVParallelConfig,
    LatentLayer,
    MappingError,
    OpaqueLayer,
    PackedLayers,
    canonical_kv_caches,
    derive_mapping,
    recognise,
)
from spec_tests.memory import Place, dense, permuted

BLOCKS, TOKENS, VECTOR = 5, 4, 8
SINGLE = KVParallelConfig(block_size=TOKENS)


def attention(heads: int, encoding: Encoding | None = None) -> AttentionLayer:
    """K and V of 4 elements of 2 bytes each."""
    return AttentionLayer(
        total_kv_heads=heads, head_size=4, element_size_bytes=2, encoding=encoding
    )


def shown(encoding: Encoding, heads: int) -> list[Place]:
    """The ways in which engines show a page of that encoding, as tensors of 2-byte elements."""
    if encoding is Encoding.PACKED_HND:
        memory = dense(BLOCKS, heads, TOKENS, 2, 4, size=2)
        return [
            dense(BLOCKS, heads, TOKENS, 8, size=2),
            permuted(dense(BLOCKS, heads, TOKENS, 8, size=2), 0, 2, 1, 3),
            memory,
            permuted(memory, 0, 3, 2, 1, 4),
        ]
    if encoding is Encoding.PACKED_NHD:
        memory = dense(BLOCKS, TOKENS, heads, 2, 4, size=2)
        return [
            dense(BLOCKS, TOKENS, heads, 8, size=2),
            permuted(dense(BLOCKS, TOKENS, heads, 8, size=2), 0, 2, 1, 3),
            memory,
            permuted(memory, 0, 3, 1, 2, 4),
        ]
    if encoding is Encoding.SPLIT_HND:
        memory = dense(BLOCKS, 2, heads, TOKENS, 4, size=2)
        return [memory, permuted(memory, 0, 1, 3, 2, 4), permuted(memory, 0, 3, 2, 1, 4)]
    memory = dense(BLOCKS, 2, TOKENS, heads, 4, size=2)
    flat = dense(BLOCKS, 2, TOKENS, heads * 4, size=2)
    return [memory, flat, permuted(memory, 0, 1, 3, 2, 4), permuted(memory, 0, 3, 2, 1, 4)]


@pytest.mark.clause("MAP-6")
@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_tensor_confirms_the_encoding_that_it_has(encoding: Encoding) -> None:
    for heads in (1, 2, 3, 4):
        for tensor in shown(encoding, heads):
            described = attention(heads, encoding)
            assert recognise(described, SINGLE, tensor) is described
            # The same memory seen in bytes.
            steps = [step * 2 for step in tensor.steps[:-1]]
            in_bytes = Place((*tensor.shape[:-1], tensor.shape[-1] * 2), (*steps, 1))
            assert recognise(described, SINGLE, in_bytes) is described


@pytest.mark.clause("MAP-6")
@pytest.mark.parametrize("encoding", list(Encoding))
def test_an_odd_number_of_heads_needs_no_name(encoding: Encoding) -> None:
    for tensor in shown(encoding, 3):
        assert recognise(attention(3), SINGLE, tensor) == attention(3, encoding)


@pytest.mark.clause("MAP-6")
@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("other", list(Encoding))
def test_a_tensor_of_another_encoding_contradicts(encoding: Encoding, other: Encoding) -> None:
    if encoding is other:
        return
    for tensor in shown(encoding, 3):
        with pytest.raises(
            MappingError, match=rf"attn: .* says {other.value}, the tensor is {encoding.value} "
        ):
            recognise(attention(3, other), SINGLE, tensor, name="attn")


@pytest.mark.clause("MAP-6")
def test_with_two_heads_packed_pages_look_like_split_ones() -> None:
    """The description settles it; without one the page is opaque."""
    tensor = dense(BLOCKS, 2, TOKENS, 8, size=2)
    for encoding in (Encoding.PACKED_HND, Encoding.SPLIT_NHD):
        assert recognise(attention(2, encoding), SINGLE, tensor) == attention(2, encoding)
    assert recognise(attention(2), SINGLE, tensor) == OpaqueLayer(page_size_bytes=128)
    for encoding in (Encoding.PACKED_NHD, Encoding.SPLIT_HND):
        with pytest.raises(MappingError, match="packed-hnd or split-nhd"):
            recognise(attention(2, encoding), SINGLE, tensor)


@pytest.mark.clause("MAP-6")
def test_as_many_tokens_as_heads_say_nothing_of_the_order() -> None:
    tensor = dense(BLOCKS, TOKENS, TOKENS, 8, size=2)
    assert recognise(attention(TOKENS), SINGLE, tensor) == OpaqueLayer(page_size_bytes=256)
    for encoding in (Encoding.PACKED_NHD, Encoding.PACKED_HND):
        assert recognise(attention(TOKENS, encoding), SINGLE, tensor).__class__ is AttentionLayer


@pytest.mark.clause("MAP-6")
@pytest.mark.parametrize("stride_of_one", [0, 1, 8, 32, 999])
def test_a_dimension_of_one_proves_nothing(stride_of_one: int) -> None:
    """The only head of a worker: what its stride says is no evidence, for or against."""
    spread = KVParallelConfig(block_size=TOKENS, tp_size=4)
    tensor = Place((BLOCKS, 1, TOKENS, 8), (32, stride_of_one, 8, 1), 2)
    for encoding in (Encoding.PACKED_NHD, Encoding.PACKED_HND):
        assert recognise(attention(4, encoding), spread, tensor) == attention(4, encoding)
    assert recognise(attention(4), spread, tensor) == OpaqueLayer(page_size_bytes=64)


@pytest.mark.clause("MAP-6")
def test_readings_that_come_to_the_same_bytes_need_no_name() -> None:
    """A model with one head: token-major and head-major are the same, whoever keeps it."""
    tensor = dense(BLOCKS, 1, TOKENS, 8, size=2)
    spread = KVParallelConfig(block_size=TOKENS, tp_size=4, dcp_size=2)
    settled = recognise(attention(1), spread, tensor)
    assert settled == attention(1, Encoding.PACKED_NHD)
    assert derive_mapping(settled, spread) == derive_mapping(
        attention(1, Encoding.PACKED_HND), spread
    )


@pytest.mark.clause("MAP-6")
@pytest.mark.parametrize(
    "tensor",
    [
        # One row of bytes: the right number of them, and nothing more.
        dense(BLOCKS, 128),
        # A split of dimensions that engines do not show.
        dense(BLOCKS, 4, TOKENS, 8),
        # Elements of a vector apart from each other.
        Place((BLOCKS, 2, TOKENS, 8), (64, 32, 1, 4), 2),
    ],
)
@pytest.mark.parametrize("encoding", [None, Encoding.PACKED_HND])
def test_what_neither_confirms_nor_contradicts_is_opaque(
    tensor: Place, encoding: Encoding | None
) -> None:
    described = evolve(attention(2, encoding), padded_page_size_bytes=128)
    opaque = OpaqueLayer(page_size_bytes=128, padded_page_size_bytes=128)
    assert recognise(described, SINGLE, tensor) == opaque


@pytest.mark.clause("MAP-6")
@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (dense(BLOCKS, 2, TOKENS, 9, size=2), r"144 bytes"),
        (dense(BLOCKS, 2, TOKENS, 8, size=4), r"256 bytes"),
        (dense(BLOCKS, 2, TOKENS, 4, size=2), r"64 bytes"),
        # Elements on top of each other, and further apart than a page.
        (
            Place((BLOCKS, 2, TOKENS, 8), (64, 0, 8, 1), 2),
            r"128 bytes of a block lie within 64, on top",
        ),
        (Place((BLOCKS, 2, TOKENS, 8), (128, 64, 8, 1), 2), r"reaches over 192 bytes"),
        (Place((BLOCKS, 2, TOKENS, 8), (32, 32, 8, 1), 2), r"blocks lie 64 bytes apart"),
        (Place((BLOCKS, 2, TOKENS, 8), (96, 32, 8, 1), 2, 40), r"starts 80 bytes into its block"),
        (Place((BLOCKS,), (1,), 2), r"has no blocks"),
        (Place((BLOCKS, 0), (1, 1), 2), r"has no blocks"),
    ],
)
def test_a_tensor_that_cannot_hold_the_pages_contradicts(tensor: Place, why: str) -> None:
    with pytest.raises(MappingError, match=why):
        recognise(attention(2, Encoding.PACKED_HND), SINGLE, tensor)


@pytest.mark.clause("MAP-6")
def test_padding_is_checked_where_it_can_be_seen() -> None:
    padded = evolve(attention(2, Encoding.PACKED_HND), padded_page_size_bytes=160)
    tensor = Place((BLOCKS, 2, TOKENS, 8), (80, 32, 8, 1), 2)
    assert recognise(padded, SINGLE, tensor) is padded
    with pytest.raises(MappingError, match="128 bytes apart, padded_page_size_bytes says 160"):
        recognise(padded, SINGLE, dense(BLOCKS, 2, TOKENS, 8, size=2))
    # The distance of a single block to the next is nowhere to be seen.
    assert recognise(padded, SINGLE, dense(1, 2, TOKENS, 8, size=2)) is padded


@pytest.mark.clause("MAP-6")
def test_latent_rows() -> None:
    layer = LatentLayer(row_elements=6, element_size_bytes=2, second_row_bytes=4)
    assert recognise(layer, SINGLE, dense(BLOCKS, TOKENS, 8, size=2)) is layer
    assert recognise(layer, SINGLE, dense(BLOCKS, TOKENS, 1, 16)) is layer
    opaque = OpaqueLayer(page_size_bytes=64)
    assert recognise(layer, SINGLE, dense(BLOCKS, 64)) == opaque
    assert recognise(layer, SINGLE, dense(BLOCKS, 8, TOKENS, size=2)) == opaque
    with pytest.raises(MappingError, match="48 bytes"):
        recognise(layer, SINGLE, dense(BLOCKS, TOKENS, 6, size=2))


@pytest.mark.clause("MAP-6")
def test_an_opaque_page_may_have_several_tensors() -> None:
    layer = OpaqueLayer(page_size_bytes=96)
    states = [Place((BLOCKS, 32), (96, 1)), Place((BLOCKS, 4, 16), (96, 16, 1), start=32)]
    assert recognise(layer, SINGLE, states) is layer
    with pytest.raises(MappingError, match="reaches over 97 bytes"):
        recognise(layer, SINGLE, [states[0], evolve(states[1], start=33)])
    with pytest.raises(MappingError, match="2 tensors for one layer"):
        recognise(attention(2), SINGLE, [dense(BLOCKS, 128), dense(BLOCKS, 128)])
    with pytest.raises(MappingError, match="no tensor"):
        recognise(layer, SINGLE, [])


def packed_views(start: int = 96) -> list[Place]:
    """Two layers of 3 heads, 192 bytes each, in blocks of 384."""
    shape, steps = (BLOCKS, 3, TOKENS, 8), (192, 32, 8, 1)
    return [Place(shape, steps, 2), Place(shape, steps, 2, start)]


@pytest.mark.clause("MAP-6")
def test_layers_packed_in_a_block_have_a_tensor_each() -> None:
    block = PackedLayers(layers=(attention(3), attention(3, Encoding.PACKED_HND)))
    settled = attention(3, Encoding.PACKED_HND)
    assert recognise(block, SINGLE, packed_views()) == PackedLayers(layers=(settled, settled))
    with pytest.raises(MappingError, match=r"layer\[1\]: starts 194 bytes .* would be 192"):
        recognise(block, SINGLE, packed_views(start=97))
    with pytest.raises(MappingError, match=r"2 layers packed in a block, 1 tensors"):
        recognise(block, SINGLE, packed_views()[:1])
    short = [evolve(view, shape=(BLOCKS - 1, 3, TOKENS, 8)) for view in packed_views()]
    with pytest.raises(MappingError, match=r"4 blocks 384 bytes apart, the first layer .* has 5"):
        recognise(block, SINGLE, [packed_views()[0], short[1]])


def caches(parallel: KVParallelConfig = SINGLE) -> CanonicalKVCaches:
    shared = dense(BLOCKS, 3, TOKENS, 8, size=2, address=1024)
    return canonical_kv_caches(
        {
            "a": shared,
            # Another object, the same memory.
            "b": evolve(shared),
            "c": dense(BLOCKS, TOKENS, 8, size=2, address=9216),
            "d": Place((BLOCKS, 7), (10, 1), address=20480),
            "e": packed_views(),
        },
        [
            {"a": attention(3), "c": LatentLayer(row_elements=8, element_size_bytes=2)},
            {"b": attention(3, Encoding.PACKED_HND)},
            {"d": None, "e": PackedLayers(layers=(attention(3), attention(3)))},
        ],
        parallel,
    )


@pytest.mark.clause("MAP-6")
def test_caches_hold_each_tensor_once() -> None:
    built = caches()
    assert [tensor.page_size_bytes for tensor in built.tensors] == [192, 64, 10, 384]
    where = [[ref.tensor_idx for ref in refs] for refs in built.group_data_refs]
    assert where == [[0, 1], [0], [2, 3]]
    (a, c), (b,), (d, e) = built.group_data_refs
    assert a.mapping == b.mapping == derive_mapping(attention(3, Encoding.PACKED_HND), SINGLE)
    assert (c.page_size_bytes, e.page_size_bytes) == (64, 384)
    assert c.mapping is not None
    assert c.mapping.parallelism_agnostic
    # A page of unknown size has no mapping.
    assert (d.page_size_bytes, d.mapping) == (7, None)


@pytest.mark.clause("MAP-6")
def test_a_single_block_is_as_far_from_the_next_as_the_description_says() -> None:
    layer = LatentLayer(row_elements=8, element_size_bytes=2, padded_page_size_bytes=80)
    built = canonical_kv_caches({"a": dense(1, TOKENS, 8, size=2)}, [{"a": layer}], SINGLE)
    assert [tensor.page_size_bytes for tensor in built.tensors] == [80]


@pytest.mark.clause("MAP-6")
def test_caches_need_a_tensor_for_each_layer_and_a_layer_for_each_tensor() -> None:
    tensor = dense(BLOCKS, 3, TOKENS, 8, size=2)
    with pytest.raises(MappingError, match=r"b: no tensor of that name among \['a'\]"):
        canonical_kv_caches({"a": tensor}, [{"a": attention(3), "b": attention(3)}], SINGLE)
    with pytest.raises(MappingError, match="a: is in more than one group"):
        canonical_kv_caches({"a": tensor}, [{"a": None}, {"a": None}], SINGLE)
    with pytest.raises(MappingError, match="b: a tensor that no group describes"):
        canonical_kv_caches({"a": tensor, "b": tensor}, [{"a": attention(3)}], SINGLE)
    with pytest.raises(MappingError, match="a: a block of the tensor has 192 bytes"):
        canonical_kv_caches({"a": tensor}, [{"a": attention(5)}], SINGLE)
