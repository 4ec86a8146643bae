"""`kvoffload compare`: policies side by side on the same traffic."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvoffload import __version__
from kvoffload.cli.compared import show_comparison
from kvoffload.cli.executors import executor_for, progress_bar, runs_to_come
from kvoffload.cli.folder import Folder, folder_of
from kvoffload.cli.foreign import off_stdout
from kvoffload.cli.interrupts import interrupted_as
from kvoffload.cli.problems import EXIT_VIOLATION, UsageError
from kvoffload.cli.prose import tell
from kvoffload.cli.results import TO_STDOUT, open_result, print_json
from kvoffload.cli.screen import open_screen
from kvoffload.cli.traffic import (
    WARM_UP,
    ChunkBytes,
    Format,
    GPUSizes,
    Jobs,
    Limit,
    Scheduler,
    Sizes,
    SkipBadLines,
    Traces,
    Traffic,
    WarmUp,
    check_runs,
)
from kvoffload.cli.verify import argument_grid, need_hypothesis
from kvoffload.errors import InvalidValueError, TraceError
from kvoffload.judge.blame import HostFailedError
from kvoffload.judge.comparison import Comparison, comparison_page, to_json
from kvoffload.judge.study import MakeManager, Study, workload_of
from kvoffload.judge.value import BASELINE, TraceValue, plan_value
from kvoffload.policies.factory import CachePolicyFactory
from stateful_models.loading import TargetError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kvoffload.cli.judging import Subject

HELP = """Compare policies: what each is worth on real traffic, beside LRU and the best possible.

A table for each trace, GPU tier and capacity: hits of tokens and of blocks, the difference to LRU \
and the share closed of the way from there to the optimum, with intervals. Called and run as by \
judge, which says more of one policy. Without --out a table for each trace and GPU tier goes to \
standard output, of hits and of the difference to LRU; with it, report.md, report.json and \
pictures go to a folder. A driver and arguments are those of all targets of your own, and of none \
that is registered. Exit status: 0 compared; 1 a policy raised, \
or broke its contract, in a run; 2 not possible as asked.

Examples:

  kvoffload compare --trace trace.jsonl --capacity 2000 --capacity 20%

  kvoffload compare sieve s3fifo my_policy.py:MyPolicy --trace trace.jsonl --out compared

  kvoffload compare my_policy.py:MyPolicy --driver my_policy.py:MyDriver
"""
TARGETS = "Target"


def compare(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET...",
            help="Registered names, pkg.mod:Class, file.py:Class, or factories that take "
            "cache_capacity.",
            show_default="all that are registered",
        ),
    ] = None,
    driver: Annotated[
        str | None,
        typer.Option(
            metavar="M:CLASS",
            help="How to build and call each target of your own, all but registered names: a "
            "subclass of Driver.",
            show_default=False,
            rich_help_panel=TARGETS,
        ),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="K=V",
            help="A constructor argument of each target of your own. Repeatable.",
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
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where report.md, report.json and pictures go.",
            show_default="standard output, a short table",
            rich_help_panel="Output",
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE|-",
            help="Write the figures as JSON, as they are in report.json; with - nothing else goes "
            "to standard output.",
            rich_help_panel="Output",
        ),
    ] = None,
) -> None:
    """Compare policies."""
    check_runs(jobs, scheduler)
    need_hypothesis("compare")
    traffic = Traffic(
        traces=trace,
        trace_format=trace_format,
        skip_bad=skip_bad_lines,
        limit=limit,
        capacities=capacity,
        gpu_chunks=gpu_chunks,
        warm_up=warm_up,
        chunk_bytes=chunk_bytes,
    )
    if json is None:
        folder = folder_of(out)
    else:
        folder = None if out is None else Folder(out)
    result_file = open_result(json)
    arguments = argument_grid(arg or ())
    targets = target or CachePolicyFactory.names()
    if (driver or arg) and not any(map(_is_own, targets)):
        given = "--arg" if driver is None else f"--driver {driver}"
        raise UsageError(f"{given}: for targets of your own, and all that are compared have a name")
    # What calls policies is imported by those who ask for it.
    from kvoffload.cli.judging import Subject, one_of

    built_with = one_of(arguments, "all targets of your own are built with it")
    subjects = [
        Subject(each, driver, arguments=built_with) if _is_own(each) else Subject(each)
        for each in dict.fromkeys((BASELINE, *targets))
    ]
    words = ["kvoffload", "compare", *(target or ())]
    words += [] if driver is None else ["--driver", driver]
    for name, value in built_with:
        words += ["--arg", f"{name}={value}"]
    words += traffic.words()
    with off_stdout(), interrupted_as("interrupted; nothing is compared"):
        policies = _policies(subjects, apart=jobs != 1)
        console = open_screen(stderr=True)
        values = _values(policies, traffic, jobs, scheduler, console)
    comparison = Comparison(version=__version__, command=shlex.join(words), values=values)
    data = to_json(comparison)
    if result_file is not None:
        result_file.write(data)
    elif json == TO_STDOUT:
        print_json(data)
    if folder is not None:
        with off_stdout():
            folder.write(data, partial(comparison_page, comparison), lambda: _drawn(comparison))
        typer.echo(str(out), err=json == TO_STDOUT)
    else:
        show_comparison(open_screen(stderr=json == TO_STDOUT), comparison)
    if comparison.problems:
        raise typer.Exit(EXIT_VIOLATION)


def _is_own(target: str) -> bool:
    """Whether a target is named by where it is, and not by a name that is registered."""
    return target not in CachePolicyFactory.names()


def _policies(subjects: Iterable[Subject], *, apart: bool) -> dict[str, MakeManager]:
    """What makes the managers of each, by name, in their order. Raises UsageError."""
    from kvoffload.cli.judging import Made, check, check_apart

    made: dict[str, MakeManager] = {}
    for subject in subjects:
        if apart and _is_own(subject.target):
            check_apart(subject)
        check(subject)
        name = subject.name if subject.name not in made else subject.target
        made[name] = Made(subject)
    return made


def _values(
    policies: dict[str, MakeManager],
    traffic: Traffic,
    jobs: int | None,
    scheduler: str | None,
    console: Console,
) -> tuple[TraceValue, ...]:
    study = Study()
    try:
        planned: list[Callable[[], TraceValue]] = []
        sizes: list[tuple[int, int]] = []
        for source in traffic.sources():
            before = len(study)
            planned.append(plan_value(study, traffic.plan(source, policies)))
            sizes.append((len(study) - before, len(workload_of(source, 0).requests)))
        tell(console, runs_to_come("to compare", sizes, jobs, scheduler))
        with (
            executor_for(jobs, scheduler) as executor,
            progress_bar(console, "runs", len(study)) as proceed,
        ):
            study.carry_out(executor, proceed)
    except HostFailedError as error:
        raise UsageError(f"the driver failed: {error}") from error
    except (TraceError, InvalidValueError, TargetError, BrokenExecutor) as error:
        raise UsageError(str(error)) from error
    return tuple(value() for value in planned)


def _drawn(comparison: Comparison) -> dict[str, Figure]:
    from kvoffload.judge.pictures import draw_curves

    return {
        f"curves-{number}": draw_curves(value) for number, value in enumerate(comparison.values)
    }
