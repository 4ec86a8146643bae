"""Processes that carry out runs, and are ended and replaced when a policy does not come back.

A policy may loop for ever, sleep, discard whatever is raised in it, or end its process. Such a run
is lost, and told of; the others go on.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from ctypes import Array, c_longlong
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from threading import Lock, Thread, local
from types import TracebackType
from typing import Final, ParamSpec, TypeAlias, TypeVar

from attrs import frozen
from typing_extensions import override

from kvoffload.errors import InvalidValueError
from kvoffload.judge.attempts import BEFORE, NOWHERE, WHEREABOUTS, Failure, LostRunError, in_words

__all__ = ["REQUEST_S", "GuardedExecutor"]

T = TypeVar("T")
P = ParamSpec("P")

REQUEST_S: Final = 30.0
"""How long a policy may be in one request of a trace: many thousand times what it should take."""
BEGINNING: Final = 4
"""So many times as long it may take to be found and built, for it may import much."""
LOOKS: Final = 30
"""So often a process is looked at within that time. It is ended when each look finds it in the same
request: looks are counted, not seconds, for a computer may be asleep."""
_LAST_S: Final = 5.0
"""What a process may take to be gone when its pipe is closed."""

_Place: TypeAlias = "Array[c_longlong]"
"""How much was told of where the policy is; where it is; and where it was last."""


@frozen
class _Result:
    value: object


@frozen
class _Raised:
    error: BaseException


class GuardedExecutor(Executor):
    """Carries out runs in so many processes, each started anew and when it is first needed.

    A run whose policy is `request_s` seconds in one request, or ends its process, raises
    LostRunError; if the process ended in a run of no policy, BrokenExecutor. Runs and results are
    picklable, and the rules for a main module that starts processes hold. Left by an exception, it
    ends all processes at once. Raises InvalidValueError for a time that is not positive.
    """

    def __init__(self, processes: int, request_s: float = REQUEST_S) -> None:
        if not request_s > 0:
            raise InvalidValueError("request_s", request_s, "positive")
        self._request_s = request_s
        # A thread waits for each of the processes.
        self._threads = ThreadPoolExecutor(processes)
        self._of_thread = local()
        self._starting = Lock()
        self._children: list[_Child] = []
        self._ended = False

    @override
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._threads.submit(self._carry_out, partial(fn, *args, **kwargs))

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As any executor's, but that without waiting the processes are ended as they are."""
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        with self._starting:
            self._ended = True
            for child in self._children:
                child.end()

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.shutdown(wait=False, cancel_futures=True)
        self.shutdown()

    def _carry_out(self, run: Callable[[], T]) -> T:
        child: _Child | None = getattr(self._of_thread, "child", None)
        if child is not None and not child.is_over:
            try:
                return child.carry_out(run)
            except BrokenExecutor:
                if child.hung or not child.is_over:
                    raise
                # What another policy left there may have ended it: a new one shows who does.
        with self._starting:
            if self._ended:
                raise BrokenExecutor("the processes have been ended")
            child = self._of_thread.child = _Child(self._request_s)
            self._children.append(child)
        return child.carry_out(run)


class _Child:
    """One process, as the thread sees it that waits for it."""

    def __init__(self, request_s: float) -> None:
        self._request_s = request_s
        self.is_over = False
        self.hung = False
        context = get_context("spawn")
        self._place: _Place = context.RawArray(c_longlong, [0, NOWHERE, BEFORE])
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._place))
        self._process.start()
        # Only the process has it then, so that its end is seen here.
        theirs.close()

    def carry_out(self, run: Callable[[], T]) -> T:
        """What the run comes to. Raises what it raises, and what GuardedExecutor says."""
        try:
            packed = pickle.dumps(run)
        except Exception as error:
            expected = f"picklable, for a process of its own ({error})"
            raise InvalidValueError("run", run, expected) from error
        told = self._place[0]
        try:
            self._channel.send_bytes(packed)
            self._wait()
            answer: _Result | _Raised = self._channel.recv()
        except (EOFError, OSError):
            self._process.join(_LAST_S)
            status = self._process.exitcode
            self.end()
            what = f"ended its process, {_in_words(status)}"
            raise self._lost(what, of_policy=self._place[0] != told) from None
        if isinstance(answer, _Raised):
            raise answer.error
        # It came out of this very run.
        result: T = answer.value  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        return result

    def end(self) -> None:
        """End the process, whatever it does."""
        self.is_over = True
        self._process.kill()
        self._process.join()

    def _wait(self) -> None:
        """Return when there is an answer, or the process is gone. Raises LostRunError."""
        begun, looks = self._place[0], 0
        while not self._channel.poll(self._request_s / LOOKS):
            if self._place[1] == NOWHERE or self._place[0] != begun:
                begun, looks = self._place[0], 0
            else:
                looks += 1
            longer = BEGINNING if self._place[1] == BEFORE else 1
            if looks >= LOOKS * longer:
                self.hung = True
                self.end()
                what = f"did not return within {longer * self._request_s:g} s"
                raise self._lost(what, of_policy=True)

    def _lost(self, what: str, *, of_policy: bool) -> BrokenExecutor:
        request = self._place[1]
        if not of_policy:
            return BrokenExecutor(f"a run {what}, in nothing of the policy's")
        return LostRunError(Failure(what, request))


def _in_words(status: int | None) -> str:
    if status is None:
        return "which closed its pipe and goes on"
    if status >= 0:
        return f"with status {status}"
    with suppress(ValueError):
        return f"by {signal.Signals(-status).name}"
    return f"by signal {-status}"


def _serve(channel: Connection, place: _Place) -> None:
    """Carry out runs until there are no more."""
    # What is printed is no result, and Ctrl-C is for those who wait for this process.
    sys.stdout = sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_the_parent, daemon=True).start()

    def tell(request: int) -> None:
        place[0] += 1
        place[1] = request
        if request != NOWHERE:
            place[2] = request

    WHEREABOUTS.tell = tell
    with suppress(EOFError, ConnectionError):
        while True:
            channel.send(_carried_out(channel.recv_bytes(), place))


def _carried_out(packed: bytes, place: _Place) -> _Result | _Raised:
    try:
        run: Callable[[], object] = pickle.loads(packed)
        return _Result(run())
    # Ctrl-C does not come here, so this is the policy's.
    except KeyboardInterrupt as error:
        return _Raised(LostRunError(Failure(in_words(error), place[2])))
    except BaseException as error:
        return _Raised(_fit_to_be_sent(error))


def _fit_to_be_sent(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(in_words(error))
    return error


def _end_with_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
