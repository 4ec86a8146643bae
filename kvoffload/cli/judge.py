"""`kvoffload judge`: one page on one policy, from the contract to what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvoffload.cli.folder import folder_of
from kvoffload.cli.foreign import off_stdout
from kvoffload.cli.interrupts import interrupted_as
from kvoffload.cli.problems import EXIT_VIOLATION, UsageError
from kvoffload.cli.results import print_text
from kvoffload.cli.screen import open_screen
from kvoffload.cli.targets import REGISTERED
from kvoffload.cli.traffic import (
    RUNS,
    TRAFFIC,
    WARM_UP,
    ChunkBytes,
    Format,
    GPUSizes,
    Jobs,
    Limit,
    Scheduler,
    Section,
    Sizes,
    SkipBadLines,
    Traces,
    Traffic,
    WarmUp,
    check_runs,
)
from kvoffload.cli.verify import VLLM, argument_grid, need_hypothesis, vllm_named
from kvoffload.judge.cost_value import SECONDS
from kvoffload.judge.page import page

HELP = """Judge a policy: one page on its contract, its worth on real traffic, and its cost.

LRU and ARC run beside it, called by the same host, and the best that any policy could do. \
Without --out the page goes to standard output; with it, report.md, report.json and pictures go \
to a folder. Each figure stands with the command that gives it again. Exit status: 0 judged; 1 \
the policy broke its contract, on trial or in a run; 2 it could not be judged.

Examples:

  kvoffload judge sieve --trace trace.jsonl --out judged

  kvoffload judge my_policy.py:MyPolicy --driver my_policy.py:MyDriver

  kvoffload judge --vllm policy_for_vllm.py:MyPolicy --section value --capacity 20000
"""
TARGETS, OUTPUT = "Target", "Output"
_RATE = 1.0, 1e18


def judge(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help=f"A registered name ({REGISTERED}), pkg.mod:Class, file.py:Class, or a factory "
            "that takes cache_capacity.",
        ),
    ],
    vllm: Annotated[
        str | None,
        typer.Option(
            VLLM,
            metavar="[=VERSION]",
            help="The target is a policy written for vLLM, as in verify.",
            show_default=False,
            rich_help_panel=TARGETS,
        ),
    ] = None,
    driver: Annotated[
        str | None,
        typer.Option(
            metavar="M:CLASS",
            help="How to build and call the target: a subclass of Driver.",
            rich_help_panel=TARGETS,
        ),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="K=V",
            help="A constructor argument. Repeatable.",
            show_default=False,
            rich_help_panel=TARGETS,
        ),
    ] = None,
    invariant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="M:CLASS",
            help="An invariant of your own that judges the trial of the contract. Repeatable.",
            show_default=False,
            rich_help_panel=TARGETS,
        ),
    ] = None,
    trace: Traces = None,
    trace_format: Format = None,
    skip_bad_lines: SkipBadLines = False,
    limit: Limit = None,
    capacity: Sizes = None,
    gpu_chunks: GPUSizes = None,
    warm_up: WarmUp = WARM_UP,
    chunk_bytes: ChunkBytes = None,
    prefill_rate: Annotated[
        float | None,
        typer.Option(
            min=_RATE[0],
            max=_RATE[1],
            help="Tokens a second; with --transfer-rate, a model of the time saved.",
            show_default=False,
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    transfer_rate: Annotated[
        float | None,
        typer.Option(
            min=_RATE[0],
            max=_RATE[1],
            help="Bytes a second.",
            show_default=False,
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    section: Annotated[
        list[Section] | None,
        typer.Option(
            "--section",
            case_sensitive=False,
            help="Only this part of the page. Repeatable.",
            show_default="all",
            rich_help_panel=RUNS,
        ),
    ] = None,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    cost_seconds: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="S",
            help="At most so long are cost and memory of each policy measured.",
            rich_help_panel=RUNS,
        ),
    ] = SECONDS,
    seed: Annotated[int, typer.Option(min=0, help="Of the trial.", rich_help_panel=RUNS)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where report.md, report.json and pictures go.",
            show_default="standard output, the page alone",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Judge a policy."""
    if (prefill_rate is None) != (transfer_rate is None):
        raise UsageError("--prefill-rate and --transfer-rate go together")
    check_runs(jobs, scheduler)
    need_hypothesis("judge")
    sections = tuple(Section) if not section else tuple(each for each in Section if each in section)
    if invariant and Section.CONTRACT not in sections:
        raise UsageError("--invariant judges a trial, which only the section contract holds")
    traffic = Traffic(
        traces=trace,
        trace_format=trace_format,
        skip_bad=skip_bad_lines,
        limit=limit,
        capacities=capacity,
        gpu_chunks=gpu_chunks,
        warm_up=warm_up,
        chunk_bytes=chunk_bytes,
        prefill_rate=prefill_rate,
        transfer_rate=transfer_rate,
    )
    version = None if vllm is None else vllm_named(vllm)
    arguments = argument_grid(arg or ())
    # What tries policies is imported by those who ask for it.
    from kvoffload.cli.judgement import Asked, hold_judgement, write
    from kvoffload.cli.judging import Subject, one_of

    folder = folder_of(out)
    asked = Asked(
        subject=Subject(target, driver, version, one_of(arguments)),
        invariants=tuple(invariant or ()),
        for_vllm=vllm is not None,
        sections=sections,
        traffic=traffic,
        jobs=jobs,
        scheduler=scheduler,
        seed=seed,
        cost_seconds=cost_seconds,
    )
    with off_stdout(), interrupted_as(f"interrupted; {target} is not judged"):
        judgement = hold_judgement(asked, open_screen(stderr=True))
    if folder is None:
        print_text(page(judgement, {}))
    else:
        with off_stdout():
            write(judgement, folder)
        typer.echo(str(out))
    if judgement.convicted:
        raise typer.Exit(EXIT_VIOLATION)
