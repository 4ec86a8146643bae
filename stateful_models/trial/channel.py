"""The child's side of a trial in a process of its own: what was asked, and a way to answer."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import TracebackType
from typing import Final, Self

from kvoffload.errors import InvalidValueError
from stateful_models.trial.mark import Mark

__all__ = ["DONE", "MESSAGE", "ChildChannel", "end_with_the_parent"]

MESSAGE: Final = b":"
DONE: Final = b"."
"""What follows the nonce in a line of the pipe: a message, or nothing more."""

_PR_SET_PDEATHSIG: Final = 1


class ChildChannel:
    """What was asked, and a way to answer that no print gets into.

    Made before the target is imported, which then finds nothing of it. As a context manager it
    tells the parent that all is done, unless the block was left by an exception. Only the process
    that made it can answer: one that the target forked ends where it would.
    """

    def __init__(self, descriptor: int, mark: Mark, nonce: bytes, request: bytes) -> None:
        self._descriptor = descriptor
        self._mark = mark
        self._nonce = nonce
        self._request = request
        self._process = os.getpid()

    def request(self) -> bytes:
        """What the parent asked."""
        return self._request

    def mark(self, text: bytes) -> None:
        """Mark what is being done, for the parent to read should this process not get over it."""
        self._mark.set(text)

    def send(self, message: bytes) -> None:
        """Send a message: one line. Raises InvalidValueError when it is more."""
        if b"\n" in message:
            raise InvalidValueError("message", message, "one line, without an end of line in it")
        self._write(MESSAGE + message)

    def finish(self) -> None:
        """Tell that all is done: however the process ends now, the trial is over."""
        self._write(DONE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()

    def _write(self, frame: bytes) -> None:
        if os.getpid() != self._process:
            os._exit(os.EX_OK)
        left = memoryview(b"".join((self._nonce, frame, b"\n")))
        while left:
            left = left[os.write(self._descriptor, left) :]


def end_with_the_parent() -> None:
    """Let the system kill this process when its parent is gone, where it can: Linux."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have gone meanwhile, and then nobody tells.
    if os.getppid() != parent:
        os._exit(os.EX_OK)
