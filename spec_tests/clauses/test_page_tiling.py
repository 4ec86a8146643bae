"""MAP-2, MAP-3, MAP-8: the proof that pages fit together, against counting byte by byte."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from kvoffload import (
    CanonicalPageMapping,
    CopyRun,
    InvalidValueError,
    TilingError,
    verify_tiling,
)
from kvoffload.canonical.tiling import Strip, common_bytes

PAGE = 24


def mapping(
    *runs: CopyRun, local: int, canonical: int = PAGE, writers: int = 1, index: int = 0
) -> CanonicalPageMapping:
    return CanonicalPageMapping(canonical, local, runs, writers, index, parallelism_agnostic=True)


def cover(runs: Sequence[CopyRun], *, local: bool) -> Counter[int]:
    """How often each byte is covered, one by one."""
    count: Counter[int] = Counter()
    for run in runs:
        offset = run.local_offset if local else run.canonical_offset
        stride = run.local_stride if local else run.canonical_stride
        for i in range(run.num_fragments):
            start = offset + i * stride
            count.update(range(start, start + run.fragment_size))
    return count


@st.composite
def canonical_runs(draw: st.DrawFn) -> CopyRun:
    """A run inside a canonical page of PAGE bytes, whose local side follows itself."""
    size = draw(st.integers(1, 6))
    number = draw(st.integers(1, 5))
    stride = draw(st.integers(size, size + 8))
    room = PAGE - (number - 1) * stride - size
    if room < 0:
        number, room = 1, PAGE - size
    return CopyRun(0, draw(st.integers(0, room)), size, number, size, stride)


def in_a_row(runs: list[CopyRun]) -> tuple[list[CopyRun], int]:
    """The same runs with their local sides one after another, and the page that this makes."""
    placed: list[CopyRun] = []
    local = 0
    for run in runs:
        placed.append(evolve(run, local_offset=local))
        local += run.fragment_size * run.num_fragments
    return placed, local


@pytest.mark.clause("MAP-3")
@given(st.lists(st.lists(canonical_runs(), min_size=1, max_size=3), min_size=1, max_size=3))
def test_the_proof_agrees_with_counting(ranks: list[list[CopyRun]]) -> None:
    mappings: list[CanonicalPageMapping] = []
    for runs in ranks:
        placed, local = in_a_row(runs)
        mappings.append(mapping(*placed, local=local))
    count = cover([run for runs in ranks for run in runs], local=False)
    missing = [byte for byte in range(PAGE) if not count[byte]]
    doubled = [byte for byte in range(PAGE) if count[byte] > 1]
    if not missing and not doubled:
        verify_tiling(mappings)
        return
    with pytest.raises(TilingError) as caught:
        verify_tiling(mappings, name="layers.3")
    error = caught.value
    assert error.clause == "MAP-3"
    assert str(error).startswith("layers.3: ")
    if doubled:
        assert error.doubled is not None
        assert set(range(*error.doubled)) <= set(doubled)
        assert error.doubled[0] < error.doubled[1]
        one, other = error.ranks
        for byte in range(*error.doubled):
            assert (
                cover(ranks[one], local=False)[byte]
                + (one != other) * cover(ranks[other], local=False)[byte]
                >= 2
            )
    else:
        assert error.missing is not None
        start, end = error.missing
        assert start == missing[0]
        assert set(range(start, end)) <= set(missing)
        assert count[end] or end == PAGE
        assert f"{len(missing)} bytes are missing" in str(error)


@st.composite
def tilings(draw: st.DrawFn) -> list[CanonicalPageMapping]:
    """Workers that tile the canonical page in some odd way, each byte drawn an owner."""
    owners = draw(st.lists(st.integers(0, 3), min_size=PAGE, max_size=PAGE))
    step = draw(st.integers(1, 4))
    mappings: list[CanonicalPageMapping] = []
    for rank in sorted(set(owners[: PAGE // step])):
        mine = [place for place in range(PAGE // step) if owners[place] == rank]
        runs = [CopyRun(0, place * step, step, 1, 0, 0) for place in mine]
        if PAGE % step and not mappings:
            runs.append(CopyRun(0, PAGE - PAGE % step, PAGE % step, 1, 0, 0))
        placed, local = in_a_row(runs)
        mappings.append(mapping(*placed, local=local))
    return mappings


@pytest.mark.clause("MAP-3")
@given(tilings(), st.data())
def test_a_tiling_is_proved_and_one_run_less_is_not(
    mappings: list[CanonicalPageMapping], data: st.DataObject
) -> None:
    verify_tiling(mappings)
    rank = data.draw(st.integers(0, len(mappings) - 1))
    runs = mappings[rank].runs
    left_out = data.draw(st.integers(0, len(runs) - 1))
    kept, local = in_a_row([run for i, run in enumerate(runs) if i != left_out])
    mappings[rank] = mapping(*kept, local=max(local, 1))
    with pytest.raises(TilingError):
        verify_tiling(mappings)


@pytest.mark.clause("MAP-2")
@pytest.mark.parametrize(
    ("runs", "missing", "doubled"),
    [
        # The page's second half is in no run.
        ((CopyRun(0, 0, 4, 1, 4, 4),), (4, 8), None),
        # Bytes 2 and 3 are in two.
        ((CopyRun(0, 0, 4, 1, 4, 4), CopyRun(2, 4, 6, 1, 6, 6)), None, (2, 4)),
        # Two combs that miss each other but for one byte.
        ((CopyRun(0, 0, 1, 4, 2, 1), CopyRun(1, 4, 1, 3, 2, 1)), (7, 8), None),
        ((), (0, 8), None),
        # As many bytes as the page has, in order, with a gap that is made up for.
        ((CopyRun(0, 0, 2, 2, 4, 2), CopyRun(4, 4, 4, 1, 4, 4)), None, (4, 6)),
    ],
)
def test_a_workers_runs_cover_its_page_once(
    runs: tuple[CopyRun, ...],
    missing: tuple[int, int] | None,
    doubled: tuple[int, int] | None,
) -> None:
    good = mapping(CopyRun(0, 0, 8, 1, 8, 8), local=8, canonical=16)
    with pytest.raises(TilingError, match="page of rank 1") as caught:
        verify_tiling([good, mapping(*runs, local=8, canonical=16)])
    assert (caught.value.clause, caught.value.ranks) == ("MAP-2", (1,))
    assert (caught.value.missing, caught.value.doubled) == (missing, doubled)


@pytest.mark.clause("MAP-3")
def test_every_turn_has_its_writers() -> None:
    whole = CopyRun(0, 0, 8, 1, 8, 8)
    turns = [mapping(whole, local=8, canonical=8, writers=3, index=i) for i in (0, 1, 2)]
    verify_tiling(turns)
    with pytest.raises(TilingError, match="of 3 turns to write, no worker takes turn 1"):
        verify_tiling([turns[0], turns[2]])
    half = mapping(CopyRun(0, 0, 4, 1, 4, 4), local=4, canonical=8, writers=3, index=1)
    with pytest.raises(TilingError, match=r"\[4, 8\) of the canonical page on turn 1"):
        verify_tiling([turns[0], half, turns[2]])


@pytest.mark.clause("MAP-3")
def test_workers_agree_on_the_page_and_its_writers() -> None:
    good = mapping(CopyRun(0, 0, 8, 1, 8, 8), local=8, canonical=8)
    with pytest.raises(TilingError, match="rank 0 has a canonical page of 8 bytes, rank 1 16"):
        verify_tiling([good, evolve(good, canonical_page_size_bytes=16)])
    with pytest.raises(TilingError, match="rank 0 has num_writers 1, rank 1 2"):
        verify_tiling([good, evolve(good, num_writers=2)])


@pytest.mark.clause("MAP-8")
def test_workers_agree_on_who_can_read_the_page() -> None:
    good = mapping(CopyRun(0, 0, 8, 1, 8, 8), local=8, canonical=8)
    with pytest.raises(TilingError, match="parallelism_agnostic") as caught:
        verify_tiling([good, evolve(good, parallelism_agnostic=False)])
    assert caught.value.clause == "MAP-8"


@pytest.mark.clause("MAP-3")
def test_combs_of_a_billion_teeth_are_compared_by_arithmetic() -> None:
    teeth = 10**9
    even = CopyRun(0, 0, 1, teeth, 1, 2)
    odd = CopyRun(teeth, 1, 1, teeth, 1, 2)
    verify_tiling([mapping(even, odd, local=2 * teeth, canonical=2 * teeth)])
    # Steps of 2 and 3 meet at once; steps of 6 and 10 from an even and an odd byte never do.
    with pytest.raises(TilingError, match="rank 0 writes twice") as caught:
        verify_tiling(
            [
                mapping(
                    CopyRun(0, 0, 1, teeth, 1, 2),
                    CopyRun(teeth, 1, 1, teeth, 1, 3),
                    local=2 * teeth,
                    canonical=4 * teeth,
                )
            ]
        )
    assert caught.value.doubled == (4, 5)
    with pytest.raises(TilingError, match="no elected writer") as caught:
        verify_tiling(
            [
                mapping(
                    CopyRun(0, 0, 1, teeth, 1, 6),
                    CopyRun(teeth, 1, 1, teeth, 1, 10),
                    local=2 * teeth,
                    canonical=10 * teeth,
                )
            ]
        )
    assert caught.value.missing == (2, 6)


@pytest.mark.clause("MAP-3")
def test_two_combs_share_bytes_exactly_where_counting_says() -> None:
    """Steps, sizes and numbers of all kinds, so that every branch of the arithmetic is taken."""
    draw = random.Random(20261130)
    hits = 0
    for _ in range(4_000):
        one, other = (comb(draw, rank) for rank in (0, 1))
        common = teeth_of(one) & teeth_of(other)
        found = common_bytes(one, other)
        assert (found is None) == (not common)
        if found is not None:
            hits += 1
            assert found[0] < found[1]
            assert set(range(*found)) <= common
    assert 1_000 < hits < 3_000


def comb(draw: random.Random, rank: int) -> Strip:
    size = draw.randint(1, 4)
    return Strip(
        start=draw.randint(0, 60),
        size=size,
        num_fragments=draw.randint(1, 9),
        step=size + draw.randint(0, 14),
        rank=rank,
    )


def teeth_of(strip: Strip) -> set[int]:
    return {
        strip.start + i * strip.step + byte
        for i in range(strip.num_fragments)
        for byte in range(strip.size)
    }


@pytest.mark.clause("MAP-3")
def test_combs_side_by_side_may_fill_their_step_and_no_more() -> None:
    one, other = CopyRun(0, 0, 2, 100, 2, 4), CopyRun(200, 2, 2, 100, 2, 4)
    verify_tiling([mapping(one, other, local=400, canonical=400)])
    wide = CopyRun(200, 2, 3, 99, 3, 4)
    with pytest.raises(TilingError) as caught:
        verify_tiling([mapping(one, wide, local=497, canonical=400)])
    assert caught.value.doubled == (4, 5)


@pytest.mark.clause("MAP-3")
def test_nobody_proves_nothing() -> None:
    with pytest.raises(InvalidValueError, match="mappings"):
        verify_tiling([])
