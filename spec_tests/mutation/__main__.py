"""`python -m spec_tests.mutation`: mutate the implementation, and see whether anything notices."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spec_tests.mutation.engines import ENGINES
from spec_tests.mutation.equivalents import load_declared, stale
from spec_tests.mutation.exclusions import load_configuration
from spec_tests.mutation.generator import modules_of, mutants_of
from spec_tests.mutation.trial import Outcome, baseline, limits_from, try_all
from spec_tests.mutation.verdict import Row, Verdict, chosen, drawn

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
PIPED_WIDTH = 120
TOLD_EVERY = 100

app = typer.Typer(add_completion=False)


@app.command()
def mutation(
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Try so many, drawn at random from those not declared equivalent.",
            show_default="all",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draw; the engines have their own.")] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only mutants with this in module:function:digest. Repeatable."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="How many at a time.", show_default="all cores")
    ] = os.cpu_count() or 1,
    outcomes_file: Annotated[
        Path | None, typer.Option("--outcomes", help="Write the fate of each, a line each.")
    ] = None,
) -> None:
    """Try mutants of kvoffload.cpu and kvoffload.policies.

    The exit status is 1 when the engines kill too few of those that are not declared equivalent,
    when too many are declared, or when a declaration is wrong.
    """
    console = _console()
    began = time.monotonic()
    configuration = load_configuration(ROOT / "pyproject.toml")
    modules = modules_of(ROOT, configuration.packages)
    every = [m for module, path in modules for m in mutants_of(module, path, configuration)]
    declared = load_declared(EQUIVALENT)
    outdated = stale(declared, every)
    tried = chosen(every, only or [])
    if sample is not None:
        # What lives takes all engines, as long as thirty that are killed: for a whole run.
        tried = [mutant for mutant in tried if mutant.key not in declared]
        tried = drawn(tried, sample, seed)
    took = baseline(ENGINES)
    console.print(
        f"{len(every)} mutants, {len(tried)} to try"
        + (f" (sample {sample}, seed {seed})" if sample is not None else "")
        + f"; {len(ENGINES)} engines, {sum(took.values()):.1f} s on the original"
    )
    outcomes: list[Outcome] = []
    for outcome in try_all(tried, ENGINES, limits=limits_from(took), jobs=jobs):
        outcomes.append(outcome)
        _progress(console, len(outcomes), len(tried), outcome)
    order = {mutant.key: number for number, mutant in enumerate(every)}
    outcomes.sort(key=lambda outcome: order[outcome.mutant.key])
    if outcomes_file is not None:
        outcomes_file.write_text("".join(map(_line, outcomes)), encoding="utf-8")
    verdict = Verdict(outcomes, declared, outdated, len(every))
    _show(console, verdict)
    console.print(f"{time.monotonic() - began:.0f} s")
    raise typer.Exit(1 if verdict.objections else 0)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH)


def _progress(console: Console, done: int, total: int, outcome: Outcome) -> None:
    if console.is_terminal:
        end = "\n" if done == total else "\r"
        text = f"{done} of {total}: {outcome.mutant.key.module} {outcome.fate.value}"
        console.print(Text(f"{text:<{console.width - 1}.{console.width - 1}}"), end=end)
    elif done % TOLD_EVERY == 0 or done == total:
        console.print(f"{done} of {total}")


def _line(outcome: Outcome) -> str:
    said = " ".join(outcome.said.split())[:200]
    cells = (outcome.fate.value, str(outcome.mutant.key), f"{outcome.seconds:.2f}")
    return "\t".join([*cells, outcome.engine, outcome.mutant.change, said]) + "\n"


def _show(console: Console, verdict: Verdict) -> None:
    for mutant in verdict.survivors:
        console.print(Text(f"survived: {mutant.key} (from line {mutant.first})", "yellow"))
        console.print(Text("\n".join(mutant.diff)))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("module", no_wrap=True)
    for heading in ("mutants", "killed", "timeout", "survived", "declared", "score"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in [*verdict.rows, verdict.total]:
        table.add_row(*_cells(row))
    console.print(table)
    killers = Counter(outcome.engine for outcome in verdict.outcomes if outcome.engine)
    for engine in ENGINES:
        console.print(f"{killers[engine.name]:6} killed by: {engine.name}")
    for objection in verdict.objections:
        console.print(Text(objection, "bold red"))


def _cells(row: Row) -> tuple[str, ...]:
    counts = (row.mutants, row.killed, row.timeout, row.survived, row.declared)
    return (row.module, *map(str, counts), f"{row.score:.1%}")


if __name__ == "__main__":
    if sys.flags.hash_randomization:
        # Sets of keys come in another order in each process otherwise, and fates with them.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "spec_tests.mutation", *sys.argv[1:]])
    app()
