"""What a person reads: the trace, the model, a table of results, and each verdict."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import NoReturn

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from kvoffload.cli.names import PolicyNames
from kvoffload.cli.problems import ReaderLeftError
from kvoffload.cli.prose import tell
from kvoffload.cli.trial import MAX_VIOLATIONS, Conditions, Outcome
from kvoffload.wording import counted
from stateful_models.loading import in_one_line

UNKNOWN_WIDTH = 80
PIPE_WIDTH = 120
"""Columns for what is no terminal: names are hardly ever folded, which somebody may search for."""
POLICY = "policy"
LEAST_ROOM = 8
"""Columns on which a name that is folded can be read."""


class _Screen(Console):
    """A console that leaves it to the program what a reader who went away means."""

    @override
    def on_broken_pipe(self) -> NoReturn:
        raise ReaderLeftError


def open_screen(*, stderr: bool) -> Console:
    """A console on standard output or standard error."""
    screen = _Screen(stderr=stderr, highlight=False)
    # COLUMNS says what is wanted, wherever the output goes.
    if not screen.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        screen.width = PIPE_WIDTH
    # So COLUMNS says where the width is not known; nothing could be shown in it.
    elif screen.width < 1:
        screen.width = UNKNOWN_WIDTH
    return screen


def show_conditions(console: Console, conditions: Conditions) -> None:
    """Say what is replayed, how, and the best that any cache could do."""
    trace, survey = conditions.trace, conditions.survey
    if survey.block_tokens is None and survey.requests != survey.blocks:
        what = (
            f"{survey.requests:,} requests, {survey.blocks:,} blocks of unknown size, "
            f"{survey.distinct_blocks:,} distinct"
        )
    elif survey.block_tokens is None:
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
    if survey.recorded_hits is not None and survey.recorded_blocks:
        share = survey.recorded_hits / survey.recorded_blocks
        lines.insert(
            1,
            (
                "recorded",
                f"the engine reused {share:.4f} of blocks: {survey.recorded_hits:,} of "
                f"{survey.recorded_blocks:,}",
            ),
        )
    if survey.skipped_lines:
        lines.append(("skipped", counted(survey.skipped_lines, "bad line")))
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
    targets = [outcome.report.policy for outcome in outcomes]
    names = PolicyNames.of(targets)
    table = _table(outcomes, names, checked=checked)
    unbounded = console.options.update(max_width=10_000)
    needed = console.measure(table, options=unbounded).maximum
    if needed > console.width:
        longest = max(len(POLICY), *map(len, names.short.values()))
        room = longest - (needed - console.width)
        # A name that nearly fits is folded, of any other a number is in its place.
        if room < LEAST_ROOM or longest > 2 * room:
            names = PolicyNames.of(targets, numbers_only=True)
        table = _table(outcomes, names, checked=checked, room=max(room, len(POLICY)))
    console.print(table)
    for name, target in names.explained.items():
        tell(console, f"{name} is {target}")
    if checked:
        checks = sum(outcome.report.checks for outcome in outcomes)
        violations = sum(outcome.report.violations for outcome in outcomes)
        tell(
            console,
            f"Every call was judged: {counted(checks, 'check')}, "
            f"{counted(violations, 'violation')}.",
        )
    for outcome in outcomes:
        if outcome.convicted:
            _show_conviction(console, outcome)


def _table(
    outcomes: Sequence[Outcome], names: PolicyNames, *, checked: bool, room: int | None = None
) -> Table:
    """`room`: so wide is the column of the names at most, which are folded then."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column(POLICY, no_wrap=room is None, overflow="fold", max_width=room)
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
        table.add_column("failed\nchecks", justify="right", no_wrap=True)
    for outcome in outcomes:
        report = outcome.report
        token_hits = report.token_hit_ratio
        cells: list[str | Text] = [
            Text(names.short[report.policy]),
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
    return table


def _show_conviction(console: Console, outcome: Outcome) -> None:
    """The first violation of each clause, with the calls that led there, and the exception."""
    report = outcome.report
    # Of a path only the end, which is enough to tell what was on trial.
    manager, policy = PurePath(report.manager).name, PurePath(report.policy).name
    whose = f"{manager} with {policy} at {counted(report.capacity, 'chunk')}"

    def say(text: str, style: str = "") -> None:
        tell(console, in_one_line(text), style)

    shown: set[str] = set()
    error_shown = False
    for violation in outcome.violations:
        if violation.clause in shown:
            continue
        shown.add(violation.clause)
        if violation.raised:
            say(f"the invariant {violation.invariant} failed while it judged {whose}", "bold red")
        else:
            say(f"{whose} breaks {violation.clause}", "bold red")
        if violation.promise:
            say(f"  promised: {violation.promise}")
        say(f"  found: {violation.message}")
        if violation is outcome.ended_by:
            error_shown = True
            say(f"  the run ended there{outcome.place and f'; raised at {outcome.place}'}")
        if violation.calls:
            say("  last calls:")
            for call in violation.calls:
                say(f"    {call}")
    if report.violations >= MAX_VIOLATIONS:
        say(f"  ended early, after {counted(report.violations, 'violation')}")
    if report.error is not None and not error_shown:
        say(f"{whose} ended with an exception", "bold red")
        say(f"  raised {report.error}")
