"""`python -m spec_tests.peer`: our manager and vLLM's on random programs, on all cores."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvoffload.errors import VLLMError
from spec_tests.peer import work
from spec_tests.peer.root import peer
from stateful_models.vllm.deviations import DEVIATIONS
from stateful_models.vllm.differential import Shard, Tally

app = typer.Typer(add_completion=False)


@app.command()
def unpack(wheel: Path, root: Path) -> None:
    """Unpack the control plane of a vLLM wheel into a folder."""
    print(f"{work.unpack(wheel, root)} files of {wheel.name} in {root}")


@app.command()
def run(
    operations: Annotated[int, typer.Option(help="At least so many, over all policies.")] = 400_000,
    seed: Annotated[int, typer.Option(help="Other programs.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes.", show_default="all cores")
    ] = None,
) -> None:
    """Play the same random programs on our manager and on vLLM's, and compare every answer.

    The exit status is 1 when something differs that is not in docs/deviations.md, when something
    never came about that was to be tried, or when a deviation never showed.
    """
    screen, stderr = Console(soft_wrap=True), Console(stderr=True)
    started = time.monotonic()
    try:
        plane = peer()
    except VLLMError as error:
        stderr.print(str(error), markup=False, highlight=False)
        raise typer.Exit(2) from None
    shards = work.shards_of(operations, seed)
    tally, by_kind = play_shards(shards, jobs or os.cpu_count() or 1, stderr)
    screen.print(f"kvoffload beside {plane}", markup=False, highlight=False)
    show(screen, tally, by_kind, time.monotonic() - started)
    if tally.differences or tally.missed or unshown(tally):
        raise typer.Exit(1)


def play_shards(shards: Sequence[Shard], jobs: int, console: Console) -> tuple[Tally, Counter[str]]:
    """Play the shards in so many processes, with a bar; also the operations by policy."""
    tally = Tally()
    by_kind: Counter[str] = Counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar,
        # The bar has a thread, which a forked process would not have.
        ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool,
    ):
        task = bar.add_task("programs on both", total=len(shards))
        for done in as_completed(pool.submit(work.play_shard, shard) for shard in shards):
            shard, played = done.result()
            tally.add(played)
            by_kind[kind_of(shard)] += played.operations
            bar.advance(task)
    return tally, by_kind


def kind_of(shard: Shard) -> str:
    """What the managers of a shard were built with, in words."""
    policy = shard.policy or "a policy without hooks"
    if shard.tapped:
        return f"{policy}, ours on both sides, and what it was told"
    return f"{policy}, each with its own"


def unshown(tally: Tally) -> list[str]:
    """The deviations that random programs should have come upon, and did not."""
    return [one.id for one in DEVIATIONS if not tally.explained[one.id]]


def show(screen: Console, tally: Tally, by_kind: Counter[str], seconds: float) -> None:
    """Print what was played, what is explained, and what is not."""
    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_row(f"{tally.operations:,}", f"operations in {tally.programs:,} programs on both")
    for kind, operations in sorted(by_kind.items()):
        table.add_row(f"{operations:,}", f"  {kind}")
    for what, times in sorted(tally.met.items()):
        table.add_row(f"{times:,}", f"  {what}")
    explained = tally.explained.total()
    table.add_row(f"{explained:,}", "differences explained by docs/deviations.md")
    for deviation in DEVIATIONS:
        times = tally.explained[deviation.id]
        table.add_row(f"{times:,}", f"  {deviation.id} ({', '.join(deviation.clauses)})")
    table.add_row(f"{len(tally.differences):,}", "unexplained")
    table.add_row(f"{seconds:.0f} s", "")
    screen.print(table)
    for what in (*tally.missed, *unshown(tally)):
        screen.print(f"never came about: {what}", markup=False, highlight=False)
    for difference in tally.differences:
        screen.print(f"\n{difference}", markup=False, highlight=False)


if __name__ == "__main__":
    app()
