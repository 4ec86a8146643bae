"""Engines that a second process plays meanwhile, where there is a core for it.

It is forked from the process of the trial when the target is loaded, and plays those engines that
need nothing which others have found out. It tells how much was tried, and only where it found
nothing: the first engine that finds something ends it, and that one and all that follow are played
where the trial is held. So whatever a report shows came about in one process, in the usual order.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, Pipe
from types import TracebackType
from typing import Generic, NoReturn, Self, TypeVar

from attrs import evolve, frozen

from stateful_models.contract import Kind
from stateful_models.engines.base import AnyEngine, Cut, Run, Trial
from stateful_models.levels import SMOKE, Level
from stateful_models.trial.channel import end_with_the_parent
from stateful_models.trial.hang import LOAD, Alarm

__all__ = ["Tally", "play_engines", "tally"]

S = TypeVar("S")
EngineT = TypeVar("EngineT", bound=AnyEngine)
DriverT = TypeVar("DriverT")
MakeT = TypeVar("MakeT")
RunT = TypeVar("RunT", bound=Run)


@frozen
class Tally:
    """Something that adds up while engines play: how it is told, and how it is learnt."""

    tell: Callable[[], bytes]
    learn: Callable[[bytes], None]


def tally(read: Callable[[], S], add: Callable[[S, S], object]) -> Tally:
    """The tally of what `read` gives, which can be pickled.

    `add` is called with what was learnt last, or was read when this was made, and what is told now.
    """
    before = read()

    def learn(told: bytes) -> None:
        nonlocal before
        after: S = pickle.loads(told)
        add(before, after)
        before = after

    return Tally(lambda: pickle.dumps(read()), learn)


def play_engines(
    trial: Trial[DriverT, MakeT, RunT],
    engines: Sequence[EngineT],
    play: Callable[[EngineT], object],
    tallies: Callable[[], Iterable[Tally]] | None = None,
) -> None:
    """Play the engines in order until calls did not return too often; `play` plays one.

    `tallies` makes those of what is counted outside the trial, such as the lines that ran. Without
    it there is one process only.
    """
    independent = [engine for engine in engines if engine.independent]
    with ExitStack() as stack:
        beside: _Beside[EngineT] | None = None
        if tallies is not None and 0 < len(independent) < len(engines) and _may_fork(trial.level):
            every = [_tally_of(trial), *tallies()]
            beside = stack.enter_context(_Beside(trial, independent, play, every))
        for engine in trial.due(engines):
            if beside is None or not engine.independent or not beside.has_played(engine):
                play(engine)


def _may_fork(level: Level) -> bool:
    """Whether a second process would be of use, and can be forked.

    Where other threads run, be they of a library in C, one may hold a lock that nobody would
    release there.
    """
    return level.name != SMOKE.name and _cores() > 1 and _threads() == 1


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


@frozen
class _Counted:
    """What engines count in a trial."""

    programs: int
    situations: dict[str, int]
    notes: list[str]
    cuts: dict[str, Cut]
    tried: frozenset[str]
    declined: dict[str, str]


def _tally_of(trial: Trial[DriverT, MakeT, RunT]) -> Tally:
    def read() -> _Counted:
        return _Counted(
            trial.programs,
            trial.reach.counts,
            list(trial.notes),
            dict(trial.cuts),
            frozenset(trial.tried),
            dict(trial.declined),
        )

    def add(before: _Counted, after: _Counted) -> None:
        trial.programs += after.programs - before.programs
        trial.reach.add(Counter(after.situations) - Counter(before.situations))
        for text in after.notes[len(before.notes) :]:
            trial.note(text)
        trial.cuts |= {name: cut for name, cut in after.cuts.items() if name not in before.cuts}
        trial.tried |= after.tried - before.tried
        trial.declined |= dict(after.declined.items() - before.declined.items())

    return tally(read, add)


class _Beside(Generic[EngineT]):
    """The second process. Leaving the block ends it."""

    def __init__(
        self,
        trial: Trial[DriverT, MakeT, RunT],
        engines: Sequence[EngineT],
        play: Callable[[EngineT], object],
        tallies: Sequence[Tally],
    ) -> None:
        self._tallies = tallies
        self._convicts: Callable[[], bool] = lambda: _convicts(trial)
        self._progress: Callable[[str, float], None] = trial.on_progress
        # It ends by itself after one such time of work, and works beside others.
        self._patience_s = LOAD * trial.level.patience_s
        self._told, tell = Pipe(duplex=False)
        self._pid = os.fork()
        if not self._pid:
            _be_beside(trial, engines, play, tallies, tell)
        tell.close()
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def has_played(self, engine: EngineT) -> bool:
        """Whether the next engine needs to be played no more; what it counted is learnt then."""
        if self._convicts():
            # What was found may matter to what follows, and is all that matters to the reader.
            self._end()
        if not self._open:
            return False
        self._progress(engine.name, 0.0)
        told = self._next()
        if told is None:
            self._end()
            return False
        for one, state in zip(self._tallies, told, strict=True):
            one.learn(state)
        return True

    def _next(self) -> list[bytes] | None:
        """What is told of the next engine; None if nothing is, or not in time."""
        try:
            if not self._told.poll(self._patience_s):
                return None
            states: list[bytes] = pickle.loads(self._told.recv_bytes())
        except (EOFError, OSError):
            return None
        return states

    def _end(self) -> None:
        if not self._open:
            return
        self._open = False
        self._told.close()
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        # Somebody else may have waited for it: a target that waits for any child.
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _convicts(trial: Trial[DriverT, MakeT, RunT]) -> bool:
    """Whether something was found that is more than advice."""
    return trial.hung > 0 or any(kind is not Kind.ADVICE for _, kind in trial.breaches)


def _unmarked(call: str) -> None:
    """In the place of the mark of what is called, which is the other process's."""


def _be_beside(
    trial: Trial[DriverT, MakeT, RunT],
    engines: Sequence[EngineT],
    play: Callable[[EngineT], object],
    tallies: Sequence[Tally],
    tell: Connection,
) -> NoReturn:
    """Play the engines, tell of each, and end. Whatever goes wrong is for the other to find."""
    try:
        end_with_the_parent()
        with Alarm() as alarm:
            trial.surroundings = evolve(trial.surroundings, alarm=alarm, calling=_unmarked)
            trial.on_progress = lambda engine, share: None
            for engine in engines:
                play(engine)
                if trial.breaches or trial.hung:
                    break
                tell.send_bytes(pickle.dumps([one.tell() for one in tallies]))
    finally:
        os._exit(os.EX_OK)
