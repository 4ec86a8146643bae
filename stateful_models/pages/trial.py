"""A whole trial of a mapper: of each demand that it breaks, the smallest case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, product
from typing import Final

from attrs import define, evolve, field

from stateful_models.contract import Kind
from stateful_models.pages.cases import SMALL_GRID, Case, Pair, drawn_pairs, unusual
from stateful_models.pages.descriptions import judge_bare, judge_recognition
from stateful_models.pages.findings import PageFinding
from stateful_models.pages.judging import judge_case
from stateful_models.pages.mapper import PageMapper
from stateful_models.pages.moving import judge_pairs
from stateful_models.pages.naming import judge_ids

CLAUSES_JUDGED: Final = (*(f"MAP-{number}" for number in range(1, 9)), "ID-1")
"""What a trial can convict of."""
FEW_PAIRS: Final = 200


@define
class Findings:
    """Of every demand that is broken the smallest case, and how many cases broke it."""

    smallest: dict[tuple[str, Kind], PageFinding] = field(factory=dict)
    counts: dict[tuple[str, Kind], int] = field(factory=dict)

    def add(self, found: Iterable[PageFinding]) -> None:
        """Take notice of these."""
        for finding in found:
            demand = finding.clause, finding.kind
            self.counts[demand] = self.counts.get(demand, 0) + 1
            known = self.smallest.get(demand)
            if known is None or finding.size < known.size:
                self.smallest[demand] = finding

    def merge(self, other: Findings) -> None:
        """Take notice of all that another has."""
        for demand, finding in other.smallest.items():
            often = self.counts.get(demand, 0) + other.counts[demand]
            self.add([finding])
            self.counts[demand] = often

    def listed(self) -> list[PageFinding]:
        """In the order of the contract."""
        order = list(CLAUSES_JUDGED)
        return sorted(self.smallest.values(), key=lambda one: order.index(one.clause))


def check_mapper(
    mapper: PageMapper,
    cases: Iterable[Case] | None = None,
    pairs: Iterable[Pair] | None = None,
) -> list[PageFinding]:
    """What the mapper breaks, one finding a demand, shown by the smallest case that was tried.

    Without `cases` a small grid and unusual layers are tried, without `pairs` some of these; both
    are seconds of work. What the mapper has beside `derive` is tried as well.
    """
    findings = Findings()
    for case in chain(SMALL_GRID.cases(), unusual()) if cases is None else cases:
        findings.add(judge_case(mapper, case))
    findings.add(judge_pairs(mapper, list(small_pairs() if pairs is None else pairs)))
    findings.add(judge_ids(mapper))
    findings.add(judge_bare(mapper))
    findings.add(judge_recognition(mapper))
    return findings.listed()


def small_pairs() -> Iterator[Pair]:
    """Some pairs of the small grid, and all of unusual layers under very few configurations."""
    yield from drawn_pairs(FEW_PAIRS, grid=SMALL_GRID)
    few = SMALL_GRID._replace(tp=(1, 4), interleave=(2,), block=(2, 4))
    few = few._replace(dcp=(1,))
    legal = [case for case in unusual(few) if case.is_legal]
    for number, (source, target) in enumerate(product(legal, legal)):
        if (_bare(source), source.spread.span) == (_bare(target), target.spread.span):
            yield Pair(source, target, number)


def _bare(case: Case) -> object:
    return evolve(case.layer, padded_page_size_bytes=None)
