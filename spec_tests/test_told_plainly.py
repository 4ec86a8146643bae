"""What is told of a breach: by programs, machines and tests, with nothing of the kit in between."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import define, field
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from typing_extensions import override

from kvoffload import CPUOffloadingManager
from stateful_models import operations as op
from stateful_models.contract import CLAUSES, Kind
from stateful_models.engines.base import Breach, Cut, Demand
from stateful_models.engines.manager_runs import ManagerRun, run_manager_program, usual_invariants
from stateful_models.gallery.broken_policies.base import Plain
from stateful_models.gallery.broken_policies.hooks import Pol7UnknownTouch
from stateful_models.machines import PolicyMachine, machine_test
from stateful_models.machines.failures import BrokenRunError
from stateful_models.manager_drivers import ManagerDriver
from stateful_models.programs import Program, keys
from stateful_models.reach import Reach
from stateful_models.trial.reports import Reporter, Shown
from stateful_models.trial.request import Request, Task
from stateful_models.trial.scope import POLICY_SCOPE
from stateful_models.trial.wording import SETTLED, program_lines

A, B = keys("a b")
FIND = settings(
    settings(),
    max_examples=400,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)


def run_of(
    *operations: op.PrepareStore | op.CompleteStore | op.PrepareLoad,
) -> ManagerRun[CPUOffloadingManager]:
    driver = ManagerDriver(CPUOffloadingManager)
    return run_manager_program(
        driver, Program(2, operations), usual_invariants(driver.capabilities)
    )


STORED = (op.PrepareStore("r1", (A,), 1), op.CompleteStore("r1", (A,), attempt=1))


def test_what_a_host_completes_by_itself_is_told() -> None:
    lines = program_lines(run_of(*STORED, op.PrepareLoad("r2", (A,), 2)).played, ())
    assert lines[3].split()[-4:] == ["1", "1", "0", "1"]
    place = next(n for n, line in enumerate(lines) if SETTLED in line)
    assert lines[place].split()[-4:] == ["1", "0", "0", "1"]
    assert "complete_load(r2, [a/0]" in lines[place + 1]


def test_nothing_is_completed_where_nothing_is_in_flight() -> None:
    assert not any(SETTLED in line for line in program_lines(run_of(*STORED).played, ()))


@define
class Found:
    """What a trial found."""

    breaches: dict[Demand, Breach]
    tried: set[str] = field(factory=set)
    declined: dict[str, str] = field(factory=dict)
    reach: Reach = field(factory=Reach)
    programs: int = 0
    notes: list[str] = field(factory=list)
    cuts: dict[str, Cut] = field(factory=dict)

    def first_broken(self, program: Program) -> tuple[Sequence[str], int] | None:
        """Nothing follows from anything here."""
        return None


def test_another_demand_of_a_clause_brings_its_own_program() -> None:
    found = [
        Breach("POL-2", Kind.HOST, "evicted e", "law", Program(2, (op.Reset(),))),
        Breach("POL-2", Kind.SAFETY, "a is gone", "random", Program(1, STORED)),
    ]
    report = Reporter(
        request=Request(task=Task.POLICY, target="x", only=("POL-2",)),
        trial=Found({(one.clause, one.kind): one for one in found}),
        scopes=POLICY_SCOPE,
        not_applicable=lambda scope: "",
        show=lambda breach: Shown((breach.engine, str(breach.program))),
    ).report(host="h", seconds=1)
    (verdict,) = report.clauses
    assert (verdict.seen, verdict.reason) == ("a is gone", "")
    assert verdict.also == ("evicted e (found by law)", "law", str(found[0].program))
    assert repr(verdict) == "<POL-2: broken>"


def test_a_breach_with_a_sentence_of_its_own_is_told_by_that() -> None:
    sentences = CLAUSES["POL-4"]
    for promise, told in (("", sentences.part(Kind.ADVICE).sentence), ("It ends.", "It ends.")):
        breach = Breach("POL-4", Kind.ADVICE, "it grew", "growth", promise=promise)
        report = Reporter(
            request=Request(task=Task.POLICY, target="x", only=("POL-4",)),
            trial=Found({(breach.clause, breach.kind): breach}),
            scopes=POLICY_SCOPE,
            not_applicable=lambda scope: "",
            show=lambda breach: Shown(()),
        ).report(host="h", seconds=1)
        (verdict,) = report.clauses
        assert (verdict.sentence, verdict.kind, verdict.convicts) == (told, "A", False)


class TouchesStrangers(PolicyMachine[Pol7UnknownTouch]):
    """Raises in a touch."""

    @override
    def make_policy(self, capacity: int) -> Pol7UnknownTouch:
        return Pol7UnknownTouch(cache_capacity=capacity)


def test_a_failure_of_a_machine_shows_the_shortest_program() -> None:
    with pytest.raises(BrokenRunError) as caught:
        machine_test(TouchesStrangers, settings=FIND)()
    told, _, program = str(caught.value).partition("\nthe shortest program found:\n")
    clause = told.partition(":")[0]
    # The demand that was broken, and no other of its clause.
    assert told.splitlines()[1] == f"  {CLAUSES[clause].part(Kind.SAFETY).sentence}"
    calls = [line for line in program.splitlines() if line[:4].strip().isdigit()]
    assert len(calls) == 1
    # Keys stand there by their short names, also in what was raised.
    assert "raised KeyError: a/0" in program.splitlines()[-1]
    # Nothing of how Hypothesis came to it.
    assert caught.value.__notes__ == []


class Meddles(PolicyMachine[Plain]):
    """Its rule does what no host does."""

    @override
    def make_policy(self, capacity: int) -> Plain:
        return Plain(cache_capacity=capacity)

    @rule()
    def meddle(self) -> None:
        for key in list(self.host.ref_cnt):
            self.run.policy.remove(key)


class Counts(PolicyMachine[Plain]):
    """Its rule finds something by itself, with a number that is drawn for nothing."""

    @override
    def make_policy(self, capacity: int) -> Plain:
        return Plain(cache_capacity=capacity)

    @rule(number=st.integers())
    def count(self, number: int) -> None:
        assert not self.host.ref_cnt, f"not empty, at {number}"


def test_what_only_a_rule_brings_about_is_shown_as_it_came() -> None:
    with pytest.raises(BrokenRunError) as caught:
        machine_test(Meddles, settings=FIND)()
    assert "\nthe program:\n" in str(caught.value)


def test_what_a_rule_finds_is_made_short_by_hypothesis() -> None:
    few = settings(settings.get_profile("ci"), max_examples=20, stateful_step_count=8)
    with pytest.raises(AssertionError, match="not empty, at 0") as caught:
        machine_test(Counts, settings=few)()
    told = "\n".join(caught.value.__notes__)
    assert "state.count(number=0)" in told
    assert "Explanation" not in told


PASTED = """
from hypothesis import settings
from stateful_models.checking import check_manager, check_manager_law, check_policy, keys, op
from stateful_models.checking import check_policy_law, verdict_on
from stateful_models.gallery.broken_policies.clearing import Pol6OldPlaces
from stateful_models.gallery.broken_policies.hooks import Pol7UnknownTouch
from stateful_models.gallery.loads import Pin1NeverReleases
from stateful_models.machines import PolicyMachine, machine_test

a, b = keys("a b")


def test_policy():
    check_policy(Pol7UnknownTouch, 1, [op.Touch("r1", (a,))])


def test_manager():
    check_manager(
        Pin1NeverReleases,
        2,
        [
            op.PrepareStore("r1", (a,), 1),
            op.CompleteStore("r1", (a,), attempt=1),
            op.PrepareLoad("r1", (a,), 2),
        ],
    )


class Machine(PolicyMachine[Pol7UnknownTouch]):
    def make_policy(self, capacity):
        return Pol7UnknownTouch(cache_capacity=capacity)


test_machine = machine_test(Machine, settings=settings(max_examples=100, database=None))
"""


def failures(place: Path, text: str) -> str:
    (place / "test_pasted.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pasted.py"],
        cwd=place,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_a_failure_shows_no_line_of_the_kit(tmp_path: Path) -> None:
    told = failures(tmp_path, PASTED)
    assert "3 failed" in told, told
    for frame in ("checking.py:", "policy.py:", "testing.py:", "stateful.py:", "driver = "):
        assert frame not in told
    assert "POL-7: touch raised" in told
