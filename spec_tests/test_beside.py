"""A second process plays engines meanwhile, and a trial comes to what it comes to without it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import CachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.tiny_policies import Fifo, TurnsAfterClear, trial_of
from stateful_models.capabilities import BUILT_IN, NONE, Capabilities
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import AnyEngine, Breach, PolicyTrial
from stateful_models.engines.suites import policy_engines
from stateful_models.invariants import Finding, Invariant, PolicyBooks
from stateful_models.levels import SMOKE
from stateful_models.operations import Evict, Reset
from stateful_models.steps import Step
from stateful_models.trial import beside
from stateful_models.trial.beside import Tally, play_engines, tally
from stateful_models.trial.coverage import OwnLines
from stateful_models.trial.hint_names import HintNames
from stateful_models.trial.judgings import Judgings

P = TypeVar("P", bound=CachePolicy)

BRIEF = evolve(SMOKE, name="brief", programs=12, laws=4, churn=100)


@pytest.fixture(autouse=True)
def two_cores_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has, and whoever runs these tests."""
    monkeypatch.setattr(beside, "_cores", lambda: 2)
    monkeypatch.setattr(beside, "_threads", lambda: 1)


# Which engines are played where.


class First(AnyEngine):
    name: ClassVar[str] = "first"
    clauses: ClassVar[tuple[str, ...]] = ("POL-1",)


class Second(First):
    name: ClassVar[str] = "second"
    independent: ClassVar[bool] = True


class Third(First):
    name: ClassVar[str] = "third"


class Fourth(Second):
    name: ClassVar[str] = "fourth"


class Fifth(Second):
    name: ClassVar[str] = "fifth"


ENGINES: Sequence[AnyEngine] = (First(), Second(), Third(), Fourth(), Fifth())
NAMES = [engine.name for engine in ENGINES]
HERE, THERE = "here", "there"
Act = Callable[[], object]


@pytest.fixture
def trial() -> PolicyTrial[Fifo]:
    return trial_of(Driver(Fifo), level=BRIEF)


class Played:
    """Where engines were played, in a file that both processes write to."""

    def __init__(self, trial: PolicyTrial[Fifo], file: Path) -> None:
        self._trial = trial
        self._file = file
        self._here = os.getpid()
        self.acts: dict[str, Act] = {}
        self.beside: dict[str, Act] = {}
        self.in_vain: int = 0

    def __call__(self, engine: AnyEngine) -> None:
        here = os.getpid() == self._here
        with self._file.open("a") as file:
            file.write(f"{engine.name} {HERE if here else THERE}\n")
        self._trial.count()
        self._trial.reach.note(engine.name)
        self._trial.note(f"{engine.name} was played")
        self.in_vain += 1
        self.acts.get(engine.name, lambda: None)()
        if not here:
            self.beside.get(engine.name, lambda: None)()

    def play(self, engines: Sequence[AnyEngine] = ENGINES) -> dict[str, set[str]]:
        """Where each was played."""
        play_engines(self._trial, engines, self, self._tallies)
        places: dict[str, set[str]] = defaultdict(set)
        self._file.touch()
        for line in self._file.read_text().splitlines():
            name, _, place = line.partition(" ")
            places[name].add(place)
        return places

    def _tallies(self) -> Iterator[Tally]:
        def add(before: int, after: int) -> None:
            self.in_vain += after - before

        yield tally(lambda: self.in_vain, add)

    def find(self, clause: str, kind: Kind) -> Act:
        """Find something."""
        return lambda: self._trial.found(Breach(clause, kind, "seen", "an engine"))


@pytest.fixture
def played(trial: PolicyTrial[Fifo], tmp_path: Path) -> Played:
    return Played(trial, tmp_path / "played")


def is_whole(trial: PolicyTrial[Fifo], played: Played) -> bool:
    """Whether every engine counts once, whoever has played it."""
    assert trial.notes[: len(NAMES)] == [f"{name} was played" for name in NAMES]
    assert trial.reach.counts == dict.fromkeys(sorted(NAMES), 1)
    assert trial.programs == played.in_vain == len(NAMES)
    return True


def test_what_is_independent_is_played_there_and_counts(
    trial: PolicyTrial[Fifo], played: Played
) -> None:
    places = played.play()
    assert places == {
        "first": {HERE},
        "second": {THERE},
        "third": {HERE},
        "fourth": {THERE},
        "fifth": {THERE},
    }
    assert is_whole(trial, played)
    assert not trial.breaches


@pytest.mark.parametrize(
    "kind", [Kind.SAFETY, Kind.HOST, Kind.LIVENESS, Kind.CLAIM, Kind.ADVICE], ids=str
)
def test_what_finds_something_there_is_played_here_and_so_is_all_that_follows(
    trial: PolicyTrial[Fifo], played: Played, kind: Kind
) -> None:
    played.acts["fourth"] = played.find("POL-3", kind)
    places = played.play()
    assert places["second"] == {THERE}
    assert places["fourth"] == {HERE, THERE}
    assert places["fifth"] == {HERE}
    assert is_whole(trial, played)
    assert [*trial.breaches] == [("POL-3", kind)]


@pytest.mark.parametrize(
    "ends",
    [
        lambda: os._exit(0),
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        lambda: sys.exit("over"),
        lambda: getattr(object(), "nothing"),  # noqa: B009 - for it to raise
    ],
    ids=["exits", "is killed", "raises", "fails"],
)
def test_what_ends_the_second_process_is_played_here(
    trial: PolicyTrial[Fifo], played: Played, ends: Act
) -> None:
    played.beside["fourth"] = ends
    places = played.play()
    assert places["fourth"] == {HERE, THERE}
    assert places["fifth"] == {HERE}
    assert is_whole(trial, played)


def test_what_does_not_return_there_is_waited_for_in_vain_only_so_long(
    trial: PolicyTrial[Fifo], played: Played
) -> None:
    trial.level = evolve(BRIEF, patience_s=0.05)
    played.beside["second"] = lambda: time.sleep(1_000.0)
    assert played.play()["second"] == {HERE, THERE}
    assert is_whole(trial, played)


def test_calls_that_hang_there_are_waited_for_again_here(
    trial: PolicyTrial[Fifo], played: Played
) -> None:
    def hang() -> None:
        trial.hung += 1

    played.beside["second"] = hang
    assert played.play()["second"] == {HERE, THERE}
    assert not trial.hung


def test_nothing_counts_from_there_once_something_was_found_here(
    trial: PolicyTrial[Fifo], played: Played
) -> None:
    played.acts["third"] = played.find("POL-3", Kind.SAFETY)
    places = played.play()
    assert places["second"] == {THERE}
    assert HERE in places["fourth"]
    assert HERE in places["fifth"]
    assert is_whole(trial, played)


def test_it_does_where_only_advice_was_found(trial: PolicyTrial[Fifo], played: Played) -> None:
    played.acts["third"] = played.find("POL-3", Kind.ADVICE)
    assert played.play()["fourth"] == {THERE}
    assert is_whole(trial, played)


@pytest.mark.parametrize(
    ("what", "given"), [("_cores", 1), ("_threads", 2)], ids=["one core", "other threads"]
)
def test_there_is_one_process_only(
    played: Played, monkeypatch: pytest.MonkeyPatch, what: str, given: int
) -> None:
    monkeypatch.setattr(beside, what, lambda: given)
    assert THERE not in set().union(*played.play().values())


def test_so_there_is_for_trials_that_are_over_at_once(
    trial: PolicyTrial[Fifo], played: Played
) -> None:
    trial.level = SMOKE
    assert THERE not in set().union(*played.play().values())


@pytest.mark.parametrize("engines", [ENGINES[1:2], ENGINES[:1], ()])
def test_and_where_there_is_nothing_to_share(played: Played, engines: Sequence[AnyEngine]) -> None:
    assert THERE not in set().union(*played.play(engines).values())


def test_it_leaves_no_process_and_no_file_open(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, forked = os.fork, list[int]()

    def noted() -> int:
        forked.append(fork())
        return forked[-1]

    monkeypatch.setattr(os, "fork", noted)
    before = set(os.listdir("/dev/fd"))
    played.play()
    assert set(os.listdir("/dev/fd")) == before
    (pid,) = forked
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


# What is counted there.


def told(one: Tally, there: Act) -> None:
    """Have it learn what happens in another process."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        there()
        os.write(write, one.tell())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as answer:
        one.learn(answer.read())


def test_lines_that_ran_there_ran() -> None:
    lines = OwnLines(LRUCachePolicy)

    def insert() -> None:
        with lines:
            LRUCachePolicy(2).get(b"key")  # type: ignore[arg-type]  # as good a key as any

    never = {method.qualified_name: method.never_ran for method in lines.report()}
    told(tally(lines.missing, lambda before, after: lines.ran_elsewhere(after)), insert)
    ran = {method.qualified_name for method in lines.report() if method.ran}
    lines.close()
    assert "LRUCachePolicy.get" in ran
    assert "LRUCachePolicy.evict" not in ran
    assert never["LRUCachePolicy.get"]


def test_hints_that_were_asked_for_there_were_asked_for() -> None:
    names = HintNames()
    names.record({"known": 1}).get("wanted")

    def ask() -> None:
        hints = names.record({"given": {"inner": 1}})
        hints.get("wanted")
        hints.get("given")
        list(hints)

    one = tally(names.state, names.add)
    told(one, ask)
    assert dict(names.asked) == {"wanted": 2, "given": 1}
    assert names.never_given == ("wanted",)
    assert names.asked_for_all
    # What was learnt once counts once.
    one.learn(one.tell())
    assert dict(names.asked) == {"wanted": 2, "given": 1}


class Mine(Invariant[PolicyBooks]):
    """Decides one thing of evictions, another of what else there is."""

    clauses: ClassVar[tuple[str, ...]] = ("OWN-1",)

    @override
    def judge(self, step: Step, books: PolicyBooks) -> Iterable[Finding]:
        if isinstance(step.operation, Evict):
            if not step.result and books.slots:
                yield Finding("OWN-1", "refused")
        elif isinstance(step.operation, Reset):
            if books.slots:
                yield Finding("OWN-1", "kept")


def test_what_an_invariant_decided_there_is_decided() -> None:
    judgings = Judgings([Mine])

    def judge(step: Step) -> None:
        with judgings:
            assert list(Mine().judge(step, PolicyBooks())) == []

    one = tally(judgings.ran, lambda before, after: judgings.ran_elsewhere(after))
    judge(Step(1, Evict(1, frozenset()), None, None))
    half = judgings.undecided(Mine)
    told(one, lambda: judge(Step(2, Reset(), None, None)))
    whole = judgings.undecided(Mine)
    judgings.close()
    assert half
    assert whole != half


# A whole trial.


def tried(driver: Driver[P], claims: Capabilities = NONE, *, alone: bool) -> PolicyTrial[P]:
    trial = trial_of(driver, claims, level=BRIEF)
    engines = trial.asked(policy_engines(), lambda clause: True)
    tallies: Callable[[], Iterable[Tally]] | None = None if alone else lambda: ()
    play_engines(trial, engines, lambda engine: engine.run(trial), tallies)
    return trial


def test_it_comes_to_the_same_with_and_without() -> None:
    lru = Driver(LRUCachePolicy)
    alone, shared = (tried(lru, BUILT_IN["lru"], alone=alone) for alone in (True, False))
    assert shared.reach.counts == alone.reach.counts
    assert shared.programs == alone.programs
    assert shared.notes == alone.notes
    assert shared.tried == alone.tried
    assert shared.declined == alone.declined
    assert not shared.breaches


def test_what_is_found_is_found_as_without() -> None:
    """POL-6."""
    alone, shared = (tried(Driver(TurnsAfterClear), alone=alone) for alone in (True, False))
    assert [clause for clause, _ in alone.breaches] == ["POL-6"]
    assert shared.breaches == alone.breaches
    assert shared.reach.counts == alone.reach.counts
    assert shared.notes == alone.notes


UNHURRIED = """
import json, sys
from stateful_models.trial.request import Request, Task
from stateful_models.trial.trials import hold_trial
from stateful_models.trial.verdicts import to_builtins

# What is cut on one core need not be on two.
report = hold_trial(Request(task=Task.POLICY, target=sys.argv[1], unhurried=True))
print(json.dumps(to_builtins(report)))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["lru", "arc", "sieve"])
def test_so_does_the_trial_of_a_target(target: str) -> None:
    def report(cores: set[int]) -> object:
        done = subprocess.run(
            [sys.executable, "-c", UNHURRIED, target],
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            capture_output=True,
            check=True,
        )
        told = json.loads(done.stdout)
        del told["seconds"]
        return told

    one, *others = os.sched_getaffinity(0)
    assert others, "there is one core only"
    assert report({one}) == report({one, *others})
