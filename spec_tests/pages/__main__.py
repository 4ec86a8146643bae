"""`python -m spec_tests.pages`: the grid and the pairs, on all cores."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spec_tests.pages.work import OtherPart, Part, Tally, grid_parts, pairs_parts, run_part

app = typer.Typer(add_completion=False)


@app.command()
def pages(
    tenth: Annotated[
        int | None,
        typer.Option(
            min=0, max=9, help="Only this tenth, drawn with the seed.", show_default="all"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the pairs, and of a tenth.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes.", show_default="all cores")
    ] = None,
) -> None:
    """Put the reference's page mappings on trial: every combination, and pairs of them.

    The exit status is 1 when something is found.
    """
    screen, stderr = Console(soft_wrap=True), Console(stderr=True)
    started = time.monotonic()
    # The longest parts first, so that no core waits for another in the end.
    parts: list[Part] = [
        OtherPart(),
        *pairs_parts(tenth=tenth, seed=seed),
        *reversed(list(grid_parts(tenth=tenth, seed=seed))),
    ]
    tally = try_parts(parts, jobs or os.cpu_count() or 1, stderr)
    show(screen, tally, time.monotonic() - started)
    if tally.findings.counts:
        raise typer.Exit(1)


def try_parts(parts: Sequence[Part], jobs: int, console: Console) -> Tally:
    """Judge the parts in so many processes, with a bar."""
    tally = Tally()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar,
        # The bar has a thread, which a forked process would not have.
        ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool,
    ):
        task = bar.add_task("parts of the grid and of the pairs", total=len(parts))
        for done in as_completed(pool.submit(run_part, part) for part in parts):
            tally.add(done.result())
            bar.advance(task)
    return tally


def show(screen: Console, tally: Tally, seconds: float) -> None:
    """Print what was tried, and what was found."""
    screen.print(_table(tally, seconds))
    for finding in tally.findings.listed():
        often = tally.findings.counts[finding.clause, finding.kind]
        screen.print(f"\n{finding}\n  found {often:,} times", markup=False, highlight=False)


def _table(tally: Tally, seconds: float) -> Table:
    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    distinct = tally.legal - tally.repeated
    for number, what in (
        (tally.legal, "legal cases, compared with the oracle byte for byte"),
        (distinct, "of them apart from an interleave that plays no part"),
        (tally.illegal, "illegal cases, to be refused with the arithmetic"),
        (tally.unusual, "cases of second caches, opaque pages and packed blocks"),
        (tally.pairs, "pairs: stored under one configuration, loaded under the other"),
        (sum(tally.findings.counts.values()), "findings"),
    ):
        table.add_row(f"{number:,}", what)
    table.add_row(f"{seconds:.0f} s", "")
    return table


if __name__ == "__main__":
    app()
