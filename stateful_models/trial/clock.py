"""A clock that the kit moves: what a target reads depends on the program alone.

`install()` puts a module of our own in the place of `time`. Whoever imports `time` from then on,
or names from it, sees the clock, in defaults and class attributes as well; whoever imported it
before keeps the real one, however they read it. So install it before the target is imported and
after everything that must know what time it really is: the kit, Hypothesis, pytest. The standard
library's own waiting (threads, queues, processes, event loops) is imported by `install` first.

Not answered: `datetime.now` and `today`, which ask the C library; `time.localtime`, `gmtime`,
`ctime` and `strftime` without an argument; `time.clock_gettime`; waits with a timeout, as of a
lock or an event, which last as long as they last; and whatever other processes see.
"""

from __future__ import annotations

import sys
import time as _real
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from math import isfinite
from operator import index
from threading import TIMEOUT_MAX, Condition, get_ident
from time import monotonic as real_monotonic
from time import process_time as real_process_time
from time import sleep as real_sleep
from types import MappingProxyType, ModuleType
from typing import Final, SupportsIndex

from typing_extensions import override

from kvoffload.errors import InvalidValueError
from stateful_models.trial.durations import draws_around, durations_used
from stateful_models.trial.hang import LOAD

__all__ = [
    "VirtualClock",
    "draws_around",
    "durations_used",
    "real_effort",
    "real_monotonic",
]

SECOND_NS: Final = 1_000_000_000
WALL_START: Final = 1_767_603_600
"""What `time.time` says first, in seconds: a Monday morning in January 2026."""
MONOTONIC_START: Final = 432_017
"""What `time.monotonic` says first: a machine that has been up for five days."""
PERF_START: Final = 7_301
"""What `time.perf_counter` says first. The three differ, so that mixing them shows."""
TICK_NS: Final = 1_000
"""How far each reading moves the clock. No two are the same, as on a real machine, and whoever
spins until a moment has come gets there."""
MAX_SLEEPS: Final = 32

_WAITERS = ("asyncio", "concurrent.futures.thread", "logging", "queue", "subprocess", "threading")


def real_effort() -> float:
    """Seconds of work since the process began, however busy the machine is with others.

    It is what the process has worked; where that is less, a part of the time that went by, so that
    waiting for nothing counts as well.
    """
    return max(real_process_time(), (real_monotonic() - _BEGUN) / LOAD)


_BEGUN: Final = real_monotonic()


class _Answer:
    """What stands in the place of a function of `time`.

    No function itself, for one would turn into a method where a class keeps it as an attribute.
    Copies are the same object: whoever copies what has a clock in it copies no clock.
    """

    def __init__(self, name: str, answer: Callable[..., object]) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = "time"
        self._answer = answer

    def __call__(self, /, *arguments: object) -> object:
        return self._answer(*arguments)

    @override
    def __repr__(self) -> str:
        return f"<virtual function {self.__name__}>"

    @override
    def __reduce__(self) -> str:
        return self.__name__


class VirtualClock:
    """Answers for `time` while it is installed; moves with `advance`, `sleep` and each reading.

    `time`, `monotonic` and `perf_counter` run side by side from different figures, `_ns` or not.
    `process_time` and `thread_time` move with readings alone: who sleeps uses no processor.

    `sleep` in the thread that installed the clock advances it and returns at once. In any other
    thread it lasts until the clock has come that far or until it would be over in earnest,
    whichever is first: a background thread does not run away with the clock, and whoever joins
    it is not left waiting.

    What was taken from the module stays usable: after `uninstall` it asks the real clock.
    """

    def __init__(self, *, tick_ns: int = TICK_NS) -> None:
        if tick_ns < 0:
            raise InvalidValueError("tick_ns", tick_ns, "at least 0")
        self._tick_ns = tick_ns
        self._reads: Counter[str] = Counter()
        self._sleeps: dict[float, None] = {}
        self._advanced_ns = 0
        self._ticked_ns = 0
        # The sum of all advances, which no reset takes back: sleepers wait for it.
        self._passed_ns = 0
        self._moved = Condition()
        self._owner = get_ident()
        self._replaced: ModuleType | None = None
        self._module = self._make_module()

    @property
    def reads(self) -> Mapping[str, int]:
        """How often each function was called since the clock was made, by its name."""
        return MappingProxyType(self._reads)

    @property
    def slept(self) -> tuple[float, ...]:
        """The distinct durations that `sleep` was called with, the first 32 of them, in seconds."""
        return tuple(self._sleeps)

    @property
    def elapsed(self) -> float:
        """Seconds since the start, or the last reset."""
        return (self._advanced_ns + self._ticked_ns) / SECOND_NS

    def install(self) -> None:
        """Stand in for `time` in everything that is imported from here on. Twice is as once."""
        if self._replaced is not None:
            return
        for name in _WAITERS:
            import_module(name)
        self._owner = get_ident()
        self._replaced = sys.modules["time"]
        sys.modules["time"] = self._module

    def uninstall(self) -> None:
        """Put back what was there, and wake whoever sleeps. Harmless when not installed."""
        if self._replaced is None:
            return
        if sys.modules.get("time") is self._module:
            sys.modules["time"] = self._replaced
        self._replaced = None
        with self._moved:
            self._moved.notify_all()

    @contextmanager
    def installed(self) -> Generator[VirtualClock]:
        """Installed inside the block."""
        self.install()
        try:
            yield self
        finally:
            self.uninstall()

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises InvalidValueError unless `seconds` is finite and not negative."""
        if not (isfinite(seconds) and seconds >= 0):
            raise InvalidValueError("seconds", seconds, "finite and at least 0")
        self._advance_ns(round(seconds * SECOND_NS))

    def reset(self) -> None:
        """Back to the start, where each program begins. Counts stay, and so do sleepers."""
        self._advanced_ns = self._ticked_ns = 0

    def _make_module(self) -> ModuleType:
        module = ModuleType("time", _real.__doc__)
        vars(module).update(vars(_real))
        starts = {
            "time": WALL_START,
            "monotonic": MONOTONIC_START,
            "perf_counter": PERF_START,
        }
        for name, start in starts.items():
            self._answer_for(module, name, start * SECOND_NS, of_processor=False)
        for name in ("process_time", "thread_time"):
            self._answer_for(module, name, SECOND_NS, of_processor=True)
        vars(module)["sleep"] = _Answer("sleep", self._sleep)
        return module

    def _answer_for(
        self, module: ModuleType, name: str, start_ns: int, *, of_processor: bool
    ) -> None:
        """Replace a clock and its twin in nanoseconds."""
        exact = f"{name}_ns"
        really: Callable[[], float] | None = getattr(_real, name, None)
        really_exact: Callable[[], int] | None = getattr(_real, exact, None)
        if really is None or really_exact is None:
            # Not every platform counts the time of threads.
            return

        def read_ns(asked: str) -> int:
            self._reads[asked] += 1
            self._ticked_ns += self._tick_ns
            return start_ns + self._ticked_ns + (0 if of_processor else self._advanced_ns)

        def read() -> float:
            return really() if self._replaced is None else read_ns(name) / SECOND_NS

        def read_exactly() -> int:
            return really_exact() if self._replaced is None else read_ns(exact)

        vars(module)[name] = _Answer(name, read)
        vars(module)[exact] = _Answer(exact, read_exactly)

    def _advance_ns(self, nanoseconds: int) -> None:
        self._advanced_ns += nanoseconds
        with self._moved:
            self._passed_ns += nanoseconds
            self._moved.notify_all()

    def _sleep(self, duration: object, /) -> None:
        seconds = _sleeping_time(duration)
        if self._replaced is None:
            real_sleep(seconds)
            return
        self._reads["sleep"] += 1
        if seconds > 0 and len(self._sleeps) < MAX_SLEEPS:
            self._sleeps[seconds] = None
        nanoseconds = round(seconds * SECOND_NS)
        if get_ident() == self._owner:
            self._advance_ns(nanoseconds)
            return
        with self._moved:
            wake_ns = self._passed_ns + nanoseconds
            self._moved.wait_for(
                lambda: self._replaced is None or self._passed_ns >= wake_ns,
                timeout=min(seconds, TIMEOUT_MAX),
            )


def _sleeping_time(duration: object) -> float:
    """The argument of `sleep`, refused as the real one refuses it; NaN cannot be rounded later."""
    if isinstance(duration, float):
        seconds = duration
    elif isinstance(duration, SupportsIndex):
        seconds = float(index(duration))
    else:
        kind = type(duration).__name__
        raise TypeError(f"'{kind}' object cannot be interpreted as an integer")
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    if seconds * SECOND_NS >= 2**63:
        raise OverflowError("timestamp out of range for platform time_t")
    return seconds
