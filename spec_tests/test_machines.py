"""The machines of stateful_models on the reference: manager and policies against their models."""

from fractions import Fraction

import pytest
from hypothesis.stateful import run_state_machine_as_test

from kvoffload import CachePolicy
from spec_tests.profiles import times
from stateful_models.machines import (
    ARCManagerMachine,
    ARCPolicyMachine,
    LRUManagerMachine,
    LRUPolicyMachine,
    ManagerMachine,
    PolicyMachine,
)

# A step costs some tens of microseconds, so a run can afford many times the usual examples.
# How many is told by the situation that comes about least often.
MANAGER_TIMES = 4


@pytest.mark.parametrize("machine", [LRUManagerMachine, ARCManagerMachine])
def test_manager_agrees_with_its_model(machine: type[ManagerMachine]) -> None:
    """LOOK, LOAD, STORE, DONE, GEN, FIN, EVT and MET clauses, LRU-1 and ARC-1 to ARC-3."""
    run_state_machine_as_test(machine, settings=times(MANAGER_TIMES))
    assert machine.reach.missing(machine.SITUATIONS) == [], str(machine.reach)


@pytest.mark.parametrize(("machine", "often"), [(LRUPolicyMachine, 2), (ARCPolicyMachine, 4)])
def test_policy_agrees_with_its_model(
    machine: type[PolicyMachine[CachePolicy]], often: int
) -> None:
    """POL-1, POL-2, POL-3, POL-6, POL-7, POL-9, LRU-1, LRU-2, ARC-1 to ARC-5."""
    run_state_machine_as_test(machine, settings=times(often))
    assert machine.reach.missing(machine.SITUATIONS) == [], str(machine.reach)


def test_the_base_policy_machine_runs_by_itself() -> None:
    """A newcomer subclasses it and overrides one method; without that it tries LRU."""
    run_state_machine_as_test(PolicyMachine, settings=times(Fraction(1, 6)))
