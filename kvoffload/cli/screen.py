"""What a person reads: the trace, the model, a table of results, and each verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import NoReturn

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from kvoffload.cli.problems import ReaderLeftError
from kvoffload.cli.trial import MAX_VIOLATIONS, Conditions, Outcome


class _Screen(Console):
    """A console that leaves it to the program what a reader who went away means."""

    @override
    def on_broken_pipe(self) -> NoReturn:
        raise ReaderLeftError


def open_screen(*, stderr: bool) -> Console:
    """A console on standard output or standard error."""
    return _Screen(stderr=stderr, highlight=False)


def show_conditions(console: Console, conditions: Conditions) -> None:
    """Say what is replayed, how, and the best that any cache could do."""
    trace, survey = conditions.trace, conditions.survey
    if survey.block_tokens is None:
        what = f"{survey.blocks:,} accesses to {survey.distinct_blocks:,} objects"
    else:
        what = (
            f"{survey.requests:,} requests, {survey.blocks:,} blocks of {survey.block_tokens} "
            f"tokens, {survey.distinct_blocks:,} distinct"
        )
    lines = [
        ("trace", f"{trace.path.name} ({trace.format.value}): {what}"),
        ("best", f"a cache that keeps everything hits {survey.max_block_hit_ratio:.4f} of blocks"),
        ("clock", conditions.model.describe()),
    ]
    if survey.skipped_lines:
        lines.append(("skipped", f"{survey.skipped_lines:,} bad line(s)"))
    if conditions.fail_rate:
        lines.append(
            ("stores", f"{conditions.fail_rate:.4g} of them fail (seed {conditions.seed})")
        )
    if conditions.resets:
        times = ", ".join(f"{time:g} s" for time in conditions.resets)
        lines.append(("resets", f"at {times}"))
    table = Table.grid(padding=(0, 1))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in lines:
        table.add_row(name, Text(value))
    console.print(table)


def show_outcomes(console: Console, outcomes: Sequence[Outcome], *, checked: bool) -> None:
    """A row for each run; then what each one is convicted of."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("policy", overflow="fold")
    for heading in (
        "chunks",
        "block\nhits",
        "token\nhits",
        "evicted\nchunks",
        "refused\noffers",
        "peak\npinned",
        "blocks\na second",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    if checked:
        table.add_column("viola-\ntions", justify="right", no_wrap=True)
    for outcome in outcomes:
        report = outcome.report
        token_hits = report.token_hit_ratio
        cells: list[str | Text] = [
            # Of a path only the end, which tells it apart.
            Text(PurePath(report.policy).name),
            f"{report.capacity:,}",
            f"{report.block_hit_ratio:.4f}",
            "-" if token_hits is None else f"{token_hits:.4f}",
            f"{report.evicted:,}",
            f"{report.refused:,}",
            f"{report.peak_pinned:,}",
            f"{report.blocks_per_second:,.0f}",
        ]
        if checked:
            style = "bold red" if report.violations else "green"
            cells.append(Text(f"{report.violations:,}", style=style))
        table.add_row(*cells)
    console.print(table)
    if checked:
        checks = sum(outcome.report.checks for outcome in outcomes)
        violations = sum(outcome.report.violations for outcome in outcomes)
        console.print(f"Every call was judged: {checks:,} checks, {violations:,} violation(s).")
    for outcome in outcomes:
        if outcome.convicted:
            _show_conviction(console, outcome)


def _show_conviction(console: Console, outcome: Outcome) -> None:
    """The first violation of each clause, with the calls that led there, and the exception."""
    # The judge is imported only when it has judged.
    from stateful_models.contract import CLAUSES

    report = outcome.report
    manager, policy = PurePath(report.manager).name, PurePath(report.policy).name
    whose = f"{manager} with {policy} at {report.capacity:,} chunks"
    shown: set[str] = set()
    for violation in outcome.violations:
        if violation.clause in shown:
            continue
        shown.add(violation.clause)
        console.print(Text(f"{whose} breaks {violation.clause}", style="bold red"), soft_wrap=True)
        known = CLAUSES.get(violation.clause)
        if known is not None:
            console.print(Text(f"  promised: {known.sentence}"), soft_wrap=True)
        console.print(Text(f"  found: {violation.message}"), soft_wrap=True)
        if violation.calls:
            console.print(Text("  last calls:"), soft_wrap=True)
            for call in violation.calls:
                console.print(Text(f"    {call}"), soft_wrap=True)
    if report.violations >= MAX_VIOLATIONS:
        console.print(
            Text(f"  ended early, after {report.violations:,} violations"), soft_wrap=True
        )
    if report.error is not None:
        console.print(Text(f"{whose} ended with an exception", style="bold red"), soft_wrap=True)
        console.print(Text(f"  {report.error}"), soft_wrap=True)
