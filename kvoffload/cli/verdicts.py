"""What a person reads of trials: a row for each target, then what each is convicted of."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kvoffload.cli.names import PolicyNames
from kvoffload.cli.problems import counted
from stateful_models.loading import in_one_line
from stateful_models.trial.request import Request
from stateful_models.trial.verdicts import ClauseVerdict, Outcome, Report, Verdict

LINE_SECONDS = 10.0
STYLES = {Outcome.CLEAN: "green", Outcome.CONVICTED: "bold red", Outcome.UNTRIED: "yellow"}


class TrialNarrator(Protocol):
    """Told how far an engine is."""

    def __call__(self, engine: str, share: float, /) -> None:
        """Show it, if it is time to."""


@contextmanager
def narrate_trial(console: Console, request: Request) -> Generator[TrialNarrator]:
    """Show which engine is at work on a target, and how far, while the block runs."""
    if console.is_terminal:
        with Progress(
            TextColumn("{task.fields[target]}", markup=False),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        ) as bar:
            name = PolicyNames.of([request.target]).short[request.target]
            task = bar.add_task("starting", total=1.0, target=name)

            def advance(engine: str, share: float) -> None:
                bar.update(task, description=engine, completed=share)

            yield advance
        return
    last = time.monotonic()

    def say(engine: str, share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_SECONDS:
            last = now
            text = f"{request.target}: {engine}, {share:.0%}"
            console.print(text, markup=False, soft_wrap=True)

    yield say


def show_reports(console: Console, reports: Sequence[Report]) -> None:
    """A row for each target, then what is broken, reported and not reached."""
    if not reports:
        return
    first = reports[0]
    console.print(
        Text(
            f"contract {first.contract}, profile {first.profile}, level {first.level}, "
            f"seed {first.seed}"
        )
    )
    names = PolicyNames.of([report.target for report in reports])
    console.print(_table(reports, names))
    for name, target in names.explained.items():
        console.print(Text(f"{name} is {target}"), soft_wrap=True)
    for report in reports:
        _show(console, report)


def _table(reports: Sequence[Report], names: PolicyNames) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("target", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for heading in ("held", "con-\nvicting", "re-\nported", "not\nreached", "n/a", "programs", "s"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=4)
    for report in reports:
        broken = _of(report, Verdict.BROKEN)
        convicting = sum(clause.convicts for clause in broken)
        counts = [
            len(_of(report, Verdict.HELD)),
            convicting,
            len(broken) - convicting,
            len(_of(report, Verdict.NOT_REACHED)),
            len(_of(report, Verdict.NOT_APPLICABLE)),
        ]
        table.add_row(
            Text(f"{names.short[report.target]}{_arguments(report)}"),
            Text(report.verdict.value, style=STYLES[report.verdict]),
            *map(str, counts),
            f"{report.reach.programs:,}",
            f"{report.seconds:.1f}",
        )
    return table


def _of(report: Report, verdict: Verdict) -> list[ClauseVerdict]:
    return [clause for clause in report.clauses if clause.verdict is verdict]


def _arguments(report: Report) -> str:
    """What it was built with, where that is not the default."""
    return "".join(f" {name}={value}" for name, value in report.arguments.items())


def _show(console: Console, report: Report) -> None:
    target = f"{report.target}{_arguments(report)}"

    def say(text: str, style: str = "") -> None:
        console.print(Text(in_one_line(text), style=style), soft_wrap=True)

    if report.problem:
        say(f"{target} could not be tried: {report.problem}", "yellow")
        return
    for clause in sorted(_of(report, Verdict.BROKEN), key=lambda clause: not clause.convicts):
        _show_broken(console, target, clause)
    for verdict in (Verdict.NOT_REACHED, Verdict.NOT_APPLICABLE):
        clauses = _of(report, verdict)
        if clauses:
            say(f"{target}: {verdict.value}")
            for reason, ids in _by_reason(clauses):
                say(f"  {', '.join(ids)}: {reason}")
    idle = [method for method in report.reach.methods if method.never_ran]
    if idle:
        say(f"{target}: lines of its own that never ran")
        for method in idle:
            say(f"  {method.name}: {', '.join(method.never_ran)}")
    if report.reach.hints_missed:
        say(f"  no request had the hint {', '.join(report.reach.hints_missed)}")
    for note in report.notes:
        say(f"  {note}")


def _by_reason(clauses: Iterable[ClauseVerdict]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for clause in clauses:
        found.setdefault(clause.reason, []).append(clause.id)
    return list(found.items())


def _show_broken(console: Console, target: str, clause: ClauseVerdict) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    if clause.convicts:
        say(f"{target} breaks {clause.id}", "bold red")
    elif clause.known:
        say(f"{target} breaks {clause.id}, as is known", "yellow")
    else:
        say(f"{target}: {clause.id} is reported, and does not convict", "yellow")
    say(f"  promised: {clause.sentence} (class {clause.kind}, source {clause.source})")
    say(f"  seen: {in_one_line(clause.seen)}")
    if clause.expected:
        say(f"  expected: {in_one_line(clause.expected)}")
    if clause.reason:
        say(f"  {clause.reason}")
    say(f"  found by {clause.engine} after {counted(clause.programs, 'program')}")
    for line in clause.program:
        say(f"  {line}")
    if clause.consequence:
        say(f"  vLLM 0.33 then: {clause.consequence}")
    if clause.test:
        say("  as a test:")
        for line in clause.test.splitlines():
            say(f"    {line}".rstrip(), "dim")
