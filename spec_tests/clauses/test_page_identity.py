"""ID-1: a layout's id changes exactly when the canonical bytes do."""

from collections import defaultdict
from itertools import product

import pytest
from attrs import evolve

from kvoffload import (
    AttentionLayer,
    Encoding,
    InvalidValueError,
    KVParallelConfig,
    LatentLayer,
    Layer,
    MappingError,
    OpaqueLayer,
    PackedLayers,
    SingleLayer,
    layout_id,
)

ATTENTION = AttentionLayer(
    total_kv_heads=2, head_size=4, element_size_bytes=2, encoding=Encoding.SPLIT_NHD
)
LATENT = LatentLayer(row_elements=6, element_size_bytes=2)
OPAQUE = OpaqueLayer(page_size_bytes=64)
BLOCK = PackedLayers(layers=(ATTENTION, ATTENTION))
SPREAD = KVParallelConfig(block_size=4, tp_size=4, dcp_size=2, interleave=2)


def id_of(layer: Layer, parallel: KVParallelConfig = SPREAD, blocks_per_chunk: int = 1) -> str:
    return layout_id(layer, parallel, blocks_per_chunk=blocks_per_chunk).digest


@pytest.mark.clause("ID-1")
@pytest.mark.parametrize(
    ("layer", "changed"),
    [
        (ATTENTION, evolve(ATTENTION, total_kv_heads=1)),
        (ATTENTION, evolve(ATTENTION, head_size=8)),
        (ATTENTION, evolve(ATTENTION, element_size_bytes=1)),
        (ATTENTION, evolve(ATTENTION, encoding=Encoding.SPLIT_HND)),
        (ATTENTION, evolve(ATTENTION, encoding=Encoding.PACKED_NHD)),
        (LATENT, evolve(LATENT, row_elements=7)),
        (LATENT, evolve(LATENT, element_size_bytes=1)),
        (LATENT, evolve(LATENT, second_row_bytes=2)),
        (OPAQUE, evolve(OPAQUE, page_size_bytes=65)),
    ],
)
def test_what_changes_bytes_changes_the_id(layer: SingleLayer, changed: SingleLayer) -> None:
    spread = evolve(SPREAD, dcp_size=1)
    assert id_of(changed, spread) != id_of(layer, spread)
    # Also as one of several layers of a block, each at its own place.
    alone = KVParallelConfig(block_size=4)
    blocks = [(layer, layer), (changed, layer), (layer, changed)]
    assert len({id_of(PackedLayers(layers=block), alone) for block in blocks}) == 3


@pytest.mark.clause("ID-1")
@pytest.mark.parametrize(
    ("layer", "padded"),
    [
        (ATTENTION, evolve(ATTENTION, padded_page_size_bytes=4096)),
        (LATENT, evolve(LATENT, padded_page_size_bytes=4096)),
        (BLOCK, evolve(BLOCK, padded_page_size_bytes=4096)),
    ],
)
def test_how_a_page_is_spread_is_no_part_of_its_id(layer: Layer, padded: Layer) -> None:
    """All of one span: as many tokens in the canonical page."""
    same = {
        id_of(layer, KVParallelConfig(block_size=8)),
        id_of(layer, KVParallelConfig(block_size=8, tp_size=2)),
        id_of(layer, KVParallelConfig(block_size=8, tp_size=4, rank=3)),
        id_of(layer, SPREAD),
        id_of(layer, evolve(SPREAD, interleave=4)),
        id_of(layer, KVParallelConfig(block_size=2, tp_size=4, dcp_size=2, pcp_size=2)),
        id_of(padded),
    }
    assert len(same) == 1
    assert id_of(layer, KVParallelConfig(block_size=16)) not in same


@pytest.mark.clause("ID-1")
@pytest.mark.parametrize(
    "change",
    [{"tp_size": 8}, {"dcp_size": 1}, {"pcp_size": 2}, {"interleave": 1}, {"block_size": 8}],
)
def test_an_opaque_page_has_its_configuration_in_the_id(change: dict[str, int]) -> None:
    assert id_of(OPAQUE, evolve(SPREAD, **change)) != id_of(OPAQUE)
    with_it = PackedLayers(layers=(OPAQUE, OPAQUE))
    assert id_of(with_it, evolve(SPREAD, **change)) != id_of(with_it)


@pytest.mark.clause("ID-1")
def test_what_changes_no_byte_of_an_opaque_page_is_no_part_of_its_id() -> None:
    assert id_of(OPAQUE, SPREAD.at(3)) == id_of(OPAQUE)
    assert id_of(evolve(OPAQUE, padded_page_size_bytes=99)) == id_of(OPAQUE)
    alone = KVParallelConfig(block_size=4)
    assert id_of(OPAQUE, alone) == id_of(OPAQUE, evolve(alone, interleave=2))


def bytes_in_order(
    encoding: Encoding, heads: int, span: int, blocks: int
) -> list[tuple[int, int, int]]:
    """What a chunk holds, (token, head, K or V) by (token, head, K or V), in its order."""
    order: list[tuple[int, int, int]] = []
    for block in range(blocks):
        cells = list(product(range(block * span, (block + 1) * span), range(heads), range(2)))
        match encoding:
            case Encoding.PACKED_NHD:
                cells.sort(key=lambda cell: (cell[0], cell[1], cell[2]))
            case Encoding.PACKED_HND:
                cells.sort(key=lambda cell: (cell[1], cell[0], cell[2]))
            case Encoding.SPLIT_NHD:
                cells.sort(key=lambda cell: (cell[2], cell[0], cell[1]))
            case Encoding.SPLIT_HND:
                cells.sort(key=lambda cell: (cell[2], cell[1], cell[0]))
        order += cells
    return order


@pytest.mark.clause("ID-1")
def test_ids_are_equal_exactly_where_the_bytes_are() -> None:
    """Over all small chunks: their bytes written out, against their ids."""
    ids_of_bytes: dict[tuple[tuple[int, int, int], ...], set[str]] = defaultdict(set)
    bytes_of_id: dict[str, set[tuple[tuple[int, int, int], ...]]] = defaultdict(set)
    for encoding, heads, span, blocks in product(Encoding, (1, 2, 3), (1, 2, 4), (1, 2, 4)):
        layer = AttentionLayer(
            total_kv_heads=heads, head_size=4, element_size_bytes=2, encoding=encoding
        )
        name = id_of(layer, KVParallelConfig(block_size=span), blocks)
        written = tuple(bytes_in_order(encoding, heads, span, blocks))
        ids_of_bytes[written].add(name)
        bytes_of_id[name].add(written)
    assert len(bytes_of_id) > 20
    assert {len(ids) for ids in ids_of_bytes.values()} == {1}
    assert {len(written) for written in bytes_of_id.values()} == {1}


@pytest.mark.clause("ID-1")
def test_an_id_can_be_read() -> None:
    name = layout_id(ATTENTION, SPREAD, blocks_per_chunk=3)
    assert name.fields == (
        ("format", "1"),
        ("axes", "block:3 kv:2 token:8 head:2"),
        ("innermost", "4 x 2 bytes"),
    )
    assert str(name) == name.digest
    assert len(name.digest) == 32
    int(name.digest, 16)
    opaque = dict(
        layout_id(PackedLayers(layers=(LATENT, OPAQUE)), KVParallelConfig(block_size=4)).fields
    )
    assert opaque["layers[1].innermost"] == "64 opaque bytes of every worker"
    assert opaque["tp_size"] == "1"
    assert "interleave" not in opaque


@pytest.mark.clause("ID-1")
def test_ids_do_not_change_from_release_to_release() -> None:
    """Pages on a disk outlive the program: a new format has a new number (FORMAT)."""
    assert id_of(ATTENTION) == "b0ac88eee6e9cdaeb5f483a313277d29"
    assert id_of(LATENT) == "5961f9d125ab24e330be06e03f24a5a8"
    assert id_of(OPAQUE) == "a3eb164c207968a49e283a065096c18b"


@pytest.mark.clause("ID-1")
def test_what_has_no_mapping_has_no_id() -> None:
    with pytest.raises(MappingError, match="encoding is None"):
        layout_id(evolve(ATTENTION, encoding=None), SPREAD)
    with pytest.raises(MappingError, match="divides the other"):
        layout_id(ATTENTION, KVParallelConfig(block_size=4, tp_size=3))
    with pytest.raises(InvalidValueError, match="blocks_per_chunk"):
        layout_id(ATTENTION, SPREAD, blocks_per_chunk=0)
