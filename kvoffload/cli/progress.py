"""How far a run is: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvoffload.replay.counts import Counts

BAR_SECONDS = 0.1
LINE_SECONDS = 10.0


class Narrator(Protocol):
    """Told of one run's counts after every step."""

    def __call__(self, counts: Counts, /) -> None:
        """Show them, if it is time to."""


@contextmanager
def narrate(console: Console, label: str, total: int) -> Generator[Narrator]:
    """Show the progress of one run, out of `total` requests, on `console` while the block runs."""
    if console.is_terminal:
        with Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[hits]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        ) as bar:
            task = bar.add_task(label, total=total, hits="")

            def advance(counts: Counts) -> None:
                bar.update(task, completed=counts.requests, hits=_hits(counts))

            yield _Seldom(advance, BAR_SECONDS)
    else:

        def say(counts: Counts) -> None:
            share = f"{counts.requests:,} of {total:,}"
            console.print(f"{label}: {share}, {_hits(counts)}", markup=False, soft_wrap=True)

        seldom = _Seldom(say, LINE_SECONDS)
        yield seldom
        if seldom.latest is not None:
            say(seldom.latest)


class _Seldom:
    """Passes on a call when so many seconds went by since the last; asks the time seldom too."""

    EVERY = 64

    def __init__(self, narrator: Narrator, seconds: float) -> None:
        self._narrator = narrator
        self._seconds = seconds
        self.latest: Counts | None = None
        self._calls = 0
        self._last = time.monotonic()

    def __call__(self, counts: Counts, /) -> None:
        self.latest = counts
        self._calls += 1
        if self._calls % self.EVERY:
            return
        now = time.monotonic()
        if now - self._last >= self._seconds:
            self._last = now
            self._narrator(counts)


def _hits(counts: Counts) -> str:
    return f"block hits {counts.block_hits / counts.blocks:.4f}" if counts.blocks else ""
