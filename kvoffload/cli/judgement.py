"""A judgement as it was asked for: held section by section, and written to a folder."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from importlib.util import find_spec
from pathlib import Path

from attrs import evolve, frozen
from rich.console import Console

from kvoffload import __version__
from kvoffload.cli.executors import executor_for, progress_bar
from kvoffload.cli.interrupts import deferred_interrupt
from kvoffload.cli.judging import SentHints, Subject, check, contract_of, recognised_version
from kvoffload.cli.problems import UsageError
from kvoffload.cli.results import ResultFile
from kvoffload.cli.traffic import Section, Traffic
from kvoffload.cli.verdicts import narrate_trial
from kvoffload.errors import InvalidValueError, TraceError
from kvoffload.judge.hint_value import HintValue, plan_hints
from kvoffload.judge.page import page
from kvoffload.judge.report import Contract, Judgement, to_json
from kvoffload.judge.session_value import SessionValue, plan_sessions
from kvoffload.judge.study import Study
from kvoffload.judge.value import TraceValue, plan_value
from stateful_models.engines.hints import hostile_values
from stateful_models.loading import TargetError
from stateful_models.trial.trials import hold_trial
from stateful_models.vllm.trial import hold_vllm_trial


@frozen(kw_only=True)
class Asked:
    """What is judged, and how. `for_vllm`: the target was written for vLLM, of the version of the
    subject or, if that has none, of the one that it is recognised as."""

    subject: Subject
    for_vllm: bool
    sections: tuple[Section, ...]
    traffic: Traffic
    jobs: int | None
    scheduler: str | None
    seed: int

    def command(self, subject: Subject, section: Section | None = None) -> str:
        """The command that gives a section, or all of those that were asked for, again."""
        words = ["python", "-m", "kvoffload", "judge", subject.target]
        words += [] if subject.vllm is None else [f"--vllm={subject.vllm}"]
        words += [] if subject.driver is None else ["--driver", subject.driver]
        for name, value in subject.arguments:
            words += ["--arg", f"{name}={value}"]
        if section is not Section.CONTRACT:
            words += self.traffic.words()
        words += ["--seed", str(self.seed)] if self.seed else []
        wanted = self.sections if section is None else (section,)
        for each in wanted if wanted != tuple(Section) else ():
            words += ["--section", each.value]
        return shlex.join(words)


def hold_judgement(asked: Asked, console: Console) -> Judgement:
    """Judge. Raises UsageError where that cannot be done."""
    subject, contract = asked.subject, None
    if Section.CONTRACT in asked.sections:
        contract, version = _try_contract(asked, console)
        subject = evolve(subject, vllm=version)
    elif asked.for_vllm and subject.vllm is None:
        subject = evolve(subject, vllm=recognised_version(subject.request()))
    check(subject)
    judgement = Judgement(
        target=subject.target,
        name=subject.name,
        version=__version__,
        command=asked.command(subject),
        commands={each.value: asked.command(subject, each) for each in asked.sections},
        driver=subject.driver,
        vllm=subject.vllm,
        arguments=dict(subject.arguments),
        host=subject.host,
        contract=contract,
    )
    if not set(asked.sections) <= {Section.CONTRACT}:
        try:
            judgement = _run(judgement, asked, subject, console)
        except BrokenExecutor as error:
            note = f"No run has figures: a process that ran the policies ended ({error})."
            judgement = evolve(judgement, notes=(*judgement.notes, note))
    return judgement


def _try_contract(asked: Asked, console: Console) -> tuple[Contract, str | None]:
    """The verdict, and the version of vLLM that the policy was tried with."""
    request = asked.subject.request(asked.seed)
    hold = hold_vllm_trial if asked.for_vllm else hold_trial
    with deferred_interrupt() as raise_pending, narrate_trial(console, request) as narrator:

        def proceed(engine: str, share: float) -> None:
            raise_pending()
            if console.is_terminal:
                narrator(engine, share)

        report = hold(request, proceed, raise_pending)
    if report.problem:
        raise UsageError(report.problem)
    return contract_of(report), report.vllm


def _run(judgement: Judgement, asked: Asked, subject: Subject, console: Console) -> Judgement:
    """The judgement with all that takes runs over traces."""
    study = Study()
    policies = subject.policies()
    values: list[Callable[[], TraceValue]] = []
    sessions: list[Callable[[], SessionValue]] = []
    hints: list[Callable[[], HintValue]] = []
    try:
        for source in asked.traffic.sources():
            plan = asked.traffic.plan(source, policies)
            if Section.VALUE in asked.sections:
                values.append(plan_value(study, plan))
            if Section.SESSIONS in asked.sections:
                sessions.append(plan_sessions(study, plan))
            if Section.HINTS in asked.sections:
                planned = plan_hints(
                    study,
                    plan,
                    policies[subject.name],
                    subject.base,
                    hints_for=SentHints(subject),
                    hostile=hostile_values,
                )
                hints.append(planned)
        with (
            executor_for(asked.jobs, asked.scheduler) as executor,
            progress_bar(console, f"{subject.name}: runs", len(study)) as proceed,
        ):
            study.carry_out(executor, proceed)
        return evolve(
            judgement,
            values=tuple(value() for value in values),
            sessions=tuple(value() for value in sessions),
            hints=tuple(value() for value in hints),
        )
    except (TraceError, InvalidValueError, TargetError) as error:
        raise UsageError(str(error)) from error


class Folder:
    """Where a judgement goes. Raises UsageError when it cannot be written to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {path}: {error.strerror or error}") from error
        self._page = self._file("report.md")
        self._data = self._file("report.json")

    def write(self, judgement: Judgement) -> None:
        """Write pictures, page and data, the page last. Raises OutputError."""
        pictures = self._pictures(judgement)
        self._data.write(to_json(judgement))
        self._page.write(page(judgement, pictures).encode())

    def _pictures(self, judgement: Judgement) -> dict[str, str] | None:
        if find_spec("matplotlib") is None:
            return None
        from kvoffload.judge.pictures import FORMATS, draw_curves, draw_turns, render

        drawn = {
            f"curves-{number}": draw_curves(judgement, value)
            for number, value in enumerate(judgement.values)
        }
        for number, sessions in enumerate(judgement.sessions):
            drawn[f"turns-{number}"] = draw_turns(judgement, sessions)
        for name, figure in drawn.items():
            for each in FORMATS:
                self._file(f"{name}.{each}").write(render(figure, each))
        return {name: f"{name}.svg" for name in drawn}

    def _file(self, name: str) -> ResultFile:
        return ResultFile(str(self._path / name), option="--out")
