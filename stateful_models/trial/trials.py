"""Trials as the outside world holds them: a target by its name, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from threading import Event
from types import TracebackType
from typing import Final, Self

from attrs import evolve

from stateful_models.contract import CLAUSES
from stateful_models.engines.base import Breach
from stateful_models.engines.manager_runs import NEEDED_FOR
from stateful_models.engines.runs import BUILDING
from stateful_models.loading import TargetError
from stateful_models.trial.hang import LOAD
from stateful_models.trial.managers import MANAGER_SCOPE
from stateful_models.trial.pasting import verdict_test
from stateful_models.trial.process import ChildEnd, Ending, run_child
from stateful_models.trial.request import (
    Digest,
    Doing,
    OwnClause,
    OwnClauses,
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
"""No trial has more engines that take long: that many times the patience of its level is the work
that it may take."""
SPARE_S: Final = 20.0
CALL_PATIENCE_S: Final = 10.0
"""Seconds that one call may work which the trial itself cannot end."""
BUILD_PATIENCE_S: Final = 15.0
"""And a constructor."""
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

    `poll` is called again and again while the process runs; what it raises ends that. A call that
    only another process can end has to hang twice before it convicts.
    """
    report, hung = _held_trial(request, on_progress, poll)
    if not hung:
        return report
    again, hung = _held_trial(request, on_progress, poll)
    if hung or again.verdict is Outcome.UNTRIED:
        return again
    note = f"once {report.clauses[0].seen}: when all was done again it did"
    return evolve(again, notes=(*again.notes, note))


def _held_trial(
    request: Request, on_progress: Callable[[str, float], None], poll: Callable[[], object]
) -> tuple[Report, bool]:
    """The report, and whether it is of a call that did not return, and that nothing here ended."""
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

    with _OtherProcesses(request) as others:
        end = run_child(
            CHILD,
            encode_request(request),
            env=request.environment,
            hash_seed=0,
            timeout_s=_patience(request),
            on_message=listen,
            poll=poll,
            patience=_patience_with,
        )
        # What is known to do wrong makes other choices for whatever reason.
        if report is not None and report.verdict is not Outcome.CONVICTED:
            report = evolve(report, notes=(*report.notes, *others.advice()))
    if report is not None:
        return report, False
    doing = Doing.decode(end.mark)
    if problem:
        pass
    elif doing.call == BUILDING:
        problem = f"{request.target}: cannot be built: {_told_by(end, where)}"
    elif doing.call:
        hung = end.kind is Ending.DID_NOT_RETURN
        return _ended_by_the_target(request, end, doing.call, where), hung
    elif doing.loading:
        problem = f"{doing.loading}: cannot be loaded: {_told_by(end, where)}"
    return untried(request, problem or _told_by(end, where)), False


def own_clauses(request: Request) -> tuple[OwnClause, ...]:
    """The clauses of the invariants that a request names, asked in a process of its own.

    Raises TargetError when they cannot be had.
    """
    if not request.invariants:
        return ()
    found: tuple[OwnClause, ...] | None = None
    problem = ""

    def listen(line: bytes) -> None:
        nonlocal found, problem
        answer = decode_answer(line)
        if isinstance(answer, OwnClauses):
            found = answer.clauses
        elif isinstance(answer, Untriable):
            problem = answer.problem

    end = run_child(
        CHILD,
        encode_request(evolve(request, task=Task.CLAUSES, target="", driver=None)),
        env=request.environment,
        hash_seed=0,
        timeout_s=_patience(request),
        on_message=listen,
    )
    if found is None:
        names = ", ".join(request.invariants)
        raise TargetError(problem or f"{names}: cannot be loaded: {_told_by(end, '')}")
    return found


def untried(request: Request, problem: str) -> Report:
    """The report on a target that could not be tried."""
    return evolve(report_on(request, Outcome.UNTRIED), problem=problem)


class _UnwantedError(Exception):
    """Nobody will look at what this process comes to."""


class _OtherProcesses:
    """Processes with other hash seeds that make the same choices, beside the trial. Leaving ends
    those that still run."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._unwanted = Event()
        # One after the other, for the trial is at work too.
        self._pool = ThreadPoolExecutor(1)
        self._digests: list[Future[str]] = []

    def __enter__(self) -> Self:
        if self._request.task is Task.POLICY and self._request.wants("POL-5"):
            asked = evolve(self._request, task=Task.DIGEST)
            self._digests = [
                self._pool.submit(_digest, asked, hash_seed, self._poll)
                for hash_seed in OTHER_HASH_SEEDS
            ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._unwanted.set()
        self._pool.shutdown(cancel_futures=True)

    def _poll(self) -> None:
        if self._unwanted.is_set():
            raise _UnwantedError

    def advice(self) -> list[str]:
        """About POL-5: what is to be said if they do not see the same choices."""
        if len({digest.result() for digest in self._digests}) <= 1:
            return []
        return [
            "POL-5, advice: under other hash seeds (PYTHONHASHSEED) it makes other choices, so "
            "that no two processes agree; a choice hangs on the order of a set"
        ]


def _digest(request: Request, hash_seed: int, poll: Callable[[], object]) -> str:
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
        poll=poll,
    )
    return found


def _ended_by_the_target(request: Request, end: ChildEnd, call: str, where: str) -> Report:
    """What ended the process in a call, or kept it from going on, has done so to an engine."""
    policy = request.task is not Task.MANAGER
    clause = "POL-7" if policy else NEEDED_FOR.get(call, "SPECS-3")
    part = CLAUSES[clause].parts[0]
    known = clause in request.known
    seen = f"in {call} {_told_by(end, where)}"
    convicts = part.convicts(request.profile) and not known
    verdict = ClauseVerdict(
        id=clause,
        kind=part.kind.value,
        source=part.source.value,
        verdict=Verdict.BROKEN,
        sentence=part.sentence,
        convicts=convicts,
        seen=seen,
        consequence=f"the process of the engine {_as_that_of(end)} in {call}",
        test=verdict_test(request, Breach(clause, part.kind, seen, where)),
        engine=where,
        known=known,
    )
    return evolve(
        report_on(request, Outcome.CONVICTED if convicts else Outcome.CLEAN),
        clauses=(verdict,),
        notes=("nothing else is known: no other clause could be judged",),
    )


def _as_that_of(end: ChildEnd) -> str:
    return "stands still" if end.kind is Ending.DID_NOT_RETURN else "ends"


def _patience_with(mark: bytes) -> float:
    """How long a child may be at what it marked."""
    call = Doing.decode(mark).call
    if not call:
        return inf
    return BUILD_PATIENCE_S if call == BUILDING else CALL_PATIENCE_S


def _patience(request: Request) -> float:
    return SPARE_S + ENGINES * LOAD * request.budgets.patience_s


def _told_by(end: ChildEnd, where: str) -> str:
    place = f" in engine {where}" if where else ""
    words = end.stderr.strip().splitlines()
    last = f": {words[-1]}" if words and end.kind is not Ending.DID_NOT_RETURN else ""
    return f"the process of the trial {end}{place}{last}"
