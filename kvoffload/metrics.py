"""Metrics: how a tier describes its figures, and the figures of one interval (MET-1, MET-2)."""

from __future__ import annotations

import math
from collections import Counter
from typing import TypeAlias

from attrs import field, frozen

from kvoffload.errors import InvalidValueError
from kvoffload.validation import each_instance, instance, require_int

LabelValues: TypeAlias = tuple[str, ...]
Series: TypeAlias = tuple[str, LabelValues]


@frozen
class OffloadingMetricMetadata:
    """What a metric means, and the names of its labels in order."""

    documentation: str = field(validator=instance(str))
    labelnames: tuple[str, ...] = field(
        default=(), converter=tuple[str, ...], validator=each_instance(str)
    )


@frozen
class OffloadingCounterMetadata(OffloadingMetricMetadata):
    """A count that only grows."""


@frozen
class OffloadingGaugeMetadata(OffloadingMetricMetadata):
    """A value of the moment."""


def _ascending(_: object, __: object, value: tuple[float, ...] | None) -> None:
    if value is not None and (not value or list(value) != sorted(set(value))):
        raise InvalidValueError("buckets", value, "None or ascending bounds, at least one")


@frozen
class OffloadingHistogramMetadata(OffloadingMetricMetadata):
    """A distribution; `buckets` are ascending upper bounds, None for the exporter's own."""

    buckets: tuple[float, ...] | None = field(default=None, validator=_ascending)


class OffloadingStats:
    """Figures of one interval.

    Gauges hold the latest value, counters the increase, histograms every value observed (kept
    as value -> times, so that a long interval of few distinct sizes stays small). Each series
    is a name and its label values. One name is one kind: a counter set as a gauge is refused.
    """

    def __init__(self) -> None:
        self.gauges: dict[Series, float] = {}
        self.counters: dict[Series, float] = {}
        self.histograms: dict[Series, Counter[float]] = {}

    def set_gauge(self, name: str, value: float, labelvalues: LabelValues = ()) -> None:
        """Set a gauge. Raises InvalidValueError for no number, or if `name` is of another kind."""
        _require_number("value", value)
        self._refuse_other_kind(name, "gauge")
        self.gauges[name, labelvalues] = value

    def increase_counter(self, name: str, amount: float = 1, labelvalues: LabelValues = ()) -> None:
        """Add to a counter. Raises InvalidValueError for a negative amount (MET-2)."""
        _require_number("amount", amount)
        if amount < 0:
            raise InvalidValueError("amount", amount, "a finite number >= 0")
        self._refuse_other_kind(name, "counter")
        series = name, labelvalues
        self.counters[series] = self.counters.get(series, 0) + amount

    def observe_histogram(
        self, name: str, value: float, labelvalues: LabelValues = (), *, times: int = 1
    ) -> None:
        """Observe `value`, `times` times over. Raises InvalidValueError for no number."""
        _require_number("value", value)
        require_int("times", times, 1)
        self._refuse_other_kind(name, "histogram")
        self.histograms.setdefault((name, labelvalues), Counter())[value] += times

    def merge(self, other: OffloadingStats) -> OffloadingStats:
        """Take in a later interval: counters add up, histograms join, gauges are replaced.

        Returns self. Raises InvalidValueError before anything is merged if a name is of
        different kinds in the two.
        """
        kinds = other._kinds()
        for name, kind in self._kinds().items():
            if kinds.get(name, kind) != kind:
                raise InvalidValueError("name", name, "a metric of one kind only")
        self.gauges.update(other.gauges)
        for series, amount in other.counters.items():
            self.counters[series] = self.counters.get(series, 0) + amount
        for series, values in other.histograms.items():
            self.histograms.setdefault(series, Counter()).update(values)
        return self

    def is_empty(self) -> bool:
        return not (self.gauges or self.counters or self.histograms)

    def reduce(self) -> dict[str, float]:
        """One number a name: histograms as `<name>_count` and `<name>_sum`.

        Labelled series are told apart by `<name>:<labels>`.
        """
        numbers = {_flat_name(series): value for series, value in self.gauges.items()}
        numbers.update((_flat_name(series), value) for series, value in self.counters.items())
        for series, values in self.histograms.items():
            numbers[f"{_flat_name(series)}_count"] = values.total()
            numbers[f"{_flat_name(series)}_sum"] = sum(v * n for v, n in values.items())
        return numbers

    def __repr__(self) -> str:
        return f"OffloadingStats({self.reduce()})"

    def _kinds(self) -> dict[str, str]:
        return {
            **{name: "gauge" for name, _ in self.gauges},
            **{name: "counter" for name, _ in self.counters},
            **{name: "histogram" for name, _ in self.histograms},
        }

    def _refuse_other_kind(self, name: str, kind: str) -> None:
        if self._kinds().get(name, kind) != kind:
            raise InvalidValueError("name", name, f"the name of a {kind}, or a new one")


def _require_number(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidValueError(field, value, "a finite number")


def _flat_name(series: Series) -> str:
    name, labelvalues = series
    return f"{name}:{labelvalues}" if labelvalues else name
