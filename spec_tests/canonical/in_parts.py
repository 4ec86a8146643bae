"""A trial of a mapper, a part of it at a time: what most cases show need not see them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from attrs import evolve

from stateful_models.pages import PageFinding, PageMapper, check_mapper
from stateful_models.pages.cases import SMALL_GRID, Case, Pair, unusual
from stateful_models.pages.trial import small_pairs

PARTS: Final = 8


def findings_in_parts(mapper: PageMapper) -> Iterator[PageFinding]:
    """What `check_mapper` finds, from one eighth of its cases and pairs after the other."""
    derives = evolve(mapper, recognise=None, derive_bare=None, layout_id=None)
    for part in range(PARTS):
        yield from check_mapper(derives, _cases()[part::PARTS], _pairs()[part::PARTS])
        if not part:
            # What it has beside `derive` asks for no case.
            yield from check_mapper(mapper, (), ())


@cache
def _cases() -> Sequence[Case]:
    return (*SMALL_GRID.cases(), *unusual())


@cache
def _pairs() -> Sequence[Pair]:
    return tuple(small_pairs())
