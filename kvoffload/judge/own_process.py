"""Something carried out in a process of its own, which is ended when its time is over.

What is timed must not wait for the garbage of others, and what may hang must not hang its caller.
"""

from __future__ import annotations

import gc
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import monotonic
from typing import Final, TypeVar

from attrs import frozen

from kvoffload.errors import InvalidValueError
from kvoffload.judge.blame import HostFailedError

T = TypeVar("T")
A = TypeVar("A")

START_S: Final = 120.0
"""What a process may take to import what it needs, which is not counted."""


@frozen
class Failed:
    """Why a process gave no more answers, though its time was not over."""

    why: str


@frozen
class _HostFailed:
    """What is to be raised where the answers are waited for."""

    error: HostFailedError


@frozen
class _Ready:
    """It has begun."""


@frozen
class _Done:
    """It has come to its end."""


def run_in_own_process(
    answers_to: Callable[[T], Iterator[A]], question: T, budget_s: float
) -> Iterator[A | Failed]:
    """The answers as they come, until there are no more or `budget_s` seconds have passed.

    The process is started anew, not forked, so that it has nothing of this one; the rules for a
    main module that starts processes hold. `gc` is as an engine has it: what was imported is
    frozen, and collections go on. Raises InvalidValueError for a question that is not picklable,
    and the HostFailedError that is raised there.
    """
    try:
        packed = pickle.dumps((answers_to, question))
    except Exception as error:
        expected = f"picklable, for a process of its own ({error})"
        raise InvalidValueError("question", question, expected) from error
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, packed), daemon=True)
    process.start()
    # Only the process has it now, so that its end is seen here.
    sender.close()
    try:
        until = monotonic() + START_S
        while receiver.poll(max(0.0, until - monotonic())):
            try:
                message: A | Failed | _HostFailed | _Ready | _Done = receiver.recv()
            except EOFError:
                process.join()
                yield Failed(f"its process ended by itself, with exit code {process.exitcode}")
                return
            if isinstance(message, _Ready):
                until = monotonic() + budget_s
            elif isinstance(message, _Done):
                return
            elif isinstance(message, _HostFailed):
                raise message.error
            else:
                yield message
    finally:
        process.kill()
        process.join()
        process.close()
        receiver.close()


def _answer(sender: Connection, packed: bytes) -> None:
    # Its output is no result, and Ctrl-C is for the one who ends it.
    sys.stdout = sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answers_to, question = pickle.loads(packed)
        gc.collect()
        gc.freeze()
        sender.send(_Ready())
        for answer in answers_to(question):
            sender.send(answer)
    except HostFailedError as error:
        sender.send(_HostFailed(error))
    except Exception as error:
        sender.send(Failed(f"{type(error).__name__}: {error}"))
    sender.send(_Done())
    sender.close()
