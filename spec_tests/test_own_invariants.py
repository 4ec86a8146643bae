"""An invariant of one's own is asked in the machines, new in every run, beside the usual ones."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from typing_extensions import override

from kvoffload import CachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.clauses.policies import FIFOPolicy
from stateful_models.account import Account
from stateful_models.invariants import Finding, Invariant, PolicyBooks
from stateful_models.machines import ManagerConfig, ManagerMachine, PolicyMachine
from stateful_models.operations import Evict, PrepareStore
from stateful_models.steps import Step, Stored, Victims

FIND = settings(settings(), max_examples=1_500, phases=[Phase.generate], report_multiple_bugs=False)


class OldestFirst(Invariant[PolicyBooks]):
    """The victims are the oldest of those that may go."""

    clauses: ClassVar[tuple[str, ...]] = ("OWN-2",)

    def __init__(self) -> None:
        self.steps = 0

    @override
    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        self.steps += 1
        if self.steps != step.number:
            yield Finding("OWN-2", f"{self.steps} steps known at step {step.number}")
        evict, given = step.operation, step.result
        if isinstance(evict, Evict) and isinstance(given, Victims):
            idle = [key for key in books.slots if books.ref_cnt[key] == 0]
            oldest = [key for key in idle if key not in evict.protected][: evict.count]
            if list(given.keys) != oldest:
                yield Finding("OWN-2", "not the oldest")


class NoEvictions(Invariant[Account]):
    """No offer makes room."""

    clauses: ClassVar[tuple[str, ...]] = ("OWN-1",)

    @override
    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        if isinstance(step.operation, PrepareStore) and isinstance(step.result, Stored):
            if step.result.evicted:
                yield Finding("OWN-1", "something went")


def policy_machine(policy_cls: type[CachePolicy]) -> type[PolicyMachine[CachePolicy]]:
    class Machine(PolicyMachine[CachePolicy]):
        @override
        def make_policy(self, capacity: int) -> CachePolicy:
            return policy_cls(cache_capacity=capacity)

        @override
        def make_invariants(self, capacity: int) -> Sequence[Invariant[PolicyBooks]]:
            return [OldestFirst()]

    return Machine


def objection(machine: type[RuleBasedStateMachine]) -> str:
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(machine, settings=FIND)
    return str(caught.value)


def test_a_policy_that_keeps_the_promise_passes() -> None:
    machine = policy_machine(FIFOPolicy)
    run_state_machine_as_test(machine)
    assert machine.reach.missing(("eviction", "eviction beside pins")) == [], str(machine.reach)


def test_a_policy_that_breaks_the_promise_is_convicted_of_it() -> None:
    assert objection(policy_machine(LRUCachePolicy)).startswith("OWN-2: not the oldest")


def test_a_manager_is_judged_by_it_too() -> None:
    class Machine(ManagerMachine):
        @override
        def make_invariants(self, config: ManagerConfig) -> Sequence[Invariant[Account]]:
            return [NoEvictions()]

    assert objection(Machine).startswith("OWN-1: something went")


def test_the_usual_invariants_still_judge() -> None:
    class RemembersNothing(FIFOPolicy):
        @override
        def get(self, key: object) -> None:
            return None

    assert objection(policy_machine(RemembersNothing)).startswith("POL-1")
