"""Slow is not the same as never: what is waited for, and who is blamed."""

from collections.abc import Sequence, Set
from time import process_time

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.checking import keys, op
from stateful_models.contract import Kind
from stateful_models.drivers import Driver, DriverFailedError
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.runs import PolicyRun, Surroundings
from stateful_models.invariants import policy_invariants
from stateful_models.levels import QUICK
from stateful_models.programs import Program

A, B = keys("a b")
PROGRAM = Program(
    1, (op.PrepareStore("r1", (A,)), op.CompleteStore("r1", (A,)), op.PrepareStore("r2", (B,)))
)
SOON = 0.05


def busy(seconds: float) -> None:
    until = process_time() + seconds
    while process_time() < until:
        pass


class SlowOnce(LRUCachePolicy):
    """Takes long once in its life, as who loads something does."""

    slow = 1

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        if type(self).slow:
            type(self).slow -= 1
            busy(60)
        return super().evict(n, protected)


def trial_of(driver: Driver[LRUCachePolicy]) -> PolicyTrial[LRUCachePolicy]:
    return PolicyTrial(
        driver,
        lambda capacity: policy_invariants(driver.capabilities, capacity, driver.host),
        level=evolve(QUICK, shrinking=10),
        surroundings=Surroundings(patience_s=SOON),
    )


@pytest.mark.parametrize(("times", "convicts"), [(1, False), (1_000, True)])
def test_what_hangs_once_and_not_again_is_a_note(
    times: int, convicts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowOnce, "slow", times)
    trial = trial_of(Driver(SlowOnce))
    trial.judged(trial.run(PROGRAM), "random")
    assert (("POL-7", Kind.SAFETY) in trial.breaches) is convicts
    assert trial.hung == convicts
    told = [note for note in trial.notes if note.startswith("evict did not return within 0.05 s")]
    assert len(told) == (not convicts)


def test_a_clock_that_is_slow_to_advance_is_no_call_of_the_policy() -> None:
    driver = Driver(LRUCachePolicy)
    run = PolicyRun(
        driver, 1, (), surroundings=Surroundings(advance=busy, patience_s=SOON, calling=print)
    )
    assert run.play(op.AdvanceClock(0.3))
    assert not run.violations


class SlowHost(Driver[LRUCachePolicy]):
    @override
    def before_store(
        self, policy: LRUCachePolicy, keys: Sequence[OffloadKey], context: ReqContext
    ) -> None:
        while True:
            pass


def test_a_driver_that_does_not_return_convicts_nobody() -> None:
    trial = trial_of(SlowHost(LRUCachePolicy))
    with pytest.raises(DriverFailedError, match="before_store did not return within"):
        trial.run(PROGRAM)
