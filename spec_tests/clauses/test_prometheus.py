"""MET-1 and MET-2 as prometheus_client shows them (extra `prometheus`)."""

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from kvoffload import (
    CPUOffloadingManager,
    CPUOffloadingSpec,
    InvalidValueError,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingStats,
)
from kvoffload.prometheus import PrometheusExporter
from spec_tests.clauses.helpers import (
    ALLOCATION_SIZE,
    READ_USAGE,
    STORES_SKIPPED,
    USAGE,
    WRITE_USAGE,
    A,
    B,
    C,
    pin,
    prepare,
    put,
)


def exporter(registry: CollectorRegistry, threshold: int = 2) -> PrometheusExporter:
    definitions = CPUOffloadingSpec.build_metric_definitions({"store_threshold": threshold})
    return PrometheusExporter(definitions, registry)


@pytest.mark.clause("MET-1")
def test_every_figure_of_the_manager_is_shown() -> None:
    registry = CollectorRegistry()
    exporting, manager = exporter(registry), CPUOffloadingManager(4, store_threshold=2)
    for _ in range(2):
        put(manager, [A, B])
    pin(manager, [A])
    prepare(manager, [C])
    prepare(manager, [C])
    exporting.export(manager.get_stats())
    value = registry.get_sample_value
    assert value(USAGE) == 0.5
    assert value(WRITE_USAGE) == value(READ_USAGE) == 0.25
    assert value(f"{ALLOCATION_SIZE}_count") == 2
    assert value(f"{ALLOCATION_SIZE}_sum") == 3
    assert value(f"{STORES_SKIPPED}_total") == 3


@pytest.mark.clause("MET-1")
def test_help_texts_and_buckets_are_shown() -> None:
    registry = CollectorRegistry()
    exporting = exporter(registry)
    stats = OffloadingStats()
    for size in (1, 4, 5, 262_144, 262_145):
        stats.observe_histogram(ALLOCATION_SIZE, size)
    exporting.export(stats)
    below = [
        registry.get_sample_value(f"{ALLOCATION_SIZE}_bucket", {"le": bound})
        for bound in ("1.0", "4.0", "16.0", "262144.0", "+Inf")
    ]
    assert below == [1, 2, 3, 4, 5]
    text = generate_latest(registry).decode()
    for name, metadata in CPUOffloadingSpec.build_metric_definitions({}).items():
        assert f"# HELP {name} {metadata.documentation}" in text


@pytest.mark.clause("MET-2")
def test_intervals_add_up() -> None:
    registry = CollectorRegistry()
    exporting, manager = exporter(registry), CPUOffloadingManager(4, store_threshold=2)
    for offer in ([A], [A, B], [B]):
        put(manager, offer)
        exporting.export(manager.get_stats())
    assert registry.get_sample_value(f"{STORES_SKIPPED}_total") == 2
    assert registry.get_sample_value(f"{ALLOCATION_SIZE}_count") == 2
    assert registry.get_sample_value(USAGE) == 0


@pytest.mark.clause("MET-2")
def test_nothing_is_exported_of_an_interval_with_an_undefined_metric() -> None:
    registry = CollectorRegistry()
    exporting = exporter(registry)
    unknown, wrong_kind, labelled = OffloadingStats(), OffloadingStats(), OffloadingStats()
    unknown.increase_counter("unknown")
    wrong_kind.set_gauge(STORES_SKIPPED, 1)
    labelled.increase_counter(STORES_SKIPPED, 1, ("label",))
    for stats in (unknown, wrong_kind, labelled):
        stats.set_gauge(USAGE, 0.5)
        with pytest.raises(InvalidValueError):
            exporting.export(stats)
    assert registry.get_sample_value(USAGE) == 0


@pytest.mark.clause("MET-1")
def test_labels_tell_series_apart() -> None:
    registry = CollectorRegistry()
    exporting = PrometheusExporter(
        {
            "g": OffloadingGaugeMetadata("a gauge", ("tier",)),
            "c": OffloadingCounterMetadata("a counter"),
            "h": OffloadingHistogramMetadata("a histogram", buckets=None),
        },
        registry,
        {"engine": "3"},
    )
    stats = OffloadingStats()
    stats.set_gauge("g", 1, ("cpu",))
    stats.set_gauge("g", 2, ("disk",))
    stats.increase_counter("c", 4)
    stats.observe_histogram("h", 1)
    exporting.export(stats)
    value = registry.get_sample_value
    assert value("g", {"engine": "3", "tier": "cpu"}) == 1
    assert value("g", {"engine": "3", "tier": "disk"}) == 2
    assert value("c_total", {"engine": "3"}) == 4
    assert value("h_count", {"engine": "3"}) == 1
