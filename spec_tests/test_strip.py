"""Strips of canonical pages, against a loop over every byte."""

from collections.abc import Sequence
from itertools import product

import pytest

from kvoffload import (
    AttentionLayer,
    CanonicalPageMapping,
    CopyRun,
    Encoding,
    KVParallelConfig,
    LatentLayer,
    MappingError,
    OpaqueLayer,
    PackedLayers,
    derive_mappings,
)
from kvoffload.canonical.layers import Layer
from kvoffload.canonical.palette import PALETTE, colour, hatch, ink
from kvoffload.canonical.strip import Panel, holders, panels, rows_of, scaled

Ranks = tuple[int, ...]


def attention(heads: int, encoding: Encoding) -> AttentionLayer:
    return AttentionLayer(
        total_kv_heads=heads, head_size=3, element_size_bytes=1, encoding=encoding
    )


LATENT = LatentLayer(row_elements=2, element_size_bytes=2, second_row_bytes=1)
OPAQUE = OpaqueLayer(page_size_bytes=7)
WORKERS = [
    KVParallelConfig(tp_size=tp, dcp_size=dcp, pcp_size=pcp, interleave=turn, block_size=4)
    for tp, dcp, pcp, turn in product((1, 2, 4, 8), (1, 2), (1, 2), (1, 2))
]
LAYERS: list[Layer] = [
    *(attention(heads, encoding) for heads in (1, 2, 4) for encoding in Encoding),
    LATENT,
    OPAQUE,
    PackedLayers(layers=(LATENT, attention(1, Encoding.SPLIT_HND), LATENT)),
]


def pairs(mapping: CanonicalPageMapping) -> list[tuple[int, int]]:
    """Each byte of a worker's page with its place in the canonical one, run by run."""
    return [
        (
            run.local_offset + fragment * run.local_stride + byte,
            run.canonical_offset + fragment * run.canonical_stride + byte,
        )
        for run in mapping.runs
        for fragment in range(run.num_fragments)
        for byte in range(run.fragment_size)
    ]


def keepers(mappings: Sequence[CanonicalPageMapping]) -> list[Ranks]:
    """Who keeps each byte of the canonical page."""
    found: list[list[int]] = [[] for _ in range(mappings[0].canonical_page_size_bytes)]
    for rank, mapping in enumerate(mappings):
        for _, byte in pairs(mapping):
            found[byte].append(rank)
    return [tuple(ranks) for ranks in found]


def legal() -> list[tuple[Layer, KVParallelConfig, tuple[CanonicalPageMapping, ...]]]:
    found: list[tuple[Layer, KVParallelConfig, tuple[CanonicalPageMapping, ...]]] = []
    for layer, workers in product(LAYERS, WORKERS):
        try:
            found.append((layer, workers, derive_mappings(layer, workers)))
        except MappingError:
            continue
    return found


def test_rows_tell_who_keeps_each_byte() -> None:
    cases = legal()
    assert len(cases) > 200
    for layer, workers, mappings in cases:
        expected = keepers(mappings)
        seen: list[Ranks] = []
        for panel in panels(layer, workers):
            assert panel.start == len(seen)
            rows = rows_of(panel, mappings)
            assert [row.first for row in rows] == [0, *(row.end for row in rows[:-1])]
            assert rows[-1].end == panel.num_rows
            for row in rows:
                for _ in range(row.first, row.end):
                    for ranks in row.cells:
                        seen += [ranks] * panel.cell_size_bytes
        assert seen == expected, (layer, workers)


def test_a_worker_s_own_page_is_in_canonical_order() -> None:
    """Which is how pictures draw it."""
    for _, _, mappings in legal():
        for mapping in mappings:
            places = [canonical for _, canonical in sorted(pairs(mapping))]
            assert places == sorted(places)


def test_neighbouring_rows_that_look_alike_are_one() -> None:
    workers = KVParallelConfig(tp_size=4, dcp_size=2, interleave=2, block_size=4)
    layer = attention(2, Encoding.PACKED_NHD)
    (panel,) = panels(layer, workers)
    rows = rows_of(panel, derive_mappings(layer, workers))
    assert [(row.first, row.end) for row in rows] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert [segment.ranks for segment in rows[0].segments] == [(0,), (2,)]
    assert [segment.ranks for segment in rows[1].segments] == [(1,), (3,)]


def test_the_first_rows_alone() -> None:
    workers = KVParallelConfig(tp_size=2, block_size=1_000_000)
    layer = attention(2, Encoding.PACKED_NHD)
    (panel,) = panels(layer, workers)
    (row,) = rows_of(panel, derive_mappings(layer, workers), max_rows=5)
    assert (row.first, row.end, panel.num_rows) == (0, 5, 1_000_000)


@pytest.mark.parametrize(
    ("tokens", "columns", "rows"), [(8, 8, 1), (32, 16, 2), (24, 12, 2), (17, 16, 2), (34, 16, 3)]
)
def test_a_sequence_is_cut_evenly_where_it_can_be(tokens: int, columns: int, rows: int) -> None:
    workers = KVParallelConfig(block_size=tokens)
    (panel,) = panels(LATENT, workers)
    assert (panel.num_columns, panel.num_rows) == (columns, rows)
    # Which tokens a row has is what it is there for, so none stands for another.
    assert len(rows_of(panel, derive_mappings(LATENT, workers))) == rows
    assert panel.places(rows - 1, rows) == ((rows - 1) * columns, tokens)


def test_more_ranks_than_one_integer_has_bits() -> None:
    layer = attention(200, Encoding.PACKED_NHD)
    workers = KVParallelConfig(tp_size=200, block_size=1)
    (panel,) = panels(layer, workers)
    (row,) = rows_of(panel, derive_mappings(layer, workers))
    assert row.cells == tuple((rank,) for rank in range(200))
    replicas = KVParallelConfig(tp_size=200, block_size=1)
    assert holders(derive_mappings(LATENT, replicas), 0, 5, 1) == [tuple(range(200))]


def test_mappings_of_one_s_own() -> None:
    """Written differently by ranks that keep the same bytes, and keeping nothing at all."""

    def mapping(*runs: CopyRun) -> CanonicalPageMapping:
        return CanonicalPageMapping(12, 12, runs, 1, 0, False)

    one = mapping(CopyRun(0, 0, 2, 3, 2, 4))
    same = mapping(CopyRun(0, 8, 2, 1, 0, 0), CopyRun(2, 0, 2, 2, 2, 4))
    assert holders([one, mapping(), same], 0, 2, 6) == [(0, 2), ()] * 3
    assert holders([one, mapping(), same], 4, 2, 3) == [(0, 2), (), (0, 2)]
    with pytest.raises(MappingError, match="end inside cells of 4 bytes"):
        holders([one], 0, 4, 3)


def test_an_unknown_encoding_has_no_order() -> None:
    layer = AttentionLayer(total_kv_heads=2, head_size=3, element_size_bytes=1, encoding=None)
    with pytest.raises(MappingError, match="encoding is None"):
        panels(layer, KVParallelConfig(block_size=1))


@pytest.mark.parametrize("width", range(1, 14))
def test_scaled_strips_give_every_cell_the_same_room(width: int) -> None:
    cells: list[Ranks] = [(0,), (0,), (1,), (1,), (1, 2)]
    places = scaled(cells, len(cells), width)
    assert len(places) <= width
    if width >= len(cells):
        each = width // len(cells)
        assert places == tuple(ranks for ranks in cells for _ in range(each))
    else:
        step = -(-len(cells) // width)
        assert len(places) == -(-len(cells) // step)
        for place, ranks in enumerate(places):
            behind = {cells[at] for at in range(len(cells)) if at // step == place}
            assert behind == {ranks} if ranks else len(behind) > 1


def test_packed_layers_are_named() -> None:
    layer = PackedLayers(layers=(LATENT, attention(1, Encoding.SPLIT_HND)))
    found: tuple[Panel, ...] = panels(layer, KVParallelConfig(block_size=4))
    assert [(panel.name, panel.start) for panel in found] == [
        ("layer 0, latent rows", 0),
        ("layer 1, K", 20),
        ("layer 1, V", 32),
    ]


# H. Viénot, H. Brettel and J. Mollon (1999) reduce a blind eye's colours to a plane; these are the
# matrices for linear RGB of G. Machado and others (2009), at full severity.
SIGHTS = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def times(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def linear(code: str) -> list[float]:
    values = [int(code[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def lab(code: str, sight: str) -> list[float]:
    """CIE L*a*b* of a colour as seen."""
    seen = [min(1.0, max(0.0, v)) for v in times(SIGHTS[sight], linear(code))]
    xyz = [v / w for v, w in zip(times(TO_XYZ, seen), (0.9505, 1.0, 1.089), strict=True)]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


def distance(one: str, other: str, sight: str) -> float:
    pairs_ = zip(lab(one, sight), lab(other, sight), strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs_) ** 0.5)


@pytest.mark.parametrize("sight", SIGHTS)
def test_neighbours_and_the_first_four_are_told_apart(sight: str) -> None:
    ring = zip(PALETTE, [*PALETTE[1:], PALETTE[0]], strict=True)
    first = [(one, other) for one, other in product(PALETTE[:4], repeat=2) if one < other]
    for one, other in [*ring, *first]:
        assert distance(one, other, sight) > 30
    for one, other in product(PALETTE, repeat=2):
        assert one == other or distance(one, other, sight) > 15


def test_of_many_ranks_no_two_look_alike() -> None:
    assert len({(colour(rank), hatch(rank)) for rank in range(64)}) == 64
    assert not any(hatch(rank) for rank in range(8))


@pytest.mark.parametrize("background", [*PALETTE, "#FFFFFF", "#000000"])
def test_letters_can_be_read(background: str) -> None:
    lights = sorted(times(TO_XYZ, linear(code))[1] for code in (background, ink(background)))
    assert (lights[1] + 0.05) / (lights[0] + 0.05) > 4.5
