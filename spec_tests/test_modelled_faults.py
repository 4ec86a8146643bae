"""What judges the policies that name a model is shown to catch what is wrong."""

from __future__ import annotations

from random import Random

import pytest
from attrs import evolve

from kvoffload import InvariantError
from kvoffload.policies.lines import LinePolicy
from spec_tests.engines.line_books import DAMAGE, try_damage_of
from spec_tests.engines.orders import CAPACITIES, Orders, subject_of
from spec_tests.lots import by_lot
from spec_tests.modelled_faults import FAULTS, CountsBeyondThree, CountsUses, Fault, HashesAsPython
from stateful_models.capabilities import BUILT_IN, Capabilities
from stateful_models.contract import Kind
from stateful_models.drivers import Driver, registered
from stateful_models.engines import drawing
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.drawing import Scheduler
from stateful_models.engines.random import RandomPrograms
from stateful_models.engines.runs import PolicyRun
from stateful_models.invariants import policy_invariants
from stateful_models.invariants.orders import order_invariants
from stateful_models.levels import QUICK

SEEDS = 80
PROGRAMS = 400
# Books that decide nothing, which `check` alone looks at.
CHECKED_ONLY = (CountsUses, CountsBeyondThree)
MISORDERED = [fault for fault in FAULTS if fault.policy_cls not in CHECKED_ONLY]
CHECKED = [fault for fault in FAULTS if fault.checked]


def unchecked_books(policy: LinePolicy) -> None:
    """In place of `check`, where it is the order that is to tell."""


def name_of(fault: Fault) -> str:
    return f"{fault.policy_cls.__name__} for {fault.name}"


def test_each_policy_has_faults_enough() -> None:
    for name in ("sieve", "s3fifo", "wtinylfu", "slru"):
        assert sum(fault.name.removeprefix("roomy ") == name for fault in FAULTS) >= 4
    for name, claims in BUILT_IN.items():
        assert claims.model is None or any(fault.name == name for fault in FAULTS)


@pytest.mark.parametrize("fault", MISORDERED, ids=name_of)
def test_a_wrong_order_is_told_from_that_of_the_model(fault: Fault) -> None:
    unchecked = type("Unchecked", (fault.policy_cls,), {"check": unchecked_books})

    def play() -> None:
        for seed in range(SEEDS):
            Orders(fault.name, CAPACITIES[seed % len(CAPACITIES)], seed, unchecked).run(150)

    # A key that is in line twice is nobody's when it goes a second time.
    with pytest.raises((AssertionError, KeyError)):
        play()


@pytest.mark.parametrize("fault", CHECKED, ids=name_of)
def test_wrong_books_are_told_by_check(fault: Fault) -> None:
    def play() -> None:
        for seed in range(SEEDS):
            orders = Orders(fault.name, CAPACITIES[seed % len(CAPACITIES)], seed, fault.policy_cls)
            try:
                orders.run(150)
            except AssertionError:
                # What differs from the model before may be found wrong in another run.
                continue

    with pytest.raises(InvariantError, match=fault.checked):
        play()


@pytest.mark.parametrize(
    "fault",
    # Its choices differ from process to process.
    [fault for fault in MISORDERED if fault.policy_cls is not HashesAsPython],
    ids=name_of,
)
def test_a_trial_convicts_by_the_model(fault: Fault) -> None:
    claims = Capabilities(model=subject_of(fault.name).model)
    for number in range(PROGRAMS):
        chance = Random(number)
        capacity = chance.choice(drawing.CAPACITIES)
        run = PolicyRun(Driver(fault.policy_cls), capacity, order_invariants(claims, capacity))
        Scheduler(chance, run).play(20)
        if run.violations:
            (violation,) = run.violations
            assert violation.clause == "its model"
            assert "was expected" in violation.message
            assert violation.promise.startswith("Victims are those of the model")
            return
    pytest.fail("nothing was found")


@pytest.mark.parametrize(
    "name",
    by_lot([name for name, one in BUILT_IN.items() if one.model is not None], one_of=3),
)
def test_ours_are_acquitted_and_the_claim_is_tried(name: str) -> None:
    driver = registered(name)
    trial = PolicyTrial(
        driver,
        lambda capacity: policy_invariants(driver.capabilities, capacity),
        capabilities=driver.capabilities,
        level=evolve(QUICK, programs=120),
    )
    RandomPrograms().run(trial)
    assert trial.breaches == {}
    assert "its model" in trial.tried
    assert Kind.CLAIM not in {kind for _, kind in trial.breaches}


@pytest.mark.parametrize("what", DAMAGE)
def test_check_tells_of_damage(what: str) -> None:
    assert DAMAGE[what].says in try_damage_of(DAMAGE[what])
