"""Of a family of like cases CI tries a part, drawn by lot once and for all; the night tries all.

A case that no lot fell on is marked `nightly`, so that pytest deselects it, and says how many it
did; `-m ""` takes every case.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import pytest


def by_lot(cases: Iterable[object], *, one_of: int) -> list[object]:
    """All cases in their order, of which every so many, at least one, is for CI too.

    The lot is drawn of the names, so that a new case leaves nearly all as they were.
    """
    listed = list(cases)
    drawn = set(drawn_of(map(name_of, listed), one_of=one_of))
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
