"""What hints are worth to a policy on one trace, and what wrong ones cost."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from kvoffload.judge.attempts import Failure
from kvoffload.judge.hints import (
    HintKind,
    HintReport,
    HintRun,
    HintsFor,
    HostileValues,
    Raised,
    report_of,
    run_kind,
)
from kvoffload.judge.outcome import Demand, Outcome
from kvoffload.judge.session_value import capacity_for
from kvoffload.judge.study import MakeManager, Run, Source, Study, workload_of
from kvoffload.judge.value import Plan


@frozen
class Ablation:
    """A policy under one kind of hints."""

    make: MakeManager
    source: Source
    gpu_chunks: int
    capacity: int
    kind: HintKind
    hints_for: HintsFor
    hostile: HostileValues

    def __call__(self) -> HintRun:
        """The run. Raises TraceError; what the policy raises is part of the answer."""
        return run_kind(
            self.make,
            self.capacity,
            workload_of(self.source, self.gpu_chunks),
            self.kind,
            hints_for=self.hints_for,
            hostile=self.hostile,
        )

    def lost(self, failure: Failure, /) -> HintRun:
        """The run of a policy that did not come back."""
        return HintRun(self.kind, None, (Raised.by(failure),))


@frozen(kw_only=True)
class HintValue:
    """One trace at one capacity behind one GPU tier. Without a `report` the base policy did not
    come to the end of its run, for `problem`."""

    trace: str
    capacity: int
    of_working_set: float
    gpu_chunks: int
    warm_up: int
    report: HintReport | None
    problem: str = ""


@frozen(kw_only=True)
class Base:
    """What a policy should equal where no request has hints."""

    name: str
    make: MakeManager


def plan_hints(
    study: Study,
    plan: Plan,
    make: MakeManager,
    base: Base,
    *,
    hints_for: HintsFor,
    hostile: HostileValues,
) -> Callable[[], HintValue]:
    """Ask a study for the hints of a trace; what is returned computes them then.

    At the capacity and behind the GPU tier at which sessions are looked at. Raises TraceError.
    """
    source, gpu_chunks = plan.source, min(plan.gpu_chunks)
    workload = workload_of(source, gpu_chunks)
    capacity = capacity_for(plan)
    kinds = [
        study.add(Ablation(make, source, gpu_chunks, capacity, kind, hints_for, hostile))
        for kind in HintKind
    ]
    alone = study.add(Run(base.make, source, gpu_chunks, capacity))

    def value() -> HintValue:
        found: Outcome | Failure = alone()
        report, problem = None, ""
        if isinstance(found, Failure):
            problem = f"{base.name}: {found.where}"
        else:
            runs = [run() for run in kinds]
            report = report_of(runs, Demand.of(workload), base.name, found, plan.warm_up)
        return HintValue(
            trace=source.path.name,
            capacity=capacity,
            of_working_set=capacity / workload.distinct_blocks,
            gpu_chunks=gpu_chunks,
            warm_up=plan.warm_up,
            report=report,
            problem=problem,
        )

    return value
