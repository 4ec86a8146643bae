"""Several runs of the same thing in figures, ratios between two such, and what is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from attrs import frozen


@frozen
class Target:
    """A bound that a ratio should keep to."""

    bound: float
    at_least: bool

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"


def at_least(bound: float) -> Target:
    return Target(bound, True)


def at_most(bound: float) -> Target:
    return Target(bound, False)


@frozen
class Ratio:
    """`value` is of medians; `rounds` has the ratio of each round by itself."""

    what: str
    value: float
    rounds: Sequence[float]
    target: Target | None = None


def ratio(
    what: str, over: Sequence[float], under: Sequence[float], target: Target | None = None
) -> Ratio:
    """What `over` is in units of `under`, both in the order of their rounds."""
    return Ratio(what, median(over) / median(under), _quotients(over, under), target)


def ratio_of_ratios(what: str, over: Ratio, under: Ratio, target: Target | None = None) -> Ratio:
    """What one ratio is in units of another of the same rounds."""
    rounds = _quotients(over.rounds, under.rounds)
    return Ratio(what, over.value / under.value, rounds, target)


def _quotients(over: Sequence[float], under: Sequence[float]) -> list[float]:
    return [above / below for above, below in zip(over, under, strict=True)]


@frozen
class Figure:
    """One thing measured in several runs, in `unit`, with what else there is to say of it."""

    what: str
    unit: str
    runs: Sequence[float]
    remark: str = ""

    @property
    def median(self) -> float:
        return median(self.runs)


@frozen
class Section:
    """A question, the ratios that answer it, and the figures behind them."""

    title: str
    ratios: Sequence[Ratio]
    figures: Sequence[Figure]
    notes: Sequence[str] = ()
