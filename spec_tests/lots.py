"""Of a family of like cases CI tries a part, drawn by lot once and for all; the night tries all.

A case that no lot fell on is marked `nightly`, so that pytest deselects it, and says how many it
did; `-m ""` takes every case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import TypeVar

import pytest

T = TypeVar("T")


def _all_alike(case: object) -> object:
    return None


def by_lot(
    cases: Iterable[T], *, one_of: int, within: Callable[[T], object] = _all_alike
) -> list[object]:
    """All cases in their order, of which every so many, at least one, is for CI too.

    The lot is drawn of the names, so that a new case leaves nearly all as they were; where cases
    are alike `within` groups, of each group by itself.
    """
    listed = list(cases)
    groups: dict[object, list[str]] = {}
    for case in listed:
        groups.setdefault(within(case), []).append(name_of(case))
    drawn = {name for names in groups.values() for name in drawn_of(names, one_of=one_of)}
    return [
        case if name_of(case) in drawn else pytest.param(case, marks=pytest.mark.nightly)
        for case in listed
    ]


def drawn_of(names: Iterable[str], *, one_of: int) -> list[str]:
    """The names that the lot falls on: one in so many, rounded up."""
    by_digest = sorted(names, key=lambda name: sha256(name.encode()).digest())
    return by_digest[: -(-len(by_digest) // one_of)]


def name_of(case: object) -> str:
    """What is drawn: the name of a class or a function, else the case in words."""
    named = getattr(case, "__qualname__", None)
    return named if isinstance(named, str) else repr(case)
