"""Mutants on trial: each in a forked child, which runs the engines until one objects.

A child starts from a parent that has imported everything and run the engines once, and it dies
with its mutant, so nothing is ever undone.
"""

from __future__ import annotations

import os
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from attrs import frozen

from spec_tests.mutation.mutant import Mutant, MutantKey
from spec_tests.mutation.patching import apply

MEMORY_LIMIT: Final = 2 << 30
"""Bytes of address space beyond what the parent has; more is a mutant that never stops adding."""
WALL_PER_CPU: Final = 30
"""An engine that waits instead of working is ended after so many times its limit of work."""
SAID: Final = 4096
SLOWER: Final = 5
EXTRA: Final = 1.0
"""An engine may work so many times as long on a mutant as on the original, and a second more."""


class BaselineError(Exception):
    """An engine objects to the original."""


class Engine(NamedTuple):
    """One way of trying the implementation; `run` raises when something is wrong."""

    name: str
    run: Callable[[], None]


class Fate(Enum):
    """What came of a mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    SURVIVED = "survived"


@frozen
class Outcome:
    """The fate of a mutant; `engine` objected, and `said` what it saw."""

    mutant: Mutant
    fate: Fate
    engine: str
    said: str
    seconds: float


class _Child(NamedTuple):
    mutant: Mutant
    pipe: int
    began: float


Limits: TypeAlias = Mapping[str, float]
"""Seconds of work by the name of an engine."""


def baseline(engines: Sequence[Engine]) -> dict[str, float]:
    """Run the engines on the original; what each took, in seconds of work.

    The last, which takes longest, runs beside the others, in a process of its own. Raises as the
    engines do; BaselineError for that one.
    """
    *others, last = engines

    def measure() -> str:
        try:
            return f"{_seconds(last)}"
        except BaseException as error:
            return f"{last.name}: {error!r}"

    pid, read_end = _apart(measure)
    took = {engine.name: _seconds(engine) for engine in others}
    with open(read_end, "rb") as pipe:
        told = pipe.read().decode(errors="replace")
    os.waitpid(pid, 0)
    try:
        took[last.name] = float(told)
    except ValueError:
        raise BaselineError(told or f"{last.name}: its process ended") from None
    return took


def _seconds(engine: Engine) -> float:
    began = time.process_time()
    engine.run()
    return time.process_time() - began


def _apart(work: Callable[[], str]) -> tuple[int, int]:
    """Fork a child that writes what this returns; its number, and the pipe to read that from."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        # numpy's threads idle when this is called, and hold nothing that the child will need.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(write_end)
        return pid, read_end
    status = 1
    try:
        os.close(read_end)
        os.write(write_end, work().encode(errors="replace")[:SAID])
        status = 0
    finally:
        # Whatever happened: no handler, buffer or test runner of the parent's may go on here.
        os._exit(status)


def limits_from(took: Limits) -> Limits:
    """How long engines may work on a mutant."""
    return {name: SLOWER * seconds + EXTRA for name, seconds in took.items()}


def try_all(
    mutants: Iterable[Mutant], engines: Sequence[Engine], *, limits: Limits, jobs: int
) -> Iterator[Outcome]:
    """Try mutants, `jobs` at a time; their outcomes as they come."""
    waiting: Iterator[Mutant] = iter(mutants)
    running: dict[int, _Child] = {}
    exhausted = False
    again: set[MutantKey] = set()
    while running or not exhausted:
        while not exhausted and len(running) < jobs:
            mutant = next(waiting, None)
            if mutant is None:
                exhausted = True
            else:
                pid, child = _start(mutant, engines, limits)
                running[pid] = child
        if running:
            # Only of our own: whoever calls may have children too.
            pid, status = _wait_for_any(running)
            child = running.pop(pid)
            if _was_paused(status) and child.mutant.key not in again:
                # Time went by without work: rather the machine's doing than the mutant's.
                again.add(child.mutant.key)
                os.close(child.pipe)
                waiting = chain([child.mutant], waiting)
                exhausted = False
            else:
                yield _outcome(child, status)


def _was_paused(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM


def _wait_for_any(running: Iterable[int]) -> tuple[int, int]:
    pause = 0.0005
    while True:
        for pid in running:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return done, status
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def _start(mutant: Mutant, engines: Sequence[Engine], limits: Limits) -> tuple[int, _Child]:
    began = time.monotonic()

    def live() -> str:
        _confine()
        return _live(mutant, engines, limits)

    pid, pipe = _apart(live)
    return pid, _Child(mutant, pipe, began)


def _confine() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT, hard))


def _live(mutant: Mutant, engines: Sequence[Engine], limits: Limits) -> str:
    """What to tell the parent: nothing of a survivor, else an engine and what it said."""
    apply(mutant)
    for engine in engines:
        signal.setitimer(signal.ITIMER_PROF, limits[engine.name])
        signal.setitimer(signal.ITIMER_REAL, limits[engine.name] * WALL_PER_CPU)
        try:
            engine.run()
        except BaseException as error:
            try:
                return f"{engine.name}\n{type(error).__name__}: {error}"
            except Exception:
                return f"{engine.name}\n{type(error).__name__}"
    return ""


def _outcome(child: _Child, status: int) -> Outcome:
    with open(child.pipe, "rb") as pipe:
        engine, _, said = pipe.read().decode(errors="replace").partition("\n")
    fate = Fate.KILLED if engine else Fate.SURVIVED
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        fate = Fate.TIMEOUT if number in (signal.SIGPROF, signal.SIGALRM) else Fate.KILLED
        said = signal.Signals(number).name
    elif os.WEXITSTATUS(status):
        raise RuntimeError(f"the child of {child.mutant.key} failed before any engine ran")
    return Outcome(child.mutant, fate, engine, said, time.monotonic() - child.began)
