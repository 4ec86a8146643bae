"""`kvoffload replay`: real traffic through a manager, under each policy and capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvoffload.cli.interrupts import deferred_interrupt
from kvoffload.cli.names import PolicyNames
from kvoffload.cli.problems import EXIT_VIOLATION, RunInterruptedError, UsageError
from kvoffload.cli.progress import narrate
from kvoffload.cli.results import TO_STDOUT, open_result, print_json
from kvoffload.cli.screen import open_screen, show_conditions, show_outcomes
from kvoffload.cli.targets import (
    DEFAULT_MANAGER,
    REGISTERED,
    Policy,
    find_invariant,
    find_manager,
    find_policy,
)
from kvoffload.cli.trial import Conditions, Outcome, run_trial
from kvoffload.errors import InvalidValueError, TraceError
from kvoffload.replay.capacity import Capacity, parse_bytes
from kvoffload.replay.counts import Counts
from kvoffload.replay.model import PREFILL_RATE, TRANSFER_RATE, CostModel, default_chunk_bytes
from kvoffload.replay.readers import CsvLayout, TraceFormat
from kvoffload.replay.report import to_json
from kvoffload.replay.trace import SAMPLE, Trace, survey
from kvoffload.wording import counted

POLICIES = ["lru", "arc"]
CAPACITIES = ["5%", "20%"]
# A paragraph is one line: the help wraps it to the terminal.
HELP = """Replay a trace of real LLM requests through an offloading manager.

The manager is called as a scheduler calls it, on a virtual clock: requests overlap, loads pin, \
stores complete later. There is one run for each policy and capacity, and a table of hit ratios, \
evictions and refusals. Exit status: 0 done, 1 a clause is broken, what is on trial raised, or \
the results cannot be written, 2 not possible as asked, 130 interrupted.

Examples:

  kvoffload replay --check

  kvoffload replay trace.jsonl --capacity 20000 --capacity 5%

  kvoffload replay trace.jsonl.zst --policy mine.py:MyPolicy --json out.json
"""
INPUT, MANAGER, CLOCK, OUTPUT = "Trace", "On trial", "Virtual clock", "Output"


def replay(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE",
            help="A trace: plain, .gz or .zst. Without one, a sample of 1,000 real requests.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="P",
            help=f"A registered name ({REGISTERED}), pkg.mod:Class or file.py:Class. Repeatable.",
            show_default=" ".join(POLICIES),
            rich_help_panel=MANAGER,
        ),
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(
            "--capacity",
            metavar="C",
            help="Chunks (20000 or 20,000; 0 keeps nothing), a size (8GiB, with --chunk-bytes), "
            "a share of the distinct blocks (5%; at least 1 chunk, for 0% too), or infinite. "
            "Repeatable.",
            show_default=" ".join(CAPACITIES),
            rich_help_panel=MANAGER,
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Judge every call by the invariants; exit 1 on a violation.",
            rich_help_panel=MANAGER,
        ),
    ] = False,
    invariant: Annotated[
        list[str] | None,
        typer.Option(
            "--invariant",
            metavar="I",
            help="With --check: an invariant of your own, pkg.mod:Class or file.py:Class, that "
            "judges beside the others. Repeatable.",
            show_default=False,
            rich_help_panel=MANAGER,
        ),
    ] = None,
    manager: Annotated[
        str | None,
        typer.Option(
            metavar="M",
            help="A manager class, pkg.mod:Class or file.py:Class, built like "
            "CPUOffloadingManager.",
            rich_help_panel=MANAGER,
        ),
    ] = None,
    store_threshold: Annotated[
        int,
        typer.Option(min=0, help="Store a chunk on its so-many-th offer.", rich_help_panel=MANAGER),
    ] = 1,
    fail_rate: Annotated[
        float,
        typer.Option(min=0, max=1, help="The share of stores that fail.", rich_help_panel=CLOCK),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(help="Chooses which stores fail.", rich_help_panel=CLOCK)
    ] = 0,
    reset_at: Annotated[
        list[float] | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Reset the cache then, with transfers in flight. Repeatable.",
            show_default=False,
            rich_help_panel=CLOCK,
        ),
    ] = None,
    prefill_rate: Annotated[
        float,
        typer.Option(
            help="Tokens a second, a request.",
            show_default=f"{PREFILL_RATE:,.0f}",
            rich_help_panel=CLOCK,
        ),
    ] = PREFILL_RATE,
    transfer_rate: Annotated[
        float,
        typer.Option(
            help="Bytes a second, a direction.",
            show_default=f"{TRANSFER_RATE / 1e9:g}e9",
            rich_help_panel=CLOCK,
        ),
    ] = TRANSFER_RATE,
    chunk_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Bytes of a chunk (64MiB): how long transfers take, how many fit a size.",
            show_default="128 KiB a token",
            rich_help_panel=CLOCK,
        ),
    ] = None,
    trace_format: Annotated[
        TraceFormat | None,
        typer.Option(
            "--format",
            case_sensitive=False,
            metavar="FORMAT",
            help="mooncake, bailian, callLog, oracleGeneral or csv. The first three, JSONL, are "
            "told apart by their fields; the others have to be named.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    skip_bad_lines: Annotated[
        bool,
        typer.Option(
            "--skip-bad-lines",
            help="Count what cannot be read and go on, instead of stopping there.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first so many requests.", rich_help_panel=INPUT),
    ] = None,
    csv_columns: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="time-col=N,obj-id-col=M, from 1.",
            show_default="by the header, else 1 and 2",
            rich_help_panel=INPUT,
        ),
    ] = None,
    csv_delimiter: Annotated[
        str, typer.Option(metavar="C", help="Between columns.", rich_help_panel=INPUT)
    ] = ",",
    json: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE|-",
            help="Write the results as a JSON list; with - nothing else goes to standard output. "
            "A file is replaced at the end.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Replay a trace of real LLM requests through an offloading manager."""
    screen = open_screen(stderr=json == TO_STDOUT)
    stderr = open_screen(stderr=True)
    result_file = open_result(json)
    if invariant and not check:
        raise UsageError(f"--invariant {invariant[0]} needs --check")
    policies = [(name, find_policy(name)) for name in policy or POLICIES]
    maker = find_manager(manager)
    invariants = [find_invariant(name) for name in invariant or ()]
    try:
        capacities = [Capacity.parse(text) for text in capacity or CAPACITIES]
        layout = None if csv_columns is None else CsvLayout.parse(csv_columns)
        asked_bytes = None if chunk_bytes is None else parse_bytes("chunk-bytes", chunk_bytes)
        for one in capacities:
            if one.size_bytes is not None and asked_bytes is None:
                raise UsageError(f"--capacity {one.text} needs --chunk-bytes")
        source = Trace(
            trace or SAMPLE,
            trace_format,
            skip_bad=skip_bad_lines,
            limit=limit,
            csv_layout=layout,
            csv_delimiter=csv_delimiter,
        )
        found = survey(source)
        conditions = Conditions(
            trace=source,
            survey=found,
            model=CostModel(
                prefill_rate,
                transfer_rate,
                asked_bytes if asked_bytes is not None else default_chunk_bytes(found.block_tokens),
            ),
            maker=maker,
            manager_name=manager or DEFAULT_MANAGER,
            store_threshold=store_threshold,
            fail_rate=fail_rate,
            seed=seed,
            resets=tuple(reset_at or ()),
            check=check,
            invariants=invariants,
        )
        sizes = [(one, one.resolve(found.distinct_blocks, asked_bytes)) for one in capacities]
    except (InvalidValueError, TraceError) as error:
        raise UsageError(str(error)) from error
    show_conditions(screen, conditions)

    def deliver(outcomes: Sequence[Outcome]) -> None:
        data = to_json([outcome.report for outcome in outcomes])
        # The file first, but where one fails the other is there.
        try:
            if result_file is not None:
                result_file.write(data)
        finally:
            show_outcomes(screen, outcomes, checked=check)
        if json == TO_STDOUT:
            print_json(data)

    runs = [(name, one, size, chunks) for size, chunks in sizes for name, one in policies]
    short = PolicyNames.of(name for name, _ in policies).short
    outcomes: list[Outcome] = []
    for name, found_policy, size, chunks in runs:
        label = f"{short[name]}, {counted(chunks, 'chunk')}"
        try:
            with deferred_interrupt() as raise_pending:
                outcome = _run(
                    conditions, stderr, label, name, found_policy, size, chunks, raise_pending
                )
                outcomes.append(outcome)
        except (KeyboardInterrupt, UsageError) as stopped:
            # What is complete does not get lost with what is not.
            if outcomes:
                deliver(outcomes)
            if isinstance(stopped, UsageError):
                raise
            raise RunInterruptedError(
                f"interrupted in {label}; {len(outcomes)} of {counted(len(runs), 'run')} complete"
            ) from None
    deliver(outcomes)
    if any(outcome.convicted for outcome in outcomes):
        raise typer.Exit(EXIT_VIOLATION)


def _run(
    conditions: Conditions,
    stderr: Console,
    label: str,
    name: str,
    policy: Policy,
    capacity: Capacity,
    chunks: int,
    raise_pending: Callable[[], None],
) -> Outcome:
    try:
        with narrate(stderr, label, conditions.survey.requests) as narrator:

            def after_step(counts: Counts) -> None:
                raise_pending()
                narrator(counts)

            return run_trial(conditions, name, policy, capacity, chunks, after_step)
    except (TraceError, InvalidValueError) as error:
        raise UsageError(str(error)) from error
