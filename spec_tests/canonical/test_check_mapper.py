"""Putting a derivation on trial that has nothing of kvoffload's, as somebody else would."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from attrs import evolve

from kvoffload import AttentionLayer, Encoding, LatentLayer, OpaqueLayer, PackedLayers
from kvoffload.canonical.layers import Layer
from stateful_models.contract import Kind, Profile
from stateful_models.gallery.mappings import BROKEN_MAPPERS, REFERENCE
from stateful_models.pages import (
    GRID,
    SMALL_GRID,
    Case,
    Findings,
    PageFinding,
    PageMapper,
    Pair,
    Spread,
    check_mapper,
    drawn_pairs,
    judge_case,
    judge_pairs,
)
from stateful_models.pages.cases import attention, latent, padded


@dataclass(frozen=True)
class Run:
    local_offset: int
    canonical_offset: int
    fragment_size: int
    num_fragments: int
    local_stride: int
    canonical_stride: int


@dataclass(frozen=True)
class Mapping:
    canonical_page_size_bytes: int
    local_page_size_bytes: int
    runs: tuple[Run, ...]
    num_writers: int
    writer_index: int
    parallelism_agnostic: bool

    def is_writer(self, block_id: int) -> bool:
        return block_id % self.num_writers == self.writer_index


class NotMappedError(Exception):
    """What this derivation refuses with."""


def mapping_of(layer: AttentionLayer, spread: Spread, rank: int) -> Mapping:
    """Token-major packed pages only, a run for each token."""
    heads, tp, dcp = layer.total_kv_heads, spread.tp_size, spread.dcp_size
    turn, cp = spread.interleave, spread.cp_size
    replication = max(1, tp // heads)
    if (heads % tp and tp % heads) or replication % dcp or (cp > 1 and spread.block_size % turn):
        raise NotMappedError(
            f"{heads} heads, tp {tp}, dcp {dcp} for {replication}, "
            f"interleave {turn} of {spread.block_size}"
        )
    own = heads // min(heads, tp)
    cell = 2 * layer.head_size * layer.element_size_bytes
    tp_rank = rank % tp
    cp_rank = rank // tp * dcp + tp_rank % dcp
    runs: list[Run] = []
    for i in range(spread.block_size):
        token = i if cp == 1 else (i // turn * cp + cp_rank) * turn + i % turn
        first = token * heads + tp_rank // replication * own
        size = own * cell
        runs.append(Run(i * size, first * cell, size, 1, size, size))
    return Mapping(
        canonical_page_size_bytes=spread.span * heads * cell,
        local_page_size_bytes=spread.block_size * own * cell,
        runs=tuple(runs),
        num_writers=replication // dcp,
        writer_index=tp_rank % replication // dcp,
        parallelism_agnostic=cp == 1,
    )


def derive(layer: Layer, spread: Spread) -> list[Mapping]:
    assert isinstance(layer, AttentionLayer)
    return [mapping_of(layer, spread, rank) for rank in range(spread.num_ranks)]


MINE = PageMapper(derive=derive, refusals=(NotMappedError,))


def cases_of_mine() -> list[Case]:
    return [
        case
        for case in SMALL_GRID.cases()
        if isinstance(case.layer, AttentionLayer) and case.layer.encoding is Encoding.PACKED_NHD
    ]


def test_a_derivation_of_others_is_tried_in_a_few_lines() -> None:
    found = check_mapper(MINE, cases_of_mine(), pairs=())
    assert [one for one in found if one.convicts()] == []
    held = {one.clause for one in found if one.convicts(Profile.REFERENCE)}
    assert held == {"MAP-7", "MAP-8"}


def test_a_finding_has_all_that_a_reader_needs() -> None:
    found = check_mapper(BROKEN_MAPPERS["Map5HeadMajorAsTokenMajor"].mapper)
    (finding,) = [one for one in found if one.clause == "MAP-5"]
    assert str(finding).splitlines() == [
        "MAP-5: byte 6 of the page of rank 0 has a wrong place canonically, as if it were "
        "packed-nhd",
        "  The known encodings are mapped, everything else is opaque.",
        "  2 heads of 3 x 1 bytes, packed-hnd; pcp 2, block 1",
        "  expected: byte 12, which is token 0 head 1 K byte 0",
        "  seen:     byte 6, which is token 1 head 0 K byte 0; 12 bytes of all pages are misplaced",
    ]


def test_of_each_demand_the_smallest_case_is_kept() -> None:
    def finding(size: int, kind: Kind = Kind.SAFETY) -> PageFinding:
        return PageFinding("MAP-3", kind, "message", f"case {size}", size=size)

    findings, others = Findings(), Findings()
    findings.add([finding(3), finding(2), finding(4), finding(7, Kind.REFERENCE)])
    others.add([finding(1), finding(9)])
    findings.merge(others)
    assert [one.case for one in findings.listed()] == ["case 1", "case 7"]
    assert findings.counts == {("MAP-3", Kind.SAFETY): 5, ("MAP-3", Kind.REFERENCE): 1}
    assert [one.convicts() for one in findings.listed()] == [True, False]


@pytest.mark.parametrize(
    "layer",
    [
        latent(second_row_bytes=5),
        OpaqueLayer(page_size_bytes=7),
        PackedLayers(layers=(attention(2, Encoding.SPLIT_HND), attention(2, Encoding.PACKED_NHD))),
    ],
)
def test_a_pair_by_itself(layer: Layer) -> None:
    one = Case(padded(layer, Spread(4)), Spread(4, tp_size=2))
    other = Case(layer, Spread(2, tp_size=2, pcp_size=2, interleave=2))
    # Of opaque pages nothing is promised to another configuration, but all to the same.
    assert list(judge_pairs(REFERENCE, [Pair(one, other, 3), Pair(other, other, 4)])) == []


def test_pairs_of_one_layer_come_together_and_have_one_span() -> None:
    pairs = drawn_pairs(500, seed=1)
    assert len(pairs) == 500
    seen: list[object] = []
    for pair in pairs:
        assert pair.source.spread.span == pair.target.spread.span
        assert pair.source.is_legal
        assert pair.target.is_legal
        bare = evolve(pair.source.layer, padded_page_size_bytes=None)
        assert bare == evolve(pair.target.layer, padded_page_size_bytes=None)
        if not seen or seen[-1] != (bare, pair.source.spread.span):
            seen.append((bare, pair.source.spread.span))
    assert len(seen) == len(set(map(str, seen)))
    assert pairs == drawn_pairs(500, seed=1)
    assert pairs != drawn_pairs(500, seed=2)


def test_a_run_into_a_neighbour_is_seen_in_its_poison() -> None:
    def one_further(layer: Layer, spread: Spread) -> list[Mapping]:
        (mapping,) = derive(layer, spread)
        first, *rest = mapping.runs
        wide = Run(0, first.canonical_offset, first.fragment_size, 2, 100, 0)
        return [
            Mapping(
                mapping.canonical_page_size_bytes,
                mapping.local_page_size_bytes,
                (wide, *rest),
                1,
                0,
                parallelism_agnostic=True,
            )
        ]

    layer = attention(1, Encoding.PACKED_NHD)
    case = Case(layer, Spread(2))
    mapper = PageMapper(derive=one_further)
    assert {one.clause for one in judge_case(mapper, case)} == {"MAP-2"}
    assert [one.clause for one in judge_pairs(mapper, [Pair(case, case, 0)])] == ["MAP-8"]


def test_a_latent_layer_is_tried_once() -> None:
    layers = GRID.layers()
    assert sum(isinstance(layer, LatentLayer) for layer in layers) == 1
    assert len(layers) == 16 * 4 + 1
