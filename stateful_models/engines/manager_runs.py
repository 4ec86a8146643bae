"""One run of a program on a manager, judged step by step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Final, Generic, TypeAlias, TypeVar

from attrs import evolve
from typing_extensions import override

from kvoffload import OffloadingManager, OffloadKey
from kvoffload.errors import (
    InvariantError,
    PolicyContractError,
)
from kvoffload.keys import MIN_KEY_BYTES
from stateful_models import operations as op
from stateful_models.account import Account
from stateful_models.contract import CLAUSES, Kind
from stateful_models.engines.calling import Calling
from stateful_models.engines.manager_predictions import Predictions, predictions_for
from stateful_models.engines.manager_situations import Situations
from stateful_models.engines.runs import GOES_ON, PLAIN, Played, Surroundings
from stateful_models.faulty_policies import Fault, faulty
from stateful_models.hosting import HostState
from stateful_models.invariants import Invariant, manager_invariants
from stateful_models.invariants.refusals import CLAUSE_OF
from stateful_models.judge import Judge, Violation
from stateful_models.manager_drivers import ManagerCapabilities, ManagerDriver, ManagerOptions
from stateful_models.manager_hosting import ManagerHost
from stateful_models.policy_tap import Tap
from stateful_models.programs import HostOperation, ManagerSettings, Program, keys_of
from stateful_models.reach import Reach
from stateful_models.steps import Result, Step
from stateful_models.subjects import Contexts, ManagerSubject
from stateful_models.trial.hang import DidNotReturn

M = TypeVar("M", bound=OffloadingManager)

MakeManagerInvariants: TypeAlias = Callable[[ManagerOptions], Sequence[Invariant[Account]]]
"""Makes new invariants for one run of a manager built like this, for they may keep state."""

OBSERVER: Final = "observer"
"""The request in whose name keys are looked up that nobody asked for."""

_AGREEING: Final = frozenset(
    (
        "EVT-2",
        "EVT-4",
        "FIN-1",
        "LOAD-5",
        "MET-1",
        "MET-2",
        "STORE-3",
        "STORE-6",
        "STORE-8",
        "STORE-9",
        "STORE-12",
        "TOUCH-1",
    )
)
"""Clauses after whose breach the books of host and manager still agree, if it was none of safety;
what is wrong is what was announced, counted, told to the policy or left out."""

NEEDED_FOR: Final[Mapping[str, str]] = {kind.verb: clause for kind, clause in CLAUSE_OF.items()}
"""By its name, the clause that a call breaks when it does not return, or ends the process. For any
other call it is SPECS-3."""


class _OverError(Exception):
    """Nothing that a run could still show would be worth anything."""


class _Driven(ManagerSubject, Generic[M]):
    def __init__(
        self, manager: M, driver: ManagerDriver[M], surroundings: Surroundings, tap: Tap | None
    ) -> None:
        super().__init__(manager, advance_clock=surroundings.advance, tap=tap)
        self.contexts: Contexts = Contexts(surroundings.make_hints)
        self._driver = driver
        self._own = manager
        self._watch = surroundings.watch or nullcontext()

    @override
    def _call(self, operation: op.Operation) -> Result:
        with self._watch:
            if isinstance(operation, op.HostEvent):
                self._driver.perform_event(self._own, operation)
                return None
            return super()._call(operation)


class ManagerRun(Generic[M]):
    """A new manager of the driver's, which operations are played on one by one.

    `account` are the books of its host. It is over at the first breach after which they and the
    manager no longer agree. `predictions` judge what no invariant objected to.
    """

    def __init__(
        self,
        driver: ManagerDriver[M],
        capacity: int,
        settings: ManagerSettings,
        make_invariants: MakeManagerInvariants,
        *,
        watchful: bool = False,
        surroundings: Surroundings = PLAIN,
        reach: Reach | None = None,
        predictions: Predictions | None = None,
    ) -> None:
        surroundings.restart()
        options = options_of(capacity, settings)
        tap = Tap(settings.policy) if settings.tapped else None
        self.fault: Fault | None = None if settings.fault is None else faulty(settings.fault)
        built = options
        if self.fault is not None:
            built = evolve(options, cache_policy=self.fault.policy_cls)
        elif tap is not None:
            built = evolve(options, cache_policy=tap.policy_cls)
        self.manager: M = surroundings.build(lambda: driver.build(built))
        # A policy of another class was made, or none yet: then nobody listens.
        if tap is not None and not tap.drain():
            tap = None
        self.subject: _Driven[M] = _Driven(self.manager, driver, surroundings, tap)
        self.account: Account = Account(capacity)
        self.host: ManagerHost = ManagerHost(
            self._perform,
            self.account,
            mistakes=settings.mistakes,
            internal_loads=_takes_internal(self.manager),
        )
        self.judge: Judge[Account] = Judge(make_invariants(options), self.account)
        self.capacity = capacity
        self.settings = settings
        self._driver = driver
        self.watchful = watchful
        self.played: list[Played] = []
        self.violations: list[Violation] = []
        self.over: bool = False
        self.reach: Reach = Reach() if reach is None else reach
        self._predictions = predictions
        self._surroundings = surroundings
        self._calling = Calling()
        self._steps: list[Step] = []
        self._settles: int | None = None
        self._named: dict[OffloadKey, None] = {}
        self._situations = Situations(
            self.reach, self.host, evolve(settings, tapped=tap is not None)
        )

    @property
    def operations(self) -> tuple[HostOperation, ...]:
        """What was played so far."""
        return tuple(played.operation for played in self.played)

    @property
    def program(self) -> Program:
        """What was played so far, as a program."""
        return Program(self.capacity, self.operations, self.watchful, self.settings)

    @property
    def steps(self) -> list[Step]:
        """Every call that was made, in order."""
        return [step for played in self.played for step in played.steps]

    @property
    def state(self) -> HostState:
        """The books in numbers."""
        account = self.account
        return HostState(len(account.resident), account.pinned, account.pending, account.free or 0)

    def play(self, operation: HostOperation) -> bool:
        """Play an operation; whether the run goes on."""
        if self.over:
            return False
        self._named.update((key, None) for key in keys_of(operation) if len(key) >= MIN_KEY_BYTES)
        self._steps = []
        self.guard(lambda: self._play_one(operation))
        self.played.append(Played(operation, tuple(self._steps), self.state))
        return not self.over

    def end(self) -> None:
        """Let everything in flight end, and look at all there is, so that nothing stays unseen."""
        if self.over or not self.played:
            return
        last = self.played[-1]
        self._steps = list(last.steps)
        self._settles = None
        self.guard(self._finish)
        self.played[-1] = Played(
            last.operation, tuple(self._steps), last.state, self._settles, self.state
        )

    def settle(self) -> None:
        """Let everything in flight end well."""
        for _ in self.host.settle():
            pass
        self._situations.note_settled()

    def guard(self, act: Callable[[], None]) -> None:
        """Do something with the run, which is over if that fails or a call does not return."""
        try:
            with self._surroundings.limit(during=self._calling):
                act()
        except _OverError:
            self.over = True
        except DidNotReturn as hanging:
            self._hang(hanging)

    def _hang(self, hanging: DidNotReturn) -> None:
        self.over = True
        operation = self._calling.operation
        self._surroundings.calling("")
        self._calling.hangs(hanging, self._driver, ManagerDriver)
        self._surroundings.hung()
        number = max((step.number for step in (*self.steps, *self._steps)), default=0) + 1
        step = Step(number, operation, None, hanging)
        self._steps.append(step)
        clause = NEEDED_FOR.get(operation.verb, "SPECS-3")
        self.violations.append(
            Violation(
                clause,
                f"{operation.verb} {hanging}",
                step.number,
                (str(step),),
                promise=CLAUSES[clause].parts[0].sentence,
                kind=CLAUSES[clause].kind,
            )
        )

    def _play_one(self, operation: HostOperation) -> None:
        self.host.play(operation)
        if self.watchful:
            self._look_up(self._named)

    def _finish(self) -> None:
        if not self.watchful:
            self._look_up(self._named)
        in_flight = {key: None for one in self.host.open for key in one.keys_left}
        if in_flight:
            self._settles = len(self._steps)
        self.settle()
        self._look_up(in_flight)
        self._perform(op.TakeEvents())
        self._perform(op.GetStats())
        if self.settings.mistakes:
            for request in sorted({one.request for one in self.host.past}):
                self._perform(op.Outstanding(request))
        self._check_inside()

    def _look_up(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            self._perform(op.Lookup(OBSERVER, key))

    def _perform(self, operation: op.Operation) -> Step:
        # What a call meets is only known before it is written down.
        before = self._situations.before(operation)
        self._calling.calls(operation)
        self._surroundings.calling(operation.verb)
        step = self.subject.perform(operation)
        self._surroundings.calling("")
        self._steps.append(step)
        self._calling.judges()
        found = self.judge.judge(step)
        # What a look-up answers is held against the books already, and changes nothing.
        if self._predictions is not None and type(operation) is not op.Lookup:
            found = found or self._predictions.judge(step)
        self._calling.ends()
        self._situations.note(step, before)
        if self.fault is not None and isinstance(step.error, PolicyContractError):
            # This much is the policy's doing, and the manager says so.
            clause = step.error.clause
            found = [violation for violation in found if violation.clause != clause]
            if not found:
                return step
        if found:
            # A model that has once been wrong about a manager knows nothing of it any more.
            self._predictions = None
            self.violations += found
            self._ask_for_others(operation)
            if step.error is not None or not all(map(_goes_on, found)):
                raise _OverError
        if step.error is not None and not self.settings.mistakes:
            raise _OverError
        return step

    def _ask_for_others(self, operation: op.Operation) -> None:
        """Whether a wrong look-up is wrong for everybody, or for this request only (TIER-3)."""
        if isinstance(operation, op.Lookup) and operation.request != OBSERVER:
            step = self.subject.perform(op.Lookup(OBSERVER, operation.key))
            self._steps.append(step)
            self.violations += self.judge.judge(step)

    def _check_inside(self) -> None:
        """Have a manager that is ours look at its own books."""
        check: object = getattr(self.manager, "check", None)
        if self._predictions is None or not callable(check):
            return
        try:
            check()
        except InvariantError as broken:
            last = self._steps[-1]
            self.violations.append(
                Violation(
                    "SLOT-1",
                    f"its own check finds {broken}",
                    last.number,
                    (str(last),),
                    invariant="check",
                    promise=CLAUSES["SLOT-1"].sentence,
                    kind=Kind.SAFETY,
                )
            )


def _goes_on(violation: Violation) -> bool:
    return violation.kind in GOES_ON and violation.clause in _AGREEING


def options_of(capacity: int, settings: ManagerSettings) -> ManagerOptions:
    """How a manager is to be built for a program of this capacity and these settings."""
    return ManagerOptions(
        num_chunks=capacity,
        cache_policy=settings.policy,
        store_threshold=settings.store_threshold,
        enable_events=settings.enable_events,
        max_tracker_size=settings.max_tracker_size,
    )


def usual_invariants(
    capabilities: ManagerCapabilities,
    own: Callable[[int], Sequence[Invariant[Account]]] = lambda capacity: (),
) -> MakeManagerInvariants:
    """What makes every family of invariants, with those of `own`, new ones each time.

    `own` is told of how many chunks the manager is.
    """

    def make(options: ManagerOptions) -> Sequence[Invariant[Account]]:
        return [
            *manager_invariants(
                store_threshold=options.store_threshold,
                enable_events=options.enable_events,
                may_refuse=capabilities.may_refuse is not None,
                max_tracker_size=options.max_tracker_size,
            ),
            *own(options.num_chunks),
        ]

    return make


def run_manager_program(
    driver: ManagerDriver[M],
    program: Program,
    make_invariants: MakeManagerInvariants,
    *,
    reference: bool = False,
    surroundings: Surroundings = PLAIN,
    reach: Reach | None = None,
) -> ManagerRun[M]:
    """Play a whole program on a new manager; with `reference` held against the model too."""
    settings = ManagerSettings() if program.settings is None else program.settings
    run = ManagerRun(
        driver,
        program.capacity,
        settings,
        make_invariants,
        watchful=program.watchful,
        surroundings=surroundings,
        reach=reach,
        predictions=predictions_for(program.capacity, settings) if reference else None,
    )
    for operation in program.operations:
        if not run.play(operation):
            break
    run.end()
    return run


def _takes_internal(manager: OffloadingManager) -> bool:
    parameters: Mapping[str, inspect.Parameter] = inspect.signature(manager.prepare_load).parameters
    return "record_access" in parameters or any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )
