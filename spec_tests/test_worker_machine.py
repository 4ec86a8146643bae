"""The worker machine: the reference passes it, a wrong worker does not, a wrong caller is named."""

from fractions import Fraction

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from typing_extensions import override

from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ordered import OrderedDevice
from spec_tests.profiles import times
from stateful_models.gallery.workers import BROKEN_WORKERS
from stateful_models.machines import WorkerMachine, machine_test
from stateful_models.workers import CopyingWorker, WorkerBreachError


def test_the_reference_under_any_order() -> None:
    """COPY-1 to COPY-4, COPY-6, MAP-3, ORD-1 to ORD-3; nothing that matters is left out."""
    run_state_machine_as_test(WorkerMachine, settings=times(3))
    assert WorkerMachine.reach.missing(WorkerMachine.SITUATIONS) == [], str(WorkerMachine.reach)


class CarelessMachine(WorkerMachine):
    caller_keeps_order = False


def test_a_careless_caller_is_the_only_one_to_blame() -> None:
    run_state_machine_as_test(CarelessMachine)
    reach = CarelessMachine.reach
    assert reach["a kernel that should have waited"]
    assert reach["a race of the caller's"]


@pytest.mark.parametrize(
    "name",
    [
        "Copy2SkipsOnTheWrongSide",
        "Copy4FailureSwallowed",
        "Copy4WaitsForTheStart",
        "Ord1LoadBesideCompute",
        "Ord2OneSetOfRows",
        "Ord3StoreOverLoad",
    ],
)
def test_a_worker_that_is_wrong_is_found_out(name: str) -> None:
    exhibit = BROKEN_WORKERS[name]

    class Machine(WorkerMachine):
        @override
        def make_worker(self, layout: CopyLayout, device: OrderedDevice) -> CopyingWorker:
            return exhibit.make(layout, device)

    with pytest.raises(WorkerBreachError) as raised:
        run_quickly(Machine)
    assert raised.value.finding.clause in {exhibit.clause, *exhibit.also}
    assert raised.value.finding.program


def run_quickly(machine: type[WorkerMachine]) -> None:
    """Until it fails; how short the program can be made is nobody's question here."""
    run_state_machine_as_test(
        machine, settings=settings(phases=(Phase.generate,), report_multiple_bugs=False)
    )


test_some_rules_alone = machine_test(
    WorkerMachine, only=["store", "load", "run"], settings=times(Fraction(1, 3))
)


def test_a_rule_that_is_overridden_stays_a_rule() -> None:
    with pytest.raises(TypeError, match="store"):

        class Lost(WorkerMachine):  # pyright: ignore[reportUnusedClass]
            def store(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]
                return None
