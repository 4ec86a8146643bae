"""A seeded part of what `nox -s pages` tries: the reference's mappings against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from spec_tests.lots import by_lot
from spec_tests.pages.work import (
    NUM_PAIRS,
    TENTHS,
    OtherPart,
    PairsPart,
    Tally,
    grid_parts,
    pairs_parts,
)

SEED = 2026
SHARES = 4
"""Of a tenth of the grid, so that several processes can have a part of it."""
PAIR_SHARES = 20
"""Of a tenth of the pairs."""


def assert_nothing_found(tally: Tally) -> None:
    assert not tally.findings.listed(), str(tally.findings.listed()[0])


@cache
def a_tenth_of_the_pairs() -> Sequence[PairsPart]:
    return list(pairs_parts(tenth=SEED % TENTHS, seed=SEED))


# A twentieth in CI, and a tenth in the night.
@pytest.mark.parametrize("share", by_lot(range(SHARES), one_of=2))
def test_a_fortieth_of_the_grid(share: int) -> None:
    tally = Tally()
    for part in list(grid_parts(tenth=SEED % TENTHS, seed=SEED))[share::SHARES]:
        tally.add(part.run())
    assert_nothing_found(tally)
    assert tally.legal > 500
    assert tally.illegal > 4_000


# One of them in CI, and all, which is a tenth, in the night.
@pytest.mark.parametrize("share", by_lot(range(PAIR_SHARES), one_of=PAIR_SHARES))
def test_a_two_hundredth_of_the_pairs(share: int) -> None:
    tally = Tally()
    for part in a_tenth_of_the_pairs()[share::PAIR_SHARES]:
        tally.add(part.run())
    assert_nothing_found(tally)
    assert tally.pairs == NUM_PAIRS // TENTHS // PAIR_SHARES


def test_unusual_layers_ids_and_tensors() -> None:
    tally = OtherPart().run()
    assert_nothing_found(tally)
    assert tally.unusual > 1_000


def test_the_grid_is_what_it_is_said_to_be() -> None:
    spreads = [spread for part in grid_parts() for spread in part.spreads]
    assert len(set(spreads)) == len(spreads) == 8 * 4 * 3 * 5 * 4
    sizes = [spread.span * spread.num_ranks for spread in spreads]
    assert sizes == sorted(sizes)


def test_tenths_are_a_partition() -> None:
    (part, *_) = grid_parts()
    whole = part.run()
    tenths = Tally()
    for tenth in range(TENTHS):
        (drawn, *_) = grid_parts(tenth=tenth, seed=SEED)
        tenths.add(drawn.run())
    assert (tenths.legal, tenths.illegal) == (whole.legal, whole.illegal)
