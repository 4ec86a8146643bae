"""A manager of the gallery on trial: built, worked, and judged with a tap in its policy."""

from __future__ import annotations

from attrs import define, field

from kvoffload import CachePolicy, CPUOffloadingManager
from stateful_models.account import Account
from stateful_models.contract import CLAUSES, Profile
from stateful_models.gallery.managers import SETUPS
from stateful_models.gallery.oddities import ODD_SETUPS
from stateful_models.gallery.setups import PLAIN, GalleryWorkload, Setup
from stateful_models.invariants import manager_invariants
from stateful_models.judge import Judge, Violation
from stateful_models.operations import Operation
from stateful_models.policy_tap import Tap
from stateful_models.steps import Step
from stateful_models.subjects import ManagerSubject

CAPACITY = 9
ROUNDS = 600


SEEDS = range(8)


class _FoundError(Exception):
    """What was looked for has been found."""


@define
class Trial:
    """Performs operations, and keeps what the judge finds, until it finds `wanted` broken."""

    subject: ManagerSubject
    judge: Judge[Account]
    wanted: str | None = None
    violations: list[Violation] = field(factory=list)
    steps: int = 0

    def perform(self, operation: Operation) -> Step:
        """Perform an operation and have it judged."""
        step = self.subject.perform(operation)
        self.steps += 1
        self.violations += self.judge.judge(step)
        if self.wanted in {violation.clause for violation in self.violations[-9:]}:
            raise _FoundError
        return step

    @property
    def convictions(self) -> list[Violation]:
        """What is held against code that is not ours."""
        return [
            violation
            for violation in self.violations
            if CLAUSES[violation.clause].part(violation.kind).convicts(Profile.VLLM)
        ]

    def clauses(self) -> set[str]:
        """The clauses that were found broken."""
        return {violation.clause for violation in self.violations}

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.violations[:3]))


def setup_of(manager_cls: type[CPUOffloadingManager]) -> Setup:
    """How an exhibit is to be built."""
    return SETUPS.get(manager_cls) or ODD_SETUPS.get(manager_cls) or PLAIN


def make_trial(
    manager_cls: type[CPUOffloadingManager],
    policy: type[CachePolicy] | str | None = None,
    setup: Setup = PLAIN,
) -> Trial:
    """The manager with a tap around `policy`, or that of the setup."""
    tap = Tap(setup.cache_policy or policy)
    manager = manager_cls(
        CAPACITY,
        tap.policy_cls,
        enable_events=setup.enable_events,
        store_threshold=setup.store_threshold,
        max_tracker_size=setup.max_tracker_size,
    )
    invariants = manager_invariants(
        store_threshold=setup.store_threshold,
        enable_events=setup.enable_events,
        may_refuse=setup.may_refuse,
        max_tracker_size=setup.max_tracker_size,
    )
    return Trial(ManagerSubject(manager, tap=tap), Judge(invariants, Account(CAPACITY)))


def first_conviction(
    manager_cls: type[CPUOffloadingManager],
    policy: type[CachePolicy] | str | None,
    clause: str,
) -> Trial:
    """The first trial, over a few seeds, that finds `clause` broken, else the last."""
    setup = setup_of(manager_cls)
    trial = make_trial(manager_cls, policy, setup)
    for seed in SEEDS:
        trial = make_trial(manager_cls, policy, setup)
        trial.wanted = clause
        try:
            GalleryWorkload(trial, seed=seed, drains=setup.drains).run(setup.rounds or ROUNDS)
        except _FoundError:
            break
    return trial


def worked(
    manager_cls: type[CPUOffloadingManager],
    policy: type[CachePolicy] | str | None = None,
    *,
    seed: int = 0,
    setup: Setup | None = None,
    mistakes: bool = True,
) -> Trial:
    """A trial after the workload of the gallery."""
    setup = setup or setup_of(manager_cls)
    trial = make_trial(manager_cls, policy, setup)
    workload = GalleryWorkload(trial, seed=seed, mistakes=mistakes, drains=setup.drains)
    workload.run(setup.rounds or ROUNDS)
    return trial
