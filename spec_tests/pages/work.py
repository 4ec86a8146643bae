"""The grid and the pairs in parts, each of which one process does by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from attrs import define, field

from stateful_models.gallery.mappings import REFERENCE
from stateful_models.pages import (
    GRID,
    Case,
    Findings,
    PageMapper,
    Pair,
    Spread,
    drawn_pairs,
    judge_bare,
    judge_case,
    judge_ids,
    judge_pairs,
    judge_recognition,
    unusual,
)

NUM_PAIRS: Final = 50_000
TENTHS: Final = 10
PAIRS_IN_A_PART: Final = 250
SPREADS_IN_A_PART: Final = 16


@define
class Tally:
    """What was tried, and what was found."""

    legal: int = 0
    # Of them, those whose interleave plays no part and is not 1.
    repeated: int = 0
    illegal: int = 0
    pairs: int = 0
    unusual: int = 0
    findings: Findings = field(factory=Findings)

    def add(self, other: Tally) -> None:
        """Take in what another process did."""
        self.legal += other.legal
        self.repeated += other.repeated
        self.illegal += other.illegal
        self.pairs += other.pairs
        self.unusual += other.unusual
        self.findings.merge(other.findings)


@define
class GridPart:
    """All layers under these configurations, or a seeded tenth of them."""

    spreads: Sequence[Spread]
    tenth: int | None = None
    seed: int = 0

    @property
    def size(self) -> int:
        """Configurations."""
        return len(self.spreads)

    def run(self, mapper: PageMapper = REFERENCE) -> Tally:
        """Judge them."""
        tally = Tally()
        for spread in self.spreads:
            # Drawn for each configuration by itself, whichever part it is in.
            random = Random(f"{self.seed} {tuple(spread)}")
            for case in GRID.of(spread):
                if self.tenth is None or random.randrange(TENTHS) == self.tenth:
                    self._judge(mapper, case, tally)
        return tally

    def _judge(self, mapper: PageMapper, case: Case, tally: Tally) -> None:
        if case.is_legal:
            tally.legal += 1
            tally.repeated += case.spread.cp_size == 1 and case.spread.interleave > 1
        else:
            tally.illegal += 1
        tally.findings.add(judge_case(mapper, case))


@define
class PairsPart:
    """Some of the pairs that were drawn."""

    pairs: Sequence[Pair]

    @property
    def size(self) -> int:
        """Pairs."""
        return len(self.pairs)

    def run(self, mapper: PageMapper = REFERENCE) -> Tally:
        """Judge them."""
        tally = Tally(pairs=len(self.pairs))
        tally.findings.add(judge_pairs(mapper, self.pairs))
        return tally


@define
class OtherPart:
    """Unusual layers, layout ids, refused descriptions and recognition."""

    size: int = 1

    def run(self, mapper: PageMapper = REFERENCE) -> Tally:
        """Judge them."""
        tally = Tally()
        for case in unusual():
            tally.unusual += 1
            tally.findings.add(judge_case(mapper, case))
        tally.findings.add(judge_ids(mapper))
        tally.findings.add(judge_bare(mapper))
        tally.findings.add(judge_recognition(mapper))
        return tally


Part = GridPart | PairsPart | OtherPart


def grid_parts(*, tenth: int | None = None, seed: int = 0) -> Iterator[GridPart]:
    """The grid, small cases first."""
    spreads = GRID.spreads()
    for start in range(0, len(spreads), SPREADS_IN_A_PART):
        yield GridPart(spreads[start : start + SPREADS_IN_A_PART], tenth, seed)


def pairs_parts(*, tenth: int | None = None, seed: int = 0) -> Iterator[PairsPart]:
    """The pairs: those with a source and layer in common stay together."""
    pairs = drawn_pairs(NUM_PAIRS, seed=seed)
    if tenth is not None:
        # Neighbours have much in common, which is made once.
        pairs = [
            pair
            for start in range(tenth * PAIRS_IN_A_PART, len(pairs), TENTHS * PAIRS_IN_A_PART)
            for pair in pairs[start : start + PAIRS_IN_A_PART]
        ]
    for start in range(0, len(pairs), PAIRS_IN_A_PART):
        yield PairsPart(pairs[start : start + PAIRS_IN_A_PART])


def run_part(part: Part) -> Tally:
    """Judge the reference on a part."""
    return part.run()
