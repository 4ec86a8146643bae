"""How sure a figure is: a bootstrap over requests.

Requests that follow each other are not independent, so blocks of them are drawn, not single ones,
after H. Kuensch, "The jackknife and the bootstrap for general stationary observations", Annals of
Statistics 17(3), 1989; blocks wrap around the end, after D. Politis and J. Romano, "A circular
block-resampling procedure for stationary data", 1992.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import TypeAlias

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kvoffload.errors import InvalidValueError
from kvoffload.judge.outcome import Counts

Sums: TypeAlias = NDArray[np.float64]
"""Rows of sums over requests, one column a series."""

SAMPLES = 2_000
LEVEL = 0.95


@frozen
class Interval:
    """A figure with the interval in which it lies at a level of 95%. None where it has none."""

    value: float
    low: float | None
    high: float | None


def block_length(requests: int) -> int:
    """How many requests are drawn together: the square root of how many there are, at least 1."""
    return max(1, isqrt(requests))


def resampled(
    figure: Callable[[Sums], Sums],
    *series: Counts,
    seed: int = 0,
    samples: int = SAMPLES,
) -> Interval:
    """The figure that follows from the sums of some series over requests, with its interval.

    `figure` gets sums in rows, one column a series, and answers one number a row; what is not
    finite there (a ratio to nothing) is left out. Raises InvalidValueError for series that are
    empty or differ in length.
    """
    columns = np.stack([np.asarray(one, np.float64) for one in series], axis=1)
    length = len(columns)
    if not length:
        raise InvalidValueError("series", 0, "at least one request long")
    value = float(figure(columns.sum(axis=0)[None, :])[0])
    size = block_length(length)
    draws = -(-length // size)
    # Sums of each block that could be drawn, wherever it begins.
    around = np.concatenate([columns, columns[: size - 1]])
    running = np.concatenate([np.zeros((1, columns.shape[1])), around.cumsum(axis=0)])
    blocks = running[size:] - running[:-size]
    starts = np.random.default_rng(seed).integers(0, length, (samples, draws))
    figures = figure(blocks[starts].sum(axis=1))
    figures = figures[np.isfinite(figures)]
    if not np.isfinite(value) or len(figures) < samples // 2:
        return Interval(value, None, None)
    low, high = np.quantile(figures, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))


def share_of(part: Counts, whole: Counts) -> Interval:
    """The share that the sum of one series over requests is of another's, with its interval."""
    return resampled(_share, part, whole)


def _share(sums: Sums) -> Sums:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums[:, 0] / sums[:, 1], np.float64)
