"""What calls cost: where it is known, it comes out right. No time is judged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from kvoffload import CachePolicy, CachePolicyFactory, ChunkStatus, CPUOffloadingManager
from kvoffload.errors import InvalidValueError
from kvoffload.judge.call_cost import (
    CONSTANT,
    LINEAR,
    LOGARITHMIC,
    STEEPER,
    UNKNOWN,
    CallCost,
    Spread,
    growth_of,
)
from kvoffload.judge.cost import CostReport, MakePolicy, measure_cost, policy_in
from kvoffload.judge.trend import grows
from kvoffload.judge.under_load import UnderLoad
from kvoffload.judge.visits import SwitchedClasses
from kvoffload.policies.arc import ARCCachePolicy
from spec_tests.judge.cost_policies import (
    Choosy,
    EndsWhenLarge,
    FailsWhenLarge,
    HangsWhenLarge,
    Heap,
    InAList,
    Oldest,
    OneTooFew,
    Pairs,
    Scan,
)

CALLS = ("evict(1)", "evict(8)", "request of 32 keys", "refusal")
LONG_S = 10_000.0
"""Nothing here takes so long: all calls are made, the same in every run."""


def measured(
    policy: MakePolicy, sizes: Sequence[int] = (128, 512, 2_048), calls: int = 60
) -> CostReport:
    return measure_cost(
        policy, sizes, LONG_S, batch=8, request_keys=32, calls=calls, own_process=False
    )


def words(report: CostReport, call: str, of: str = "p50") -> str:
    (growth,) = (
        one for one in report.growth if (one.call, one.measure, one.of) == (call, "visits", of)
    )
    return growth.words


@pytest.mark.parametrize("name", ["lru", "arc", "sieve", "s3fifo", "wtinylfu", "slru"])
def test_our_own_policies_cost_the_same_in_a_cache_of_any_size(name: str) -> None:
    report = measured(CachePolicyFactory.get_cache_policy_cls(name))
    assert not report.problem
    assert report.left_out == ()
    assert [words(report, call) for call in CALLS] == [CONSTANT] * 4
    # What is parked is looked at once.
    assert words(report, "refusal", "worst") == LINEAR


@pytest.mark.parametrize(
    ("policy", "evicting", "serving", "refusing"),
    [
        (Oldest, CONSTANT, CONSTANT, LINEAR),
        (Scan, LINEAR, LINEAR, LINEAR),
        (InAList, CONSTANT, LINEAR, LINEAR),
        (Heap, LOGARITHMIC, LOGARITHMIC, None),
    ],
)
def test_growth_is_what_it_is_known_to_be(
    policy: type[CachePolicy], evicting: str, serving: str, refusing: str | None
) -> None:
    report = measured(policy)
    assert words(report, "evict(1)") == words(report, "evict(8)") == evicting
    assert words(report, "request of 32 keys") == serving
    if refusing is not None:
        assert words(report, "refusal") == refusing


def test_what_is_more_than_linear() -> None:
    report = measured(Pairs, (64, 128))
    assert words(report, "evict(1)") == STEEPER


def test_a_scan_visits_every_chunk() -> None:
    report = measured(Scan)
    for cost in report.of("evict(1)"):
        # Each chunk once, then each of the keys is looked up among the protected, and one goes.
        assert 2 * cost.size <= cost.visits.p50 <= 2 * cost.size + 4


def test_all_calls_are_told_with_seconds_beside_visits() -> None:
    report = measured(Oldest, (64, 128), 1_000)
    assert [(cost.size, cost.call) for cost in report.costs] == [
        (size, call) for size in (64, 128) for call in CALLS
    ]
    counted = {cost.call: cost.visits.calls for cost in report.costs}
    timed = {cost.call: cost.seconds.calls for cost in report.costs}
    assert counted == dict(zip(CALLS, (200, 50, 10, 50), strict=True))
    assert timed == dict(zip(CALLS, (1_000, 200, 30, 200), strict=True))
    for cost in report.costs:
        assert 0 < cost.seconds.p50 <= cost.seconds.p99 <= cost.seconds.worst
        assert 0 < cost.visits.p50 <= cost.visits.p99 <= cost.visits.worst
        assert cost.refused == (250 if cost.call == "refusal" else 0)


def test_visits_are_the_same_in_every_run() -> None:
    first, second = (measured(Heap, (64, 256)) for _ in range(2))
    assert [cost.visits for cost in first.costs] == [cost.visits for cost in second.costs]


def test_a_refusal_that_was_declared_is_counted() -> None:
    report = measured(Choosy, (64,))
    assert not report.problem
    assert [cost.refused for cost in report.of("evict(1)")] == [120]


@pytest.mark.parametrize(
    ("policy", "what"), [(OneTooFew, "POL-2"), (FailsWhenLarge, "RuntimeError: too large for me")]
)
def test_a_policy_that_fails_is_told(policy: type[CachePolicy], what: str) -> None:
    report = measured(policy, (64, 128))
    assert what in report.problem
    failed = 64 if policy is OneTooFew else 128
    assert f"with {failed} chunks" in report.problem
    assert {cost.size for cost in report.costs} == ({64} if failed == 128 else set())
    assert [one.calls for one in report.left_out if one.size == failed] == [CALLS]


def test_when_there_is_no_time_all_is_left_out() -> None:
    report = measure_cost(Oldest, (64, 128), 0.0, batch=8, request_keys=32, own_process=False)
    assert not report.costs
    assert not report.growth
    assert [(one.size, one.calls) for one in report.left_out] == [(64, CALLS), (128, CALLS)]
    assert all("are left" in one.why for one in report.left_out)


def test_in_a_process_of_its_own_visits_are_the_same() -> None:
    here = measured(Heap, (64,))
    there = measure_cost(Heap, (64,), LONG_S, batch=8, request_keys=32, calls=60)
    assert not there.problem
    assert [cost.visits for cost in there.costs] == [cost.visits for cost in here.costs]


def test_a_policy_that_hangs_is_not_waited_for() -> None:
    report = measure_cost(HangsWhenLarge, (64, 128), 4.0, batch=8, request_keys=32)
    assert not report.problem
    assert {cost.size for cost in report.costs} == {64}
    (left_out,) = report.left_out
    assert (left_out.size, left_out.calls) == (128, CALLS)
    assert left_out.why == "the 4 s for it were over"


def test_a_policy_that_ends_its_process_is_told() -> None:
    report = measure_cost(EndsWhenLarge, (64, 128), LONG_S, batch=8, request_keys=32)
    assert report.problem == "its process ended by itself, with exit code 3"
    assert {cost.size for cost in report.costs} == {64}


def test_the_policy_of_a_manager_is_measured() -> None:
    report = measured(partial(policy_in, partial(CPUOffloadingManager, cache_policy="arc")), (64,))
    own = measured(ARCCachePolicy, (64,))
    assert [cost.visits for cost in report.costs] == [cost.visits for cost in own.costs]


def test_what_cannot_be_measured() -> None:
    with pytest.raises(InvalidValueError, match="picklable"):
        measure_cost(lambda capacity: Oldest(capacity), (64,), batch=8, request_keys=32)
    for sizes in ((), (63, 128)):
        with pytest.raises(InvalidValueError, match="at least 64"):
            measure_cost(Oldest, sizes, batch=8, request_keys=32)


def test_of_one_size_growth_is_unknown() -> None:
    report = measured(Oldest, (64,))
    assert {(one.slope, one.words) for one in report.growth} == {(None, UNKNOWN)}


@pytest.mark.parametrize(("power", "expected"), [(0, CONSTANT), (1, LINEAR), (2, STEEPER)])
def test_slopes_are_exponents(power: int, expected: str) -> None:
    spreads = {size: Spread.of([7.0 * size**power]) for size in (10, 100, 1_000)}
    costs = [CallCost("call", size, one, one, 0, 0) for size, one in spreads.items()]
    growth = growth_of(costs, "seconds", "worst")
    assert growth.slope == pytest.approx(power)
    assert growth.words == expected


def test_a_spread_is_by_nearest_rank() -> None:
    assert Spread.of([3.0]) == Spread(1, 3.0, 3.0, 3.0, 3.0)
    assert Spread.of([float(n) for n in range(200, 0, -1)]) == Spread(200, 100, 198, 200, 100.5)


def test_classes_count_only_when_switched_on() -> None:
    classes = SwitchedClasses()
    key, chunk = classes.key_class(b"a/0000"), classes.chunk_class(3)
    classes.meter.counting = True
    assert (hash(key), key == b"a/0000", chunk.ref_cnt) == (hash(b"a/0000"), True, -1)
    assert classes.meter.visits == 0
    classes.switch(True)
    assert (hash(key), key == b"a/0000", key < b"b", chunk.ref_cnt) == (
        hash(b"a/0000"),
        True,
        True,
        -1,
    )
    assert classes.meter.visits == 4
    classes.switch(False)
    assert classes.key_class.__hash__ is bytes.__hash__
    assert "__getattribute__" not in vars(classes.chunk_class)
    assert not hasattr(chunk, "__dict__")
    assert not hasattr(key, "__dict__")


def test_under_load_the_books_are_kept() -> None:
    load = UnderLoad(CachePolicyFactory.get_cache_policy_cls("lru")(16), 16)
    for number in range(20):
        assert load.serve(3, load.some_idle(number))
        slots = sorted(chunk.chunk_id for chunk in load.chunks.values())
        assert slots == sorted(set(slots))
        assert len(slots) == min(16, 3 * (number + 1))
        assert max(slots) < 16
    assert sorted(load.some(16)) == sorted(load.chunks)
    read = load.some_idle(5)
    load.pin(read, load.begin())
    assert sorted(load.being_read()) == sorted(read)
    assert not set(load.some_idle(16)) & set(read)
    assert {type(chunk) for chunk in load.chunks.values()} == {ChunkStatus}


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ([100 * n for n in range(1, 33)], True),
        ([100 * min(n, 9) for n in range(1, 33)], False),
        # Growth that a bound ends late, and one that is cleaned up now and then.
        ([100 * min(n, 25) for n in range(1, 33)], False),
        ([100 * n * (n % 4 > 0) for n in range(1, 33)], False),
        ([3 * n for n in range(1, 33)], False),
        ([], False),
    ],
)
def test_what_grows(held: list[int], expected: bool) -> None:
    assert grows(list(enumerate(held, 1)), 64) is expected
