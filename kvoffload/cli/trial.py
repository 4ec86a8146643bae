"""One replay of one policy at one capacity, checked or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import field, frozen

from kvoffload.cli.foreign import off_stdout
from kvoffload.cli.problems import ReaderLeftError
from kvoffload.cli.targets import (
    DEFAULT_MANAGER,
    InvariantTarget,
    ManagerMaker,
    Policy,
    evicts_more_by_design,
    make_invariant,
    make_manager,
    refuses_by_design,
)
from kvoffload.errors import TraceError
from kvoffload.manager import OffloadingManager
from kvoffload.replay.capacity import Capacity
from kvoffload.replay.counts import Counts
from kvoffload.replay.driver import Replay, check_disturbances
from kvoffload.replay.model import CostModel
from kvoffload.replay.report import Judgement, Report, Setting, make_report
from kvoffload.replay.request import TraceRequest
from kvoffload.replay.trace import Survey, Trace
from stateful_models.loading import describe, place_of

if TYPE_CHECKING:
    from stateful_models.judge import Violation
    from stateful_models.watch import WatchedManager

MAX_VIOLATIONS = 10_000
"""A run that was convicted this often ends; the first breach may not be the worst, so not there."""


@frozen
class Conditions:
    """What all runs of one command share. Raises InvalidValueError for a rate or a time that no
    run could use."""

    trace: Trace
    survey: Survey
    model: CostModel
    maker: ManagerMaker
    manager_name: str = DEFAULT_MANAGER
    store_threshold: int = 1
    fail_rate: float = 0.0
    seed: int = 0
    resets: Sequence[float] = ()
    check: bool = False
    invariants: Sequence[InvariantTarget] = ()

    def __attrs_post_init__(self) -> None:
        check_disturbances(self.fail_rate, self.resets)


@frozen
class Outcome:
    """The report of a run and the violations behind its number.

    `ended_by` is the violation that tells of the exception which ended the run, if one does, and
    `place` where that exception came up.
    """

    report: Report
    violations: Sequence[Violation] = field(factory=tuple)
    ended_by: Violation | None = None
    place: str = ""

    @property
    def convicted(self) -> bool:
        """Whether the run broke a clause or ended with an exception."""
        return bool(self.violations) or self.report.error is not None


class _Stopwatch:
    """Hands requests on and keeps the time that reading them took, and what stopped it."""

    def __init__(self, requests: Iterator[TraceRequest]) -> None:
        self._requests = requests
        self.seconds = 0.0
        self.stopped: TraceError | None = None

    def __iter__(self) -> _Stopwatch:
        return self

    def __next__(self) -> TraceRequest:
        begun = time.perf_counter()
        try:
            return next(self._requests)
        except TraceError as error:
            self.stopped = error
            raise
        finally:
            self.seconds += time.perf_counter() - begun


def run_trial(
    conditions: Conditions,
    policy_name: str,
    policy: Policy,
    capacity: Capacity,
    chunks: int,
    on_progress: Callable[[Counts], None],
) -> Outcome:
    """Replay the trace once.

    An exception out of the manager or its policy, an exit too, ends the run and stands in the
    report; one of the trace (TraceError) and what cannot be built (UsageError) are raised.
    """
    manager = make_manager(
        conditions.maker,
        conditions.manager_name,
        chunks,
        policy_name,
        policy,
        store_threshold=conditions.store_threshold,
    )
    watched = _watch(manager, chunks, policy_name, policy, conditions) if conditions.check else None

    def proceed(counts: Counts) -> bool:
        on_progress(counts)
        return watched is None or watched.num_violations < MAX_VIOLATIONS

    counts = Counts()
    error: str | None = None
    ended_by: Violation | None = None
    place = ""
    with conditions.trace.open() as reading:
        requests = _Stopwatch(iter(reading))
        begun = time.perf_counter()
        try:
            # Before the first call already, what the manager shows of itself may raise.
            with off_stdout():
                subject = manager if watched is None else watched
                replay = Replay(
                    subject,
                    conditions.model,
                    fail_rate=conditions.fail_rate,
                    seed=conditions.seed,
                    resets=conditions.resets,
                    signatures=manager,
                    proceed=proceed,
                )
                counts = replay.counts
                replay.run(requests)
                subject.shutdown()
        except (KeyboardInterrupt, ReaderLeftError):
            raise
        # What is on trial may raise anything, and exit; the others still want to be tried.
        except BaseException as raised:
            if raised is requests.stopped:
                raise
            error, place = _in_words(raised), place_of(raised)
            ended_by = None if watched is None else watched.violation_by(raised)
        seconds = time.perf_counter() - begun - requests.seconds
    violations = () if watched is None else tuple(watched.violations)
    setting = Setting(
        policy=policy_name,
        manager=conditions.manager_name,
        capacity_asked=capacity.text,
        capacity_chunks=chunks,
        model=conditions.model.describe(),
    )
    judgement = Judgement(
        checks=0 if watched is None else watched.checks,
        violations=0 if watched is None else watched.num_violations,
        clauses=tuple(violation.clause for violation in violations),
    )
    report = make_report(
        setting,
        counts,
        conditions.survey,
        judgement,
        seconds=seconds,
        reading_seconds=requests.seconds,
        error=error,
    )
    return Outcome(report, violations, ended_by, place)


def _in_words(error: BaseException) -> str:
    # Only here and where something is judged are keys to be shown as the judge shows them.
    from stateful_models.judge import keys_in_short

    return keys_in_short(describe(error))


def _watch(
    manager: OffloadingManager,
    chunks: int,
    policy_name: str,
    policy: Policy,
    conditions: Conditions,
) -> WatchedManager:
    # The judge is imported only by those who ask for it.
    from stateful_models.invariants import manager_invariants
    from stateful_models.watch import WatchedManager

    threshold = conditions.store_threshold
    may_refuse = refuses_by_design(policy, policy_name)
    may_evict_more = evicts_more_by_design(policy)
    usual = manager_invariants(
        store_threshold=threshold,
        enable_events=True,
        may_refuse=may_refuse,
        may_evict_more=may_evict_more,
    )
    return WatchedManager(
        manager,
        num_chunks=chunks,
        store_threshold=threshold,
        enable_events=True,
        may_refuse=may_refuse,
        may_evict_more=may_evict_more,
        invariants=[*usual, *map(make_invariant, conditions.invariants)],
    )
