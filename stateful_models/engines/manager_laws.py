"""Laws of managers: twice the same, anew after a reset, and free again once all is completed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from random import Random
from typing import ClassVar, Final, NamedTuple, TypeVar

from attrs import evolve
from typing_extensions import override

from kvoffload import OffloadingManager
from stateful_models import operations as op
from stateful_models.contract import Kind
from stateful_models.engines.base import Breach, Recheck
from stateful_models.engines.manager_drawing import ManagerScheduler
from stateful_models.engines.manager_runs import ManagerRun, options_of
from stateful_models.engines.managers import ManagerEngine, ManagerTrial
from stateful_models.engines.runs import ComparedRun
from stateful_models.invariants.events import BACKLOG_FLOOR, BACKLOG_PER_SLOT
from stateful_models.programs import ManagerSettings, Program, keys
from stateful_models.steps import Loaded, Result, Step, Stored
from stateful_models.subjects import ManagerSubject
from stateful_models.trial.hang import DidNotReturn

M = TypeVar("M", bound=OffloadingManager)

_LOADS = (op.PrepareLoad, op.CompleteLoad)
_BACKLOG_CHUNKS: Final = 8
_BACKLOG_OFFERS: Final = (BACKLOG_PER_SLOT * _BACKLOG_CHUNKS + BACKLOG_FLOOR) // _BACKLOG_CHUNKS
"""As many keys are stored as a backlog may have, and nearly as many evicted."""


class Law(ManagerEngine):
    """Holds `level.laws` programs of hosts that make no mistakes against one law."""

    compares: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    @override
    def run(self, trial: ManagerTrial[M]) -> None:
        count = trial.level.laws
        until = trial.now() + trial.level.patience_s
        for number in range(count):
            trial.on_progress(self.name, number / count)
            if trial.is_over(until):
                trial.cut(self, number, count)
                break
            program = self.draw(trial, Random(f"{trial.seed} {self.name} {number}"))
            breach = self.broken_by(trial, program)
            if breach is not None:
                trial.found(breach, self._recheck(trial))
        trial.has_tried(self.clauses)

    def _recheck(self, trial: ManagerTrial[M]) -> Recheck:
        return lambda program: self.broken_by(trial, program)

    def draw(self, trial: ManagerTrial[M], chance: Random) -> Program:
        """A program that may break the law."""
        run = trial.begin(
            chance.choice(trial.capacities),
            trial.draw(chance, mistakes=False),
            watchful=False,
            judged=False,
        )
        scheduler = ManagerScheduler(chance, run)
        scheduler.play(chance.randint(5, trial.level.length))
        self.go_on(run, scheduler, chance)
        return run.program

    def go_on(self, run: ManagerRun[M], scheduler: ManagerScheduler[M], chance: Random) -> None:
        """What more the program takes; by default that everything ends."""
        scheduler.drain()

    @override
    @abstractmethod
    def broken_by(self, trial: ManagerTrial[M], program: Program) -> Breach | None: ...


class SameTwice(Law):
    """The same calls to two new managers of one process are answered alike (POL-5)."""

    name: ClassVar[str] = "determinism"
    clauses: ClassVar[tuple[str, ...]] = ("POL-5",)

    @override
    def broken_by(self, trial: ManagerTrial[M], program: Program) -> Breach | None:
        first, second = played(trial, program), played(trial, program)
        for number, (one, other) in enumerate(zip(first.played, second.played, strict=False)):
            before = [_answer(step) for step in one.steps]
            after = [_answer(step) for step in other.steps]
            if before != after:
                return Breach(
                    "POL-5",
                    None,
                    f"{one.operation} was answered otherwise by another new manager",
                    self.name,
                    program.cut(number + 1),
                    expected=_text(one.steps),
                    seen=_text(other.steps),
                    runs=(
                        ComparedRun("a new manager", first.played[: number + 1]),
                        ComparedRun("another new manager", second.played[: number + 1]),
                    ),
                )
        return None


class AsNew(Law):
    """After a reset a manager answers as a new one does (GEN-1)."""

    name: ClassVar[str] = "reset"
    clauses: ClassVar[tuple[str, ...]] = ("GEN-1",)

    @override
    def go_on(self, run: ManagerRun[M], scheduler: ManagerScheduler[M], chance: Random) -> None:
        run.play(op.Reset())
        run.play(op.TakeEvents())
        run.play(op.GetStats())
        scheduler.play(chance.randint(3, 15))
        scheduler.drain()
        run.play(op.TakeEvents())
        run.play(op.GetStats())

    @override
    def broken_by(self, trial: ManagerTrial[M], program: Program) -> Breach | None:
        run = played(trial, program)
        for place, step, other in _beside_a_new_one(trial, run):
            if _answer(step) != _answer(other):
                return Breach(
                    "GEN-1",
                    Kind.REFERENCE,
                    f"after a reset {step.operation} is not answered as by a new manager",
                    self.name,
                    program.cut(place + 1),
                    expected=_text([other]),
                    seen=_text([step]),
                    runs=(ComparedRun("after a reset", run.played[: place + 1]),),
                )
        return None


class FreeAgain(Law):
    """Once every load is completed as many new keys fit as if there had been none (PIN-1)."""

    name: ClassVar[str] = "quiescence"
    clauses: ClassVar[tuple[str, ...]] = ("PIN-1",)

    @override
    def run(self, trial: ManagerTrial[M]) -> None:
        # Of one that refuses by design a refusal says nothing; its figures are judged elsewhere.
        if trial.capabilities.may_refuse is None:
            super().run(trial)

    @override
    def go_on(self, run: ManagerRun[M], scheduler: ManagerScheduler[M], chance: Random) -> None:
        """Nothing: the last offer is made by the law."""

    @override
    def broken_by(self, trial: ManagerTrial[M], program: Program) -> Breach | None:
        run = played(trial, program)
        if run.over or not self._refuses(run):
            return None
        without = [one for one in program.operations if not isinstance(one, _LOADS)]
        other = played(trial, program.with_operations(without))
        if other.over or self._refuses(other):
            return None
        return Breach(
            "PIN-1",
            None,
            f"with every transfer completed, as many new keys as there are slots ({run.capacity}) "
            "are refused, and fit when nothing was loaded before",
            self.name,
            program,
            runs=(
                ComparedRun("nothing loaded", other.played),
                ComparedRun("everything that is loaded is completed", run.played),
            ),
        )

    def _refuses(self, run: ManagerRun[M]) -> bool:
        fresh = keys(" ".join(f"new{number}" for number in range(run.capacity)))
        steps: list[Step | None] = [None]

        def offer() -> None:
            run.settle()
            for _ in range(max(1, run.settings.store_threshold)):
                steps.append(run.host.play(op.PrepareStore("last", fresh)))

        run.guard(offer)
        last = steps[-1]
        return not run.over and last is not None and last.result is None and last.error is None


class Undrained(ManagerEngine):
    """Events that nobody takes for long do not pile up without end (EVT-4).

    What the invariants say of the one drain that follows is reported, without the program, of
    which nothing could be left out.
    """

    name: ClassVar[str] = "backlog"
    independent: ClassVar[bool] = True
    clauses: ClassVar[tuple[str, ...]] = ("EVT-4",)

    @override
    def run(self, trial: ManagerTrial[M]) -> None:
        if not trial.capabilities.events:
            return
        policies = trial.driver.policies
        settings = ManagerSettings(policy=policies[0] if policies else None)
        run = trial.begin(_BACKLOG_CHUNKS, settings, watchful=False)
        for number in range(_BACKLOG_OFFERS):
            offered = keys(" ".join(f"k{number}-{place}" for place in range(_BACKLOG_CHUNKS)))
            if not run.play(op.PrepareStore("r0", offered, number)):
                return
            if not run.play(op.CompleteStore("r0", offered, attempt=number)):
                return
        run.play(op.TakeEvents())
        trial.reach.note("backlog of many keys")
        for violation in run.violations:
            if violation.clause in self.clauses:
                text = f"{violation.message}, after {_BACKLOG_OFFERS} offers without a drain"
                trial.found(Breach(violation.clause, violation.kind, text, self.name))
        trial.has_tried(self.clauses)


class _Compared(NamedTuple):
    place: int
    step: Step
    other: Step


def played(trial: ManagerTrial[M], program: Program) -> ManagerRun[M]:
    """The program on a new manager, judged by nothing."""
    settings = ManagerSettings() if program.settings is None else program.settings
    run = trial.begin(program.capacity, settings, watchful=program.watchful, judged=False)
    for operation in program.operations:
        if not run.play(operation):
            break
    return run


def _beside_a_new_one(trial: ManagerTrial[M], run: ManagerRun[M]) -> Iterator[_Compared]:
    """The calls after the last reset, and what a new manager answers to them.

    What a reset leaves to be told, an event and figures not yet asked for, is left out.
    """
    places = [n for n, one in enumerate(run.played) if isinstance(one.operation, op.Reset)]
    if not places:
        return
    surroundings = trial.surroundings
    surroundings.restart()
    manager = surroundings.build(lambda: trial.driver.build(options_of(run.capacity, run.settings)))
    subject = ManagerSubject(manager, advance_clock=surroundings.advance)
    for before in run.played[: places[-1]]:
        # What the host has told its contexts is no matter of the manager.
        if isinstance(before.operation, op.SetPositions):
            subject.perform(before.operation)
        elif isinstance(before.operation, op.NewRequest):
            subject.contexts.announce(before.operation)
    untold: set[type[op.Operation]] = {op.TakeEvents, op.GetStats}
    for place, after in enumerate(run.played):
        if place <= places[-1]:
            continue
        for step in after.steps:
            surroundings.calling(step.operation.verb)
            try:
                with surroundings.limit():
                    other = subject.perform(step.operation)
            except DidNotReturn:
                # Whoever judges single calls finds that.
                surroundings.hung()
                return
            finally:
                surroundings.calling("")
            kind = type(step.operation)
            if kind in untold:
                untold.remove(kind)
            else:
                yield _Compared(place, step, other)


def _answer(step: Step) -> tuple[Result, str]:
    result = step.result
    if isinstance(result, (Loaded, Stored)):
        # Tickets may go on counting over all managers.
        result = evolve(result, ticket=None)
    return result, "" if step.error is None else type(step.error).__name__


def _text(steps: Sequence[Step]) -> str:
    return "; ".join(str(step).strip().partition("  ")[2] for step in steps)
