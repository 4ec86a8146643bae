"""Runs that end their process, or never come back, are lost, and no others with them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NoReturn

import pytest

from kvoffload.cli.executors import ClusterExecutor
from kvoffload.errors import InvalidValueError, TraceError
from kvoffload.judge.attempts import (
    BEFORE,
    NOWHERE,
    WHEREABOUTS,
    Failure,
    LostRunError,
    attempt,
    beforehand,
)
from kvoffload.judge.guarded import BEGINNING, GuardedExecutor
from kvoffload.judge.study import Study

PATIENCE_S = 0.3


class UnsendableError(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


def refuse() -> NoReturn:
    raise TraceError("no such trace")


def refuse_unsendably() -> NoReturn:
    raise UnsendableError("this", "that")


def in_request(number: int, act: Callable[[], object]) -> object:
    """What an engine does when a request begins, and when all are over."""
    WHEREABOUTS.tell(number)
    try:
        return act()
    finally:
        WHEREABOUTS.tell(NOWHERE)


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


def go_on() -> NoReturn:
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            continue


def take_long() -> int:
    """Work between requests, which nobody limits; and requests, none of which takes long."""
    time.sleep(1.2 * PATIENCE_S)
    for number in range(40):
        in_request(number, partial(time.sleep, PATIENCE_S / 32))
    return os.getpid()


def entered_and_left() -> NoReturn:
    """A policy that spoils its process, which shows when it is in none of its calls."""
    in_request(7, lambda: 0)
    os._exit(3)


def spoil() -> None:
    """What a policy may leave behind: something that ends the process later."""
    threading.Timer(0.05, os._exit, [3]).start()


def slowly(result: int) -> int:
    """Work that takes longer than the process has where something was left in it."""
    time.sleep(0.15)
    return result


def test_runs_in_processes() -> None:
    with GuardedExecutor(1, PATIENCE_S) as executor:

        def lost(run: Callable[[], object]) -> Failure:
            with pytest.raises(LostRunError) as caught:
                executor.submit(run).result()
            return caught.value.failure

        process = executor.submit(os.getpid).result()
        assert process != os.getpid()
        with pytest.raises(TraceError, match="no such trace"):
            executor.submit(refuse).result()
        with pytest.raises(RuntimeError, match="UnsendableError: this and that"):
            executor.submit(refuse_unsendably).result()
        with pytest.raises(InvalidValueError, match="picklable"):
            executor.submit(lambda: 0).result()
        # Ctrl-C is for whoever waits, so this is none.
        assert lost(partial(in_request, 4, interrupt)) == Failure("KeyboardInterrupt", 4)
        assert executor.submit(take_long).result() == process

        # A run is not lost for what another one left in the process.
        executor.submit(spoil).result()
        assert executor.submit(slowly, 5).result() == 5
        assert lost(entered_and_left) == Failure("ended its process, with status 3", NOWHERE)
        with pytest.raises(BrokenExecutor, match="status 3, in nothing of the policy's"):
            executor.submit(partial(os._exit, 3)).result()
        never = f"did not return within {BEGINNING * PATIENCE_S:g} s"
        assert lost(partial(beforehand, go_on)) == Failure(never, BEFORE)
        # What goes on when the block is left by an exception is ended.
        started: list[Future[NoReturn]] = []
        with suppress(ZeroDivisionError), GuardedExecutor(1) as other:
            started.append(other.submit(go_on))
            raise ZeroDivisionError
        with pytest.raises(BrokenExecutor):
            started[0].result()
    with pytest.raises(InvalidValueError, match="request_s"):
        GuardedExecutor(1, 0.0)


def test_what_a_policy_raises_is_told_in_printable_words() -> None:
    folder = os.getcwd()

    def play(_: object) -> None:
        os.chdir("/")
        raise RuntimeError("\udc80 \x1b[31m \0" + "x" * 1_000_000)

    found = attempt(play, lambda request: None)
    assert found is not None
    assert found.what.startswith(r"RuntimeError: \udc80 \x1b[31m \x00xxx")
    assert len(found.what) < 3_000
    assert os.getcwd() == folder


def test_a_cluster_that_gives_a_run_up() -> None:
    with ThreadPoolExecutor(1) as threads:
        executor = ClusterExecutor(threads, TraceError)
        with pytest.raises(LostRunError, match=r"^ended its process, on several workers$"):
            executor.submit(refuse).result()
        with pytest.raises(UnsendableError):
            executor.submit(refuse_unsendably).result()
        assert executor.submit(abs, -1).result() == 1


def test_a_run_that_knows_no_result_for_it_raises() -> None:
    study = Study()
    study.add(partial(in_request, 5, partial(os._exit, 3)))
    with GuardedExecutor(1) as executor, pytest.raises(LostRunError, match="in request 5 of"):
        study.carry_out(executor)
