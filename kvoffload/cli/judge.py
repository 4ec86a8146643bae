"""`kvoffload judge`: one page on one policy, from the contract to what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvoffload.cli.foreign import off_stdout
from kvoffload.cli.problems import EXIT_VIOLATION, UsageError
from kvoffload.cli.screen import open_screen
from kvoffload.cli.targets import REGISTERED
from kvoffload.cli.traffic import CAPACITIES, GPU_TIERS, WARM_UP, Section, Traffic
from kvoffload.cli.verify import VLLM, argument_grid, need_hypothesis, vllm_named
from kvoffload.judge.page import page
from kvoffload.replay.readers import TraceFormat
from kvoffload.replay.trace import SAMPLE

HELP = """Judge a policy: one page on its contract and on what it is worth on real traffic.

LRU and ARC run beside it, called by the same host, and the best that any policy could do. \
Without --out the page goes to standard output; with it, report.md, report.json and pictures go \
to a folder. Each figure stands with the command that gives it again. Exit status: 0 judged; 1 \
the policy broke its contract, on trial or in a run; 2 it could not be judged.

Examples:

  kvoffload judge sieve --trace trace.jsonl --out judged

  kvoffload judge my_policy.py:MyPolicy --driver my_policy.py:MyDriver

  kvoffload judge --vllm policy_for_vllm.py:MyPolicy --section value --capacity 20000
"""
TARGETS, TRAFFIC, RUNS, OUTPUT = "Target", "Traffic", "Runs", "Output"


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
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A trace: plain, .gz or .zst. Repeatable.",
            show_default="a sample of 1,000 requests",
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    trace_format: Annotated[
        TraceFormat | None,
        typer.Option(
            "--format",
            case_sensitive=False,
            metavar="FORMAT",
            help="mooncake, bailian, callLog, oracleGeneral or csv, as in replay.",
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    skip_bad_lines: Annotated[
        bool,
        typer.Option(
            "--skip-bad-lines", help="Pass over what cannot be read.", rich_help_panel=TRAFFIC
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first so many requests.", rich_help_panel=TRAFFIC),
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(
            "--capacity",
            metavar="C",
            help="Chunks, a share of the working set (5%), or a size (8GiB). Repeatable.",
            show_default=" ".join(CAPACITIES),
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    gpu_chunks: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu-chunks",
            metavar="C",
            help="The GPU tier in front, likewise; 0 for none. Repeatable.",
            show_default=" ".join(GPU_TIERS),
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    warm_up: Annotated[
        str,
        typer.Option(metavar="N|P%", help="So many requests warm up.", rich_help_panel=TRAFFIC),
    ] = WARM_UP,
    chunk_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Bytes of a chunk (64MiB).",
            show_default="128 KiB a token",
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    prefill_rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Tokens a second; with --transfer-rate, a model of the time saved.",
            show_default=False,
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    transfer_rate: Annotated[
        float | None,
        typer.Option(min=0, help="Bytes a second.", show_default=False, rich_help_panel=TRAFFIC),
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
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="So many processes; 1: this one.",
            show_default="one a core",
            rich_help_panel=RUNS,
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="A Dask cluster that sees the same files (extra dask).",
            show_default=False,
            rich_help_panel=RUNS,
        ),
    ] = None,
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
    if prefill_rate == 0 or transfer_rate == 0:
        raise UsageError("--prefill-rate and --transfer-rate are more than 0")
    if jobs is not None and scheduler is not None:
        raise UsageError("--jobs or --scheduler, not both")
    need_hypothesis("judge")
    sections = tuple(Section) if not section else tuple(each for each in Section if each in section)
    traffic = Traffic(
        traces=tuple(trace or (SAMPLE,)),
        trace_format=trace_format,
        skip_bad=skip_bad_lines,
        limit=limit,
        capacities=tuple(capacity or CAPACITIES),
        gpu_chunks=tuple(gpu_chunks or GPU_TIERS),
        warm_up=warm_up,
        chunk_bytes=chunk_bytes,
        prefill_rate=prefill_rate,
        transfer_rate=transfer_rate,
    )
    version = None if vllm is None else vllm_named(vllm)
    arguments = list(argument_grid(arg or ()))
    # What tries policies is imported by those who ask for it.
    from kvoffload.cli.judgement import Asked, Folder, hold_judgement
    from kvoffload.cli.judging import Subject, one_of

    folder = None if out is None else Folder(out)
    asked = Asked(
        subject=Subject(target, driver, version, one_of(arguments)),
        for_vllm=vllm is not None,
        sections=sections,
        traffic=traffic,
        jobs=jobs,
        scheduler=scheduler,
        seed=seed,
    )
    with off_stdout():
        judgement = hold_judgement(asked, open_screen(stderr=True))
    if folder is None:
        typer.echo(page(judgement, {}), nl=False)
    else:
        with off_stdout():
            folder.write(judgement)
        typer.echo(str(out))
    if judgement.convicted:
        raise typer.Exit(EXIT_VIOLATION)
