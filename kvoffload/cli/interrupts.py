"""Ctrl-C during a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from kvoffload.cli.problems import RunInterruptedError


@contextmanager
def deferred_interrupt() -> Generator[Callable[[], None]]:
    """While the block runs, Ctrl-C waits for the call of what is yielded, or for the end of the
    block; that then raises KeyboardInterrupt.

    Python discards an exception that happens to be raised inside a finaliser or a weak
    reference's callback; a Ctrl-C that arrives there would be lost. A second Ctrl-C does not
    wait, for code on trial that never comes back.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield lambda: None
        return
    pending = False

    def remember(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pending
        pending = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def raise_pending() -> None:
        if pending:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, remember)
    try:
        yield raise_pending
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    raise_pending()


@contextmanager
def interrupted_as(what: str) -> Generator[None]:
    """Turn Ctrl-C in the block into a RunInterruptedError that says `what`."""
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterruptedError(what) from None
