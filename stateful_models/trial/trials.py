"""Trials as the outside world holds them: a target by its name, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from attrs import evolve

from stateful_models.contract import CLAUSES
from stateful_models.trial.managers import MANAGER_SCOPE
from stateful_models.trial.process import ChildEnd, Ending, run_child
from stateful_models.trial.request import (
    Digest,
    Progress,
    Request,
    Task,
    Untriable,
    decode_answer,
    encode_request,
    report_on,
)
from stateful_models.trial.scope import POLICY_SCOPE
from stateful_models.trial.verdicts import ClauseVerdict, Outcome, Report, Verdict

CHILD: Final = "stateful_models.trial.child"
ENGINES: Final = 12
"""No trial has more engines: that many times the patience of its level is how long it may take."""
SPARE_S: Final = 20.0
OTHER_HASH_SEEDS: Final = (1, 2)


def clauses_of(task: Task) -> tuple[str, ...]:
    """The clauses that a trial of this kind judges."""
    return tuple(MANAGER_SCOPE if task is Task.MANAGER else POLICY_SCOPE)


def hold_trial(
    request: Request,
    on_progress: Callable[[str, float], None] = lambda engine, share: None,
    poll: Callable[[], object] = lambda: None,
) -> Report:
    """Try one target, and report. What becomes of the process is part of the report.

    `poll` is called again and again while the process runs; what it raises ends that.
    """
    report: Report | None = None
    problem = ""
    where = ""

    def listen(line: bytes) -> None:
        nonlocal report, problem, where
        answer = decode_answer(line)
        if isinstance(answer, Progress):
            where = answer.engine
            on_progress(answer.engine, answer.share)
        elif isinstance(answer, Report):
            report = answer
        elif isinstance(answer, Untriable):
            problem = answer.problem

    end = run_child(
        CHILD,
        encode_request(request),
        env=request.environment,
        hash_seed=0,
        timeout_s=_patience(request),
        on_message=listen,
        poll=poll,
    )
    if report is not None:
        return _across_processes(request, report)
    if problem:
        return untried(request, problem)
    if request.task is Task.POLICY and where:
        return _ended_by_the_target(request, end, where)
    return untried(request, _told_by(end, where))


def untried(request: Request, problem: str) -> Report:
    """The report on a target that could not be tried."""
    return evolve(report_on(request, Outcome.UNTRIED), problem=problem)


def _across_processes(request: Request, report: Report) -> Report:
    """Advice about POL-5: whether processes with other hash seeds see the same choices."""
    if request.task is not Task.POLICY or not request.wants("POL-5"):
        return report
    if report.verdict is Outcome.CONVICTED:
        # It is known to do wrong, and where it comes to other choices matters less.
        return report
    asked = evolve(request, task=Task.DIGEST)
    with ThreadPoolExecutor(len(OTHER_HASH_SEEDS)) as pool:
        digests = set(pool.map(partial(_digest, asked), OTHER_HASH_SEEDS))
    if len(digests) == 1:
        return report
    note = (
        "POL-5, advice: under other hash seeds (PYTHONHASHSEED) it makes other choices, so that no "
        "two processes agree; a choice hangs on the order of a set"
    )
    return evolve(report, notes=(*report.notes, note))


def _digest(request: Request, hash_seed: int) -> str:
    found = ""

    def listen(line: bytes) -> None:
        nonlocal found
        answer = decode_answer(line)
        if isinstance(answer, Digest):
            found = answer.choices

    run_child(
        CHILD,
        encode_request(request),
        env=request.environment,
        hash_seed=hash_seed,
        timeout_s=_patience(request),
        on_message=listen,
    )
    return found


def _ended_by_the_target(request: Request, end: ChildEnd, where: str) -> Report:
    """A policy that ended the process, or kept it from going on, has done so to an engine."""
    part = CLAUSES["POL-7"].parts[0]
    known = "POL-7" in request.known
    verdict = ClauseVerdict(
        id="POL-7",
        kind=part.kind.value,
        source=part.source.value,
        verdict=Verdict.BROKEN,
        sentence=part.sentence,
        convicts=not known,
        seen=_told_by(end, where),
        consequence="the process of the engine ends, or stands still, with it",
        engine=where,
        known=known,
    )
    return evolve(
        report_on(request, Outcome.CLEAN if known else Outcome.CONVICTED),
        clauses=(verdict,),
        notes=("nothing else is known: no other clause could be judged",),
    )


def _patience(request: Request) -> float:
    return SPARE_S + ENGINES * request.budgets.patience_s


def _told_by(end: ChildEnd, where: str) -> str:
    place = f" in engine {where}" if where else ""
    words = end.stderr.strip().splitlines()
    last = f": {words[-1]}" if words and end.kind is not Ending.DID_NOT_RETURN else ""
    return f"the process of the trial {end}{place}{last}"
