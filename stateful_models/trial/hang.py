"""A limit on how long a call of a target may take, for those that do not return.

What counts is the work of the process, so that a busy machine makes nobody slow; what waits, and
works nothing, is waited for six times as long. It ends what loops in Python code; code that loops
in C, or that discards every exception, is left to the watchdog of the process.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from inspect import currentframe
from time import monotonic, process_time
from types import CodeType, FrameType, TracebackType
from typing import Final, Self

from kvoffload.errors import InvalidValueError
from stateful_models.frames import Place, innermost, is_of_the_kit

__all__ = ["LOAD", "Alarm", "DidNotReturn", "time_limit"]

LOAD: Final = 6
"""How many times as long as its own work a process may take beside others, and for nothing."""
AGAIN_S: Final = 0.05
"""How soon the limit looks again: after it has let something go on, or what it raised may have been
discarded."""


# No Exception: what catches those is not to catch this. No error either, but a verdict.
class DidNotReturn(BaseException):
    """A target used up its time. `seconds` is the limit, `place` where it was found.

    `code` is the innermost that ran then and is not the kit's.
    """

    def __init__(self, seconds: float, place: str, code: CodeType | None = None) -> None:
        super().__init__(f"did not return within {seconds:g} s; found at {place}")
        self.seconds = seconds
        self.place = place
        self.code = code


class Alarm:
    """Goes off every 50 ms while it is entered, for limits that are too many to set one each.

    Setting one takes four calls of the system, longer than most calls of a target.
    """

    def __init__(self) -> None:
        self.is_set: bool = False
        self.limit: time_limit | None = None
        """The innermost that is entered."""

    def __enter__(self) -> Self:
        if _can_be_limited():
            self._handler_before = signal.signal(signal.SIGALRM, self._go_off)
            self._timer_before = signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
            self.is_set = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_set:
            self.is_set = False
            signal.setitimer(signal.ITIMER_REAL, *self._timer_before)
            signal.signal(signal.SIGALRM, self._handler_before)

    def _go_off(self, number: int, frame: FrameType | None) -> None:
        if self.limit is not None:
            self.limit.strike(number, frame)


def _can_be_limited() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


class time_limit:  # noqa: N801 - reads as a statement, as contextlib's do
    """Raise DidNotReturn inside the block when it takes longer than `seconds` of work.

    Or six times as many that go by, for it may be waiting. Where many calls are made in the block,
    `during` tells one from the other by an object for each, None between them: then a single one
    must take so long, and be found in code that is not the kit's.

    It is raised in whatever runs then, and again every 50 ms in case it was discarded; a block
    that discards it and ends all the same is left with it. `fired` says how often it struck. It
    strikes in no callback of the garbage collector, out of which nothing can be raised.

    Works in the main thread of a system that has `setitimer`; elsewhere nothing is limited, and
    `works` is False. A limit inside another one suspends that one until it is left. An `alarm` that
    is set saves asking the system for one. Raises InvalidValueError unless `seconds` is positive.
    """

    def __init__(
        self,
        seconds: float,
        during: Callable[[], object] | None = None,
        alarm: Alarm | None = None,
    ) -> None:
        if not seconds > 0:
            raise InvalidValueError("seconds", seconds, "positive")
        self.seconds = seconds
        self.fired: int = 0
        self._alarm = alarm if alarm is not None and alarm.is_set else None
        self.works: bool = self._alarm is not None or _can_be_limited()
        self._during = during
        self._active = False
        self._place = ""
        self._code: CodeType | None = None
        self._block: FrameType | None = None
        self._what: object = None
        self._worked = 0.0
        self._since = 0.0

    def __enter__(self) -> time_limit:
        if self.works:
            # The frame of the block, which is this one's caller.
            here = currentframe()
            self._block = None if here is None else here.f_back
            if self._during is None:
                self._worked, self._since = process_time(), monotonic()
            if self._alarm is None:
                self._begun = monotonic()
                self._handler_before = signal.signal(signal.SIGALRM, self.strike)
                self._timer_before = signal.setitimer(signal.ITIMER_REAL, self.seconds, AGAIN_S)
            else:
                self._suspended, self._alarm.limit = self._alarm.limit, self
            # Last, and `strike` spares this frame: were it to strike while the block is being
            # entered, nobody would leave it.
            self._active = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # First, and this frame is spared too: leaving is not to be interrupted halfway.
        self._active = False
        self._block = None
        if not self.works:
            return
        if self._alarm is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler_before)
            left, interval = self._timer_before
            if left:
                left -= monotonic() - self._begun
                signal.setitimer(signal.ITIMER_REAL, max(left, 0.001), interval)
        else:
            self._alarm.limit = self._suspended
        if self.fired and not isinstance(error, (DidNotReturn, KeyboardInterrupt)):
            raise DidNotReturn(self.seconds, self._place, self._code) from error

    def strike(self, number: int, frame: FrameType | None) -> None:
        """What the system calls when the time may be up."""
        own = (time_limit.__enter__.__code__, time_limit.__exit__.__code__)
        if not self._active or (frame is not None and frame.f_code in own):
            return
        if not self._is_over():
            return
        frames = list(self._frames(frame))
        collecting = [getattr(callback, "__code__", None) for callback in gc.callbacks]
        if any(one.f_code in collecting for one in frames):
            return
        others = [one for one in frames if not is_of_the_kit(one.f_code.co_filename)]
        if self._during is not None and not others:
            return
        self.fired += 1
        # Whoever watches the lines of a target is not what it hangs in.
        self._code = others[0].f_code if others else None
        place = innermost(
            Place(one.f_code.co_filename, one.f_lineno, one.f_code.co_qualname)
            for one in reversed(others or frames)
        )
        if place is not None:
            self._place = f"{place.file}:{place.line} in {place.function}"
        raise DidNotReturn(self.seconds, self._place, self._code)

    def _is_over(self) -> bool:
        """Whether what is done now has been done for too long."""
        if self._during is not None:
            what = self._during()
            if what is None or what != self._what:
                self._what, self._worked, self._since = what, process_time(), monotonic()
                return False
        worked, passed = process_time() - self._worked, monotonic() - self._since
        return worked >= self.seconds or passed >= LOAD * self.seconds

    def _frames(self, frame: FrameType | None) -> Iterator[FrameType]:
        """What runs inside the block, the innermost first."""
        while frame is not None and frame is not self._block:
            yield frame
            frame = frame.f_back
