"""Verdicts say no more than is true: what was cut, what follows from what, and by which program."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from io import StringIO
from itertools import count
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from rich.console import Console
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.cli.verdicts import show_reports
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.tiny_policies import SHORT, Fifo, trial_of
from stateful_models import checking
from stateful_models import operations as op
from stateful_models.capabilities import Capabilities
from stateful_models.contract import Kind, Profile
from stateful_models.drivers import Driver
from stateful_models.engines.base import Engine, PolicyTrial
from stateful_models.engines.laws import AskedInVain, ClearedIsNew
from stateful_models.engines.random import RandomPrograms
from stateful_models.invariants import (
    Finding,
    Invariant,
    PolicyBooks,
    PolicyContract,
    policy_invariants,
)
from stateful_models.levels import QUICK, Level
from stateful_models.programs import HostOperation, Program, keys
from stateful_models.steps import Step, Victims
from stateful_models.trial.clock import real_effort
from stateful_models.trial.policies import try_policy
from stateful_models.trial.reports import NOT_CONCERNED, OwnPromise
from stateful_models.trial.request import Request, Task
from stateful_models.trial.trials import hold_trial
from stateful_models.trial.verdicts import Outcome, Report, Verdict, to_builtins

P = TypeVar("P", bound=CachePolicy)

A, B, C = keys("a b c")


# What time cut.


class Hurried(Request):
    """One of which every engine has so little time that each look at the clock counts."""

    @property
    @override
    def budgets(self) -> Level:
        return evolve(QUICK, programs=20, laws=10, patience_s=8.0)


def hurried(*engines: Engine) -> Report:
    """A trial where every look at the clock takes a second."""
    ticks = count()
    return try_policy(
        Driver[Fifo](Fifo),
        engines,
        Hurried(task=Task.POLICY, target="mine:Mine"),
        make_invariants=lambda capacity: [PolicyContract()],
        now=lambda: float(next(ticks)),
    )


# What was chosen.


class Judges(RandomPrograms):
    """Has its programs judged, and tries nothing else; `ran` says that it was asked to."""

    clauses: ClassVar[tuple[str, ...]] = ("POL-2",)

    def __init__(self) -> None:
        super().__init__()
        self.ran: bool = False

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        self.ran = True
        trial.cut(self, 1, 2)


class OnItsOwn(Judges):
    """Judges its clause alone."""

    judges_all: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("clause", "both"), [("LRU-1", False), ("POL-1", False), ("POL-2", True), ("POL-9", None)]
)
def test_a_clause_is_tried_by_all_that_judge_it(clause: str, both: bool | None) -> None:
    judges, alone = Judges(), OnItsOwn()
    request = Request(task=Task.POLICY, target="lru", only=(clause,))
    report = try_policy(
        Driver(LRUCachePolicy),
        [judges, alone],
        request,
        make_invariants=lambda capacity: policy_invariants(Capabilities(lru=True), capacity),
        now=lambda: 0.0,
    )
    assert (judges.ran, alone.ran) == (both is not None, bool(both))
    (verdict,) = report.clauses
    assert set(verdict.cut) == ({judges.name} if judges.ran else set())


@pytest.mark.parametrize(
    ("clause", "target"), [("LRU-2", "Lru2HeadFirst"), ("ARC-5", "Arc5HeadFirst")]
)
def test_an_order_is_convicted_where_nothing_else_is_asked_for(clause: str, target: str) -> None:
    module = "recency" if clause == "LRU-2" else "adaptation"
    request = Request(
        task=Task.POLICY,
        target=f"stateful_models.gallery.broken_policies.{module}:{target}",
        driver="stateful_models.gallery.policies:GalleryDriver",
        level="smoke",
        only=(clause,),
        profile=Profile.REFERENCE,
    )
    assert hold_trial(request).verdict is Outcome.CONVICTED


# What time cut.


def test_what_time_cut_is_told_of_the_target_and_of_each_clause() -> None:
    report = hurried(RandomPrograms())
    assert report.cut == {"random": 0.4}
    assert (report.of("POL-1").share, report.of("POL-1").cut) == (0.4, {"random": 0.4})
    assert report.of("POL-4").share == 1.0, "no engine that judges it was cut"
    built = to_builtins(report)
    assert built["cut"] == {"random": 0.4}
    console = Console(width=80, record=True, file=StringIO())
    show_reports(console, [report])
    told = " ".join(console.export_text().split())
    assert "(cut by time: random 40%)" in told
    assert "random: cut after 8 of 20 programs (40%), for lack of time" in told
    assert "(as far as it was tried: random 40%)" in told


def test_the_engine_that_got_least_of_its_programs_counts() -> None:
    report = hurried(RandomPrograms(), AskedInVain())
    assert set(report.cut) == {"random", "law of failed evictions"}
    assert report.of("POL-2").share == min(report.cut.values())
    assert report.of("POL-7").share == report.cut["random"]


def test_what_was_played_to_the_end_says_nothing_of_time() -> None:
    trial = trial_of(Driver[Fifo](Fifo), level=evolve(SHORT, programs=50))
    RandomPrograms().run(trial)
    assert trial.programs == 50
    assert trial.cuts == {}


def test_only_work_counts_as_time() -> None:
    begun = real_effort()
    time.sleep(0.3)
    assert real_effort() - begun < 0.2
    while real_effort() - begun < 0.25:
        pass


def test_what_is_a_test_is_not_cut() -> None:
    request = Request(task=Task.POLICY, target="mine:Mine")
    test = evolve(request, unhurried=True)
    assert request.budgets.patience_s * 10 < test.budgets.patience_s
    assert evolve(test.budgets, patience_s=0.0) == evolve(request.budgets, patience_s=0.0)


def test_a_verdict_in_a_test_is_asked_for_without_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []

    def hold(request: Request) -> Report:
        asked.append(request)
        return Report(
            target=request.target, verdict=Outcome.CLEAN, profile="vllm", level=request.level
        )

    monkeypatch.setattr(checking, "hold_trial", hold)
    checking.verdict_on("mine.py:AskedForOnce", "COPY-1")
    assert [request.unhurried for request in asked] == [True]


# Whose objection it is, and what is known of what nobody objects to.


class NothingGoes(Invariant[PolicyBooks]):
    """Nothing is ever evicted."""

    clauses: ClassVar[tuple[str, ...]] = ("OWN-1", "POL-2")

    @override
    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        if isinstance(step.result, Victims):
            yield from (Finding(clause, "it went") for clause in self.clauses)


def report_with(own: Sequence[OwnPromise], *engines: Engine) -> Report:
    return try_policy(
        Driver[Fifo](Fifo),
        engines,
        Hurried(task=Task.POLICY, target="mine:Mine"),
        make_invariants=lambda capacity: [PolicyContract(), NothingGoes()],
        now=lambda: 0.0,
        own=own,
    )


def test_an_objection_of_ones_own_is_named_and_nothing_is_made_up_about_an_engine() -> None:
    own = OwnPromise("NothingGoes", NothingGoes.clauses, "Nothing is ever evicted.", judged=1)
    report = report_with([own], RandomPrograms())
    console = Console(width=80, record=True, file=StringIO())
    show_reports(console, [report])
    told = console.export_text()
    for clause in map(report.of, NothingGoes.clauses):
        assert (clause.invariant, clause.engine) == ("NothingGoes", "random")
        assert clause.consequence == ""
        assert f"found by NothingGoes, engine random after {clause.programs} program" in told
    assert " then: " not in told
    held = report.of("POL-1")
    assert (held.verdict, held.invariant, held.programs) == (Verdict.HELD, "", None)


def test_a_promise_of_ones_own_that_decided_nothing_is_not_called_held() -> None:
    def promise(name: str, clause: str, undecided: str, judged: int = 1) -> OwnPromise:
        return OwnPromise(name, (clause,), "", judged, undecided=lambda: undecided)

    own = [
        promise("Idle", "OWN-2", "a.py, line 3 never ran"),
        promise("Held", "OWN-2", ""),
        promise("Held", "OWN-3", ""),
        promise("Idle", "OWN-3", "a.py, line 4 never ran"),
        promise("Held", "OWN-4", ""),
        promise("Unasked", "OWN-5", "", judged=0),
    ]
    report = report_with(own)
    found = [report.of(f"OWN-{number}") for number in (2, 3, 4, 5)]
    assert [(one.source, one.reason) for one in found] == [
        ("Idle", "a.py, line 3 never ran"),
        ("Idle", "a.py, line 4 never ran"),
        ("Held", ""),
        ("Unasked", NOT_CONCERNED),
    ]
    assert [one.verdict is Verdict.HELD for one in found] == [False, False, True, False]
    assert report.verdict is Outcome.CLEAN


# Many at once.


class Crowds(Invariant[PolicyBooks]):
    """Counts evictions while chunks of four requests are resident whose hints all differ."""

    clauses: ClassVar[tuple[str, ...]] = ("OWN",)
    met: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.session: dict[str, object] = {}
        self.owner: dict[OffloadKey, str] = {}

    @override
    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        match step.operation:
            case op.NewRequest(request, hints):
                self.session[request] = (hints or {}).get("session_id")
            case op.Insert(key, _, request):
                self.owner[key] = request
            case op.RequestFinished(request):
                self.session.pop(request, None)
            case op.Evict():
                owners = {self.owner[key] for key in books.slots} & self.session.keys()
                self.met.append(len({self.session[owner] for owner in owners}))
            case _:
                pass
        yield from ()


class ManySessions(Driver[Fifo]):
    @override
    def contexts(self) -> SearchStrategy[Mapping[str, object] | None]:
        return st.fixed_dictionaries({"session_id": st.integers(0, 5)})


def test_in_some_programs_many_requests_with_hints_of_their_own_are_alive() -> None:
    Crowds.met.clear()
    trial = PolicyTrial(
        ManySessions(Fifo), lambda capacity: [Crowds()], level=evolve(SHORT, programs=150)
    )
    RandomPrograms().run(trial)
    assert sum(sessions >= 4 for sessions in Crowds.met) > 10


# What is found after a reset.


class KeepsSessions(Fifo):
    """`clear` forgets the chunks, and not whose they were."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.owner: dict[OffloadKey, str] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.owner[key] = req_context.req_id

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        del self.owner[key]

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        victims = super().evict(n, protected)
        for key, _ in victims or ():
            del self.owner[key]
        return victims

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            if key in self.owner and key not in self.chunks:
                raise LookupError(key)


def test_what_breaks_a_clause_after_a_reset_only_is_no_clearing_either() -> None:
    trial = trial_of(Driver[Fifo](KeepsSessions))
    program = (
        op.PrepareStore("r1", (A,)),
        op.CompleteStore("r1", (A,)),
        op.Reset(),
        op.Touch("r2", (A,)),
    )
    assert trial.judged(trial.run(Program(2, program)), "by hand")
    trial.level = evolve(trial.level, laws=0)
    ClearedIsNew().run(trial)
    assert set(trial.breaches) == {("POL-7", Kind.SAFETY), ("POL-6", Kind.HOST)}
    breach = trial.breaches["POL-6", Kind.HOST]
    assert breach.seen.startswith("touch raised LookupError")
    assert breach.program is not None
    assert ClearedIsNew().broken_by(trial, breach.program) is not None


class RaisesOnTouch(Fifo):
    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        raise LookupError("always")


@pytest.mark.parametrize("early", [[], [op.Touch("r1", (A,))]])
def test_what_a_new_policy_does_as_well_has_nothing_to_do_with_resets(
    early: list[HostOperation],
) -> None:
    trial = trial_of(Driver[Fifo](RaisesOnTouch))
    program = (*early, op.PrepareStore("r1", (A,)), op.Reset(), op.Touch("r2", (A,)))
    trial.judged(trial.run(Program(2, program)), "by hand")
    assert ClearedIsNew().broken_by(trial, Program(2, program)) is None


# Which program is shown.


class LosesTouched(Fifo):
    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            self.chunks.pop(key, None)


def shown(trial: PolicyTrial[Fifo]) -> tuple[HostOperation, ...]:
    (breach,) = trial.breaches.values()
    assert breach.program is not None
    return breach.program.operations


def test_requests_are_numbered_and_complete_what_they_began() -> None:
    trial = trial_of(Driver[Fifo](LosesTouched))
    program = (
        op.PrepareStore("r2", (B, A)),
        op.CompleteStore("r0", (A, B)),
        op.Lookup("r7", A),
        op.PrepareStore("r0.4", (C,)),
        op.Touch("r2.3", (B,)),
    )
    trial.judged(trial.run(Program(3, program)), "by hand")
    assert shown(trial) == (op.PrepareStore("r1", (A,)), op.Touch("r1", (A,)))


def test_names_are_given_where_there_is_no_time_to_make_it_shorter() -> None:
    trial = trial_of(Driver[Fifo](LosesTouched), level=evolve(SHORT, shrinking=0))
    program = (
        op.PrepareStore("r2", (B,)),
        op.CompleteStore("r0", (B,)),
        op.Touch("r0", (B,)),
    )
    trial.judged(trial.run(Program(1, program)), "by hand")
    assert shown(trial) == (
        op.PrepareStore("r1", (A,)),
        op.CompleteStore("r1", (A,)),
        op.Touch("r2", (A,)),
    )


def test_the_shortest_of_all_programs_found_is_shown() -> None:
    trial = trial_of(Driver[Fifo](LosesTouched), level=evolve(SHORT, shrinking=0))
    stored = (op.PrepareStore("r1", (A,)), op.CompleteStore("r1", (A,)))
    touched = op.Touch("r2", (A,))
    looks = (op.Lookup("r2", A),)
    trial.judged(trial.run(Program(1, (*stored, *looks * 3, touched))), "first")
    trial.judged(trial.run(Program(1, (*stored, *looks * 2, touched))), "second")
    trial.judged(trial.run(Program(1, (*stored, *looks * 5, touched))), "third")
    assert len(shown(trial)) == 5
    (breach,) = trial.breaches.values()
    assert breach.engine == "first"


# What follows from what.

MANAGER = """
from kvoffload import CPUOffloadingManager

class Forgiving(CPUOffloadingManager):
    def complete_store(self, keys, req_context, success=True, **kw):
        keys = list(keys)
        return super().complete_store(keys, req_context, success or len(keys) > 1, **kw)
"""


def test_one_mistake_is_one_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MANAGER)
    report = hold_trial(Request(task=Task.MANAGER, target="mine.py:Forgiving"))
    assert [clause.id for clause in report.roots] == ["DONE-2"]
    others = {clause.id: clause for clause in report.convictions if clause.follows}
    assert {"LOOK-1", "STORE-4"} <= others.keys()
    for clause in others.values():
        assert (clause.follows, clause.follows_at) == ("DONE-2", 2)
        assert clause.program
    console = Console(width=80, record=True, file=StringIO())
    show_reports(console, [report])
    told = console.export_text()
    first = next(line for line in told.splitlines() if " breaks " in line)
    assert first == "mine.py:Forgiving breaks DONE-2"
    assert told.count(" breaks ") == 1
    assert "STORE-4 follows from DONE-2 (call 2): " in told
