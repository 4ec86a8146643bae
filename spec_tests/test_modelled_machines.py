"""The machines of the policies that name a model, each beside its own."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from spec_tests.profiles import times
from stateful_models.capabilities import BUILT_IN
from stateful_models.machines.modelled import MODELLED_MACHINES, ModelledMachine

TIMES = 3

# Which end of a request goes first is all that these variants change: they are for the night.
MACHINES = [
    pytest.param(machine, marks=pytest.mark.nightly)
    if machine.policy.endswith("-tail")
    else machine
    for machine in MODELLED_MACHINES
]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.policy)
def test_a_policy_agrees_with_its_model(machine: type[ModelledMachine]) -> None:
    """POL-1, POL-2, POL-3, POL-6, POL-7, POL-9, and the order that the paper has."""
    run_state_machine_as_test(machine, settings=times(TIMES))
    assert machine.reach.missing(machine.SITUATIONS) == [], str(machine.reach)


def test_every_policy_that_names_a_model_has_a_machine() -> None:
    named = [name for name, claims in BUILT_IN.items() if claims.model is not None]
    assert named == [machine.policy for machine in MODELLED_MACHINES]
