"""Hostile hints: policies that believe what clients send, and some that do not (POL-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.lots import by_lot
from spec_tests.tiny_policies import LEGAL, Fifo, Lru, trial_of
from stateful_models import operations as op
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines import base
from stateful_models.engines.base import Breach, PolicyTrial
from stateful_models.engines.hints import HostileHints, hostile_hints, hostile_values, visit
from stateful_models.engines.runs import Surroundings
from stateful_models.hosts import PROTOCOLS, HostProtocol
from stateful_models.invariants import Finding, Invariant, PolicyBooks
from stateful_models.invariants.policies import PolicyContract
from stateful_models.steps import Step
from stateful_models.trial.policies import try_policy
from stateful_models.trial.reports import OwnPromise
from stateful_models.trial.request import Request, Task
from stateful_models.trial.verdicts import Verdict


class Prioritised(Fifo):
    """What has the lowest priority goes first; `priority_of` makes a number of what was sent."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.priorities: dict[OffloadKey, float] = {}

    def priority_of(self, sent: object) -> float:
        """Right: what is no plain number counts as nothing."""
        return float(sent) if type(sent) is int and abs(sent) < 1_000 else 0.0

    def hint(self, context: ReqContext) -> object:
        """The hint, None where there is none."""
        return (context.kv_transfer_params or {}).get("priority")

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.priorities[key] = self.priority_of(self.hint(req_context))

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return sorted(idle, key=self.priorities.__getitem__)[:n]


class Missing(Prioritised):
    @override
    def hint(self, context: ReqContext) -> object:
        hints = context.kv_transfer_params
        return hints["priority"] if hints else 0


class NoHintsAtAll(Prioritised):
    @override
    def hint(self, context: ReqContext) -> object:
        return None if context.kv_transfer_params is None else super().hint(context)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        if req_context.kv_transfer_params is None:
            raise TypeError("no hints")
        super().insert(key, chunk, req_context)


class Text(Prioritised):
    @override
    def priority_of(self, sent: object) -> float:
        return float(sent) if isinstance(sent, str) else 0.0


class Huge(Prioritised):
    @override
    def priority_of(self, sent: object) -> float:
        return float(sent) if type(sent) is int else 0.0


class Zero(Prioritised):
    @override
    def priority_of(self, sent: object) -> float:
        return 1 / sent if type(sent) is int and abs(sent) < 1_000 else 0.0


class NotANumber(Prioritised):
    """A chunk whose priority is not a number is below no level, and stays for ever."""

    @override
    def priority_of(self, sent: object) -> float:
        return sent if isinstance(sent, float) else 0.0

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        fit = [key for key in idle if not isnan(self.priorities[key])]
        return fit[:n]


class Unhashable(Prioritised):
    @override
    def hint(self, context: ReqContext) -> object:
        sent = super().hint(context)
        return sent if {sent} else None


class Mixed(Prioritised):
    """Whatever was sent is compared, as late as when somebody has to go."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.sent: dict[OffloadKey, int] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        sent = self.hint(req_context)
        # The mistake: nobody has looked whether it is one.
        self.sent[key] = cast("int", sent) if sent is not None else 0

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return sorted(idle, key=self.sent.__getitem__)[:n]


class PriorityDriver(Driver[Fifo]):
    @override
    def contexts(self) -> SearchStrategy[Mapping[str, object] | None]:
        return st.fixed_dictionaries({"priority": st.integers(1, 3)})


def tried(
    target: Callable[..., Fifo],
    names: Sequence[str] = (),
    driver_cls: type[Driver[Fifo]] = PriorityDriver,
) -> PolicyTrial[Fifo]:
    trial = trial_of(driver_cls(target))
    HostileHints(lambda: names).run(trial)
    assert "POL-7" in trial.tried
    assert trial.reach["hostile hints"]
    return trial


def hint_in(breach: Breach) -> list[object]:
    """The hints of the requests of a breach that have any which are not usual."""
    assert breach.program is not None
    return [
        one.hints
        for one in breach.program.operations
        if isinstance(one, op.NewRequest)
        and (not one.hints or one.hints.get("priority") not in (1, 2, 3))
    ]


@pytest.mark.clause("POL-7")
@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Missing, "KeyError"),
        (NoHintsAtAll, "no hints"),
        (Text, "could not convert"),
        (Huge, "too large"),
        (Zero, "division by zero"),
        (Unhashable, "unhashable"),
        (Mixed, "not supported between"),
    ],
)
def test_a_policy_that_raises_is_found(target: type[Fifo], message: str) -> None:
    trial = tried(target)
    (breach,) = trial.breaches.values()
    assert (breach.clause, breach.kind) == ("POL-7", Kind.SAFETY)
    assert message in breach.message
    if target is not NoHintsAtAll:
        assert len(hint_in(breach)) == 1
    assert breach.program is not None
    assert len(breach.program) <= 8


@pytest.mark.clause("POL-7")
def test_hints_that_stop_later_evictions_are_found() -> None:
    (breach,) = tried(NotANumber).breaches.values()
    assert (breach.clause, breach.kind) == ("POL-7", Kind.SAFETY)
    assert "after hostile hints" in breach.message
    (hostile,) = hint_in(breach)
    assert "nan" in str(hostile)


@pytest.mark.parametrize("target", by_lot([Prioritised, *LEGAL], one_of=2))
def test_policies_that_beware_are_acquitted(target: type[Fifo]) -> None:
    assert not tried(target).breaches
    assert not tried(target, driver_cls=Driver).breaches


@pytest.mark.parametrize("target", [LRUCachePolicy, ARCCachePolicy])
@pytest.mark.parametrize("host", by_lot(PROTOCOLS, one_of=3), ids=[host.name for host in PROTOCOLS])
def test_ours_are_acquitted(target: type[CachePolicy], host: HostProtocol) -> None:
    driver = Driver(target)
    driver.host = host
    trial = trial_of(driver)
    HostileHints().run(trial)
    assert not trial.breaches


class Deep(Prioritised):
    """Reads a hint that no example has, within another."""

    @override
    def hint(self, context: ReqContext) -> object:
        routing = (context.kv_transfer_params or {}).get("routing")
        if isinstance(routing, dict) and "gap" in routing:
            gap = routing["gap"]
            return 1 if gap > 0 else 2
        return None


def test_names_that_were_asked_for_are_tried() -> None:
    assert not tried(Deep).breaches
    (breach,) = tried(Deep, ["routing", "routing.gap"]).breaches.values()
    assert "'>' not supported" in breach.message


class AlwaysRaises(Fifo):
    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        raise RuntimeError("whatever the hints")


def test_what_goes_wrong_with_usual_hints_as_well_is_left_to_others() -> None:
    assert not tried(AlwaysRaises).breaches


def test_every_hint_is_tried_with_every_value() -> None:
    examples = [{"a": 1, "b": 2}, None]
    hostile = hostile_hints(examples, ["c", "d.e"])
    assert hostile[:3] == [None, {}, {"unheard_of": "x"}]
    assert {"a": 1} in hostile
    for name in ("a", "b", "c"):
        values = [hints[name] for hints in hostile if hints is not None and name in hints]
        assert {repr(value) for value in hostile_values()} <= set(map(repr, values))
    assert {"a": 1, "b": 2, "d": {"e": -1}} in hostile


def test_a_visit_meets_every_call() -> None:
    trial = trial_of(Driver(Lru))
    run = trial.run(visit({"x": 1}, None, positions=True))
    hooks = {type(step.operation) for played in run.played for step in played.steps}
    assert hooks >= {
        op.Insert,
        op.Remove,
        op.Evict,
        op.TouchKeys,
        op.StoreMiss,
        op.RequestAccess,
        op.RequestFinished,
        op.MarkEvictable,
        op.MarkNonEvictable,
    }
    # In the end everything that was there has gone.
    assert run.victims[-1] is not None
    assert len(run.victims[-1]) == 3


class WholeNumbers(Invariant[PolicyBooks]):
    """Priorities are whole numbers."""

    clauses = ("OWN-1",)
    concerns = (op.NewRequest,)

    @override
    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        assert isinstance(step.operation, op.NewRequest)
        if type((step.operation.hints or {}).get("priority", 0)) is not int:
            yield Finding(self.clauses[0], "another")


class UnderOurs(WholeNumbers):
    """Priorities are whole numbers."""

    clauses = ("POL-2",)


@pytest.mark.parametrize("own", [WholeNumbers, UnderOurs])
def test_what_an_author_asks_is_asked_under_hostile_hints(own: type[WholeNumbers]) -> None:
    (clause,) = own.clauses
    report = try_policy(
        PriorityDriver(Prioritised),
        [HostileHints()],
        Request(task=Task.POLICY, target="tiny.py:Prioritised", only=(clause,)),
        make_invariants=lambda capacity: [PolicyContract(), own()],
        now=lambda: 0.0,
        own=[OwnPromise(own.__name__, (clause,), "")],
    )
    (verdict,) = report.clauses
    assert (verdict.id, verdict.verdict, verdict.convicts) == (clause, Verdict.BROKEN, True)
    assert (verdict.engine, verdict.invariant) == ("hostile hints", own.__name__)
    told = (verdict.kind, verdict.source, verdict.sentence)
    assert told == ("C", own.__name__, "Priorities are whole numbers.")
    assert sum(line.startswith("   2 ") for line in verdict.program) == 0


class HangsOnText(Lru):
    """Does not return from an insertion for which a client has a text as priority."""

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        hints = req_context.kv_transfer_params
        while isinstance(hints, dict) and isinstance(hints.get("priority"), str):
            pass
        super().insert(key, chunk, req_context)


class AnythingGoes(WholeNumbers):
    """Something that nobody breaks."""

    @override
    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        yield from ()


def test_a_promise_of_which_calls_that_hang_left_much_untried_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "HURRIED_S", 0.05)
    report = try_policy(
        PriorityDriver(HangsOnText),
        [HostileHints()],
        Request(task=Task.POLICY, target="tiny.py:HangsOnText", only=("OWN-1", "POL-7")),
        make_invariants=lambda capacity: [PolicyContract(), AnythingGoes()],
        surroundings=Surroundings(patience_s=0.05),
        now=lambda: 0.0,
        own=[OwnPromise(AnythingGoes.__name__, ("OWN-1",), "", judged=1)],
    )
    assert report.of("POL-7").convicts
    own = report.of("OWN-1")
    assert own.verdict is Verdict.HELD
    assert own.cut.keys() == {"hostile hints"}
    assert 0.0 < own.share == own.cut["hostile hints"] < 0.5
    assert report.cut == {}


def test_what_an_author_asks_hides_no_breach_of_the_contract() -> None:
    trial = trial_of(PriorityDriver(Text))
    trial.make_invariants = lambda capacity: [PolicyContract(), WholeNumbers()]
    trial.own = [WholeNumbers.__name__]
    HostileHints().run(trial)
    assert trial.breaches.keys() == {("OWN-1", None), ("POL-7", Kind.SAFETY)}
    assert "could not convert" in trial.breaches["POL-7", Kind.SAFETY].message
    # Nobody's usual invariants are asked of hostile hints.
    trial = trial_of(PriorityDriver(Prioritised))
    trial.make_invariants = lambda capacity: [PolicyContract(), WholeNumbers()]
    HostileHints().run(trial)
    assert not trial.breaches
