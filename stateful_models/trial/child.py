"""The child process of a trial: one target, a clock of its own, and answers on a channel.

Everything that has to know the real time is imported above; the clock is installed before the
target is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from attrs import evolve

from kvoffload import CachePolicy, OffloadingManager
from kvoffload.errors import VLLMError
from stateful_models.account import Account
from stateful_models.drivers import Driver, DriverFailedError, authored
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.determinism import digest_of_choices, programs_to_repeat
from stateful_models.engines.manager_runs import usual_invariants
from stateful_models.engines.runs import BUILD_PATIENCE, BUILDING, NotBuiltError, Surroundings
from stateful_models.engines.suites import manager_engines, policy_engines
from stateful_models.invariants import Finding, Invariant, PolicyBooks, policy_invariants
from stateful_models.invariants.base import Books
from stateful_models.judge import InvariantFailedError
from stateful_models.loading import TargetError, describe
from stateful_models.manager_drivers import ManagerDriver, ManagerOptions
from stateful_models.operations import (
    AdvanceClock,
    HostEvent,
    ManagerOperation,
    NewRequest,
    PolicyOperation,
    SetPositions,
)
from stateful_models.own_invariants import OwnInvariant, class_of_own, is_over, promise_of
from stateful_models.signatures import why_not_built
from stateful_models.steps import Step
from stateful_models.trial.beside import Tally, tally
from stateful_models.trial.channel import ChildChannel
from stateful_models.trial.clock import (
    VirtualClock,
    draws_around,
    durations_used,
    real_effort,
    real_monotonic,
)
from stateful_models.trial.coverage import OwnLines
from stateful_models.trial.driver_methods import check_methods
from stateful_models.trial.hang import Alarm, DidNotReturn, time_limit
from stateful_models.trial.hint_names import HintNames
from stateful_models.trial.judgings import Judgings
from stateful_models.trial.leaks import OutsideState
from stateful_models.trial.managers import try_manager
from stateful_models.trial.named import (
    check_driver,
    check_events,
    check_manager_events,
    find_driver,
    find_invariants,
    find_manager_driver,
)
from stateful_models.trial.policies import try_policy
from stateful_models.trial.reports import Observed, OwnPromise
from stateful_models.trial.request import (
    Answer,
    Digest,
    Doing,
    OwnClause,
    OwnClauses,
    Progress,
    Request,
    Task,
    Untriable,
    decode_request,
    encode_answer,
)
from stateful_models.trial.verdicts import MethodReach, Report

if TYPE_CHECKING:
    from kvoffload.vllm.standins import VLLMProvider

T = TypeVar("T")
DriverT = TypeVar("DriverT")
BooksT = TypeVar("BooksT", bound=Books)
Proceed: TypeAlias = Callable[[str, float], None]

CALL_PATIENCE_S: Final = 1.0
"""Seconds of work after which a call counts as one that does not return."""
LOADING_PATIENCE_S: Final = 60.0
"""Real seconds that everything which is named may take to be imported."""
PROGRESS_S: Final = 0.2
SAMPLE_CAPACITY: Final = 4
POLICY_CALLS: Final = (PolicyOperation, NewRequest, SetPositions, AdvanceClock, HostEvent)
MANAGER_CALLS: Final = (ManagerOperation, AdvanceClock, HostEvent)
"""Of what an invariant of each kind of subject can be told."""
REQUIRED: Final = ("get", "insert", "remove", "touch", "evict", "clear")
"""What every policy has, whether it derives from `CachePolicy` or not."""


class _Marking:
    """Marks what this process is doing."""

    def __init__(self, mark: Callable[[bytes], object]) -> None:
        self._mark = mark
        self._calls: dict[str, bytes] = {}

    def __call__(self, doing: Doing) -> None:
        self._mark(doing.encode())

    def call(self, name: str) -> None:
        """Mark a call by its name, "" when it is over. Said at every call, so made only once."""
        mark = self._calls.get(name)
        if mark is None:
            mark = self._calls[name] = Doing(call=name).encode()
        self._mark(mark)


def main(channel: ChildChannel) -> None:
    """Do what the parent asked, and answer."""
    with channel:
        request = decode_request(channel.request())
        last = 0.0

        engine_now = ""

        def proceed(engine: str, share: float) -> None:
            nonlocal last, engine_now
            now = real_monotonic()
            # A new engine is always told, for the process may end in it.
            if now - last >= PROGRESS_S or engine != engine_now:
                last, engine_now = now, engine
                channel.send(encode_answer(Progress(engine, share)))

        do = _Marking(channel.mark)

        begun = real_monotonic()
        clock = VirtualClock()
        clock.install()
        # What the target prints is nobody's result.
        with redirect_stdout(sys.stderr), Alarm() as alarm:
            try:
                answer: Answer = _answer(request, clock, proceed, do, alarm)
            except NotBuiltError as error:
                answer = Untriable(f"{request.target}: cannot be built: {error}")
            except TargetError as error:
                answer = Untriable(str(error))
            except VLLMError as error:
                answer = Untriable(f"{request.target}: {error}")
            except InvariantFailedError as error:
                answer = Untriable(f"an invariant failed: {error}")
            except DriverFailedError as error:
                answer = Untriable(f"the driver failed: {error}")
            # Whatever comes here is no verdict: a constructor, a driver or an invariant raised it,
            # or the kit.
            except BaseException as error:
                answer = Untriable(f"the trial could not go on: {describe(error)}")
        if isinstance(answer, Report):
            answer = evolve(answer, seconds=round(real_monotonic() - begun, 2))
        channel.send(encode_answer(answer))


def _answer(
    request: Request, clock: VirtualClock, proceed: Proceed, do: _Marking, alarm: Alarm
) -> Report | Digest | OwnClauses:
    provider = None if request.vllm is None else _stand_ins(request.vllm)
    if request.task is Task.CLAUSES:
        return _own_clauses(request, do)
    if request.task is Task.MANAGER:
        return _manager_report(request, clock, proceed, do, alarm)
    driver, invariants = _loaded(request, do, lambda: _policy_named(request, provider))
    advice = check_methods(request.driver or request.target, driver, Driver)
    check_driver(request, driver)
    sample = _built(request, driver.target, do, lambda: driver.build(SAMPLE_CAPACITY))
    required = REQUIRED if driver.host.clears else REQUIRED[:-1]
    lacking = [name for name in required if not callable(getattr(sample, name, None))]
    if lacking:
        raise TargetError(f"{request.target}: no policy, for it lacks {', '.join(lacking)}")
    watched = _Watched(clock, driver.target, sample, do, alarm)
    judgings = Judgings([one.cls for one in invariants])
    own: list[_Counted[PolicyBooks]] = [_Counted(one, judgings) for one in invariants]
    check_events(request, driver, sample)

    def make_invariants(capacity: int) -> Sequence[Invariant[PolicyBooks]]:
        usual = policy_invariants(driver.capabilities, capacity, driver.host)
        return [*usual, *(one.make(capacity) for one in own)]

    if request.task is Task.DIGEST:
        trial = PolicyTrial(
            driver,
            make_invariants,
            capabilities=driver.capabilities,
            level=request.budgets,
            seed=request.seed,
            surroundings=watched.surroundings,
            now=real_effort,
        )
        programs = programs_to_repeat(trial, watched.durations)
        return Digest(digest_of_choices(trial, programs))
    # What of vLLM was asked for in vain, here or beside.
    unanswered: dict[str, None] = {}

    def asked_in_vain() -> Sequence[str]:
        return () if provider is None else provider.unanswered

    def tallies() -> Iterator[Tally]:
        yield from watched.tallies()
        yield from _tallies_of(own, judgings)
        yield tally(asked_in_vain, lambda before, after: unanswered.update(dict.fromkeys(after)))

    report = try_policy(
        driver,
        policy_engines(watched.durations, watched.hints, watched.outside),
        request,
        make_invariants=make_invariants,
        surroundings=watched.surroundings,
        on_progress=proceed,
        now=real_effort,
        observe=watched.observe,
        own=[one.promise for one in own],
        tallies=tallies,
    )
    asked = sorted(watched.hints.asked)
    if asked and all(name != "contexts" for name, _ in authored(driver)):
        advice.append(
            f"it asks for hints ({', '.join(asked)}), and no driver says by `contexts` what they "
            "usually are: no request had them but in wrong forms"
        )
    if provider is not None:
        advice += [
            f"{name} is not in the stand-ins of {provider.version}, and the target goes on without"
            for name in dict.fromkeys((*asked_in_vain(), *unanswered))
        ]
    return evolve(report, notes=(*advice, *report.notes))


def _manager_report(
    request: Request, clock: VirtualClock, proceed: Proceed, do: _Marking, alarm: Alarm
) -> Report:
    driver, invariants = _loaded(request, do, lambda: _manager_named(request))
    advice = check_methods(request.driver or request.target, driver, ManagerDriver)
    options = ManagerOptions(num_chunks=SAMPLE_CAPACITY)
    sample = _built(request, driver.target, do, lambda: driver.build(options))
    if not isinstance(sample, OffloadingManager):
        raise TargetError(f"{request.target}: no manager, for it is no OffloadingManager")
    check_manager_events(request, driver, sample)
    judged = driver.judged(sample)
    target = driver.target if judged is sample else type(judged)
    watched = _Watched(clock, target, judged, do, alarm)
    judgings = Judgings([one.cls for one in invariants])
    own: list[_Counted[Account]] = [_Counted(one, judgings) for one in invariants]
    report = try_manager(
        driver,
        manager_engines(watched.durations),
        request,
        make_invariants=usual_invariants(
            driver.capabilities, lambda capacity: [one.make(capacity) for one in own]
        ),
        surroundings=watched.surroundings,
        on_progress=proceed,
        now=real_effort,
        observe=watched.observe,
        own=[one.promise for one in own],
        tallies=lambda: [*watched.tallies(), *_tallies_of(own, judgings)],
    )
    return evolve(report, notes=(*driver.remarks, *advice, *report.notes))


class _Watched:
    """A target with what watches it meanwhile: its lines, its hints, the clock that it reads."""

    def __init__(
        self, clock: VirtualClock, target: object, sample: object, do: _Marking, alarm: Alarm
    ) -> None:
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
            alarm=alarm,
            watch=self._lines,
            calling=do.call,
        )

    def outside(self) -> Callable[[], list[str]]:
        """State outside the object as it is now; what is returned tells how it has changed."""
        return OutsideState(self._target, type(self._sample)).changed_since

    def tallies(self) -> Iterator[Tally]:
        """Of which lines ran, and of the hints that were asked for."""
        lines = self._lines
        yield tally(lines.missing, lambda before, after: lines.ran_elsewhere(after))
        yield tally(self.hints.state, self.hints.add)

    def observe(self) -> Observed:
        """What was seen so far."""
        methods = tuple(
            MethodReach(
                name=method.qualified_name,
                ran=method.ran,
                lines=method.lines,
                never_ran=method.never_ran,
                file=method.file,
            )
            for method in self._lines.report()
        )
        return Observed(methods, self.hints.never_given)


def _stand_ins(version: str) -> VLLMProvider:
    """What answers imports of vLLM. Most targets ask for none, and need not wait for it."""
    from stateful_models.vllm.types import answer_imports

    return answer_imports(version)


def _policy_named(
    request: Request, provider: VLLMProvider | None
) -> tuple[Driver[CachePolicy], list[OwnInvariant]]:
    if provider is None:
        driver = find_driver(request)
    else:
        from stateful_models.vllm.policies import find_vllm_driver

        driver = find_vllm_driver(request, provider)
    return driver, find_invariants(request, POLICY_CALLS, driver.target, driver.arguments)


def _manager_named(
    request: Request,
) -> tuple[ManagerDriver[OffloadingManager], list[OwnInvariant]]:
    driver = find_manager_driver(request)
    return driver, find_invariants(request, MANAGER_CALLS, driver.target, driver.arguments)


def _own_clauses(request: Request, do: _Marking) -> OwnClauses:
    """What the invariants of a request are about; nothing else of it is looked at."""

    def load() -> OwnClauses:
        found: list[OwnClause] = []
        for name in request.invariants:
            cls, clauses = class_of_own(name, request.arguments)
            subjects = tuple(
                task.value
                for task, books in ((Task.POLICY, PolicyBooks), (Task.MANAGER, Account))
                if is_over(cls, books)
            )
            found += [
                OwnClause(clause, promise_of(cls), cls.__name__, name, subjects)
                for clause in clauses
            ]
        return OwnClauses(tuple(found))

    return _loaded(request, do, load)


def _loaded(request: Request, do: _Marking, load: Callable[[], T]) -> T:
    """What is named, imported. Raises TargetError, also when that does not return."""
    loading = ", ".join(filter(None, (request.target, request.driver, *request.invariants)))
    do(Doing(loading=loading))
    try:
        with time_limit(LOADING_PATIENCE_S):
            return load()
    except DidNotReturn as hanging:
        raise TargetError(f"{loading}: cannot be loaded: {hanging}") from hanging
    finally:
        do(Doing())


def _built(request: Request, maker: object, do: _Marking, build: Callable[[], T]) -> T:
    do(Doing(call=BUILDING))
    try:
        with time_limit(BUILD_PATIENCE * CALL_PATIENCE_S):
            return build()
    except KeyboardInterrupt:
        raise
    except DidNotReturn as hanging:
        raise NotBuiltError(str(hanging)) from hanging
    # A constructor that is on trial may raise anything, and exit.
    except BaseException as error:
        why = why_not_built(maker, request.arguments, error)
        raise TargetError(f"{request.target}: cannot be built: {why}") from error
    finally:
        do(Doing())


def _tallies_of(own: Sequence[_Counted[BooksT]], judgings: Judgings) -> Iterator[Tally]:
    """Of how often invariants of the author's own have judged, and what of theirs ran then."""

    def add(before: Sequence[int], after: Sequence[int]) -> None:
        for one, earlier, later in zip(own, before, after, strict=True):
            one.promise.judged += later - earlier

    yield tally(lambda: [one.promise.judged for one in own], add)
    yield tally(judgings.ran, lambda before, after: judgings.ran_elsewhere(after))


class _Counted(Generic[BooksT]):
    """An invariant of the author's own, which is made anew for every run and counted."""

    def __init__(self, own: OwnInvariant, judgings: Judgings) -> None:
        self._own = own
        self._judgings = judgings
        self.promise: OwnPromise = OwnPromise(
            own.kind,
            own.clauses,
            own.promise,
            target=own.name,
            arguments=own.arguments,
            undecided=lambda: judgings.undecided(own.cls),
        )

    def make(self, capacity: int) -> Invariant[BooksT]:
        """A new one for a run of so many chunks, whose judgements count."""
        invariant: Invariant[BooksT] = self._own.make(capacity)
        judge = invariant.judge

        def counted(step: Step, books: BooksT) -> Iterable[Finding]:
            self.promise.judged += 1
            with self._judgings:
                # Here and not later: what yields has run nothing yet.
                return list(judge(step, books))

        # Its class stays what it is, for reports name it.
        try:
            vars(invariant)["judge"] = counted
        except TypeError:
            self.promise.judged += 1
        return invariant
