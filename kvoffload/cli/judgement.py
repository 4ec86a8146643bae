"""A judgement as it was asked for: held section by section, and written to a folder."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from functools import partial
from typing import TYPE_CHECKING

from attrs import evolve, frozen
from rich.console import Console

from kvoffload import __version__
from kvoffload.cli.executors import executor_for, progress_bar, runs_to_come
from kvoffload.cli.folder import Folder
from kvoffload.cli.interrupts import deferred_interrupt
from kvoffload.cli.judging import (
    SentHints,
    Subject,
    check,
    check_apart,
    contract_of,
    recognised_version,
)
from kvoffload.cli.problems import UsageError
from kvoffload.cli.prose import tell
from kvoffload.cli.traffic import Section, Traffic, number_text
from kvoffload.cli.verdicts import narrate_trial
from kvoffload.errors import InvalidValueError, TraceError
from kvoffload.judge.blame import HostFailedError
from kvoffload.judge.cost_value import SECONDS, CostValue, measure_all
from kvoffload.judge.hint_value import HintValue, plan_hints
from kvoffload.judge.page import page
from kvoffload.judge.report import Contract, Judgement, to_json
from kvoffload.judge.session_value import SessionValue, plan_sessions
from kvoffload.judge.study import Study, workload_of
from kvoffload.judge.value import TraceValue, plan_value
from kvoffload.wording import counted
from stateful_models.engines.hints import hostile_values
from stateful_models.loading import TargetError
from stateful_models.trial.trials import hold_trial
from stateful_models.vllm.trial import hold_vllm_trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN = {Section.VALUE, Section.SESSIONS, Section.HINTS}
"""The parts that take runs over traces."""


@frozen(kw_only=True)
class Asked:
    """What is judged, and how.

    `invariants` judge its trial beside ours. `for_vllm`: the target was written for vLLM, of the
    version of the subject or, if that has none, of the one that it is recognised as.
    """

    subject: Subject
    invariants: tuple[str, ...]
    for_vllm: bool
    sections: tuple[Section, ...]
    traffic: Traffic
    jobs: int | None
    scheduler: str | None
    seed: int
    cost_seconds: float

    def command(self, subject: Subject, section: Section | None = None) -> str:
        """The command that gives a section, or all of those that were asked for, again."""
        words = ["kvoffload", "judge", subject.target]
        words += [] if subject.vllm is None else [f"--vllm={subject.vllm}"]
        words += [] if subject.driver is None else ["--driver", subject.driver]
        for name, value in subject.arguments:
            words += ["--arg", f"{name}={value}"]
        if section in (None, Section.CONTRACT):
            words += [word for name in self.invariants for word in ("--invariant", name)]
        if section not in (Section.CONTRACT, Section.COST):
            words += self.traffic.words()
        if section in (None, Section.COST) and self.cost_seconds != SECONDS:
            words += ["--cost-seconds", number_text(self.cost_seconds)]
        words += ["--seed", str(self.seed)] if self.seed else []
        wanted = self.sections if section is None else (section,)
        for each in wanted if wanted != tuple(Section) else ():
            words += ["--section", each.value]
        return shlex.join(words)

    def outlook(self) -> str:
        """What is to come, and how long that takes, as far as it is known before the start."""
        parts: list[str] = []
        if Section.CONTRACT in self.sections:
            parts.append("the contract (a trial that takes up to 10 s on two idle cores)")
        runs = [section.value for section in self.sections if section in RUN]
        if runs:
            over = counted(len(self.traffic.traces), "trace")
            parts.append(f"{', '.join(runs)} (runs over {over}, counted once they are planned)")
        if Section.COST in self.sections:
            parts.append(f"cost (each policy for up to {number_text(self.cost_seconds)} s)")
        return "; then ".join(parts)


def hold_judgement(asked: Asked, console: Console) -> Judgement:
    """Judge. Raises UsageError where that cannot be done."""
    subject, contract = asked.subject, None
    if not set(asked.sections) <= RUN:
        tell(console, f"{subject.name}: {asked.outlook()}")
    if Section.CONTRACT in asked.sections:
        contract, version = _try_contract(asked, console)
        subject = evolve(subject, vllm=version)
    elif asked.for_vllm and subject.vllm is None:
        subject = evolve(subject, vllm=recognised_version(subject.request()))
    # A trial has found out that it can be built; and that building it comes to an end.
    if contract is None and asked.jobs != 1:
        check_apart(subject)
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
        notes=subject.notes if set(asked.sections) - {Section.CONTRACT} else (),
    )
    if set(asked.sections) & RUN:
        judgement = _run(judgement, asked, subject, console)
    if Section.COST in asked.sections:
        judgement = evolve(judgement, cost=_measure(asked, subject, console))
    return judgement


def _measure(asked: Asked, subject: Subject, console: Console) -> CostValue:
    """What the policy and those beside it cost, when nothing else runs."""
    policies = subject.policies()
    try:
        with progress_bar(console, f"{subject.name}: cost", len(policies)) as proceed:
            return measure_all(
                policies, asked.cost_seconds, hints_for=SentHints(subject), proceed=proceed
            )
    except HostFailedError as error:
        raise UsageError(f"the driver failed: {error}") from error


def _try_contract(asked: Asked, console: Console) -> tuple[Contract, str | None]:
    """The verdict, and the version of vLLM that the policy was tried with."""
    request = evolve(asked.subject.request(asked.seed), invariants=asked.invariants)
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
    planned: list[tuple[int, int]] = []
    try:
        for source in asked.traffic.sources():
            before = len(study)
            plan = asked.traffic.plan(source, policies)
            if Section.VALUE in asked.sections:
                values.append(plan_value(study, plan))
            if Section.SESSIONS in asked.sections:
                sessions.append(plan_sessions(study, plan))
            if Section.HINTS in asked.sections:
                hint_value = plan_hints(
                    study,
                    plan,
                    policies[subject.name],
                    subject.base,
                    hints_for=SentHints(subject),
                    hostile=hostile_values,
                )
                hints.append(hint_value)
            planned.append((len(study) - before, len(workload_of(source, 0).requests)))
        tell(console, runs_to_come(subject.name, planned, asked.jobs, asked.scheduler))
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
    except HostFailedError as error:
        raise UsageError(f"the driver failed: {error}") from error
    except (TraceError, InvalidValueError, TargetError, BrokenExecutor) as error:
        raise UsageError(str(error)) from error


def write(judgement: Judgement, folder: Folder) -> None:
    """Write a judgement to a folder. Raises OutputError."""
    folder.write(to_json(judgement), partial(page, judgement), lambda: _drawn(judgement))


def _drawn(judgement: Judgement) -> dict[str, Figure]:
    from kvoffload.judge.cost_picture import draw_cost
    from kvoffload.judge.pictures import draw_curves, draw_turns

    drawn = {
        f"curves-{number}": draw_curves(value, judgement.name)
        for number, value in enumerate(judgement.values)
    }
    for number, sessions in enumerate(judgement.sessions):
        drawn[f"turns-{number}"] = draw_turns(judgement, sessions)
    if judgement.cost is not None and any(each.cost.costs for each in judgement.cost.policies):
        drawn["cost"] = draw_cost(judgement.name, judgement.cost)
    return drawn
