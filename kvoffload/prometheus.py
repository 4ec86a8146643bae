"""Export of `OffloadingStats` to prometheus_client (extra `prometheus`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, TypeVar

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ModuleNotFoundError as _missing:
    if _missing.name != "prometheus_client":
        raise
    raise ImportError(
        f"{__name__} needs prometheus_client: pip install 'kvoffload[prometheus]'",
        name="prometheus_client",
    ) from None

from kvoffload.errors import InvalidValueError
from kvoffload.metrics import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
    OffloadingStats,
    Series,
)

_Metric: TypeAlias = Counter | Gauge | Histogram
_M = TypeVar("_M", Counter, Gauge, Histogram)


class PrometheusExporter:
    """Registers the metrics of a specification, and adds each interval's figures to them.

    `definitions` is what `OffloadingSpec.build_metric_definitions` gives: it brings the help
    texts, label names and buckets. `labels` are put on every series, say `{"engine": "0"}`.
    Raises ValueError, having registered nothing, where `registry` has a metric of that name.
    """

    def __init__(
        self,
        definitions: Mapping[str, OffloadingMetricMetadata],
        registry: CollectorRegistry = REGISTRY,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._labels: dict[str, str] = dict(labels or {})
        self._definitions: dict[str, OffloadingMetricMetadata] = dict(definitions)
        self._metrics: dict[str, _Metric] = {}
        try:
            for name, metadata in definitions.items():
                self._metrics[name] = self._register(name, metadata, registry)
        except ValueError:
            for metric in self._metrics.values():
                registry.unregister(metric)
            raise

    def export(self, stats: OffloadingStats) -> None:
        """Add the figures of one interval.

        Raises InvalidValueError, having exported nothing, for a metric without a definition, of
        another kind than defined, or with another number of labels.
        """
        gauges = [(self._child(series, Gauge), value) for series, value in stats.gauges.items()]
        counters = [(self._child(series, Counter), n) for series, n in stats.counters.items()]
        histograms = [(self._child(series, Histogram), v) for series, v in stats.histograms.items()]
        for gauge, value in gauges:
            gauge.set(value)
        for counter, amount in counters:
            counter.inc(amount)
        for histogram, values in histograms:
            for value, times in values.items():
                for _ in range(times):
                    histogram.observe(value)

    def _register(
        self, name: str, metadata: OffloadingMetricMetadata, registry: CollectorRegistry
    ) -> _Metric:
        help_text = metadata.documentation
        labelnames = (*self._labels, *metadata.labelnames)
        match metadata:
            case OffloadingHistogramMetadata(buckets=None):
                return Histogram(name, help_text, labelnames, registry=registry)
            case OffloadingHistogramMetadata(buckets=tuple(buckets)):
                return Histogram(name, help_text, labelnames, registry=registry, buckets=buckets)
            case OffloadingCounterMetadata():
                return Counter(name, help_text, labelnames, registry=registry)
            case OffloadingGaugeMetadata():
                return Gauge(name, help_text, labelnames, registry=registry)
            case _:
                raise InvalidValueError(
                    name, metadata, "the metadata of a counter, gauge or histogram"
                )

    def _child(self, series: Series, kind: type[_M]) -> _M:
        name, labelvalues = series
        metric = self._metrics.get(name)
        if not isinstance(metric, kind):
            raise InvalidValueError("name", name, f"a {kind.__name__} among the definitions")
        labelnames = self._definitions[name].labelnames
        if len(labelvalues) != len(labelnames):
            raise InvalidValueError("labelvalues", labelvalues, f"values of {labelnames}")
        if not self._labels and not labelnames:
            return metric
        return metric.labels(*self._labels.values(), *labelvalues)
