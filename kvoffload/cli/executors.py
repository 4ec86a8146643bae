"""Where the runs of a judgement go: this process, processes of this machine, or a cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvoffload.cli.problems import UsageError

EXTRA = "pip install 'kvoffload[dask]'"


@contextmanager
def executor_for(jobs: int | None, scheduler: str | None) -> Generator[Executor | None]:
    """What carries runs out: `jobs` processes, by default one a core; None for this one alone.

    With the address of a scheduler it is a Dask cluster, whose workers see the same files. Raises
    UsageError when that cannot be reached.
    """
    if scheduler is not None:
        with _cluster(scheduler) as executor:
            yield executor
        return
    wanted = jobs if jobs is not None else os.cpu_count() or 1
    if wanted == 1:
        yield None
        return
    # A copy of this process would have its threads' locks and none of its threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(wanted, context, initializer=_begin)
    try:
        yield pool
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """A process begins that only computes: its output is no result, and Ctrl-C is not for it."""
    sys.stdout = sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
    try:
        yield get_executor(pure=False)
    finally:
        close()


@contextmanager
def progress_bar(console: Console, what: str, total: int) -> Generator[Callable[[int], object]]:
    """A bar of so many runs on a terminal; nothing where nobody looks."""
    if not console.is_terminal:
        yield lambda done: None
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
