"""Intervals: they hold what they should, and say when there is none."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kvoffload.errors import InvalidValueError
from kvoffload.judge.resampling import block_length, resampled


def share(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[:, 0] / sums[:, 1]


def coin(length: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 2, length)


def test_it_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(200):
        found = resampled(share, coin(400, seed), np.ones(400, np.int64), samples=400)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.5 <= found.high
    # 190 of 200 would be exact; blocks of a short series are a little too sure of themselves.
    assert 172 <= held <= 198


def test_requests_that_hang_together_make_it_wider() -> None:
    alternating = np.tile([0, 1], 200)
    in_runs = np.repeat([0, 1] * 5, 40)
    ones = np.ones(400, np.int64)
    widths: list[float] = []
    for series in (alternating, in_runs):
        found = resampled(share, series, ones)
        assert found.low is not None
        assert found.high is not None
        assert found.value == 0.5
        widths.append(found.high - found.low)
    assert widths[0] < 0.01 < 0.2 < widths[1]


def test_the_same_seed_draws_the_same() -> None:
    one, other, third = (resampled(share, coin(50, 1), coin(50, 2), seed=n) for n in (3, 3, 4))
    assert one == other
    assert one.value == third.value
    assert one.low != third.low


def test_a_ratio_to_nothing_has_no_interval() -> None:
    found = resampled(share, coin(50, 1), np.zeros(50, np.int64))
    assert found.low is None
    assert found.high is None


def test_one_request_is_its_own_block() -> None:
    assert [block_length(n) for n in (1, 3, 4, 100)] == [1, 1, 2, 10]
    found = resampled(share, np.array([1]), np.array([2]))
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)


def test_an_empty_series_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="series"):
        resampled(share, np.zeros(0, np.int64), np.zeros(0, np.int64))
