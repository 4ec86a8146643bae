"""`kvoffload replay`: real traffic through a manager, under each policy and capacity."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvoffload.cli.interrupts import deferred_interrupt
from kvoffload.cli.problems import EXIT_VIOLATION, ReaderLeftError, UsageError
from kvoffload.cli.progress import narrate
from kvoffload.cli.screen import open_screen, show_conditions, show_outcomes
from kvoffload.cli.targets import Policy, find_manager, find_policy
from kvoffload.cli.trial import Conditions, Outcome, run_trial
from kvoffload.errors import InvalidValueError, TraceError
from kvoffload.replay.capacity import Capacity, parse_bytes
from kvoffload.replay.counts import Counts
from kvoffload.replay.model import PREFILL_RATE, TRANSFER_RATE, CostModel, default_chunk_bytes
from kvoffload.replay.readers import CsvLayout, TraceFormat
from kvoffload.replay.report import to_json
from kvoffload.replay.trace import SAMPLE, Trace, survey

TO_STDOUT = "-"
POLICIES = ["lru", "arc"]
CAPACITIES = ["5%", "20%"]
# A paragraph is one line: the help wraps it to the terminal.
HELP = """Replay a trace of real LLM requests through an offloading manager.

The manager is called as a scheduler calls it, on a virtual clock: requests overlap, loads pin, \
stores complete later. There is one run for each policy and capacity, and a table of hit ratios, \
evictions and refusals. Exit status: 0 done, 1 a clause is broken or the manager raised, \
2 not possible as asked.

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
            help="A registered name (lru, arc), pkg.mod:Class or file.py:Class. Repeatable.",
            show_default=" ".join(POLICIES),
            rich_help_panel=MANAGER,
        ),
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(
            "--capacity",
            metavar="C",
            help="Chunks (20000), a size (8GiB, with --chunk-bytes), a share of the distinct "
            "blocks (5%), or infinite. Repeatable.",
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
            help="mooncake, bailian, oracleGeneral or csv. The first two, JSONL, are told apart "
            "by their fields; the others have to be named.",
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
            help="Write the results as a JSON list; with - nothing else goes to standard output.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Replay a trace of real LLM requests through an offloading manager."""
    screen = open_screen(stderr=json == TO_STDOUT)
    stderr = open_screen(stderr=True)
    _check_json_target(json)
    policies = [(name, find_policy(name)) for name in policy or POLICIES]
    maker = find_manager(manager)
    try:
        capacities = [Capacity.parse(text) for text in capacity or CAPACITIES]
        layout = None if csv_columns is None else CsvLayout.parse(csv_columns)
        asked_bytes = None if chunk_bytes is None else parse_bytes("chunk-bytes", chunk_bytes)
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
            manager_name=manager or "CPUOffloadingManager",
            store_threshold=store_threshold,
            fail_rate=fail_rate,
            seed=seed,
            resets=tuple(reset_at or ()),
            check=check,
        )
        sizes = [(one, one.resolve(found.distinct_blocks, asked_bytes)) for one in capacities]
    except (InvalidValueError, TraceError) as error:
        raise UsageError(str(error)) from error
    show_conditions(screen, conditions)
    outcomes = [
        _run(conditions, stderr, name, found_policy, size, chunks)
        for size, chunks in sizes
        for name, found_policy in policies
    ]
    show_outcomes(screen, outcomes, checked=check)
    if json is not None:
        _write_json(json, to_json([outcome.report for outcome in outcomes]))
    if any(outcome.convicted for outcome in outcomes):
        raise typer.Exit(EXIT_VIOLATION)


def _run(
    conditions: Conditions,
    stderr: Console,
    name: str,
    policy: Policy,
    capacity: Capacity,
    chunks: int,
) -> Outcome:
    label = f"{name}, {chunks:,} chunks"
    try:
        with (
            deferred_interrupt() as raise_pending,
            narrate(stderr, label, conditions.survey.requests) as narrator,
        ):

            def after_step(counts: Counts) -> None:
                raise_pending()
                narrator(counts)

            return run_trial(conditions, name, policy, capacity, chunks, after_step)
    except (TraceError, InvalidValueError) as error:
        raise UsageError(str(error)) from error


def _check_json_target(target: str | None) -> None:
    """Before the work rather than after it."""
    if target is None or target == TO_STDOUT:
        return
    path = Path(target)
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"--json {target}: not a file in an existing directory")


def _write_json(target: str, data: bytes) -> None:
    if target == TO_STDOUT:
        try:
            sys.stdout.write(data.decode())
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderLeftError from None
        return
    try:
        Path(target).write_bytes(data)
    except OSError as error:
        raise UsageError(f"--json {target}: {error.strerror or error}") from error
