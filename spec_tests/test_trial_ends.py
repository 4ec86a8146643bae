"""Targets that end the process of their trial, or do not return, and how soon that is known."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from time import monotonic

import pytest
from typing_extensions import override

from kvoffload import CPUOffloadingManager, OffloadKey, PrepareStoreOutput, ReqContext
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines import base, runs
from stateful_models.engines.base import GAVE_UP, MAX_HANGING
from stateful_models.engines.manager_runs import NEEDED_FOR, usual_invariants
from stateful_models.engines.runs import NotBuiltError, Surroundings
from stateful_models.engines.suites import manager_engines, policy_engines
from stateful_models.invariants import policy_invariants
from stateful_models.manager_drivers import ManagerDriver
from stateful_models.trial import trials
from stateful_models.trial.managers import MANAGER_SCOPE, try_manager
from stateful_models.trial.policies import try_policy
from stateful_models.trial.request import Doing, Request, Task
from stateful_models.trial.trials import hold_trial
from stateful_models.trial.verdicts import Outcome, Report, Verdict

SOON = 0.05

MANAGERS = """
import asyncio
import os
import sys

from kvoffload import CPUOffloadingManager


class Ends(CPUOffloadingManager):
    def prepare_store(self, keys, req_context):
        os._exit(3)


class Exits(CPUOffloadingManager):
    def complete_load(self, keys, req_context, *, ticket=None):
        sys.exit(3)


class Raises(CPUOffloadingManager):
    def prepare_load(self, keys, req_context):
        raise RuntimeError("not today")


class IsCancelled(CPUOffloadingManager):
    def take_events(self):
        raise asyncio.CancelledError


class HangsInC(CPUOffloadingManager):
    def complete_store(self, *args, **kwargs):
        sum(iter(int, 1))


class NotBuilt(CPUOffloadingManager):
    def __init__(self, num_chunks):
        sum(iter(int, 1))


class EndsWhenBuilt(CPUOffloadingManager):
    def __init__(self, num_chunks):
        os._exit(0)


class EndsWhenBuiltAgain(CPUOffloadingManager):
    made = 0

    def __init__(self, num_chunks):
        super().__init__(num_chunks)
        EndsWhenBuiltAgain.made += 1
        if self.made == 5:
            os._exit(0)
"""
AROUND = """
import os

from stateful_models.invariants import Invariant


class Ends(Invariant):
    def judge(self, step, books):
        os._exit(0)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "theirs.py").write_text(MANAGERS)
    (tmp_path / "around.py").write_text(AROUND)
    (tmp_path / "ending.py").write_text("import os\n\nos._exit(4)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trials, "CALL_PATIENCE_S", 1.5)
    monkeypatch.setattr(trials, "BUILD_PATIENCE_S", 1.5)
    return tmp_path


def tried(target: str, **options: tuple[str, ...]) -> Report:
    request = Request(task=Task.MANAGER, target=target, level="smoke", **options)  # type: ignore[arg-type]  # all given are tuples of names
    return hold_trial(request)


@pytest.mark.parametrize(
    ("name", "clause", "seen"),
    [
        ("Ends", "STORE-4", "in prepare_store the process of the trial exited with status 3"),
        ("Exits", "PIN-1", "complete_load raised SystemExit: 3"),
        ("Raises", "LOAD-2", "prepare_load raised RuntimeError: not today"),
        ("IsCancelled", "EVT-1", "take_events raised CancelledError"),
        ("HangsInC", "DONE-1", "in complete_store the process of the trial did not return"),
    ],
)
def test_a_manager_that_ends_the_engine_is_convicted_of_what_the_call_is_there_for(
    place: Path, name: str, clause: str, seen: str
) -> None:
    report = tried(f"theirs.py:{name}", only=(clause,))
    assert report.verdict is Outcome.CONVICTED
    verdict = report.of(clause)
    assert verdict.convicts
    assert verdict.seen.startswith(seen)
    assert verdict.engine == "random"
    assert verdict.consequence
    assert verdict.test


def test_a_known_end_does_not_convict(place: Path) -> None:
    report = tried("theirs.py:Ends", known=("STORE-4",))
    assert report.verdict is Outcome.CLEAN
    assert report.of("STORE-4").broken


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("theirs.py:NotBuilt", "cannot be built: the process of the trial did not return"),
        ("theirs.py:EndsWhenBuilt", "cannot be built: the process of the trial exited"),
        ("theirs.py:EndsWhenBuiltAgain", "cannot be built: the process of the trial exited"),
        ("ending.py:Ends", "cannot be loaded: the process of the trial exited with status 4"),
    ],
)
def test_what_cannot_be_built_or_loaded_is_not_convicted(
    place: Path, target: str, problem: str
) -> None:
    report = tried(target)
    assert report.verdict is Outcome.UNTRIED
    assert report.problem.startswith(f"{target}: {problem}")


def test_what_ends_the_process_between_calls_convicts_nobody(place: Path) -> None:
    report = tried("cpu", invariants=("around.py:Ends",))
    assert report.verdict is Outcome.UNTRIED
    assert report.problem.startswith("the process of the trial exited with status 0")


def loop() -> None:
    while True:
        pass


def test_a_constructor_that_does_not_return_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BUILD_PATIENCE", 2)
    called: list[str] = []
    surroundings = Surroundings(patience_s=SOON, calling=called.append)
    with pytest.raises(NotBuiltError, match=r"did not return within 0\.1 s; found at .* in loop"):
        surroundings.build(loop)
    assert surroundings.build(lambda: 7) == 7
    assert called == ["constructor", "", "constructor", ""]


def test_every_call_has_a_clause_that_is_convicted_of() -> None:
    assert set(NEEDED_FOR.values()) <= set(MANAGER_SCOPE)
    assert {"lookup", "prepare_load", "complete_load", "prepare_store", "complete_store"} <= set(
        NEEDED_FOR
    )


@pytest.mark.parametrize("doing", [Doing(), Doing(call="evict"), Doing(loading="a.py:A, b:B")])
def test_what_is_marked_is_read_again(doing: Doing) -> None:
    assert Doing.decode(doing.encode()) == doing
    assert Doing.decode(b"") == Doing()


class Waits(CPUOffloadingManager):
    """Waits for room that nobody makes."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        stored = super().prepare_store(keys, req_context)
        if stored is None:
            loop()
        return stored


class Hurries(LRUCachePolicy):
    """Does not return from a touch of several keys."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        touched = list(keys)
        if len(touched) > 1:
            loop()
        super().touch(touched, req_context)


def manager_report() -> tuple[Report, Mapping[str, int]]:
    driver = ManagerDriver(Waits)
    begun: dict[str, int] = {}
    report = try_manager(
        driver,
        manager_engines(),
        Request(task=Task.MANAGER, target="Waits"),
        make_invariants=usual_invariants(driver.capabilities),
        surroundings=Surroundings(patience_s=SOON),
        on_progress=lambda engine, share: begun.update({engine: begun.get(engine, 0) + 1}),
        now=monotonic,
    )
    return report, begun


def policy_report() -> tuple[Report, Mapping[str, int]]:
    driver = Driver(Hurries)
    begun: dict[str, int] = {}
    report = try_policy(
        driver,
        policy_engines(),
        Request(task=Task.POLICY, target="Hurries"),
        make_invariants=lambda capacity: policy_invariants(
            driver.capabilities, capacity, driver.host
        ),
        surroundings=Surroundings(patience_s=SOON),
        on_progress=lambda engine, share: begun.update({engine: begun.get(engine, 0) + 1}),
        now=monotonic,
    )
    return report, begun


@pytest.mark.parametrize(
    ("hold", "clause"), [(manager_report, "STORE-4"), (policy_report, "POL-7")]
)
def test_a_few_calls_that_do_not_return_are_enough(
    hold: Callable[[], tuple[Report, Mapping[str, int]]],
    clause: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "HURRIED_S", SOON)
    report, begun = hold()
    assert report.of(clause).convicts
    assert report.of(clause).program
    assert GAVE_UP in report.notes
    # Not every engine began, and none played all its programs.
    assert "quiescence" not in begun
    assert "growth" not in begun
    assert sum(begun.values()) < 400
    # What was cut short like that holds nothing.
    held = {one.id for one in report.clauses if one.verdict is Verdict.HELD}
    assert not held & {"STORE-3", "LOAD-3", "POL-4", "POL-6"}
    assert all(one.cut and one.share < 1.0 for one in report.clauses if one.id in held)
    assert any(0.0 in one.cut.values() for one in report.clauses), "of what was not begun"
    # It was not time that ended them.
    assert report.cut == {}


def test_the_number_of_hanging_programs_does_not_count_those_that_make_one_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stateful_models.engines.managers import ManagerTrial, RandomManagerPrograms

    monkeypatch.setattr(base, "HURRIED_S", SOON)
    driver = ManagerDriver(Waits)
    trial = ManagerTrial(
        driver,
        usual_invariants(driver.capabilities),
        capabilities=driver.capabilities,
        surroundings=Surroundings(patience_s=SOON),
    )
    RandomManagerPrograms().run(trial)
    assert trial.hung == MAX_HANGING
    assert trial.gave_up
    assert not trial.tried
    assert ("STORE-4", Kind.HOST) in trial.breaches


CONVICTED_WHILE_ANOTHER_WAITS = """
import os
from pathlib import Path
from threading import Event

from kvoffload.policies.lru import LRUCachePolicy


class WaitsElsewhere(LRUCachePolicy):
    def __init__(self, cache_capacity):
        super().__init__(cache_capacity)
        if os.environ["PYTHONHASHSEED"] != "0":
            Path({pid!r}).write_text(str(os.getpid()))
            try:
                Event().wait()
            finally:
                Path({ended!r}).touch()

    def remove(self, key):
        while not Path({pid!r}).exists():
            pass
        raise RuntimeError("not today")
"""


def test_processes_with_other_hash_seeds_end_with_a_trial_that_convicts(tmp_path: Path) -> None:
    pid, ended, target = (tmp_path / name for name in ("pid", "ended", "waits.py"))
    target.write_text(CONVICTED_WHILE_ANOTHER_WAITS.format(pid=str(pid), ended=str(ended)))
    only = ("POL-5", "POL-7")
    report = hold_trial(
        Request(task=Task.POLICY, target=f"{target}:WaitsElsewhere", level="smoke", only=only)
    )
    assert report.verdict is Outcome.CONVICTED
    # It was killed: had its time been up, its constructor would have been left.
    assert not Path(f"/proc/{pid.read_text()}").exists()
    assert not ended.exists()
