"""Checking a policy from a test: a program that must break nothing.

from stateful_models.checking import check_policy, keys, op

def test_protected_keys_stay() -> None:
    a, b = keys("a b")
    check_policy(MyPolicy, 1, [
        op.PrepareStore("r0", (a,)),
        op.CompleteStore("r0", (a,)),
        op.PrepareStore("r1", (a, b)),
    ])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from kvoffload import CachePolicy
from stateful_models import operations as op
from stateful_models.contract import Profile
from stateful_models.drivers import Driver, registered
from stateful_models.engines.runs import Surroundings, run_program
from stateful_models.invariants import Invariant, PolicyBooks, policy_invariants
from stateful_models.programs import HostOperation, Program, keys
from stateful_models.trial.request import Argument, Request, Task
from stateful_models.trial.trials import hold_trial
from stateful_models.trial.verdicts import ClauseVerdict, Outcome, Report
from stateful_models.trial.wording import program_lines

__all__ = ["BrokenClauseError", "check_policy", "keys", "op", "verdict_on"]

P = TypeVar("P", bound=CachePolicy)

PATIENCE_S: Final = 2.0
"""Real seconds after which one operation counts as one that does not return."""


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
    program = Program(capacity, tuple(operations), watchful)
    if isinstance(target, str):
        _check(registered(target), program, invariants)
    else:
        driver: Driver[P] = target if isinstance(target, Driver) else Driver(target)
        _check(driver, program, invariants)


def verdict_on(
    target: str,
    clause: str,
    *,
    driver: str | None = None,
    invariants: Sequence[str] = (),
    arguments: Mapping[str, Argument] | None = None,
    profile: str = "vllm",
    level: str = "quick",
    seed: int = 0,
    manager: bool = False,
) -> ClauseVerdict:
    """What a trial of the target says of one clause; all clauses of a target are one trial.

    Targets, drivers and invariants are named as for `kvoffload verify`. Raises UntriableError when
    the target cannot be tried, and KeyError for a clause that its trial does not judge.
    """
    report = _report(
        target,
        driver,
        tuple(invariants),
        tuple(sorted((arguments or {}).items())),
        profile,
        level,
        seed,
        manager,
    )
    if report.verdict is Outcome.UNTRIED:
        raise UntriableError(f"{target}: {report.problem}")
    return report.of(clause)


@lru_cache(maxsize=64)
def _report(
    target: str,
    driver: str | None,
    invariants: tuple[str, ...],
    arguments: tuple[tuple[str, Argument], ...],
    profile: str,
    level: str,
    seed: int,
    manager: bool,
) -> Report:
    return hold_trial(
        Request(
            task=Task.MANAGER if manager else Task.POLICY,
            target=target,
            driver=driver,
            invariants=invariants,
            arguments=dict(arguments),
            profile=Profile(profile),
            level=level,
            seed=seed,
        )
    )


def _check(
    driver: Driver[P], program: Program, invariants: Iterable[Invariant[PolicyBooks]]
) -> None:
    own = list(invariants)
    run = run_program(
        driver,
        program,
        lambda capacity: [*policy_invariants(driver.capabilities, capacity), *own],
        surroundings=Surroundings(patience_s=PATIENCE_S),
    )
    if run.violations:
        first = run.violations[0]
        lines = [
            f"{first.clause}: {first.message}",
            first.promise,
            *program_lines(run.played, run.violations),
        ]
        raise BrokenClauseError("\n".join(filter(None, lines)))
