"""What `kvoffload judge` judges: a target by its name becomes managers, wherever runs go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from functools import lru_cache, partial
from pathlib import PurePath
from typing import TYPE_CHECKING

from attrs import frozen

from kvoffload.cli.problems import UsageError
from kvoffload.cpu.manager import CPUOffloadingManager
from kvoffload.judge import guarded
from kvoffload.judge.attempts import LostRunError, beforehand, same_folder
from kvoffload.judge.hint_value import Base
from kvoffload.judge.hints import RequestFuture
from kvoffload.judge.report import ClauseLine, Contract
from kvoffload.judge.value import BASELINE, INFINITE, OPTIMUM
from kvoffload.manager import OffloadingManager
from kvoffload.policies.base import CachePolicy
from stateful_models.driven import driven_manager
from stateful_models.drivers import Driver, DriverFailedError, authored, registered
from stateful_models.loading import TargetError, describe
from stateful_models.signatures import why_not_built
from stateful_models.trial.arguments import Argument
from stateful_models.trial.driver_methods import check_methods
from stateful_models.trial.named import find_driver
from stateful_models.trial.request import Request, Task

if TYPE_CHECKING:
    from stateful_models.trial.verdicts import Report

BASELINES = (BASELINE, "arc")
TAKEN = (*BASELINES, OPTIMUM, INFINITE)


@frozen
class Subject:
    """A policy as the command line names it. `vllm` is a version, or None for what needs none.

    `arguments` are pairs, so that subjects can be told apart and sent to other processes.
    """

    target: str
    driver: str | None = None
    vllm: str | None = None
    arguments: tuple[tuple[str, Argument], ...] = ()

    @property
    def name(self) -> str:
        """What the policy is called in a report: never as one that it is compared with."""
        own = PurePath(self.target).name.rpartition(":")[2]
        plain = self.target in TAKEN and not self.arguments and self.driver is None
        return f"{own} (yours)" if own in TAKEN and not plain else own

    def request(self, seed: int = 0) -> Request:
        """What a trial is asked for."""
        return Request(
            task=Task.POLICY,
            target=self.target,
            driver=self.driver,
            vllm=self.vllm,
            seed=seed,
            arguments=dict(self.arguments),
        )

    @property
    def host(self) -> str:
        """By whose protocol it is called. Raises TargetError."""
        return _driver(self).host.name

    @property
    def notes(self) -> tuple[str, ...]:
        """What runs leave out of what its driver does. Raises TargetError."""
        if any(name == "host_events" for name, _ in authored(_driver(self))):
            return (
                "The driver calls further hooks at random (`host_events`): on trial, not in runs.",
            )
        return ()

    @property
    def base(self) -> Base:
        """What it claims to equal without hints; LRU if it claims nothing. Raises TargetError."""
        if _driver(self).capabilities.without_hints is None:
            return Base(name=BASELINE, make=Made(self, BASELINE))
        return Base(name="its base", make=MadeBase(self))

    def policies(self) -> Mapping[str, Callable[[int], CPUOffloadingManager]]:
        """What makes the managers of the policy and of those beside it."""
        makers: dict[str, Callable[[int], CPUOffloadingManager]] = {self.name: Made(self)}
        for name in BASELINES:
            makers.setdefault(name, Made(self, name))
        return makers


@frozen
class Made:
    """Makes managers of a subject; of a `baseline` instead, called as the subject is called."""

    subject: Subject
    baseline: str | None = None

    def __call__(self, capacity: int) -> CPUOffloadingManager:
        """A manager of so many chunks. Raises TargetError, and what building it raises."""
        driver = _driver(self.subject)
        if self.baseline is not None:
            beside = registered(self.baseline)
            beside.host = driver.host
            driver = beside
        return driven_manager(driver, capacity)


@frozen
class MadeBase:
    """Makes managers of what a subject claims to equal without hints."""

    subject: Subject

    def __call__(self, capacity: int) -> OffloadingManager:
        """A manager of so many chunks. Raises TargetError, and what building it raises."""
        driver = _driver(self.subject)
        without = driver.capabilities.without_hints
        if without is None:
            raise TargetError(f"{self.subject.target}: it claims no base")
        found = without

        def base(cache_capacity: int) -> CachePolicy:
            return found(cache_capacity)

        beside: Driver[CachePolicy] = Driver(base)
        beside.host, beside.types = driver.host, driver.types
        return driven_manager(beside, capacity)


@frozen
class SentHints:
    """What clients of a subject would send, who know the future: as its driver says."""

    subject: Subject

    def __call__(self, future: RequestFuture) -> Mapping[str, object] | None:
        """The hints of one request. Raises TargetError, and DriverFailedError for what it raises.

        No policy is called here, so that nothing of it is a policy's mistake.
        """
        driver = _driver(self.subject)
        try:
            hints = driver.hints_for(future)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise DriverFailedError(describe(error)) from error
        given: object = hints
        if given is not None and not isinstance(given, Mapping):
            raise DriverFailedError(f"hints_for gives {given!r:.80}, no dict and not None")
        return hints


@lru_cache(maxsize=4)
def _driver(subject: Subject) -> Driver[CachePolicy]:
    if subject.vllm is None:
        return find_driver(subject.request())
    # What loads stand-ins is wanted by few.
    from stateful_models.vllm.policies import policy_driver

    return policy_driver(
        subject.target,
        subject.vllm,
        driver=subject.driver,
        arguments=dict(subject.arguments),
    )


def check(subject: Subject) -> None:
    """Find the subject and build it once. Raises UsageError where that cannot be done."""
    maker: object = None
    try:
        with same_folder():
            driver = _driver(subject)
            check_methods(subject.driver or subject.target, driver, Driver)
            maker = driver.target
            built: object = driver.build(1)
    except KeyboardInterrupt:
        raise
    except TargetError as error:
        raise UsageError(str(error)) from error
    # A constructor that is on trial may raise anything, and exit.
    except BaseException as error:
        names = [name for name, _ in subject.arguments]
        why = why_not_built(maker, names, error)
        raise UsageError(f"{subject.target}: cannot be built: {why}") from error
    missing = [call for call in ("insert", "remove", "touch", "evict") if not hasattr(built, call)]
    if missing:
        raise UsageError(f"{subject.target}: no policy, for it has no {', '.join(missing)}")


def check_apart(subject: Subject) -> None:
    """As `check`, in a process of its own, which is ended where building does not. UsageError."""
    with guarded.GuardedExecutor(1, guarded.REQUEST_S) as executor:
        try:
            executor.submit(beforehand, partial(check, subject)).result()
        except BrokenExecutor as error:
            what = error.failure.what if isinstance(error, LostRunError) else error
            raise UsageError(f"{subject.target}: cannot be built: {what}") from error


def contract_of(report: Report) -> Contract:
    """What the page says of a trial: the verdict, and a line for each clause that is not held."""
    from stateful_models.trial.verdicts import Verdict

    by_verdict = {
        verdict: [clause for clause in report.clauses if clause.verdict is verdict]
        for verdict in Verdict
    }
    broken = [
        ClauseLine(id=clause.id, verdict="broken", what=clause.seen or clause.sentence)
        for clause in by_verdict[Verdict.BROKEN]
    ]
    unreached = [
        ClauseLine(id=clause.id, verdict="not reached", what=clause.reason)
        for clause in by_verdict[Verdict.NOT_REACHED]
    ]
    return Contract(
        verdict=report.verdict.value,
        level=report.level,
        host=report.host,
        held=len(by_verdict[Verdict.HELD]),
        held_clauses=tuple(clause.id for clause in by_verdict[Verdict.HELD]),
        not_held=(*broken, *unreached),
        problem=report.problem,
        cut=report.cut,
    )


def recognised_version(request: Request) -> str:
    """The version of vLLM that a policy is written for. Raises UsageError if it is for none."""
    from stateful_models.trial.portability import recognised
    from stateful_models.vllm.trial import portability

    found = recognised(portability(request))
    if found is None:
        raise UsageError(f"{request.target}: it can be called in no known version of vLLM")
    return found.version


def one_of(
    grid: Sequence[Mapping[str, Argument]], why: str = "one policy is judged at a time"
) -> tuple[tuple[str, Argument], ...]:
    """The arguments of the one policy that is judged. Raises UsageError for several, with why."""
    if len(grid) > 1:
        raise UsageError(f"--arg: one value each, for {why}")
    return tuple(grid[0].items())
