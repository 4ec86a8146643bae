"""A manager under a policy that errs: it must say so, lose nothing, and recover (STORE-10)."""

from __future__ import annotations

from random import Random
from typing import ClassVar, TypeVar

from attrs import evolve
from typing_extensions import override

from kvoffload import OffloadingManager, PolicyContractError
from stateful_models import operations as op
from stateful_models.engines.base import Breach
from stateful_models.engines.manager_drawing import ManagerScheduler
from stateful_models.engines.manager_laws import Law
from stateful_models.engines.manager_runs import ManagerRun
from stateful_models.engines.managers import ManagerTrial
from stateful_models.engines.runs import ComparedRun
from stateful_models.faulty_policies import FAULTS
from stateful_models.programs import Program

M = TypeVar("M", bound=OffloadingManager)


class FaultyPolicies(Law):
    """Programs under each of the `FAULTS` in turn, of managers that can be given a policy.

    The error of the call that meets the fault is the policy's; everything else that is found
    before or after it is held against the manager.
    """

    name: ClassVar[str] = "faults"
    clauses: ClassVar[tuple[str, ...]] = ("STORE-10",)

    @override
    def run(self, trial: ManagerTrial[M]) -> None:
        # Named errors of a policy's mistakes are beyond what the field's managers have.
        if trial.mistakes and trial.capabilities.tap:
            super().run(trial)

    @override
    def draw(self, trial: ManagerTrial[M], chance: Random) -> Program:
        settings = evolve(
            trial.draw(chance, mistakes=False), tapped=False, fault=chance.choice(FAULTS)
        )
        run = trial.begin(chance.choice((2, 3, 4, 5)), settings, watchful=True)
        scheduler = ManagerScheduler(chance, run)
        scheduler.play(chance.randint(5, trial.level.length))
        scheduler.drain()
        run.play(op.Reset())
        scheduler.play(5)
        return run.program

    @override
    def broken_by(self, trial: ManagerTrial[M], program: Program) -> Breach | None:
        settings = program.settings
        run = trial.run(program)
        if settings is None or run.fault is None or not run.fault.times:
            return None
        trial.reach.note("policy that errs")
        if run.violations:
            found = run.violations[0]
            text = f"under a policy whose {settings.fault}: {found.clause}: {found.message}"
        elif _said(run):
            return None
        else:
            text = f"the policy's {settings.fault}, and no PolicyContractError was raised"
        # What is wrong under a faultless policy too is none of this.
        without = trial.run(evolve(program, settings=evolve(settings, fault=None)))
        if without.violations:
            return None
        runs = (ComparedRun(f"under a policy whose {settings.fault}", run.played),)
        return Breach("STORE-10", None, text, self.name, program.cut(len(run.program)), runs=runs)


def _said(run: ManagerRun[M]) -> bool:
    return any(isinstance(step.error, PolicyContractError) for step in run.steps)
