"""The virtual clock: what is imported under it sees it, everything else keeps the real one."""

import copy
import datetime
import importlib
import math
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import pytest

from kvoffload import InvalidValueError
from stateful_models.trial.clock import (
    MONOTONIC_START,
    PERF_START,
    WALL_START,
    VirtualClock,
    draws_around,
    durations_used,
    real_monotonic,
)

TARGET = """
import time
import time as renamed
from time import monotonic, sleep
from time import monotonic_ns as ns


class Aging:
    clock = time.monotonic

    def __init__(self, now=time.time, *, precise=time.perf_counter):
        self.now, self.precise = now, precise

    def readings(self):
        return [self.now(), self.precise(), self.clock(), monotonic(), ns() / 1e9]

    def nap(self, seconds):
        sleep(seconds)

    def spin(self, seconds):
        until = renamed.monotonic() + seconds
        while renamed.monotonic() < until:
            pass

    def cpu(self):
        return time.process_time()
"""


class Aging(Protocol):
    def readings(self) -> list[float]: ...
    def nap(self, seconds: object) -> None: ...
    def spin(self, seconds: float) -> None: ...
    def cpu(self) -> float: ...


@pytest.fixture
def clock() -> Iterator[VirtualClock]:
    with VirtualClock().installed() as installed:
        yield installed


def load() -> type[Aging]:
    """Import the target, now."""
    module = ModuleType("aging")
    exec(compile(TARGET, "aging.py", "exec"), vars(module))
    return cast("type[Aging]", vars(module)["Aging"])


def test_every_way_to_import_it_sees_the_clock(clock: VirtualClock) -> None:
    aging = load()()
    starts = [WALL_START, PERF_START, MONOTONIC_START, MONOTONIC_START, MONOTONIC_START]
    assert aging.readings() == pytest.approx(starts, abs=1e-4)
    clock.advance(1_000)
    assert aging.readings() == pytest.approx([start + 1_000 for start in starts], abs=1e-4)


def test_whoever_imported_time_before_keeps_the_real_one(clock: VirtualClock) -> None:
    clock.advance(1e6)
    assert abs(time.monotonic() - real_monotonic()) < 100
    assert importlib.import_module("time") is not time
    # The standard library waits as ever.
    with pytest.raises(queue.Empty):
        queue.Queue[int]().get(timeout=0.01)
    assert "time" not in clock.reads


def test_no_two_readings_are_the_same_and_each_program_reads_the_same(clock: VirtualClock) -> None:
    first = [reading for _ in range(5) for reading in load()().readings()[2:]]
    assert first == sorted(set(first))
    clock.advance(7)
    clock.reset()
    assert [reading for _ in range(5) for reading in load()().readings()[2:]] == first


def test_a_clock_without_ticks_stands_still() -> None:
    with VirtualClock(tick_ns=0).installed():
        assert load()().readings()[2:] == [MONOTONIC_START] * 3
    with pytest.raises(InvalidValueError, match="tick_ns"):
        VirtualClock(tick_ns=-1)


def test_sleeping_moves_the_clock_instead_of_waiting(clock: VirtualClock) -> None:
    aging = load()()
    aging.nap(3_600)
    aging.nap(0.25)
    aging.nap(0)
    assert clock.elapsed == 3_600.25
    assert list(clock.slept) == [3_600, 0.25]
    assert dict(clock.reads) == {"sleep": 3}


def test_who_spins_until_a_moment_has_come_gets_there(clock: VirtualClock) -> None:
    load()().spin(0.01)
    assert clock.elapsed == pytest.approx(0.01, abs=1e-4)
    assert clock.reads["monotonic"] == pytest.approx(10_000, abs=5)


def test_sleeping_takes_no_processor_time(clock: VirtualClock) -> None:
    aging = load()()
    before = aging.cpu()
    clock.advance(100)
    aging.nap(100)
    assert 0 < aging.cpu() - before < 1e-3


@pytest.mark.parametrize(
    "bad", [-1, -0.5, math.nan, math.inf, "1", None, 10**30], ids=lambda value: repr(value)[:8]
)
def test_sleep_refuses_what_the_real_one_refuses(clock: VirtualClock, bad: object) -> None:
    aging = load()()
    with pytest.raises((ValueError, TypeError, OverflowError)) as ours:
        aging.nap(bad)
    with pytest.raises((ValueError, TypeError, OverflowError)) as real:
        time.sleep(cast("float", bad))
    assert ours.type is real.type
    assert clock.elapsed == 0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_time_goes_forwards_by_a_finite_amount(clock: VirtualClock, bad: float) -> None:
    with pytest.raises(InvalidValueError, match="seconds"):
        clock.advance(bad)


def test_what_was_taken_from_it_asks_the_real_clock_afterwards() -> None:
    clock = VirtualClock()
    with clock.installed():
        aging = load()()
        clock.install()
        assert aging.readings()[2] < MONOTONIC_START + 1
    assert sys.modules["time"] is time
    clock.uninstall()
    now, precise, *_ = aging.readings()
    assert abs(now - time.time()) < 100
    assert abs(precise - time.perf_counter()) < 100
    aging.nap(0.001)
    assert sum(clock.reads.values()) == 5


def test_copies_are_the_same_clock(clock: VirtualClock) -> None:
    virtual = importlib.import_module("time")
    assert copy.copy(virtual.monotonic) is virtual.monotonic
    assert copy.deepcopy([virtual.monotonic])[0] is virtual.monotonic
    assert pickle.loads(pickle.dumps(virtual.monotonic)) is virtual.monotonic
    assert repr(virtual.monotonic) == "<virtual function monotonic>"
    assert virtual.strftime is time.strftime
    with pytest.raises(TypeError):
        virtual.monotonic(1)


def in_thread(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_a_thread_sleeps_until_the_clock_has_come_that_far(clock: VirtualClock) -> None:
    aging, naps = load()(), list[float]()

    def sweep() -> None:
        for _ in range(2):
            aging.nap(100)
            naps.append(clock.elapsed)

    thread = in_thread(sweep)
    while clock.reads["sleep"] < 1:
        time.sleep(0.001)
    # It has not run away with the clock, nor does it wake before its time.
    assert clock.elapsed == 0
    clock.reset()
    clock.advance(60)
    assert not naps
    clock.advance(40)
    while clock.reads["sleep"] < 2:
        time.sleep(0.001)
    assert naps == [100]
    # Nor is anybody left sleeping.
    clock.uninstall()
    thread.join(10)
    assert not thread.is_alive()


def test_whoever_joins_a_sleeping_thread_is_not_left_waiting(clock: VirtualClock) -> None:
    thread = in_thread(partial(load()().nap, 0.02))
    thread.join(10)
    assert not thread.is_alive()
    assert clock.elapsed == 0


USES = """
from datetime import timedelta
from functools import cached_property, wraps

TTL = 45.5
UNUSED = 46.5
GRACE = timedelta(minutes=2)


def logged(function):
    @wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper


class Uses:
    window_ms = 1500
    flag = True

    def __init__(self, cache_capacity, *, half_life=12.0, name="x"):
        self.capacity = cache_capacity
        self.limits = Limits()

    @logged
    def evict(self, now):
        return now - TTL > 0 or now - 77.25 > 0

    @property
    def late(self):
        return [lambda now: now > 99.5 for _ in ()]

    @cached_property
    def grace(self):
        return GRACE

    def exact(self):
        return monotonic_ns() > 3_000_000_000


class Limits:
    __slots__ = ("lease", "secret")

    def __init__(self):
        self.lease = 8.125


def make(cache_capacity):
    return Uses(cache_capacity) if cache_capacity < 33.5 else None
"""


def test_durations_are_found_wherever_they_stand() -> None:
    module = ModuleType("uses")
    exec(compile(USES, "uses.py", "exec"), vars(module))
    uses, make = vars(module)["Uses"], vars(module)["make"]
    found = durations_used(uses, uses(7), slept=[0.75])
    for each in (0.75, 1.5, 3.0, 7, 8.125, 12.0, 45.5, 77.25, 99.5, 120.0):
        assert each in found
    assert 46.5 not in found
    assert set(durations_used(make, make(7))) > {33.5, 12.0}
    assert durations_used(uses) == tuple(sorted(set(durations_used(uses))))


def test_of_too_many_figures_the_likeliest_are_told() -> None:
    figures = {f"figure{i}": 1_000 + i for i in range(100)} | {"ttl": 5_000, "share": 9_000.5}
    sample = type("Many", (), {})()
    vars(sample).update(figures)
    found = durations_used(type(sample), sample, slept=[7_000])
    assert len(found) == 12
    assert {5_000, 7_000, 9_000.5} <= set(found)


def test_what_is_no_duration_is_none() -> None:
    sample = type("Odd", (), {"zero": 0, "less": -3.0})()
    for i, value in enumerate([math.inf, math.nan, 10**400, True, "60", 1e-9, 1e12, None]):
        setattr(sample, f"value{i}", value)
    assert durations_used(type(sample), sample) == ()
    assert durations_used(None) == durations_used(len) == ()


class Raising:
    """Whatever is asked of it, it raises."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    @property
    def timeout(self) -> float:
        raise RuntimeError("timeout")


def test_looking_for_durations_runs_none_of_the_code() -> None:
    sample = Raising()
    sample.inner = Raising()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert durations_used(Raising, sample) == ()


def test_time_is_drawn_around_the_durations() -> None:
    drawn = draws_around([300.0])
    assert {150.0, 300.0, 300.0 * 1.001, 600.0} <= set(drawn)
    assert set(draws_around([])) <= set(drawn)
    assert list(drawn) == sorted(set(drawn))
    assert all(seconds > 0 for seconds in drawn)


def test_the_standard_library_still_dates_things(clock: VirtualClock) -> None:
    """What is not answered works as ever."""
    assert datetime.datetime.now(datetime.UTC).timestamp() == pytest.approx(time.time(), abs=100)
    assert Path(__file__).stat().st_mtime < time.time() + 100
