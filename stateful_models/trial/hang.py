"""A limit on how long one program may take, for targets that do not return.

Measured in real time, whatever the virtual clock says. It ends what loops in Python code; code
that loops in C, or that discards every exception, is left to the watchdog of the process.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from time import monotonic
from types import FrameType, TracebackType
from typing import Final

from kvoffload.errors import InvalidValueError

__all__ = ["DidNotReturn", "time_limit"]

_KIT: Final = f"{Path(__file__).parent}{os.sep}"
AGAIN_S: Final = 0.05
"""How soon the limit strikes again, should what it raised have been discarded."""


# No Exception: what catches those is not to catch this. No error either, but a verdict.
class DidNotReturn(BaseException):
    """A target used up its time. `seconds` is the limit, `place` where it was found."""

    def __init__(self, seconds: float, place: str) -> None:
        super().__init__(f"did not return within {seconds:g} s; found at {place}")
        self.seconds = seconds
        self.place = place


class time_limit:  # noqa: N801 - reads as a statement, as contextlib's do
    """Raise DidNotReturn inside the block when it takes longer than `seconds`.

    It is raised in whatever runs then, and again every 50 ms in case it was discarded; a block
    that discards it and ends all the same is left with it. `fired` says how often it struck.

    Works in the main thread of a system that has `setitimer`; elsewhere nothing is limited, and
    `works` is False. A limit inside another one suspends that one until it is left. Raises
    InvalidValueError unless `seconds` is positive.
    """

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise InvalidValueError("seconds", seconds, "positive")
        self.seconds = seconds
        self.fired: int = 0
        self.works: bool = (
            hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        )
        self._active = False
        self._place = ""

    def __enter__(self) -> time_limit:
        if self.works:
            self._begun = monotonic()
            self._handler_before = signal.signal(signal.SIGALRM, self._strike)
            self._timer_before = signal.setitimer(signal.ITIMER_REAL, self.seconds, AGAIN_S)
            # Last, and `_strike` spares this frame: were it to strike while the block is being
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
        if not self.works:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._handler_before)
        left, interval = self._timer_before
        if left:
            left -= monotonic() - self._begun
            signal.setitimer(signal.ITIMER_REAL, max(left, 0.001), interval)
        if self.fired and not isinstance(error, (DidNotReturn, KeyboardInterrupt)):
            raise DidNotReturn(self.seconds, self._place) from error

    def _strike(self, number: int, frame: FrameType | None) -> None:
        own = (time_limit.__enter__.__code__, time_limit.__exit__.__code__)
        if not self._active or (frame is not None and frame.f_code in own):
            return
        self.fired += 1
        # Whoever watches the lines of a target is not what it hangs in.
        outside = frame
        while outside is not None and outside.f_code.co_filename.startswith(_KIT):
            outside = outside.f_back
        frame = outside or frame
        if frame is not None:
            self._place = (
                f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
            )
        raise DidNotReturn(self.seconds, self._place)
