"""`python -m spec_tests.bench`: measure, and print ratios with what is wanted of them."""

from __future__ import annotations

import os
import platform
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status

from kvoffload import InvalidValueError, TraceError
from kvoffload.replay import Capacity, Trace
from spec_tests.bench.child import ROOT, MeasurementFailedError
from spec_tests.bench.sections import (
    Plan,
    check_section,
    copies_section,
    import_section,
    manager_section,
    pages_section,
)
from spec_tests.bench.tables import make_console, show_section
from spec_tests.bench.vllm_modules import VERSION, VLLMMissingError, check_root, fetch_vllm

CACHE = ROOT / ".nox" / "bench-cache"
"""Beside the environments of the sessions, so that it outlives them and leaves with them."""
QUICK = Plan(runs=3, requests=400, capacities=(10_000, 100_000), import_runs=5)


class Part(Enum):
    """What can be measured by itself."""

    MANAGER = "manager"
    CHECK = "check"
    PAGES = "pages"
    COPIES = "copies"
    IMPORT = "import"


SECTIONS = {
    Part.MANAGER: manager_section,
    Part.CHECK: check_section,
    Part.PAGES: pages_section,
    Part.COPIES: copies_section,
    Part.IMPORT: import_section,
}
app = typer.Typer(add_completion=False)


@app.command()
def bench(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A small version, in a minute; its ratios are rough."),
    ] = False,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Runs of each thing.", show_default="5")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests sent through a manager.", show_default="5000"),
    ] = None,
    vllm: Annotated[
        bool,
        typer.Option("--vllm", help=f"Measure vLLM {VERSION} too: downloads it."),
    ] = False,
    vllm_root: Annotated[
        Path | None,
        typer.Option(help="The same, from an unpacked wheel: the directory that holds vllm/."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay this trace too, checked and unchecked, beside the sample."),
    ] = None,
    capacity: Annotated[
        str, typer.Option(help="Of the replays: chunks, a share of the blocks, or infinite.")
    ] = "5%",
    only: Annotated[
        list[Part] | None,
        typer.Option(help="Only this part. Repeatable.", show_default="all"),
    ] = None,
) -> None:
    """Measure speed, memory and import cost, as ratios beside others.

    Whether a target is met is told and decides nothing: the exit status is 0 whatever the figures
    are, and 2 when something could not be measured.
    """
    screen, stderr = make_console(), make_console(stderr=True)
    size = QUICK if quick else Plan()
    try:
        plan = Plan(
            runs=runs or size.runs,
            requests=requests or size.requests,
            capacities=size.capacities,
            import_runs=size.import_runs,
            replay_capacity=Capacity.parse(capacity).text,
            trace=None if trace is None else str(Trace(trace.resolve()).path),
            vllm_root=_vllm_root(stderr, vllm_root, download=vllm),
        )
        system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        screen.print(f"Python {platform.python_version()}, {system}; medians of {plan.runs} runs")
        screen.print()
        for part in only or SECTIONS:
            with _Progress(stderr) as progress:
                section = SECTIONS[part](plan, progress.narrate)
            show_section(screen, section)
    except (InvalidValueError, TraceError, VLLMMissingError, MeasurementFailedError) as error:
        stderr.print(f"bench: {error}", markup=False)
        raise typer.Exit(2) from error


def _vllm_root(stderr: Console, root: Path | None, *, download: bool) -> str | None:
    if root is not None:
        return str(check_root(root.resolve()))
    if not download:
        return None
    stderr.print(f"vLLM {VERSION}: looking in {CACHE.relative_to(ROOT)}, else downloading")
    return str(fetch_vllm(CACHE))


class _Progress:
    """What is being measured: one changing line on a terminal, a line for each run elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = console.status("") if console.is_terminal else None

    def __enter__(self) -> _Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def narrate(self, what: str, done: int, total: int) -> None:
        line = f"{done + 1} of {total}: {what}"
        if self._status is not None:
            self._status.update(line)
        else:
            self._console.print(line, markup=False)


if __name__ == "__main__":
    app()
