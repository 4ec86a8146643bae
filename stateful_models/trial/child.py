"""The child process of a trial: one target, a clock of its own, and answers on a channel.

Everything that has to know the real time is imported above; the clock is installed before the
target is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from inspect import isabstract
from typing import Any, Final, Generic, TypeAlias, TypeVar

from kvoffload import (
    CachePolicy,
    CachePolicyFactory,
    CPUOffloadingManager,
    OffloadingManager,
)
from kvoffload.errors import KVOffloadError
from stateful_models.account import Account
from stateful_models.capabilities import Capabilities
from stateful_models.drivers import Driver, DriverFailedError, RegisteredDriver, authored
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.determinism import digest_of_choices, programs_to_repeat
from stateful_models.engines.manager_runs import usual_invariants
from stateful_models.engines.runs import Surroundings
from stateful_models.engines.samples import MAX_EXAMPLES, examples
from stateful_models.engines.suites import manager_engines, policy_engines
from stateful_models.hosts import HostProtocol
from stateful_models.invariants import Finding, Invariant, PolicyBooks, policy_invariants
from stateful_models.invariants.base import Books
from stateful_models.judge import InvariantFailedError
from stateful_models.loading import TargetError, describe, find, find_class
from stateful_models.manager_drivers import (
    OWN_MANAGERS,
    ManagerDriver,
    ManagerOptions,
    registered_manager,
)
from stateful_models.operations import (
    AdvanceClock,
    HostEvent,
    ManagerOperation,
    NewRequest,
    Operation,
    PolicyOperation,
    SetPositions,
)
from stateful_models.steps import Step
from stateful_models.trial.clock import VirtualClock, draws_around, durations_used, real_monotonic
from stateful_models.trial.coverage import OwnLines
from stateful_models.trial.hint_names import HintNames
from stateful_models.trial.leaks import OutsideState
from stateful_models.trial.managers import try_manager
from stateful_models.trial.policies import try_policy
from stateful_models.trial.process import ChildChannel
from stateful_models.trial.reports import Observed, OwnPromise
from stateful_models.trial.request import (
    Answer,
    Digest,
    Progress,
    Request,
    Task,
    Untriable,
    decode_request,
    encode_answer,
)
from stateful_models.trial.verdicts import MethodReach, Report

T = TypeVar("T")
DriverT = TypeVar("DriverT")
BooksT = TypeVar("BooksT", bound=Books)
Proceed: TypeAlias = Callable[[str, float], None]

CALL_PATIENCE_S: Final = 1.0
"""Real seconds after which one operation counts as one that does not return."""
PROGRESS_S: Final = 0.2
SAMPLE_CAPACITY: Final = 4
POLICY_CALLS: Final = (PolicyOperation, NewRequest, SetPositions, AdvanceClock, HostEvent)
MANAGER_CALLS: Final = (ManagerOperation, AdvanceClock, HostEvent)
"""Of what an invariant of each kind of subject can be told."""
REQUIRED: Final = ("get", "insert", "remove", "touch", "evict", "clear")
"""What every policy has, whether it derives from `CachePolicy` or not."""


def main() -> None:
    """Do what the parent asked, and answer."""
    with ChildChannel.from_environment() as channel:
        request = decode_request(channel.request())
        last = 0.0

        def proceed(engine: str, share: float) -> None:
            nonlocal last
            now = real_monotonic()
            if now - last >= PROGRESS_S:
                last = now
                channel.send(encode_answer(Progress(engine, share)))

        clock = VirtualClock()
        clock.install()
        # What the target prints is nobody's result.
        with redirect_stdout(sys.stderr):
            try:
                answer: Answer = _answer(request, clock, proceed)
            except TargetError as error:
                answer = Untriable(str(error))
            except InvariantFailedError as error:
                answer = Untriable(f"an invariant failed: {error}")
            except DriverFailedError as error:
                answer = Untriable(f"the driver failed: {error}")
            # Whatever comes here is no verdict: a constructor, a driver or an invariant raised it,
            # or the kit.
            except BaseException as error:
                answer = Untriable(f"the trial could not go on: {describe(error)}")
        channel.send(encode_answer(answer))


def _answer(request: Request, clock: VirtualClock, proceed: Proceed) -> Report | Digest:
    if request.task is Task.MANAGER:
        return _manager_report(request, clock, proceed)
    driver = find_driver(request)
    sample = _built(request, lambda: driver.build(SAMPLE_CAPACITY))
    lacking = [name for name in REQUIRED if not callable(getattr(sample, name, None))]
    if lacking:
        raise TargetError(f"{request.target}: no policy, for it lacks {', '.join(lacking)}")
    watched = _Watched(clock, driver.target, sample)
    own: list[OwnInvariant[PolicyBooks]] = [
        OwnInvariant(find_invariant(name, POLICY_CALLS)) for name in request.invariants
    ]
    check_driver(request, driver)
    check_events(request, driver, sample)

    def make_invariants(capacity: int) -> Sequence[Invariant[PolicyBooks]]:
        usual = policy_invariants(driver.capabilities, capacity, driver.host)
        return [*usual, *(one.make() for one in own)]

    if request.task is Task.DIGEST:
        trial = PolicyTrial(
            driver,
            make_invariants,
            capabilities=driver.capabilities,
            level=request.budgets,
            seed=request.seed,
            surroundings=watched.surroundings,
            now=real_monotonic,
        )
        programs = programs_to_repeat(trial, watched.durations)
        return Digest(digest_of_choices(trial, programs))
    return try_policy(
        driver,
        policy_engines(watched.durations, watched.hints, watched.outside),
        request,
        make_invariants=make_invariants,
        surroundings=watched.surroundings,
        on_progress=proceed,
        now=real_monotonic,
        observe=watched.observe,
        own=[one.promise for one in own],
    )


def _manager_report(request: Request, clock: VirtualClock, proceed: Proceed) -> Report:
    driver = find_manager_driver(request)
    sample = _built(request, lambda: driver.build(ManagerOptions(num_chunks=SAMPLE_CAPACITY)))
    if not isinstance(sample, OffloadingManager):
        raise TargetError(f"{request.target}: no manager, for it is no OffloadingManager")
    watched = _Watched(clock, driver.target, sample)
    own: list[OwnInvariant[Account]] = [
        OwnInvariant(find_invariant(name, MANAGER_CALLS)) for name in request.invariants
    ]
    return try_manager(
        driver,
        manager_engines(watched.durations),
        request,
        make_invariants=usual_invariants(driver.capabilities, lambda: [one.make() for one in own]),
        surroundings=watched.surroundings,
        on_progress=proceed,
        now=real_monotonic,
        observe=watched.observe,
        own=[one.promise for one in own],
    )


class _Watched:
    """A target with what watches it meanwhile: its lines, its hints, the clock that it reads."""

    def __init__(self, clock: VirtualClock, target: object, sample: object) -> None:
        self._lines = OwnLines(target, type(sample))
        self._target = target
        self._sample = sample
        self.hints = HintNames()
        used = durations_used(target, sample, slept=clock.slept)
        # Whoever has read no clock when it was built may read one later.
        self.durations: tuple[float, ...] = draws_around(used)
        self.surroundings = Surroundings(
            restart=clock.reset,
            advance=clock.advance,
            make_hints=lambda hints: self.hints.record(dict(hints)),
            patience_s=CALL_PATIENCE_S,
            watch=self._lines,
        )

    def outside(self) -> Callable[[], list[str]]:
        """State outside the object as it is now; what is returned tells how it has changed."""
        return OutsideState(self._target, type(self._sample)).changed_since

    def observe(self) -> Observed:
        """What was seen so far."""
        methods = tuple(
            MethodReach(
                name=method.qualified_name,
                ran=method.ran,
                lines=method.lines,
                never_ran=method.never_ran,
            )
            for method in self._lines.report()
        )
        return Observed(methods, self.hints.never_given)


def _built(request: Request, build: Callable[[], T]) -> T:
    try:
        return build()
    except KeyboardInterrupt:
        raise
    # A constructor that is on trial may raise anything, and exit.
    except BaseException as error:
        raise TargetError(f"{request.target}: cannot be built: {describe(error)}") from error


def find_driver(request: Request) -> Driver[CachePolicy]:
    """The driver of the policy that a request is about. Raises TargetError."""
    target = request.target
    if ":" not in target:
        try:
            make = CachePolicyFactory.get_cache_policy_cls(target)
        except KVOffloadError as error:
            raise TargetError(
                f"{target}: not registered ({', '.join(CachePolicyFactory.names())} are); one of "
                "your own is named pkg.mod:Class or file.py:Class"
            ) from error
        if request.driver is None:
            return RegisteredDriver(target, request.arguments)
        return _driven(request, make, Driver)
    # Whether it makes policies shows when it is called.
    found: Callable[..., CachePolicy] = _callable(target)
    return _driven(request, found, Driver)


def find_manager_driver(request: Request) -> ManagerDriver[OffloadingManager]:
    """The driver of the manager that a request is about. Raises TargetError."""
    target = request.target
    own = target in OWN_MANAGERS
    if own and request.driver is None:
        return registered_manager(target, request.arguments)
    make: Callable[..., OffloadingManager] = CPUOffloadingManager if own else _callable(target)
    return _driven(request, make, ManagerDriver)


def _driven(request: Request, make: object, usual: type[DriverT]) -> DriverT:
    if request.driver is None:
        return usual(make, request.arguments)  # type: ignore[call-arg]  # both kinds take these
    found = find_class(request.driver)
    if not issubclass(found, usual):
        raise TargetError(
            f"{request.driver}: not a subclass of {usual.__module__}'s {usual.__name__}"
        )
    try:
        return found(make, request.arguments)  # type: ignore[call-arg]  # as the line above
    except Exception as error:
        raise TargetError(f"{request.driver}: cannot be built: {describe(error)}") from error


def _callable(target: str) -> Any:
    found = find(target)
    if not callable(found):
        raise TargetError(f"{target}: neither a class nor a factory")
    if isinstance(found, type) and isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise TargetError(f"{target}: it lacks {missing}")
    return found


def check_driver(request: Request, driver: Driver[CachePolicy]) -> None:
    """Raise TargetError if what the driver says of itself is of another type."""
    whose = request.driver or request.target
    stated: object = driver.capabilities
    if not isinstance(stated, Capabilities):
        raise TargetError(f"{whose}: capabilities is no Capabilities but {stated!r:.80}")
    host: object = driver.host
    if not isinstance(host, HostProtocol):
        raise TargetError(f"{whose}: host is no HostProtocol but {host!r:.80}")
    try:
        hints = examples(driver.contexts(), MAX_EXAMPLES, request.seed)
    except Exception as error:
        raise TargetError(f"{whose}: contexts() cannot be drawn: {describe(error)}") from error
    for each in hints:
        as_object: object = each
        if as_object is not None and not isinstance(as_object, dict):
            raise TargetError(f"{whose}: contexts() gives {as_object!r:.80}, no dict and not None")


def check_events(request: Request, driver: Driver[CachePolicy], sample: CachePolicy) -> None:
    """Raise TargetError if an extra call of the host is of a method that the policy lacks."""
    events = driver.host_events()
    if events is None or any(name == "perform_event" for name, _ in authored(driver)):
        return
    for event in examples(events, MAX_EXAMPLES, request.seed):
        if not callable(getattr(sample, event.name, None)):
            raise TargetError(
                f"{request.driver}: host_events has {event.name}, and {request.target} has no "
                "such method"
            )


class OwnInvariant(Generic[BooksT]):
    """An invariant of the author's own, which is made anew for every run and counted."""

    def __init__(self, cls: type[Invariant[BooksT]]) -> None:
        self._cls = cls
        promise = (cls.__doc__ or "").strip().partition("\n")[0]
        self.promise: OwnPromise = OwnPromise(cls.__name__, tuple(cls.clauses), promise)

    def make(self) -> Invariant[BooksT]:
        """A new one, whose judgements count."""
        invariant = self._cls()
        judge = invariant.judge

        def counted(step: Step, books: BooksT) -> Iterable[Finding]:
            self.promise.judged += 1
            return judge(step, books)

        # Its class stays what it is, for reports name it.
        try:
            vars(invariant)["judge"] = counted
        except TypeError:
            self.promise.judged += 1
        return invariant


def find_invariant(name: str, calls: tuple[type[Operation], ...]) -> Any:
    """What makes the invariant of this name, built once to see that it can be.

    Raises TargetError, also where it is concerned with no call that its subject gets.
    """
    found = find_class(name)
    if not issubclass(found, Invariant):
        raise TargetError(f"{name}: not a subclass of stateful_models' Invariant")
    lacking = sorted(found.__abstractmethods__)
    if lacking:
        raise TargetError(f"{name}: it lacks {', '.join(lacking)}")
    concerns = found.concerns
    if concerns and not any(
        issubclass(call, concerns) or issubclass(each, call) for call in calls for each in concerns
    ):
        told = ", ".join(each.__name__ for each in concerns)
        raise TargetError(
            f"{name}: it is concerned with {told} only, which its subject is never called with"
        )
    try:
        found()
    except Exception as error:
        raise TargetError(f"{name}: cannot be built: {describe(error)}") from error
    return found


if __name__ == "__main__":
    main()
