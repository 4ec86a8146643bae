"""One run of a program on a policy, judged step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Generic, TypeAlias, TypeVar

from attrs import field, frozen

from kvoffload import CachePolicy, OffloadKey
from stateful_models import operations as op
from stateful_models.contract import CLAUSES, Kind
from stateful_models.drivers import Driver
from stateful_models.engines.calling import Calling
from stateful_models.hosting import HostState, PolicyHost
from stateful_models.invariants import Invariant, PolicyBooks
from stateful_models.invariants.policies import MARKED_AS, MARKS
from stateful_models.judge import Judge, Violation
from stateful_models.policy_subject import PolicySubject
from stateful_models.programs import HostOperation, Program, keys
from stateful_models.reach import Reach
from stateful_models.steps import Step, Victims
from stateful_models.trial.hang import Alarm, DidNotReturn, time_limit

P = TypeVar("P", bound=CachePolicy)
T = TypeVar("T")

MakeInvariants: TypeAlias = Callable[[int], Sequence[Invariant[PolicyBooks]]]
"""Makes new invariants for one run of a policy of this capacity, for they may keep state."""

GOES_ON: Final = (Kind.HOST, Kind.LIVENESS, Kind.ADVICE)
"""After a breach of this class the books of host and policy still agree, so that a run goes on."""


BUILDING: Final = "constructor"
"""What is called while a subject is built, where others have the name of a call."""
BUILD_PATIENCE: Final = 10
"""A constructor may take as many times as long as a call."""


class NotBuiltError(Exception):
    """A constructor did not return."""


class _OverError(Exception):
    """Nothing that a run could still show would be worth anything."""


@frozen
class Surroundings:
    """What a policy meets beside its host; each run begins with the same.

    `restart` sets the clock back to its first reading, `advance` lets time pass. A call that works
    for more than `patience_s` seconds, or waits for as many times that as `time_limit` says, is
    ended, and counts as one that does not return; then `hung` is called. An `alarm` that is set
    makes waiting for that cheap. `watch` is entered around each call. `calling` is told what is
    called, by its name, and "" when that is over.
    """

    restart: Callable[[], object] = lambda: None
    advance: Callable[[float], object] = lambda seconds: None
    make_hints: Callable[[Mapping[str, object]], dict[str, object]] = dict
    make_keys: Callable[[Sequence[OffloadKey]], Iterable[OffloadKey]] = list
    patience_s: float | None = None
    alarm: Alarm | None = None
    watch: AbstractContextManager[object] | None = None
    calling: Callable[[str], object] = lambda name: None
    hung: Callable[[], object] = lambda: None

    def limit(
        self, times: int = 1, during: Callable[[], object] | None = None
    ) -> AbstractContextManager[object]:
        """Ends what takes too long, or so many times as long. `during` is that of `time_limit`."""
        if self.patience_s is None:
            return nullcontext()
        return time_limit(times * self.patience_s, during, self.alarm)

    def build(self, make: Callable[[], T]) -> T:
        """A new subject. Raises NotBuiltError when its constructor does not return."""
        self.calling(BUILDING)
        try:
            with self.limit(BUILD_PATIENCE), self.watch or nullcontext():
                return make()
        except DidNotReturn as hanging:
            raise NotBuiltError(str(hanging)) from hanging
        finally:
            self.calling("")


PLAIN: Final = Surroundings()


@frozen
class Played:
    """One operation of a program: the calls that it came to, and the state after them.

    Of the last one they are followed by what a host does in the end by itself; where that begins
    by completing every transfer, `settles` says after how many steps, and `settled` is the state
    when all is done.
    """

    operation: HostOperation
    steps: tuple[Step, ...]
    state: HostState
    settles: int | None = None
    settled: HostState | None = None


@frozen
class ComparedRun:
    """A run that is held against another: `when` it is made, and what was `played`.

    Its operations are numbered from `first`. `names` are how keys are shown that have other names
    in it, by their text.
    """

    when: str
    played: Sequence[Played]
    first: int = 1
    names: Mapping[str, str] = field(factory=dict)


def place_of(violation: Violation, played: Sequence[Played]) -> int:
    """The place of the operation in which something was broken, from 0."""
    for place, one in enumerate(played):
        if one.steps and one.steps[-1].number >= violation.number:
            return place
    return len(played) - 1


class PolicyRun(Generic[P]):
    """A new policy of the driver's, which operations are played on one by one.

    It is over at the first breach after which host and policy no longer agree. Of the key that it
    `looks_for` it asks after every single call, so that the one is found which loses it.
    """

    def __init__(
        self,
        driver: Driver[P],
        capacity: int,
        invariants: Sequence[Invariant[PolicyBooks]],
        *,
        watchful: bool = False,
        surroundings: Surroundings = PLAIN,
        asks_in_vain: bool = True,
        reach: Reach | None = None,
        policy: P | None = None,
        looks_for: OffloadKey | None = None,
    ) -> None:
        surroundings.restart()
        self.policy: P = (
            surroundings.build(lambda: driver.build(capacity)) if policy is None else policy
        )
        self.subject: PolicySubject[P] = PolicySubject(
            self.policy,
            driver,
            advance_clock=surroundings.advance,
            make_hints=surroundings.make_hints,
            make_keys=surroundings.make_keys,
            watch=surroundings.watch,
        )
        self.host: PolicyHost = PolicyHost(
            capacity, self._perform, driver.host, asks_in_vain=asks_in_vain
        )
        self.judge: Judge[PolicyBooks] = Judge(invariants, PolicyBooks())
        self.watchful = watchful
        self.played: list[Played] = []
        self.violations: list[Violation] = []
        self.over: bool = False
        self.reach: Reach = Reach() if reach is None else reach
        self._surroundings = surroundings
        self._looks_for = looks_for
        self._calling = Calling()
        self._steps: list[Step] = []
        self._named: dict[OffloadKey, None] = {}

    @property
    def operations(self) -> tuple[HostOperation, ...]:
        """What was played so far."""
        return tuple(played.operation for played in self.played)

    @property
    def program(self) -> Program:
        """What was played so far, as a program."""
        return Program(self.host.capacity, self.operations, self.watchful)

    @property
    def strayed(self) -> OffloadKey | None:
        """A key that was lost, or came back, in a call of which is not known which it was."""
        return next((found.strayed for found in self.violations if found.strayed), None)

    def shows_stray(self, key: OffloadKey) -> bool:
        """Whether it ended since this key strayed, in a call that is known."""
        if not (self.over and self.violations and self.strayed is None):
            return False
        last = self.played[-1].steps[-1].operation
        return isinstance(last, op.Get) and last.key == key

    @property
    def victims(self) -> list[tuple[OffloadKey, ...] | None]:
        """The answer of each eviction, in order: the choices that the policy made."""
        return [
            step.result.keys if isinstance(step.result, Victims) else None
            for played in self.played
            for step in played.steps
            if isinstance(step.operation, op.Evict)
        ]

    def play(self, operation: HostOperation, named: Sequence[OffloadKey] = ()) -> bool:
        """Play an operation, in which `named` keys occur; whether the run goes on."""
        if self.over:
            return False
        self._named.update(dict.fromkeys(named))
        self._steps = []
        resident = set(self.host.ref_cnt)
        try:
            with self._surroundings.limit(during=self._calling):
                self.host.play(operation)
                if self.watchful:
                    self._look_all_up()
        except _OverError:
            self.over = True
        except DidNotReturn as hanging:
            self._hang(hanging)
        state = self.host.state
        self._note(resident, state)
        self.played.append(Played(operation, tuple(self._steps), state))
        return not self.over

    def end(self) -> None:
        """Look every key up, so that nothing that went wrong stays unseen."""
        if not self.over and not self.watchful and self.played:
            self._steps = list(self.played[-1].steps)
            try:
                with self._surroundings.limit(during=self._calling):
                    self._look_all_up()
            except _OverError:
                self.over = True
            except DidNotReturn as hanging:
                self._hang(hanging)
            last = self.played[-1]
            self.played[-1] = Played(last.operation, tuple(self._steps), last.state)

    def _look_all_up(self) -> None:
        for key in self._named:
            self._perform(op.Get(key))

    def _hang(self, hanging: DidNotReturn) -> None:
        self.over = True
        self._surroundings.calling("")
        self._calling.hangs(hanging, self.subject.driver, Driver)
        self._surroundings.hung()
        operation = self._calling.operation
        step = Step(len(self._steps) + 1, operation, None, hanging)
        self._steps.append(step)
        message = f"{operation.verb} {hanging}"
        sentence = CLAUSES["POL-7"].part(Kind.SAFETY).sentence
        self.violations.append(
            Violation("POL-7", message, step.number, (str(step),), "", sentence, kind=Kind.SAFETY)
        )

    def _perform(self, operation: op.Operation) -> Step:
        if self._looks_for is not None and isinstance(operation, MARKS):
            # `get` may look at the ref_cnt by itself, before any mark is told.
            self._call(op.SetRefCount(operation.key, MARKED_AS[type(operation)]))
            self._look()
        step = self._call(operation)
        self._look()
        return step

    def _look(self) -> None:
        """Ask for the key that is looked for."""
        if self._looks_for is None:
            return
        seen = len(self._steps)
        # Twice, since looking may change something as well.
        for _ in range(2):
            self._call(op.Get(self._looks_for))
        # It was found, which nobody need read.
        del self._steps[seen:]

    def _call(self, operation: op.Operation) -> Step:
        self._calling.calls(operation)
        self._surroundings.calling(operation.verb)
        step = self.subject.perform(operation)
        self._surroundings.calling("")
        self._steps.append(step)
        self._calling.judges()
        found = self.judge.judge(step)
        self._calling.ends()
        if found:
            self.violations += found
            if not all(violation.kind in GOES_ON for violation in found):
                raise _OverError
        if step.error is not None:
            raise _OverError
        return step

    def _note(self, resident: set[OffloadKey], state: HostState) -> None:
        """Count what the last operation met: `resident` keys before it, this `state` after it."""
        reach = self.reach
        for step in self._steps:
            operation = step.operation
            if type(operation) is op.Evict:
                evicted = isinstance(step.result, Victims)
                reach.note("eviction", evicted)
                reach.note("refused eviction", not evicted)
                reach.note("eviction beside pins", evicted and state.pinned > 0)
                reach.note("eviction beside pending chunks", evicted and state.pending > 0)
                reach.note("eviction of several", evicted and operation.count > 1)
                beside = not operation.protected.isdisjoint(resident)
                reach.note("eviction beside keys of the offer", evicted and beside)
            elif type(operation) is op.Remove:
                reach.note("failed store")
            elif type(operation) is op.RequestFinished:
                reach.note("finished request")
                reach.note("finished request that reused", bool(operation.reused))
            elif type(operation) is op.Clear:
                reach.note("reset")
            elif type(operation) is op.TouchKeys:
                reach.note("touch")
                absent = any(key not in resident for key in operation.keys)
                reach.note("touch of a key that is not resident", absent)
            elif type(operation) is op.SetRefCount:
                reach.note("chunk pinned twice")
            elif type(operation) is op.MarkNonEvictable:
                reach.note("pin")
            elif type(operation) is op.NewRequest:
                reach.note("request with hints", bool(operation.hints))
            elif type(operation) is op.AdvanceClock:
                reach.note("passing of time")
            elif type(operation) is op.HostEvent:
                reach.note("host event")


def run_program(
    driver: Driver[P],
    program: Program,
    make_invariants: MakeInvariants,
    *,
    surroundings: Surroundings = PLAIN,
    reach: Reach | None = None,
) -> PolicyRun[P]:
    """Play a whole program on a new policy.

    Where a key strayed and the call is not known in which it did, it is played again by a host that
    looks for this key after every call; that run is the answer if it shows the call.
    """

    def played(reach: Reach | None = None, looks_for: OffloadKey | None = None) -> PolicyRun[P]:
        run = PolicyRun(
            driver,
            program.capacity,
            make_invariants(program.capacity),
            watchful=program.watchful,
            surroundings=surroundings,
            reach=reach,
            looks_for=looks_for,
        )
        # Where none is named, one is looked up that is not there.
        universe = program.universe or keys("a")
        for operation in program.operations:
            if not run.play(operation, universe):
                break
        run.end()
        return run

    run = played(reach)
    strayed = run.strayed
    if strayed is None:
        return run
    closer = played(looks_for=strayed)
    return closer if closer.shows_stray(strayed) else run
