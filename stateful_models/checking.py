"""Checking a policy or a manager from a test: a program that must break nothing.

from stateful_models.checking import check_policy, keys, op

def test_protected_keys_stay() -> None:
    a, b = keys("a b")
    check_policy(MyPolicy, 1, [
        op.PrepareStore("r0", (a,)),
        op.CompleteStore("r0", (a,)),
        op.PrepareStore("r1", (a, b)),
    ])

Time does not pass by itself here: what needs a clock, many programs or other processes to show is
for `verdict_on`, which holds a whole trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from attrs import evolve

from kvoffload import CachePolicy, OffloadingManager
from kvoffload.errors import InvalidValueError
from stateful_models import operations as op
from stateful_models.account import Account
from stateful_models.contract import CLAUSES, Profile
from stateful_models.drivers import Driver, registered
from stateful_models.engines.base import AnyEngine, Breach, PolicyTrial
from stateful_models.engines.manager_runs import run_manager_program, usual_invariants
from stateful_models.engines.managers import ManagerTrial
from stateful_models.engines.runs import Played, Surroundings, run_program
from stateful_models.engines.suites import manager_engines, policy_engines
from stateful_models.invariants import Invariant, PolicyBooks, policy_invariants
from stateful_models.judge import Violation
from stateful_models.loading import TargetError
from stateful_models.manager_drivers import ManagerDriver, registered_manager
from stateful_models.programs import HostOperation, ManagerSettings, Program, keys
from stateful_models.trial.arguments import Argument
from stateful_models.trial.request import Request, Task
from stateful_models.trial.trials import hold_trial
from stateful_models.trial.verdicts import ClauseVerdict, Outcome, Report, Verdict
from stateful_models.trial.wording import compared_lines, plain_lines, program_lines
from stateful_models.vllm.manager_target import is_manager_target, manager_driver

__all__ = [
    "BrokenClauseError",
    "ManagerSettings",
    "UntriableError",
    "check_manager",
    "check_manager_law",
    "check_policy",
    "check_policy_law",
    "keys",
    "op",
    "verdict_on",
]

P = TypeVar("P", bound=CachePolicy)
M = TypeVar("M", bound=OffloadingManager)
EngineT = TypeVar("EngineT", bound=AnyEngine)

PATIENCE_S: Final = 2.0
"""Seconds of work after which a call counts as one that does not return."""


class BrokenClauseError(AssertionError):
    """A program broke a clause; the message has which, how, and the program."""


class UntriableError(Exception):
    """A target could not be built, loaded or called; the message says why."""


def check_policy(
    target: str | Callable[..., P] | Driver[P],
    capacity: int,
    operations: Iterable[HostOperation],
    *,
    watchful: bool = False,
    invariants: Iterable[Invariant[PolicyBooks]] = (),
) -> None:
    """Play operations on a new policy of `capacity` chunks.

    `target` is a registered name, a class or factory that takes `cache_capacity`, or a driver. A
    `watchful` host looks every key up after each operation. Raises BrokenClauseError.
    """
    __tracebackhide__ = True
    program = Program(capacity, tuple(operations), watchful)
    if isinstance(target, str):
        _check(registered(target), program, invariants)
    else:
        driver: Driver[P] = target if isinstance(target, Driver) else Driver(target)
        _check(driver, program, invariants)


def check_policy_law(
    target: str | Callable[..., P] | Driver[P],
    law: str,
    capacity: int,
    operations: Iterable[HostOperation],
) -> None:
    """Hold runs of one program against each other, as the engine does that a report names.

    `law` is the name of the engine ("law of clearing", "determinism", "cost", "wrapper");
    everything else is as for `check_policy`. Raises BrokenClauseError, and InvalidValueError where
    there is no such law.
    """
    __tracebackhide__ = True
    program = Program(capacity, tuple(operations))
    if isinstance(target, str):
        _check_law(registered(target), law, program)
    else:
        driver: Driver[P] = target if isinstance(target, Driver) else Driver(target)
        _check_law(driver, law, program)


def check_manager(
    target: str | Callable[..., M] | ManagerDriver[M],
    capacity: int,
    operations: Iterable[HostOperation],
    *,
    settings: ManagerSettings | None = None,
    watchful: bool = False,
    invariants: Iterable[Invariant[Account]] = (),
) -> None:
    """Play operations on a new manager of `capacity` chunks, built by the `settings`.

    `target` is a name ("cpu", or "vllm-manager@DIR" for that of the vLLM in a folder), a class or
    factory that takes the number of chunks, or a driver. Without settings it is as it is by itself,
    with events if it delivers any, and its host makes no mistakes. A `watchful` host looks every
    key up after each operation; any looks them up in the end, once everything in flight has ended.
    Raises BrokenClauseError, and UntriableError where there is no such vLLM.
    """
    __tracebackhide__ = True
    program = Program(capacity, tuple(operations), watchful, settings)
    if isinstance(target, str):
        _check_manager(_named_manager(target), program, invariants)
    else:
        driver: ManagerDriver[M]
        driver = target if isinstance(target, ManagerDriver) else ManagerDriver(target)
        _check_manager(driver, program, invariants)


def check_manager_law(
    target: str | Callable[..., M] | ManagerDriver[M],
    law: str,
    capacity: int,
    operations: Iterable[HostOperation],
    *,
    settings: ManagerSettings | None = None,
) -> None:
    """Hold runs of one program against each other, as the engine does that a report names.

    `law` is the name of the engine ("reset", "quiescence", "determinism", "faults"); everything
    else is as for `check_manager`. Raises BrokenClauseError, and InvalidValueError where there is
    no such law.
    """
    __tracebackhide__ = True
    program = Program(capacity, tuple(operations), settings=settings)
    if isinstance(target, str):
        _check_manager_law(_named_manager(target), law, program)
    else:
        driver: ManagerDriver[M]
        driver = target if isinstance(target, ManagerDriver) else ManagerDriver(target)
        _check_manager_law(driver, law, program)


def verdict_on(
    target: str,
    clause: str,
    *,
    driver: str | None = None,
    invariants: Sequence[str] = (),
    arguments: Mapping[str, Argument] | None = None,
    environment: Mapping[str, str] | None = None,
    profile: str = "vllm",
    level: str = "quick",
    seed: int = 0,
    manager: bool = False,
    vllm: str | None = None,
) -> ClauseVerdict:
    """What a trial of the target says of one clause; all clauses of a target are one trial.

    Targets, drivers and invariants are named as for `kvoffload verify`; `vllm` is the version that
    a policy was written for whose imports stand-ins are to answer. Raises UntriableError when
    the target cannot be tried, and KeyError for what is no clause. One of the contract that no
    engine tries is not reached, unless something was found against it all the same.
    """
    report = _report(
        target,
        driver,
        tuple(invariants),
        tuple(sorted((arguments or {}).items())),
        tuple(sorted((environment or {}).items())),
        profile,
        level,
        seed,
        manager,
        vllm,
    )
    if report.verdict is Outcome.UNTRIED:
        raise UntriableError(f"{target}: {report.problem}")
    if clause not in CLAUSES or any(clause == each.id for each in report.clauses):
        return report.of(clause)
    lead = CLAUSES[clause]
    return ClauseVerdict(
        id=clause,
        kind=lead.kind.value,
        source=lead.source.value,
        verdict=Verdict.NOT_REACHED,
        sentence=lead.sentence,
        reason="no engine tries it, and nothing was found against it",
    )


@lru_cache(maxsize=64)
def _report(
    target: str,
    driver: str | None,
    invariants: tuple[str, ...],
    arguments: tuple[tuple[str, Argument], ...],
    environment: tuple[tuple[str, str], ...],
    profile: str,
    level: str,
    seed: int,
    manager: bool,
    vllm: str | None,
) -> Report:
    return hold_trial(
        Request(
            task=Task.MANAGER if manager else Task.POLICY,
            target=target,
            driver=driver,
            invariants=invariants,
            arguments=dict(arguments),
            environment=dict(environment),
            profile=Profile(profile),
            level=level,
            seed=seed,
            vllm=vllm,
            unhurried=True,
        )
    )


def _named_manager(name: str) -> ManagerDriver[OffloadingManager]:
    if not is_manager_target(name):
        return registered_manager(name)
    try:
        return manager_driver(name)
    except TargetError as error:
        raise UntriableError(str(error)) from error


def _check(
    driver: Driver[P], program: Program, invariants: Iterable[Invariant[PolicyBooks]]
) -> None:
    __tracebackhide__ = True
    own = list(invariants)
    run = run_program(
        driver,
        program,
        lambda capacity: [*policy_invariants(driver.capabilities, capacity, driver.host), *own],
        surroundings=_patient(),
    )
    _raise_found(run.violations, run.played)


def _check_manager(
    driver: ManagerDriver[M], program: Program, invariants: Iterable[Invariant[Account]]
) -> None:
    __tracebackhide__ = True
    own = list(invariants)
    run = run_manager_program(
        driver,
        _with_settings(driver, program),
        usual_invariants(driver.capabilities, lambda capacity: own),
        reference=driver.capabilities.reference,
        surroundings=_patient(),
    )
    _raise_found(run.violations, run.played)


def _check_law(driver: Driver[P], law: str, program: Program) -> None:
    __tracebackhide__ = True
    able = driver.capabilities
    trial = PolicyTrial(
        driver,
        lambda capacity: policy_invariants(able, capacity, driver.host),
        capabilities=able,
        surroundings=_patient(),
    )
    _raise_breach(_law_of(policy_engines(), law).broken_by(trial, program))


def _check_manager_law(driver: ManagerDriver[M], law: str, program: Program) -> None:
    __tracebackhide__ = True
    able = driver.capabilities
    trial = ManagerTrial(driver, usual_invariants(able), capabilities=able, surroundings=_patient())
    played = _with_settings(driver, program)
    _raise_breach(_law_of(manager_engines(), law).broken_by(trial, played))


def _with_settings(driver: ManagerDriver[M], program: Program) -> Program:
    if program.settings is not None:
        return program
    return evolve(program, settings=ManagerSettings(enable_events=driver.capabilities.events))


def _patient() -> Surroundings:
    return Surroundings(patience_s=PATIENCE_S)


def _law_of(engines: Iterable[EngineT], name: str) -> EngineT:
    laws = {one.name: one for one in engines if one.compares}
    if name not in laws:
        raise InvalidValueError("law", name, f"one of {', '.join(laws)}")
    return laws[name]


def _raise_found(violations: Sequence[Violation], played: Sequence[Played]) -> None:
    __tracebackhide__ = True
    if violations:
        lines = [
            line for one in violations for line in (f"{one.clause}: {one.message}", one.promise)
        ]
        lines += program_lines(played, violations)
        raise BrokenClauseError("\n".join(filter(None, lines)))


def _raise_breach(breach: Breach | None) -> None:
    __tracebackhide__ = True
    if breach is not None:
        known = CLAUSES.get(breach.clause)
        sentence = breach.promise if known is None else known.part(breach.kind).sentence
        shown = compared_lines(breach.runs)
        if not breach.runs and breach.program is not None:
            shown = plain_lines(breach.program)
        lines = [f"{breach.clause}: {breach.message}", sentence, *shown]
        raise BrokenClauseError("\n".join(filter(None, lines)))
