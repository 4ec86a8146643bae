"""What engines share: the trial that they belong to, and what they report to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from attrs import define, evolve, field, frozen
from typing_extensions import override

from kvoffload import CachePolicy
from kvoffload.wording import percent
from stateful_models.capabilities import NONE, Capabilities
from stateful_models.contract import CLAUSES, Kind, Profile
from stateful_models.drivers import Driver
from stateful_models.engines.runs import (
    PLAIN,
    ComparedRun,
    MakeInvariants,
    Played,
    PolicyRun,
    Surroundings,
    place_of,
    run_program,
)
from stateful_models.engines.shrinking import shrink
from stateful_models.invariants.orders import reached_by
from stateful_models.judge import NOT_ASKED_AGAIN, InvariantFailedError, Violation
from stateful_models.levels import QUICK, Level
from stateful_models.programs import Program
from stateful_models.reach import Reach

P = TypeVar("P", bound=CachePolicy)

HANGS: Final = "did not return within"
HURRIED_S: Final = 0.2
"""Real seconds for which a call of what is known to hang is waited."""
MAX_HANGING: Final = 3
"""As many programs with a call that does not return are enough: each is dear, and convicts."""
MAX_STRAYS: Final = 40
"""In so many programs the call is looked for that loses a key; then all the calls are known."""
MOST_SHORTENED: Final = 4
"""So often a shorter program takes the place of one that shows the same."""
GAVE_UP: Final = f"calls did not return in {MAX_HANGING} programs, and nothing more was tried"


@frozen
class Breach:
    """A demand that was broken: `kind` says which of the clause's, `message` how.

    `program` shows it where one does, `expected` and `seen` in words where they say more than the
    message. `programs` is how many the trial had run when it was found. `replayed` is the program
    that its engine finds it with again, where that is not the one that is shown. `runs` are those
    that were held against each other, up to where they differ.
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
    runs: tuple[ComparedRun, ...] = field(default=(), eq=False, repr=False)


class Cut(NamedTuple):
    """How much an engine did before it ended early: `share` of its programs, depths or worlds.

    `clauses` are all that it judges. It was its time that was up, unless it `hung`: calls did not
    return.
    """

    share: float
    clauses: frozenset[str]
    hung: bool = False


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

    @property
    def played(self) -> Sequence[Played]:
        """The operations, with the calls that each came to."""
        ...


DriverT = TypeVar("DriverT")
MakeT = TypeVar("MakeT")
RunT = TypeVar("RunT", bound=Run)
EngineT = TypeVar("EngineT", bound="AnyEngine")


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
    """Seconds of work, whatever the clock says that the policy sees."""
    reach: Reach = field(factory=Reach)
    programs: int = 0
    breaches: dict[Demand, Breach] = field(factory=dict)
    by_invariants: Collection[str] = field(default=(), kw_only=True)
    """The clauses that are judged in whatever is played: those of the orders that a policy claims,
    and of an author's own."""
    notes: list[str] = field(factory=list)
    """What a reader should know: advice, figures, budgets that were cut."""
    cuts: dict[str, Cut] = field(factory=dict)
    """Which engines ended early, by their names."""
    tried: set[str] = field(factory=set)
    """Clauses that some engine really put to the test."""
    hung: int = 0
    """How many programs had a call that did not return, beside those that make one short."""
    declined: dict[str, str] = field(factory=dict)
    """Why an engine did not try something: the capability or the circumstance, by the id of the
    clause, or by the name of a law that is only a part of one ("POL-6 C") or of none."""
    _shortened: dict[Demand, int] = field(factory=dict, init=False)
    """How often another program was found for what an invariant found, by its demand."""
    _again: bool = field(default=False, init=False)
    """Whether what is played was found to be wrong before."""

    def __attrs_post_init__(self) -> None:
        self.surroundings = evolve(self.surroundings, hung=self._count_hanging)

    def _count_hanging(self) -> None:
        self.hung += not self._again

    @property
    def gave_up(self) -> bool:
        """Whether so many calls did not return that no further programs are played."""
        return self.hung >= MAX_HANGING

    def is_over(self, until: float) -> bool:
        """Whether an engine that may go on until then has to end."""
        return self.gave_up or self.now() > until

    def cut(self, engine: AnyEngine, played: int, of: int, what: str = "programs") -> None:
        """An engine ended before it had played all that it was to play."""
        told = f"{engine.name}: cut after {played} of {of} {what}"
        share = played / of
        if not self.gave_up:
            told += f" ({percent(share)}), for lack of time"
        self._ended_early(engine, share, hung=self.gave_up)
        self.note(told)

    def ended(self, engine: AnyEngine, played: int, of: int) -> None:
        """An engine ended before it had played all its programs, for calls did not return."""
        self._ended_early(engine, played / of, hung=True)
        self.note(f"{engine.name}: ended after {played} of {of} programs, for calls did not return")

    def asked(self, engines: Iterable[EngineT], wants: Callable[[str], bool]) -> list[EngineT]:
        """Those that judge a wanted clause."""
        return [one for one in engines if any(map(wants, one.judged(self.by_invariants)))]

    def due(self, engines: Sequence[EngineT]) -> Iterator[EngineT]:
        """The engines in order, until calls did not return too often."""
        for number, engine in enumerate(engines):
            if self.gave_up:
                for left in engines[number:]:
                    self._ended_early(left, 0.0, hung=True)
                self.note(GAVE_UP)
                return
            yield engine

    def _ended_early(self, engine: AnyEngine, share: float, *, hung: bool) -> None:
        self.cuts[engine.name] = Cut(share, engine.judged(self.by_invariants), hung)

    def count(self) -> None:
        """One more program is played."""
        self.programs += 1

    def uncount(self) -> None:
        """The last program was none of its own: it was played again, to be looked at."""
        self.programs -= 1

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

    def judged(self, run: RunT, engine: str, by: Collection[str] | None = None) -> bool:
        """Report what the invariants found in a run; whether they found anything.

        With `by` only those of these classes, and only what nothing was found against before.
        """
        violations = [found for found in run.violations if by is None or found.invariant in by]
        for violation in violations:
            demand = (violation.clause, violation.kind)
            if violation.raised:
                raise InvariantFailedError(violation.message.removesuffix(NOT_ASKED_AGAIN))
            end = place_of(violation, run.played) + 1
            kept = self.breaches.get(demand)
            if kept is not None and (by is not None or not self._is_plainer(demand, end)):
                continue
            program = run.program

            def recheck(
                shorter: Program, demand: tuple[str, Kind | None] = demand
            ) -> Breach | None:
                again = self.run(shorter)
                for found in again.violations:
                    wanted = by is None or found.invariant in by
                    if wanted and (found.clause, found.kind) == demand:
                        return Breach(
                            found.clause,
                            found.kind,
                            found.message,
                            engine,
                            shorter.cut(place_of(found, again.played) + 1),
                            invariant=found.invariant,
                            promise=found.promise,
                        )
                return None

            with self._playing_again():
                first = recheck(program)
            if kept is not None:
                self._replace(kept, first, recheck)
            elif first is None and HANGS in violation.message:
                self.hung -= not self._again
                self.note(f"{violation.message}, once: when all was done again it returned")
            elif first is None:
                # Not the same twice: the engine of determinism says more about that.
                first = Breach(violation.clause, violation.kind, violation.message, engine, program)
                self.found(evolve(first, message=f"{first.message} (not every time)"))
            else:
                self._shortened[demand] = 0
                self.found(first, recheck)
        return bool(violations)

    def _is_plainer(self, demand: Demand, length: int) -> bool:
        """Whether a program that is so long shows a breach better than the one that is kept."""
        shown = self.breaches[demand].program
        times = self._shortened.get(demand, MOST_SHORTENED)
        return times < MOST_SHORTENED and shown is not None and length < len(shown)

    def _replace(self, kept: Breach, again: Breach | None, recheck: Recheck) -> None:
        """Show the breach by another program, if that can be made shorter than the one kept."""
        demand = (kept.clause, kept.kind)
        self._shortened[demand] += 1
        if again is None or again.program is None or kept.program is None:
            return
        shorter = self._shortest(again, again.program, recheck)
        if shorter.program is not None and len(shorter.program) < len(kept.program):
            found = evolve(shorter, kind=kept.kind, engine=kept.engine, programs=kept.programs)
            self.breaches[demand] = found

    def first_broken(self, program: Program) -> tuple[Sequence[str], int] | None:
        """The clauses of which a program shows first that they are broken, by one call, and the
        number of the operation in which.

        Every key is looked up after each, for else it may show late.
        """
        programs = self.programs
        with self._playing_again():
            run = self.run(evolve(program, watchful=True))
        self.programs = programs
        if not run.violations:
            return None
        first = run.violations[0]
        clauses = [each.clause for each in run.violations if each.number == first.number]
        return clauses, place_of(first, run.played) + 1

    def note(self, text: str) -> None:
        """Tell the reader something, once."""
        if text not in self.notes:
            self.notes.append(text)

    @contextmanager
    def _playing_again(self) -> Generator[None]:
        before, self._again = self._again, True
        try:
            yield
        finally:
            self._again = before

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

        patience_s = self.level.patience_s
        if HANGS in breach.message:
            # What is known to hang is waited for no longer: here, and in all that follows.
            self.surroundings = evolve(self.surroundings, patience_s=HURRIED_S)
            patience_s /= 2
        until = self.now() + patience_s
        with self._playing_again():
            shrink(
                program,
                still_fails,
                self.level.shrinking,
                lambda: self.now() > until,
                plainer=self.plainer,
                # A claim, or what an author asks for, is asked of the driver's hints.
                any_hints=breach.kind in (Kind.SAFETY, Kind.HOST, Kind.LIVENESS),
            )
        # Making failures short is no trial of its own.
        self.programs = programs
        return evolve(latest, kind=breach.kind, programs=breach.programs, engine=breach.engine)


@define
class PolicyTrial(Trial[Driver[P], MakeInvariants, PolicyRun[P]], Generic[P]):
    """One policy on trial, which is held to its `capabilities`.

    `own` are the classes of the author's own among its invariants, by their names.
    """

    capabilities: Capabilities = field(default=NONE, kw_only=True)
    own: Collection[str] = field(default=(), kw_only=True)
    _strays: int = field(default=0, init=False)
    _judges: bool = field(default=True, init=False)

    @override
    def judged(self, run: PolicyRun[P], engine: str, by: Collection[str] | None = None) -> bool:
        if by is not None:
            return super().judged(run, engine, by)
        self.tried.update(reached_by(run.judge.invariants))
        if run.strayed is not None:
            if self._strays >= MAX_STRAYS:
                # Enough is known of how it loses keys.
                return True
            self._strays += 1
            with self._playing_again():
                closer = self.run(run.program)
            self.uncount()
            run = closer if closer.violations else run
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
            self.make_invariants(capacity) if self._judges else (),
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

    @contextmanager
    def unjudged(self) -> Generator[None]:
        """What `begin` returns in this block is judged by nothing, and ends where the policy
        raises. Whole programs, as of `run`, are judged all the same."""
        before, self._judges = self._judges, False
        try:
            yield
        finally:
            self._judges = before

    def run_by_contract(self, program: Program) -> PolicyRun[P]:
        """The same, judged by none of the author's own invariants."""
        self.count()
        return run_program(
            self.driver,
            program,
            lambda capacity: [
                one for one in self.make_invariants(capacity) if type(one).__name__ not in self.own
            ],
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
    judges_all: ClassVar[bool] = False
    """Whether each of its runs is judged by all invariants."""
    independent: ClassVar[bool] = False
    """Whether it needs nothing that engines before it have found out, and takes nothing back."""

    def judged(self, by_invariants: Collection[str]) -> frozenset[str]:
        """All clauses that it judges; `by_invariants` are those that the invariants of a run do."""
        return frozenset(self.clauses).union(by_invariants if self.judges_all else ())

    def paced(
        self, trial: Trial[DriverT, MakeT, RunT], things: Iterable[Program]
    ) -> Iterable[Program]:
        """The programs, one by one with progress, until the patience of the level ends."""
        programs = list(things)
        until = trial.now() + trial.level.patience_s
        for number, program in enumerate(programs):
            trial.on_progress(self.name, number / len(programs))
            if trial.is_over(until):
                trial.cut(self, number, len(programs))
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
