"""What one kind of call costs, and how that grows with the size of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from statistics import linear_regression
from typing import Literal

from attrs import frozen

CONSTANT, LOGARITHMIC, BETWEEN, LINEAR, STEEPER, UNKNOWN = (
    "constant",
    "logarithmic",
    "between logarithmic and linear",
    "linear",
    "more than linear",
    "unknown",
)

Measure = Literal["visits", "seconds"]
Point = Literal["p50", "worst"]


@frozen
class Spread:
    """What some calls cost, each: in seconds or in visits.

    `p50` and `p99` are the smallest that so many in a hundred do not exceed: of fewer than a
    hundred `calls` `p99` is the `worst`.
    """

    calls: int
    p50: float
    p99: float
    worst: float
    mean: float

    @classmethod
    def of(cls, costs: Sequence[float]) -> Spread:
        """That of these, of which there is at least one."""
        ordered = sorted(costs)
        p50, p99 = (ordered[ceil(len(ordered) * share / 100) - 1] for share in (50, 99))
        return cls(len(ordered), p50, p99, ordered[-1], sum(ordered) / len(ordered))


@frozen
class CallCost:
    """What one kind of call costs with `size` chunks in the cache.

    `refused` of the calls were answered with None. `collections`: how often Python's garbage
    collector ran within the timed ones; its time is in theirs, as it is in an engine.
    """

    call: str
    size: int
    seconds: Spread
    visits: Spread
    refused: int
    collections: int


@frozen
class Growth:
    """How the cost of one kind of call grows with the size of the cache.

    `slope` is that of a straight line through the logarithms of cost (`p50` or `worst`) and size: 0
    is constant, 1 is linear. `words` says which it is. None and "unknown" for fewer than two sizes.
    """

    call: str
    measure: Measure
    of: Point
    slope: float | None
    words: str


def growth_of(costs: Sequence[CallCost], measure: Measure, of: Point) -> Growth:
    """The growth of one kind of call, from its cost at each size, of which there is at least one.

    No visit at all counts as one: it is constant. What is constant, logarithmic or linear is told
    by how steep a logarithm is over the same sizes.
    """
    call = costs[0].call
    spreads = [cost.visits if measure == "visits" else cost.seconds for cost in costs]
    least = 1.0 if measure == "visits" else 1e-9
    values = [max(least, one.p50 if of == "p50" else one.worst) for one in spreads]
    sizes = [cost.size for cost in costs]
    if len(set(sizes)) < 2:
        return Growth(call, measure, of, None, UNKNOWN)
    slope = _slope(sizes, values)
    logarithm = _slope(sizes, [log(size) for size in sizes])
    bounds = (
        (logarithm / 2, CONSTANT),
        (max(0.3, 2 * logarithm), LOGARITHMIC),
        (0.8, BETWEEN),
        (1.2, LINEAR),
    )
    words = next((words for bound, words in bounds if slope < bound), STEEPER)
    return Growth(call, measure, of, slope, words)


def _slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    fitted = linear_regression([log(size) for size in sizes], [log(value) for value in values])
    return fitted.slope
