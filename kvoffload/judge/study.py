"""The runs of one judgement: each picklable and independent, so that anything may carry them out.

A run names its trace by file and its policy by what makes its manager; where it is carried out
both are had anew. Nothing in a run depends on the others, so results are equal whatever runs them:
one after the other, threads, processes, or machines that see the same files.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, as_completed
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from attrs import define, field, frozen

from kvoffload.errors import TraceError
from kvoffload.judge.attempts import Failure, GiveHints, Losable, LostRunError, attempt, beforehand
from kvoffload.judge.engine import Engine
from kvoffload.judge.optimum import best_possible
from kvoffload.judge.outcome import Outcome
from kvoffload.judge.workload import Workload
from kvoffload.manager import OffloadingManager
from kvoffload.replay.readers import CsvLayout, TraceFormat
from kvoffload.replay.request import TraceRequest
from kvoffload.replay.trace import Trace

T = TypeVar("T")

MakeManager = Callable[[int], OffloadingManager]
"""Makes the manager of a cache of so many chunks. Picklable, where runs go to other processes."""


_Stamp: TypeAlias = tuple[Path, int, int]
"""Where a file is, when it was written, and how large it is."""


@frozen
class Source:
    """A trace by its file, and how it is read; arguments as `kvoffload.replay.Trace` takes them."""

    path: Path
    trace_format: TraceFormat | None = None
    skip_bad: bool = False
    limit: int | None = None
    csv_layout: CsvLayout | None = None
    csv_delimiter: str = ","

    def open(self) -> Trace:
        """The trace, to be read. Raises TraceError."""
        return Trace(
            self.path,
            self.trace_format,
            skip_bad=self.skip_bad,
            limit=self.limit,
            csv_layout=self.csv_layout,
            csv_delimiter=self.csv_delimiter,
        )


def workload_of(source: Source, gpu_chunks: int) -> Workload:
    """The trace behind a GPU cache of so many chunks. Raises TraceError.

    A process that carries out several runs reads a trace once, unless its file changes.
    """
    try:
        state = source.path.stat()
        stamp = source.path.resolve(), state.st_mtime_ns, state.st_size
    except OSError:
        # Reading it says what is wrong.
        stamp = source.path, 0, 0
    return _workload(source, stamp, gpu_chunks)


@lru_cache(maxsize=4)
def _workload(source: Source, stamp: _Stamp, gpu_chunks: int) -> Workload:
    requests = _requests(source, stamp)
    if not any(request.blocks for request in requests):
        raise TraceError(f"{source.path}: a trace without blocks: there is nothing to judge by")
    try:
        return Workload.of(requests, gpu_chunks)
    except TraceError as error:
        raise TraceError(f"{source.path}: {error}") from error


@lru_cache(maxsize=2)
def _requests(source: Source, _: _Stamp) -> tuple[TraceRequest, ...]:
    with source.open().open() as reading:
        return tuple(reading)


@frozen
class Run:
    """A policy at one capacity, in front of one trace behind one GPU tier."""

    make: MakeManager
    source: Source
    gpu_chunks: int
    capacity: int

    def __call__(self) -> Outcome | Failure:
        """What it was worth. Raises TraceError only: what the policy raises is a Failure."""
        workload = workload_of(self.source, self.gpu_chunks)

        def play(hints: GiveHints) -> Outcome:
            manager = beforehand(lambda: self.make(self.capacity))
            return Engine(manager, workload, hints=hints).run()

        return attempt(play, workload.recorded_hints)

    def lost(self, failure: Failure, /) -> Outcome | Failure:
        """What it was worth where the policy did not come back."""
        return failure


@frozen
class Best:
    """The optimum at one capacity."""

    source: Source
    gpu_chunks: int
    capacity: int

    def __call__(self) -> Outcome:
        """What no policy can exceed. Raises TraceError."""
        return best_possible(workload_of(self.source, self.gpu_chunks), self.capacity)


@define
class Study:
    """Collects runs, carries them out, and has their results.

    Equal runs are carried out once.
    """

    _runs: dict[Callable[[], object], int] = field(factory=dict)
    _results: dict[int, object] = field(factory=dict)

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Callable[[], T]) -> Callable[[], T]:
        """Ask for a run, which has to be hashable. What is returned gives its result, in time.

        It raises LookupError until the runs are carried out.
        """
        number = self._runs.setdefault(run, len(self._runs))

        def result() -> T:
            if number not in self._results:
                raise LookupError(f"{run} has not been carried out")
            # What is kept under its number came out of this very run.
            return cast("T", self._results[number])

        return result

    def carry_out(
        self,
        executor: Executor | None = None,
        proceed: Callable[[int], object] = lambda done: None,
    ) -> None:
        """Carry out all runs: on an executor, or one after the other without one.

        `proceed` is told how many are done. What a run raises is raised here; those that have not
        begun are then not carried out. Where a policy may not come back, or end its process, the
        executor has to be one that bears it: see `kvoffload.judge.guarded`.
        """
        if executor is None:
            for done, (run, number) in enumerate(self._runs.items(), 1):
                self._results[number] = run()
                proceed(done)
            return
        futures: dict[Future[object], Callable[[], object]] = {}
        try:
            for run in self._runs:
                futures[executor.submit(run)] = run
            for done, future in enumerate(as_completed(futures), 1):
                run = futures[future]
                self._results[self._runs[run]] = _result(future, run)
                proceed(done)
        finally:
            for future in futures:
                future.cancel()


def _result(future: Future[object], run: object) -> object:
    try:
        return future.result()
    except LostRunError as error:
        if not isinstance(run, Losable):
            raise
        return run.lost(error.failure)
