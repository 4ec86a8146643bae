"""MET-1 and MET-2: the figures of the CPU tier."""

from random import Random

import pytest

from kvoffload import (
    CPUOffloadingManager,
    CPUOffloadingSpec,
    InvalidValueError,
    LookupResult,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingStats,
)
from spec_tests.clauses.helpers import (
    ALLOCATION_SIZE,
    LETTERS,
    READ_USAGE,
    STORES_SKIPPED,
    USAGE,
    WRITE_USAGE,
    A,
    B,
    C,
    D,
    E,
    many,
    pin,
    prepare,
    put,
    request,
)


def close(figure: float, expected: float) -> bool:
    return abs(figure - expected) <= 1e-9


COUNT, SUM = f"{ALLOCATION_SIZE}_count", f"{ALLOCATION_SIZE}_sum"


# MET-1


@pytest.mark.clause("MET-1")
def test_gauges_are_shares_of_all_slots() -> None:
    manager = CPUOffloadingManager(8)
    put(manager, [A, B, C])
    pin(manager, [A, A])
    prepare(manager, [D, E])
    figures = manager.get_stats().reduce()
    assert close(figures[USAGE], 3 / 8)
    assert close(figures[WRITE_USAGE], 2 / 8)
    assert close(figures[READ_USAGE], 1 / 8)


@pytest.mark.clause("MET-1")
@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("num_chunks", [3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_every_gauge_equals_a_recount(policy: str, num_chunks: int, seed: int) -> None:
    rng, manager = Random(seed), CPUOffloadingManager(num_chunks, policy)
    pins = dict.fromkeys(LETTERS, 0)
    busiest = 0.0
    for step in range(300):
        context = request(str(step))
        draw = rng.random()
        if draw < 0.35:
            manager.prepare_store(rng.sample(LETTERS, 2), context)
        elif draw < 0.6:
            manager.complete_store(rng.sample(LETTERS, 2), context, success=rng.random() < 0.7)
        elif draw < 0.8:
            chosen = rng.choice(LETTERS)
            if manager.lookup(chosen, context) is LookupResult.HIT:
                manager.prepare_load([chosen], context)
                pins[chosen] += 1
        elif draw < 0.99:
            chosen = rng.choice(LETTERS)
            if pins[chosen]:
                manager.complete_load([chosen], context)
                pins[chosen] -= 1
        else:
            manager.reset_cache()
            pins = dict.fromkeys(LETTERS, 0)
        found = [manager.lookup(each, context) for each in LETTERS]
        pending = found.count(LookupResult.HIT_PENDING)
        pinned = sum(count > 0 for count in pins.values())
        figures = manager.get_stats().reduce()
        assert close(figures[WRITE_USAGE], pending / num_chunks)
        assert close(figures[READ_USAGE], pinned / num_chunks)
        assert close(figures[USAGE], (pending + pinned) / num_chunks)
        busiest = max(busiest, figures[USAGE])
    assert busiest > 0.5


@pytest.mark.clause("MET-1")
def test_capacity_0_reports_0() -> None:
    manager = CPUOffloadingManager(0)
    assert manager.prepare_store([A], request()) is None
    figures = manager.get_stats().reduce()
    assert [figures[name] for name in (USAGE, WRITE_USAGE, READ_USAGE)] == [0, 0, 0]


@pytest.mark.clause("MET-1")
def test_every_offer_with_admitted_keys_is_a_sample() -> None:
    manager = CPUOffloadingManager(4)
    put(manager, [A, B])
    put(manager, [A, C, C])
    put(manager, [A])
    put(manager, [])
    stats = manager.get_stats()
    assert stats.histograms[ALLOCATION_SIZE, ()] == {2: 1, 1: 1}
    assert stats.reduce()[COUNT] == 2
    assert stats.reduce()[SUM] == 3


@pytest.mark.clause("MET-1")
def test_refused_offers_are_samples_too() -> None:
    manager = CPUOffloadingManager(2)
    assert manager.prepare_store([A, B, C], request()) is None
    assert manager.get_stats().histograms[ALLOCATION_SIZE, ()] == {3: 1}


@pytest.mark.clause("MET-1")
def test_only_admitted_keys_count_in_a_sample() -> None:
    manager = CPUOffloadingManager(4, store_threshold=2)
    manager.prepare_store([A], request())
    assert COUNT not in manager.get_stats().reduce()
    manager.prepare_store([A, B], request())
    assert manager.get_stats().histograms[ALLOCATION_SIZE, ()] == {1: 1}


@pytest.mark.clause("MET-1")
def test_skipped_stores_are_counted_with_a_threshold_zeros_too() -> None:
    manager = CPUOffloadingManager(4, store_threshold=2)
    assert manager.get_stats().reduce()[STORES_SKIPPED] == 0
    manager.prepare_store([A, B], request())
    assert manager.get_stats().counters[STORES_SKIPPED, ()] == 2
    assert manager.get_stats().reduce()[STORES_SKIPPED] == 0


@pytest.mark.clause("MET-1")
@pytest.mark.parametrize("threshold", [0, 1])
def test_without_a_threshold_there_is_no_such_counter(threshold: int) -> None:
    manager = CPUOffloadingManager(4, store_threshold=threshold)
    put(manager, [A])
    assert manager.get_stats().counters == {}
    definitions = CPUOffloadingSpec.build_metric_definitions({"store_threshold": threshold})
    assert STORES_SKIPPED not in definitions


@pytest.mark.clause("MET-1")
def test_the_definitions_name_what_is_reported_and_its_kind() -> None:
    definitions = CPUOffloadingSpec.build_metric_definitions({"store_threshold": 2})
    manager = CPUOffloadingManager(4, store_threshold=2)
    put(manager, [A])
    put(manager, [A])
    stats = manager.get_stats()
    assert {name for name, _ in stats.gauges} == {USAGE, WRITE_USAGE, READ_USAGE}
    kinds = {name: type(metric) for name, metric in definitions.items()}
    assert kinds == {
        **{name: OffloadingGaugeMetadata for name, _ in stats.gauges},
        **{name: OffloadingHistogramMetadata for name, _ in stats.histograms},
        **{name: OffloadingCounterMetadata for name, _ in stats.counters},
    }
    assert all(metric.documentation for metric in definitions.values())


@pytest.mark.clause("MET-1")
def test_the_buckets_are_powers_of_four() -> None:
    histogram = CPUOffloadingSpec.build_metric_definitions({})[ALLOCATION_SIZE]
    assert isinstance(histogram, OffloadingHistogramMetadata)
    assert histogram.buckets == (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


# MET-2


@pytest.mark.clause("MET-2")
def test_figures_tell_what_happened_since_last_asked() -> None:
    manager = CPUOffloadingManager(8, store_threshold=2)
    manager.prepare_store(many(3), request())
    manager.prepare_store(many(3), request())
    first = manager.get_stats().reduce()
    assert (first[COUNT], first[SUM], first[STORES_SKIPPED]) == (1, 3, 3)
    second = manager.get_stats().reduce()
    assert COUNT not in second
    assert second[STORES_SKIPPED] == 0


@pytest.mark.clause("MET-2")
def test_a_reset_keeps_counters_and_samples() -> None:
    manager = CPUOffloadingManager(8, store_threshold=2)
    manager.prepare_store([A], request())
    manager.prepare_store([A, B], request())
    manager.reset_cache()
    figures = manager.get_stats().reduce()
    assert (figures[COUNT], figures[SUM], figures[STORES_SKIPPED]) == (1, 1, 2)
    assert figures[USAGE] == 0


@pytest.mark.clause("MET-2")
@pytest.mark.parametrize("amount", [-1, -0.5, float("nan"), float("inf")])
def test_a_counter_never_falls(amount: float) -> None:
    stats = OffloadingStats()
    with pytest.raises(InvalidValueError, match="amount"):
        stats.increase_counter("c", amount)
    assert stats.counters == {}


@pytest.mark.clause("MET-2")
def test_intervals_add_up() -> None:
    whole, manager = OffloadingStats(), CPUOffloadingManager(8, store_threshold=2)
    for offer in ([A], [A, B], [B, C], [C]):
        put(manager, offer)
        whole.merge(manager.get_stats())
    assert whole.reduce()[STORES_SKIPPED] == 3
    assert whole.histograms[ALLOCATION_SIZE, ()] == {1: 3}
    assert whole.reduce()[USAGE] == manager.get_stats().reduce()[USAGE] == 0


@pytest.mark.clause("MET-2")
def test_merging_adds_counters_joins_histograms_and_replaces_gauges() -> None:
    earlier, later = OffloadingStats(), OffloadingStats()
    for stats, value in ((earlier, 1), (later, 2)):
        stats.set_gauge("g", value)
        stats.increase_counter("c", value)
        stats.observe_histogram("h", value)
    assert earlier.merge(later) is earlier
    assert earlier.reduce() == {"g": 2, "c": 3, "h_count": 2, "h_sum": 3}
    assert later.reduce() == {"g": 2, "c": 2, "h_count": 1, "h_sum": 2}


@pytest.mark.clause("MET-2")
def test_a_name_is_of_one_kind() -> None:
    stats, other = OffloadingStats(), OffloadingStats()
    stats.set_gauge("n", 1)
    other.increase_counter("c")
    other.observe_histogram("n", 1)
    for misuse in (
        lambda: stats.increase_counter("n"),
        lambda: stats.observe_histogram("n", 1),
        lambda: stats.merge(other),
    ):
        with pytest.raises(InvalidValueError, match="'n'"):
            misuse()
    assert stats.reduce() == {"n": 1}
