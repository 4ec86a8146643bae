"""The oracle and the judge's own arithmetic against examples worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kvoffload import CopyRun, Encoding, LatentLayer, MappingError, OpaqueLayer, PackedLayers
from stateful_models.models.pages import (
    Share,
    Spread,
    chunk,
    contradictions,
    layout,
    names_of_bytes,
    place_in,
    shares,
)
from stateful_models.pages import GRID, Case, sample
from stateful_models.pages.bytes_of import RunRow, row_of, slow_normal_form, written_out
from stateful_models.pages.cases import attention, latent


def test_tokens_are_dealt_and_heads_are_kept_by_neighbours() -> None:
    assert shares(2, Spread(4, tp_size=4, dcp_size=2, interleave=2)) == (
        Share((0, 1, 4, 5), (0,)),
        Share((2, 3, 6, 7), (0,)),
        Share((0, 1, 4, 5), (1,)),
        Share((2, 3, 6, 7), (1,)),
    )
    assert shares(4, Spread(1, tp_size=2, pcp_size=2)) == (
        Share((0,), (0, 1)),
        Share((0,), (2, 3)),
        Share((1,), (0, 1)),
        Share((1,), (2, 3)),
    )


def test_the_reference_counts_tokens_as_the_oracle_deals_them() -> None:
    for spread in GRID.spreads():
        if spread.cp_size > 1 and not contradictions(latent(), spread):
            for worker, share in zip(spread.config().ranks(), shares(1, spread), strict=True):
                tokens = map(worker.canonical_token, range(spread.block_size))
                assert tuple(tokens) == share.tokens


# Two tokens, two heads, K and V of two bytes: token t, head h has bytes 8t + 4h up to its V.
@pytest.mark.parametrize(
    ("encoding", "canonical", "second"),
    [
        (Encoding.PACKED_NHD, "0123456789abcdef", "4567cdef"),
        (Encoding.PACKED_HND, "012389ab4567cdef", "4567cdef"),
        (Encoding.SPLIT_NHD, "014589cd2367abef", "45cd67ef"),
        (Encoding.SPLIT_HND, "018945cd23ab67ef", "45cd67ef"),
    ],
)
def test_encodings_by_hand(encoding: Encoding, canonical: str, second: str) -> None:
    layer = attention(2, encoding)
    # As many bytes a vector as the letters above are for.
    narrow = type(layer)(total_kv_heads=2, head_size=1, element_size_bytes=2, encoding=encoding)
    truth = layout(narrow, Spread(2, tp_size=2))
    assert truth.canonical.tolist() == [int(digit, 16) for digit in canonical]
    assert truth.pages[1].tolist() == [int(digit, 16) for digit in second]
    assert (truth.num_writers, truth.turns, truth.recognised) == (1, (0, 0), True)


def test_writers_are_those_that_keep_the_same() -> None:
    truth = layout(attention(2, Encoding.PACKED_NHD), Spread(2, tp_size=8, dcp_size=2))
    assert truth.num_writers == 2
    assert truth.turns == (0, 0, 1, 1, 0, 0, 1, 1)


def test_opaque_pages_follow_each_other() -> None:
    truth = layout(OpaqueLayer(page_size_bytes=3), Spread(4, tp_size=2))
    assert [page.tolist() for page in truth.pages] == [[0, 1, 2], [3, 4, 5]]
    assert truth.canonical.tolist() == [0, 1, 2, 3, 4, 5]
    assert not truth.recognised


def test_packed_layers_follow_each_other() -> None:
    row = LatentLayer(row_elements=1, element_size_bytes=2, second_row_bytes=1)
    block = PackedLayers(layers=(row, OpaqueLayer(page_size_bytes=2)))
    # The latent is kept twice, the opaque page once: they cannot take the same turns.
    assert contradictions(block, Spread(2, tp_size=2))
    truth = layout(block, Spread(1, pcp_size=2))
    assert truth.canonical.tolist() == list(range(10))
    assert [page.tolist() for page in truth.pages] == [[0, 1, 2, 6, 7], [3, 4, 5, 8, 9]]


@pytest.mark.parametrize(
    ("spread", "heads", "numbers"),
    [
        (Spread(4, tp_size=3), 2, [(2, 3)]),
        (Spread(4, tp_size=2, dcp_size=2), 2, [(2, 1)]),
        (Spread(4, tp_size=8, dcp_size=2), 3, [(3, 8)]),
        (Spread(1, pcp_size=2, interleave=2), 1, [(2, 1)]),
        (Spread(3, tp_size=3, dcp_size=2, interleave=2), 2, [(2, 3), (2, 3), (2, 1)]),
        (Spread(3, interleave=2), 1, []),
        (Spread(4, tp_size=8, dcp_size=4, interleave=4), 2, []),
    ],
)
def test_what_map_4_forbids(spread: Spread, heads: int, numbers: list[tuple[int, ...]]) -> None:
    found = contradictions(attention(heads, Encoding.SPLIT_HND), spread)
    assert [one.numbers for one in found] == numbers


def test_a_spread_that_contradicts_itself_has_no_configuration() -> None:
    with pytest.raises(MappingError, match="interleave"):
        Spread(1, pcp_size=2, interleave=2).config()
    assert Spread(4, tp_size=2).config(1).rank == 1


def test_names_are_of_the_numbers() -> None:
    names = [str(name) for name in names_of_bytes(attention(2, Encoding.SPLIT_HND), Spread(1))]
    assert names[0] == "token 0 head 0 K byte 0"
    assert names[6] == "token 0 head 0 V byte 0"
    assert names[12] == "token 0 head 1 K byte 0"
    assert len(names) == 24
    second = [str(name) for name in names_of_bytes(latent(2), Spread(2))]
    assert second[6:9] == ["token 0 second byte 0", "token 0 second byte 1", "token 1 row byte 0"]


def test_places_are_where_numbers_are() -> None:
    assert place_in(np.array([2, 0, 1]), np.array([0, 1, 2])).tolist() == [1, 2, 0]


def test_chunks_mean_the_same_however_tokens_are_cut() -> None:
    token_major = attention(2, Encoding.PACKED_NHD)
    assert chunk(token_major, Spread(2), 2) == chunk(token_major, Spread(4, tp_size=2), 1)
    head_major = attention(2, Encoding.PACKED_HND)
    assert chunk(head_major, Spread(2), 2) != chunk(head_major, Spread(4), 1)
    assert chunk(head_major, Spread(1), 1) == chunk(token_major, Spread(1), 1)
    opaque = OpaqueLayer(page_size_bytes=1)
    assert chunk(opaque, Spread(2), 1) != chunk(opaque, Spread(4), 1)
    assert chunk(opaque, Spread(2), 1) == chunk(opaque, Spread(2, interleave=2), 1)


def test_runs_are_written_out_as_a_loop_would() -> None:
    runs = [CopyRun(0, 5, 2, 3, 4, 7), CopyRun(2, 0, 1, 1, 0, 0), CopyRun(6, 30, 3, 2, 3, 9)]
    expected = [
        (run.local_offset + i * run.local_stride + k, run.canonical_offset + i * c_stride + k, n)
        for n, run in enumerate(runs)
        for c_stride in [run.canonical_stride]
        for i in range(run.num_fragments)
        for k in range(run.fragment_size)
    ]
    pairing = written_out([row_of(run) for run in runs])
    assert list(zip(*(part.tolist() for part in pairing), strict=True)) == expected
    assert all(len(part) == 0 for part in written_out([]))


@pytest.mark.parametrize(
    ("facing", "rows"),
    [
        ([], []),
        ([3, 4, 5], [RunRow(0, 3, 3, 1, 3, 3)]),
        # Equal fragments at equal steps are one run ...
        ([0, 1, 6, 7, 12, 13], [RunRow(0, 0, 2, 3, 2, 6)]),
        # ... taken from the left: the last two have a step of their own.
        ([0, 10, 20, 24, 28], [RunRow(0, 0, 1, 3, 1, 10), RunRow(3, 24, 1, 2, 1, 4)]),
        # Other sizes, and steps backwards, are other runs.
        ([0, 1, 8], [RunRow(0, 0, 2, 1, 2, 2), RunRow(2, 8, 1, 1, 1, 1)]),
        ([9, 5], [RunRow(0, 9, 1, 1, 1, 1), RunRow(1, 5, 1, 1, 1, 1)]),
    ],
)
def test_the_slow_normal_form_by_hand(facing: list[int], rows: list[RunRow]) -> None:
    assert slow_normal_form(np.array(facing, dtype=np.int64)) == rows


def test_a_sample_is_the_same_every_time() -> None:
    cases = [Case(layer, Spread(8, tp_size=2)) for layer in GRID.layers()]
    drawn = list(sample(cases, one_in=5, seed=3))
    assert drawn == list(sample(cases, one_in=5, seed=3))
    assert 0 < len(drawn) < len(cases)
