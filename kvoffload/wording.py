"""Words that depend on a number."""

from __future__ import annotations

from math import floor


def counted(number: int, noun: str) -> str:
    """`1 chunk`, `2 chunks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """`24%` of a share from 0 to 1: never more than it is, so that 100% is all."""
    return f"{floor(round(100 * share, 1))}%"
