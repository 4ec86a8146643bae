"""Where the runs of a judgement go: this process, processes of this machine, or a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from importlib import import_module
from typing import ParamSpec, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from typing_extensions import override

from kvoffload.cli.problems import UsageError
from kvoffload.cli.progress import LINE_SECONDS
from kvoffload.cli.prose import tell
from kvoffload.judge import guarded
from kvoffload.judge.attempts import NOWHERE, Failure, LostRunError
from kvoffload.wording import counted

P = ParamSpec("P")
T = TypeVar("T")

EXTRA = "pip install 'kvoffload[dask]'"


@contextmanager
def executor_for(jobs: int | None, scheduler: str | None) -> Generator[Executor | None]:
    """What carries runs out: `jobs` processes, by default one a core, which survive any policy.

    None, and so this very process, if `jobs` is 1. With the address of a scheduler it is a Dask
    cluster, whose workers see the same files. Raises UsageError when that cannot be reached.
    """
    if scheduler is not None:
        with _cluster(scheduler) as executor:
            yield executor
        return
    if jobs == 1:
        yield None
        return
    with guarded.GuardedExecutor(jobs or os.cpu_count() or 1, guarded.REQUEST_S) as executor:
        yield executor


@contextmanager
def _cluster(address: str) -> Generator[Executor]:
    try:
        # Its types are known only where the extra is installed.
        make_client: Callable[..., object] = getattr(import_module("distributed"), "Client")  # noqa: B009
    except ModuleNotFoundError as error:
        raise UsageError(f"--scheduler {address} needs distributed: {EXTRA}") from error
    try:
        client = make_client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise UsageError(f"--scheduler {address}: {error}") from error
    get_executor: Callable[..., Executor] = getattr(client, "get_executor")  # noqa: B009
    close: Callable[[], object] = getattr(client, "close")  # noqa: B009
    killed: type[Exception] = getattr(import_module("distributed"), "KilledWorker")  # noqa: B009
    try:
        yield ClusterExecutor(get_executor(pure=False), killed)
    finally:
        close()


class ClusterExecutor(Executor):
    """A cluster's executor, which tells of runs that killed one worker after the other."""

    def __init__(self, executor: Executor, killed: type[Exception]) -> None:
        self._executor = executor
        self._killed = killed

    @override
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        outer: Future[T] = Future()

        def done(inner: Future[T]) -> None:
            # Nobody asks for what is cancelled.
            if inner.cancelled() or not outer.set_running_or_notify_cancel():
                return
            error = inner.exception()
            if isinstance(error, self._killed):
                error = LostRunError(Failure("ended its process, on several workers", NOWHERE))
            if error is None:
                outer.set_result(inner.result())
            else:
                outer.set_exception(error)

        self._executor.submit(fn, *args, **kwargs).add_done_callback(done)
        return outer


@contextmanager
def progress_bar(console: Console, what: str, total: int) -> Generator[Callable[[int], object]]:
    """How many of so many are done: a bar on a terminal, now and then a line elsewhere."""
    if not console.is_terminal:
        last = time.monotonic()

        def say(done: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= LINE_SECONDS:
                last = now
                tell(console, f"{what}, {done:,} of {total:,}")

        yield say
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def runs_to_come(
    whose: str, planned: Sequence[tuple[int, int]], jobs: int | None, scheduler: str | None
) -> str:
    """What is about to be run, in words: `planned` are, of each trace, the runs and its requests.

    Nothing is said of the time: a policy takes as long for a request as it likes.
    """
    runs = sum(each for each, _ in planned)
    requests = sum(each * size for each, size in planned)
    if scheduler is not None:
        where = "on the cluster"
    else:
        number = jobs or os.cpu_count() or 1
        where = "one after the other" if number == 1 else f"{number} at a time"
    over = counted(len(planned), "trace")
    return (
        f"{whose}: {counted(runs, 'run')} over {over}, {where}; "
        f"{counted(requests, 'request')} in all"
    )
