"""`kvoffload verify`: policies and managers on trial, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import evolve

from kvoffload.cli.clause_names import ClauseNames, KnownFailures
from kvoffload.cli.interrupts import deferred_interrupt
from kvoffload.cli.problems import (
    EXIT_USAGE,
    EXIT_VIOLATION,
    RunInterruptedError,
    UsageError,
)
from kvoffload.cli.prose import tell
from kvoffload.cli.results import TO_STDOUT, ResultFile, open_result, print_json
from kvoffload.cli.screen import open_screen
from kvoffload.cli.targets import REGISTERED, find_invariant
from kvoffload.cli.verdicts import narrate_trial, show_reports
from kvoffload.errors import UnknownVLLMError
from kvoffload.vllm.versions import find_version
from kvoffload.wording import counted

if TYPE_CHECKING:
    from stateful_models.trial.arguments import Argument
    from stateful_models.trial.request import Request
    from stateful_models.trial.verdicts import ClauseVerdict, Report

HELP = """Put policies, or managers, on trial and say which clause of the contract each breaks.

Each target runs in a process of its own, on a virtual clock, called as its host would call it. \
What is broken is shown by the shortest program found, with what an engine would do then; what \
was not reached is not called held. Exit status: 0 none convicted; 1 one is convicted or, at \
level ci and above, a safety clause was not reached; 2 a target could not be tried.

Examples:

  kvoffload verify lru arc

  kvoffload verify my_policy.py:MyPolicy --driver my_policy.py:MyDriver --level ci

  kvoffload verify --vllm policy_for_vllm.py:MyPolicy

  kvoffload verify --manager my_pkg.manager:MyManager --json verdict.json

  kvoffload verify --vllm-manager --root path/to/vllm-checkout
"""
NO_COVER = "# pragma: no cover"
"""The comment by which an author leaves lines out of what has to run."""
VLLM, ANY_VLLM = "--vllm", "any"
CONTRACT, TARGETS, OUTPUT = "What is judged", "Targets", "Output"


class LevelName(StrEnum):
    """How long a trial takes: seconds, two minutes, the night."""

    QUICK = "quick"
    CI = "ci"
    NIGHTLY = "nightly"


class ProfileName(StrEnum):
    """Whose code is on trial."""

    VLLM = "vllm"
    REFERENCE = "reference"


def verify(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET...",
            help=f"A registered name ({REGISTERED}), pkg.mod:Class, file.py:Class, or a factory "
            "that takes cache_capacity.",
            show_default=False,
        ),
    ] = None,
    manager: Annotated[
        bool, typer.Option("--manager", help="The targets are managers.", rich_help_panel=TARGETS)
    ] = False,
    vllm: Annotated[
        str | None,
        typer.Option(
            "--vllm",
            metavar="[=VERSION]",
            help="The targets are policies written for vLLM, which need not be here: what they "
            "import of it is answered by stand-ins of the version that they are recognised as, or "
            "of the one that is named (--vllm=0.30); with --vllm=installed by vLLM itself.",
            show_default=False,
            rich_help_panel=TARGETS,
        ),
    ] = None,
    vllm_manager: Annotated[
        bool,
        typer.Option(
            "--vllm-manager",
            help="The target is vLLM's own manager, of the vLLM that is installed.",
            rich_help_panel=TARGETS,
        ),
    ] = False,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --vllm-manager, that of the vLLM in this folder: a checkout, or an unpacked "
            "wheel.",
            show_default=False,
            rich_help_panel=TARGETS,
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Judge a log of calls instead of targets: .jsonl, or .gz. Repeatable.",
            show_default=False,
            rich_help_panel=TARGETS,
        ),
    ] = None,
    driver: Annotated[
        str | None,
        typer.Option(
            metavar="M:CLASS",
            help="How to build and call the targets: a subclass of Driver.",
            rich_help_panel=TARGETS,
        ),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="K=V[,V...]",
            help="A constructor argument; several values make a trial each. Repeatable.",
            show_default=False,
            rich_help_panel=TARGETS,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="K=V",
            help="A variable in the environment of the targets. Repeatable.",
            show_default=False,
            rich_help_panel=TARGETS,
        ),
    ] = None,
    profile: Annotated[
        ProfileName,
        typer.Option(
            help="vllm convicts on what anybody signed, reference on everything.",
            case_sensitive=False,
            rich_help_panel=CONTRACT,
        ),
    ] = ProfileName.VLLM,
    level: Annotated[
        LevelName,
        typer.Option(
            help="quick takes up to 10 seconds a target, ci two minutes.",
            case_sensitive=False,
            rich_help_panel=CONTRACT,
        ),
    ] = LevelName.QUICK,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Only these clauses (POL-*), your own among them. Repeatable.",
            show_default=False,
            rich_help_panel=CONTRACT,
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Not these clauses. Repeatable.",
            show_default=False,
            rich_help_panel=CONTRACT,
        ),
    ] = None,
    invariant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="M:CLASS",
            help="An invariant of your own that judges beside the others. Repeatable.",
            show_default=False,
            rich_help_panel=CONTRACT,
        ),
    ] = None,
    known_failures: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Breaches that do not convict: lines of TARGET and CLAUSE.",
            show_default=False,
            rich_help_panel=CONTRACT,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Chooses the programs.", rich_help_panel=CONTRACT)
    ] = 0,
    json: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE|-",
            help="Write the verdicts as a JSON list; with - nothing else goes to standard output.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py",
            help="Write a pytest file: a test for each clause that a program broke, and one for "
            "all others.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Put policies, or managers, on trial."""
    targets = target or []
    if root is not None and not vllm_manager:
        raise UsageError("--root says where the vLLM of --vllm-manager is")
    if vllm_manager:
        if targets or log or vllm is not None:
            raise UsageError("--vllm-manager is a target, and goes with no other, nor with --log")
        # What loads and calls it is wanted by few.
        from stateful_models.vllm.manager_target import manager_target

        targets, manager = [manager_target(root)], True
    if bool(targets) == bool(log):
        raise UsageError("name targets, or logs with --log, and not both")
    if log:
        judge_logs(log, profile=profile, invariants=invariant or ())
        return
    if not all(map(str.strip, targets)):
        raise UsageError("a target without a name")
    for one in (*targets, driver or "", *(invariant or ()), *(env or ()), *(arg or ())):
        try:
            one.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{one!r}: it is no text") from error
    if vllm is not None and manager:
        raise UsageError("--vllm is for policies, and the targets are managers")
    need_hypothesis("verify")
    from stateful_models.contract import Profile
    from stateful_models.trial.request import Request, Task

    screen = open_screen(stderr=json == TO_STDOUT)
    stderr = open_screen(stderr=True)
    result_file = open_result(json)
    export_file = None if export is None else ResultFile(export, option="--export")
    asked = Request(
        task=Task.MANAGER if manager else Task.POLICY,
        target="",
        driver=driver,
        invariants=tuple(invariant or ()),
        profile=Profile(profile.value),
        level=level.value,
        seed=seed,
        only=tuple(only or ()),
        without=tuple(without or ()),
        vllm=None if vllm is None else vllm_named(vllm),
        environment=dict(_pair("--env", text) for text in env or ()),
    )
    grid = argument_grid(arg or ())
    names = ClauseNames(lambda: _own_names(evolve(asked, arguments=grid[0])))
    names.check_globs("--only", asked.only)
    names.check_globs("--without", asked.without)
    known = KnownFailures.read(known_failures, names)
    known.check(targets)
    requests = [
        evolve(asked, target=one, known=known.of(one), arguments=arguments)
        for one in targets
        for arguments in grid
    ]
    # Imported only now: a mistake in the options is told at once.
    from stateful_models.trial.export import export_tests
    from stateful_models.trial.trials import hold_trial
    from stateful_models.trial.verdicts import encode_all
    from stateful_models.vllm.trial import hold_vllm_trial

    hold = hold_trial if vllm is None else hold_vllm_trial
    reports: list[Report] = []

    def deliver() -> None:
        data = encode_all(reports)
        try:
            if result_file is not None:
                result_file.write(data)
            if export_file is not None:
                export_file.write(export_tests(reports).encode())
        finally:
            show_reports(screen, reports)
            if export_file is not None:
                tell(screen, f"{export}: these trials as tests, for `pytest {export}`")
        if json == TO_STDOUT:
            print_json(data)

    for request in requests:
        try:
            with deferred_interrupt() as raise_pending, narrate_trial(stderr, request) as narrator:

                def proceed(engine: str, share: float) -> None:
                    raise_pending()
                    narrator(engine, share)

                reports.append(hold(request, proceed, raise_pending))
        except KeyboardInterrupt:
            if reports:
                deliver()
            raise RunInterruptedError(
                f"interrupted in the trial of {request.target}; {len(reports)} of "
                f"{counted(len(requests), 'trial')} complete"
            ) from None
    deliver()
    why = why_not_reached(reports)
    if why:
        tell(screen, why)
    status = exit_status(reports)
    if status:
        raise typer.Exit(status)


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """The command line with a value for each `--vllm` that has none: the next argument is not it.

    The parser knows only options that always have a value, and such that never do.
    """
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    return [f"{VLLM}={ANY_VLLM}" if each == VLLM else each for each in given[:end]] + given[end:]


def judge_logs(paths: Sequence[Path], *, profile: ProfileName, invariants: Sequence[str]) -> None:
    """Judge recorded calls, and say what they break. Raises typer.Exit with 1 if that convicts."""
    from stateful_models.contract import Profile
    from stateful_models.invariants import Invariant
    from stateful_models.judge import NOT_ASKED_AGAIN
    from stateful_models.logs import LogError, judge_log

    screen = open_screen(stderr=False)
    convicted = False
    for path in paths:
        try:
            own: list[Invariant[Any]] = []  # of which books shows when they judge
            for name in invariants:
                make: Callable[[], Invariant[Any]] = find_invariant(name).make
                own.append(make())
            report = judge_log(path, profile=Profile(profile.value), invariants=own)
        except (LogError, OSError) as error:
            raise UsageError(f"--log {path}: {error}") from error
        failed = [found.message for found in report.violations if found.raised]
        if failed:
            told = failed[0].removesuffix(NOT_ASKED_AGAIN)
            raise UsageError(f"--log {path}: an invariant failed: {told}")
        for line in str(report).splitlines():
            tell(screen, line)
        convicted = convicted or bool(report.convictions)
    if convicted:
        raise typer.Exit(EXIT_VIOLATION)


def exit_status(reports: Sequence[Report]) -> int:
    """2 if a target could not be tried, 1 if one is convicted or, above level quick, a clause of
    safety was not reached, else 0."""
    from stateful_models.trial.verdicts import Outcome

    if any(report.verdict is Outcome.UNTRIED for report in reports):
        return EXIT_USAGE
    for report in reports:
        if report.verdict is Outcome.CONVICTED or unreached_safety(report):
            return EXIT_VIOLATION
    return 0


def why_not_reached(reports: Sequence[Report]) -> str:
    """Why the exit status is 1 though nothing is convicted; "" where it is not."""
    from stateful_models.trial.verdicts import Outcome

    if exit_status(reports) != EXIT_VIOLATION:
        return ""
    if any(report.verdict is Outcome.CONVICTED for report in reports):
        return ""
    clauses = [clause for report in reports for clause in unreached_safety(report)]
    names = list(dict.fromkeys(clause.id for clause in clauses))
    one = len(names) == 1
    said = f"{'is a clause' if one else 'are clauses'} of safety and {'was' if one else 'were'}"
    lines = any("never ran" in clause.reason for clause in clauses)
    out = f"; a line that cannot run here is left out by `{NO_COVER}`" if lines else ""
    return f"exit status {EXIT_VIOLATION}: {', '.join(names)} {said} not reached{out}"


def unreached_safety(report: Report) -> list[ClauseVerdict]:
    """The clauses of safety that were not reached, at a level that asks for all of them."""
    from stateful_models.trial.verdicts import Verdict

    if report.level == LevelName.QUICK:
        return []
    return [
        clause
        for clause in report.clauses
        if clause.verdict is Verdict.NOT_REACHED and clause.kind == "S"
    ]


def vllm_named(name: str) -> str | None:
    """The version that a value of `--vllm` names, "installed", or None for any.

    Raises UsageError.
    """
    from stateful_models.trial.portability import INSTALLED

    if name == ANY_VLLM:
        return None
    try:
        return name if name == INSTALLED else find_version(name).name
    except UnknownVLLMError as error:
        raise UsageError(f"{VLLM}={name}: {error}; or {INSTALLED}") from error


def need_hypothesis(command: str) -> None:
    """Raise UsageError where hypothesis is missing, or cannot be imported."""
    try:
        import_module("hypothesis")
    except ModuleNotFoundError as error:
        if error.name == "hypothesis":
            raise UsageError(
                f"{command} needs hypothesis: pip install 'kvoffload[verify]'"
            ) from error
        raise _broken_hypothesis(command, error) from error
    except KeyboardInterrupt:
        raise
    # What is installed there may be damaged in any way.
    except BaseException as error:
        raise _broken_hypothesis(command, error) from error


def _broken_hypothesis(command: str, error: BaseException) -> UsageError:
    from stateful_models.loading import describe

    return UsageError(
        f"{command} needs hypothesis, which is installed and cannot be imported: {describe(error)}"
    )


def _own_names(request: Request) -> Iterator[str]:
    """The ids of the clauses of the author's own. Raises UsageError."""
    from stateful_models.loading import TargetError
    from stateful_models.trial.trials import own_clauses

    try:
        yield from (clause.id for clause in own_clauses(request))
    except TargetError as error:
        raise UsageError(str(error)) from error


def _pair(option: str, text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"{option} {text}: not of the form NAME=VALUE")
    return name, value


def argument_grid(texts: Sequence[str]) -> list[dict[str, Argument]]:
    """Every combination of the values given for each argument. Raises UsageError."""
    from stateful_models.trial import arguments

    try:
        return list(arguments.argument_grid(texts))
    except arguments.ArgumentTextError as error:
        raise UsageError(f"--arg {error}") from error
