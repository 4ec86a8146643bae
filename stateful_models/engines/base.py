"""What engines share: the trial that they belong to, and what they report to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

from attrs import define, evolve, field, frozen
from typing_extensions import override

from kvoffload import CachePolicy
from stateful_models.capabilities import NONE, Capabilities
from stateful_models.contract import CLAUSES, Kind, Profile
from stateful_models.drivers import Driver
from stateful_models.engines.runs import (
    PLAIN,
    MakeInvariants,
    PolicyRun,
    Surroundings,
    run_program,
)
from stateful_models.engines.shrinking import shrink
from stateful_models.invariants.orders import reached_by
from stateful_models.judge import InvariantFailedError, Violation
from stateful_models.levels import QUICK, Level
from stateful_models.programs import Program
from stateful_models.reach import Reach

P = TypeVar("P", bound=CachePolicy)

HANGS: Final = "did not return within"
HURRIED_S: Final = 0.2
"""Real seconds for which a call of what is known to hang is waited."""


@frozen
class Breach:
    """A demand that was broken: `kind` says which of the clause's, `message` how.

    `program` shows it where one does, `expected` and `seen` in words where they say more than the
    message. `programs` is how many the trial had run when it was found. `replayed` is the program
    that its engine finds it with again, where that is not the one that is shown.
    """

    clause: str
    kind: Kind | None
    message: str
    engine: str
    program: Program | None = None
    expected: str = ""
    seen: str = ""
    programs: int = 0
    invariant: str = ""
    promise: str = ""
    replayed: Program | None = None


Demand: TypeAlias = "tuple[str, Kind | None]"
"""The id of a clause, and the class of what it demands."""
Recheck: TypeAlias = Callable[[Program], Breach | None]
"""Whether a program, perhaps a shorter one, shows the same breach, and how it does then."""


class Run(Protocol):
    """A program that was played on a new subject, and judged."""

    @property
    def program(self) -> Program:
        """What was played."""
        ...

    @property
    def violations(self) -> Sequence[Violation]:
        """What the invariants found, in order."""
        ...


DriverT = TypeVar("DriverT")
MakeT = TypeVar("MakeT")
RunT = TypeVar("RunT", bound=Run)


@define
class Trial(ABC, Generic[DriverT, MakeT, RunT]):
    """One subject on trial: what engines need, and what they found.

    `driver` builds and calls it, `make_invariants` makes what judges a run. Of every demand the
    first breach is kept. `programs` counts the runs.
    """

    driver: DriverT
    make_invariants: MakeT
    profile: Profile = field(default=Profile.VLLM, kw_only=True)
    level: Level = field(default=QUICK, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    surroundings: Surroundings = field(default=PLAIN, kw_only=True)
    on_progress: Callable[[str, float], None] = lambda engine, share: None
    now: Callable[[], float] = lambda: 0.0
    """Real seconds, whatever the clock says that the policy sees."""
    reach: Reach = field(factory=Reach)
    programs: int = 0
    breaches: dict[Demand, Breach] = field(factory=dict)
    notes: list[str] = field(factory=list)
    """What a reader should know: advice, figures, budgets that were cut."""
    tried: set[str] = field(factory=set)
    """Clauses that some engine really put to the test."""
    declined: dict[str, str] = field(factory=dict)
    """Why an engine did not try something: the capability or the circumstance, by the id of the
    clause, or by the name of a law that is only a part of one ("POL-6 C") or of none."""

    def count(self) -> None:
        """One more program is played."""
        self.programs += 1

    @abstractmethod
    def run(self, program: Program) -> RunT:
        """Play a program on a new subject, judged by all invariants."""

    def plainer(self, program: Program) -> Iterable[Program]:
        """The same program under plainer circumstances, such as other options of the subject."""
        return ()

    def found(self, breach: Breach, recheck: Recheck | None = None) -> bool:
        """Report a breach; whether it is the first of its demand.

        With `recheck` its program is made short first.
        """
        kind = breach.kind
        if kind is None and breach.clause in CLAUSES:
            kind = CLAUSES[breach.clause].kind
        demand = (breach.clause, kind)
        if demand in self.breaches:
            return False
        breach = evolve(breach, kind=kind, programs=self.programs)
        # Kept at once: making it short runs the policy, and may take long or be interrupted.
        self.breaches[demand] = breach
        if recheck is not None and breach.program is not None:
            self.breaches[demand] = self._shortest(breach, breach.program, recheck)
        return True

    def judged(self, run: RunT, engine: str) -> bool:
        """Report what the invariants found in a run; whether they found anything."""
        for violation in run.violations:
            demand = (violation.clause, violation.kind)
            if violation.raised:
                raise InvariantFailedError(violation.message)
            if demand in self.breaches:
                continue
            program = run.program

            def recheck(
                shorter: Program, demand: tuple[str, Kind | None] = demand
            ) -> Breach | None:
                again = self.run(shorter)
                for found in again.violations:
                    if (found.clause, found.kind) == demand:
                        cut = shorter.cut(len(again.program))
                        return Breach(
                            found.clause,
                            found.kind,
                            found.message,
                            engine,
                            cut,
                            invariant=found.invariant,
                            promise=found.promise,
                        )
                return None

            first = recheck(program)
            if first is None:
                # Not the same twice: the engine of determinism says more about that.
                first = Breach(violation.clause, violation.kind, violation.message, engine, program)
                self.found(evolve(first, message=f"{first.message} (not every time)"))
            else:
                self.found(first, recheck)
        return bool(run.violations)

    def note(self, text: str) -> None:
        """Tell the reader something, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _shortest(self, breach: Breach, program: Program, recheck: Recheck) -> Breach:
        programs = self.programs
        latest = breach

        def still_fails(shorter: Program) -> Program | None:
            nonlocal latest
            again = recheck(shorter)
            if again is None:
                return None
            latest = again
            return again.program

        until = self.now() + self.level.patience_s
        if HANGS in breach.message:
            # What is known to hang is waited for no longer: here, and in all that follows.
            self.surroundings = evolve(self.surroundings, patience_s=HURRIED_S)
        shrink(
            program,
            still_fails,
            self.level.shrinking,
            lambda: self.now() > until,
            plainer=self.plainer,
        )
        # Making failures short is no trial of its own.
        self.programs = programs
        return evolve(latest, kind=breach.kind, programs=breach.programs, engine=breach.engine)


@define
class PolicyTrial(Trial[Driver[P], MakeInvariants, PolicyRun[P]], Generic[P]):
    """One policy on trial, which is held to its `capabilities`."""

    capabilities: Capabilities = field(default=NONE, kw_only=True)

    @override
    def judged(self, run: PolicyRun[P], engine: str) -> bool:
        self.tried.update(reached_by(run.judge.invariants))
        return super().judged(run, engine)

    def begin(
        self,
        capacity: int,
        *,
        watchful: bool = False,
        asks_in_vain: bool = True,
        surroundings: Surroundings | None = None,
    ) -> PolicyRun[P]:
        """A run on a new policy, on which operations can be played one by one."""
        self.count()
        return PolicyRun(
            self.driver,
            capacity,
            self.make_invariants(capacity),
            watchful=watchful,
            surroundings=self.surroundings if surroundings is None else surroundings,
            asks_in_vain=asks_in_vain,
            reach=self.reach,
        )

    @override
    def run(self, program: Program) -> PolicyRun[P]:
        """Play a program on a new policy, judged by all invariants."""
        self.count()
        return run_program(
            self.driver,
            program,
            self.make_invariants,
            surroundings=self.surroundings,
            reach=self.reach,
        )


class AnyEngine(ABC):
    """One way of trying a subject. `name` is how reports call it, `clauses` what it judges.

    One that `compares` holds runs of a program against each other, or against what no invariant is
    told: what it finds no single judged run would show, and its `broken_by` finds it again.
    """

    name: ClassVar[str]
    clauses: ClassVar[tuple[str, ...]]
    compares: ClassVar[bool] = False

    def paced(
        self, trial: Trial[DriverT, MakeT, RunT], things: Iterable[Program]
    ) -> Iterable[Program]:
        """The programs, one by one with progress, until the patience of the level ends."""
        programs = list(things)
        until = trial.now() + trial.level.patience_s
        for number, program in enumerate(programs):
            trial.on_progress(self.name, number / len(programs))
            if trial.now() > until:
                trial.note(f"{self.name}: cut after {number} of {len(programs)} programs")
                return
            yield program


class Engine(AnyEngine):
    """One way of trying a policy."""

    @abstractmethod
    def run(self, trial: PolicyTrial[P]) -> None:
        """Try the policy, and report to the trial."""

    def broken_by(self, trial: PolicyTrial[P], program: Program) -> Breach | None:
        """How the program breaks what one that `compares` judges; None if it does not."""
        return None
