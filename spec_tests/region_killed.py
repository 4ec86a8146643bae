"""A child that does something with regions and is killed before the n-th line of their code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Protocol


class Tracer(Protocol):
    """What is told of every line of a function; what it answers is told of the next ones."""

    def __call__(self, frame: FrameType, event: str, argument: object, /) -> Tracer | None: ...


_WATCHED = ("region.py", "region_file.py", "locks.py")


def killed_at(line: int, do: Callable[[], object]) -> bool:
    """Fork a child that does it, and is killed there; False where it came to its end before."""
    child = os.fork()
    if not child:
        try:
            sys.settrace(_killer(line))
            do()
        finally:
            # Neither the tests' own end nor what they print is the child's.
            os._exit(0 if sys.exc_info()[0] is None else 1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child raised something"
    return False


def killed_after(do: Callable[[], object]) -> None:
    """Fork a child that does it, and is killed with what it has then."""
    child = os.fork()
    if not child:
        held = [do()]
        os.kill(os.getpid(), signal.SIGKILL)
        del held
    os.waitpid(child, 0)


def _killer(line: int) -> Tracer:
    """What is told of every line, and counts those of the modules in question."""
    left = line

    def trace(frame: FrameType, event: str, argument: object) -> Tracer | None:
        nonlocal left
        if not frame.f_code.co_filename.endswith(_WATCHED):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace
