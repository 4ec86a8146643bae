"""What sessions have of a policy on one trace, beside what they have of others."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from kvoffload.judge.attempts import Failure, GiveHints, attempt, beforehand
from kvoffload.judge.sessions import SessionReport, run_sessions
from kvoffload.judge.study import MakeManager, Source, Study, workload_of
from kvoffload.judge.value import Plan

NEAREST = 0.1
"""Sessions are looked at with one capacity: that nearest to this share of the working set."""


@frozen
class SessionRuns:
    """One run of a policy with its sessions watched. The requests of `warm_up` are left out."""

    make: MakeManager
    source: Source
    gpu_chunks: int
    capacity: int
    warm_up: int

    def __call__(self) -> SessionReport | Failure:
        """What its sessions had of it. Raises TraceError."""
        workload = workload_of(self.source, self.gpu_chunks)

        def play(hints: GiveHints) -> SessionReport:
            manager = beforehand(lambda: self.make(self.capacity))
            return run_sessions(manager, workload, after=self.warm_up, hints=hints).report

        return attempt(play, workload.recorded_hints)

    def lost(self, failure: Failure, /) -> SessionReport | Failure:
        """What its sessions had of a policy that did not come back."""
        return failure


@frozen(kw_only=True)
class PolicySessions:
    """What sessions had of one policy; None if its run did not come to its end, for `problem`."""

    policy: str
    report: SessionReport | None
    problem: str = ""


@frozen(kw_only=True)
class SessionValue:
    """One trace at one capacity behind one GPU tier, for each policy. `tokens_known`: else blocks
    are counted in place of tokens."""

    trace: str
    capacity: int
    of_working_set: float
    gpu_chunks: int
    warm_up: int
    tokens_known: bool
    policies: tuple[PolicySessions, ...]


def capacity_for(plan: Plan) -> int:
    """The one of a plan's capacities at which more than the value is looked at."""
    wanted = NEAREST * workload_of(plan.source, 0).distinct_blocks
    return min(plan.capacities, key=lambda size: abs(size - wanted))


def plan_sessions(study: Study, plan: Plan) -> Callable[[], SessionValue]:
    """Ask a study for the sessions of a trace; what is returned computes them then.

    At the capacity of the plan nearest to a tenth of the working set, behind its smallest GPU tier.
    Raises TraceError.
    """
    workload = workload_of(plan.source, 0)
    capacity = capacity_for(plan)
    gpu_chunks = min(plan.gpu_chunks)
    runs = {
        name: study.add(SessionRuns(make, plan.source, gpu_chunks, capacity, plan.warm_up))
        for name, make in plan.policies.items()
    }

    def value() -> SessionValue:
        policies: list[PolicySessions] = []
        for name, run in runs.items():
            found = run()
            if isinstance(found, Failure):
                policies.append(PolicySessions(policy=name, report=None, problem=found.where))
            else:
                policies.append(PolicySessions(policy=name, report=found))
        return SessionValue(
            trace=plan.source.path.name,
            capacity=capacity,
            of_working_set=capacity / workload.distinct_blocks,
            gpu_chunks=gpu_chunks,
            warm_up=plan.warm_up,
            tokens_known=workload.has_tokens,
            policies=tuple(policies),
        )

    return value
