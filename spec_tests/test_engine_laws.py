"""The laws: each fails for a policy that breaks it, and holds for what is merely odd."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from random import Random
from typing import ClassVar

import pytest
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.law_trials import (
    BLIND,
    CLAIMED,
    HOST_LAWS,
    NAMES,
    RemembersUses,
    broken,
    held,
)
from spec_tests.lots import by_lot
from spec_tests.tiny_policies import (
    LEGAL,
    ByAge,
    BySecond,
    EverySecond,
    Expiring,
    Fifo,
    HandClock,
    Lru,
    OfSessions,
    Reborn,
    SeededRandom,
    SparesSessions,
    TurnsAfterClear,
    trial_of,
)
from stateful_models import operations as op
from stateful_models.capabilities import Capabilities, stated_by
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import Breach
from stateful_models.engines.claims import Renaming
from stateful_models.engines.comparing import Choices, Law, first_difference
from stateful_models.engines.completions import Reinsertion, ReleaseOrder
from stateful_models.engines.laws import AskedInVain, ClearedIsNew, WithoutHints
from stateful_models.engines.samples import drawn_programs
from stateful_models.hosts import PROTOCOLS, VLLM_021, VLLM_030, HostProtocol
from stateful_models.invariants import Invariant, PolicyBooks
from stateful_models.programs import Program, keys


@pytest.mark.parametrize("law", HOST_LAWS)
@pytest.mark.parametrize("target", by_lot([*LEGAL, LRUCachePolicy, ARCCachePolicy], one_of=3))
@pytest.mark.parametrize("host", by_lot(PROTOCOLS[:2], one_of=2), ids=NAMES[:2])
def test_laws_of_all_hold_for_what_is_merely_odd(
    law: type[Law], target: type[CachePolicy], host: HostProtocol
) -> None:
    trial = held(law(), target, host=host)
    assert not trial.breaches
    # Who refuses half of the time may never come to evict after that.
    assert law.clause in trial.tried


@pytest.mark.parametrize("law", [AskedInVain, ClearedIsNew, Reinsertion, Renaming])
@pytest.mark.parametrize("target", by_lot([Expiring, Reborn, BySecond, ByAge], one_of=4))
def test_a_policy_may_read_the_clock(
    law: type[Law], target: Callable[[int, HandClock], Fifo]
) -> None:
    clock = HandClock()

    def reading(cache_capacity: int) -> Fifo:
        return target(cache_capacity, clock)

    trial = held(law((5.0, 10.0, 10.01, 20.0, 45.0, 60.0)), reading, BLIND, clock=clock)
    assert not trial.breaches
    assert trial.reach["passing of time"]
    assert law.clause in trial.tried


class NeverEvicts(Fifo):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> None:
        return None


@pytest.mark.parametrize("law", [*HOST_LAWS, Reinsertion, ReleaseOrder, Renaming])
def test_a_law_whose_situation_never_came_about_is_not_tried(law: type[Law]) -> None:
    trial = held(law(), NeverEvicts, BLIND)
    assert trial.programs
    assert not trial.breaches
    assert not trial.tried


class TurnsWhenAskedInVain(Fifo):
    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        victims = super().evict(n, protected)
        if victims is None:
            self.chunks = dict(reversed(self.chunks.items()))
        return victims


@pytest.mark.clause("POL-2")
def test_a_refusal_that_changes_later_choices_is_found() -> None:
    breach = broken(AskedInVain(), TurnsWhenAskedInVain)
    assert (breach.clause, breach.kind) == ("POL-2", Kind.HOST)
    assert breach.program is not None
    assert len(breach.program) <= 6
    assert "had it not been asked in vain" in breach.expected
    assert "after an eviction that failed" in breach.seen


def test_one_that_refuses_by_design_may_count_how_often_it_was_asked() -> None:
    assert held(AskedInVain(), EverySecond).reach[AskedInVain.situation]
    undeclared = held(AskedInVain(), EverySecond, Capabilities())
    assert ("POL-2", Kind.HOST) in undeclared.breaches


class RefusesAndTurns(TurnsWhenAskedInVain):
    may_refuse = "some day it may"


def test_one_that_refuses_by_design_may_not_choose_otherwise_after_it() -> None:
    assert stated_by(RefusesAndTurns).may_refuse
    broken(AskedInVain(), RefusesAndTurns)


class NeverSeededAgain(SeededRandom):
    @override
    def clear(self) -> None:
        self.chunks.clear()


@pytest.mark.clause("POL-6")
@pytest.mark.parametrize("target", [TurnsAfterClear, RemembersUses, NeverSeededAgain])
def test_what_outlives_a_reset_is_found(target: type[Fifo]) -> None:
    breach = broken(ClearedIsNew(), target)
    assert (breach.clause, breach.kind) == ("POL-6", Kind.HOST)
    assert breach.program is not None
    assert sum(isinstance(one, op.Reset) for one in breach.program.operations) == 1
    assert len(breach.program) <= 12


def test_a_host_without_clear_is_not_asked_for_it() -> None:
    trial = held(ClearedIsNew(), TurnsAfterClear, host=VLLM_021)
    assert not trial.breaches
    assert trial.declined == {"POL-6": f"{VLLM_021.name} does not clear its policy"}
    assert held(ClearedIsNew(), TurnsAfterClear, host=VLLM_030).breaches


class Unseeded(Fifo):
    chance = Random(7)

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return self.chance.sample(idle, n)


class Counting(Fifo):
    """Every third eviction of all objects together takes the newest."""

    evictions: ClassVar[list[int]] = [0]

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        self.evictions[0] += 1
        return idle[::-1][:n] if self.evictions[0] % 3 == 0 else idle[:n]


@pytest.mark.parametrize("law", [*HOST_LAWS, *CLAIMED[:3], WithoutHints])
@pytest.mark.parametrize("target", by_lot([Unseeded, Counting], one_of=2))
def test_what_is_never_the_same_breaks_no_law_by_that(law: type[Law], target: type[Fifo]) -> None:
    claims = Capabilities(
        key_blind=True, fresh_reinsertion=True, release_order=True, without_hints=Fifo
    )
    assert not held(law(), target, claims).breaches


def test_laws_are_left_alone_where_the_same_calls_give_other_victims() -> None:
    trial = trial_of(Driver(TurnsAfterClear))
    trial.found(Breach("POL-5", Kind.HOST, "not the same twice", "determinism"))
    ClearedIsNew().run(trial)
    assert trial.programs == 0
    assert trial.notes


def test_only_what_went_well_in_both_runs_is_compared() -> None:
    a, b = (frozenset({key}) for key in keys("a b"))
    assert first_difference(Choices({1: a, 3: a}, 4), Choices({1: a, 3: b}, 4)) == 3
    assert first_difference(Choices({1: a, 3: a}, 4), Choices({1: a, 3: b}, 3)) is None
    assert first_difference(Choices({1: a}, 4), Choices({3: b}, 4)) is None
    assert first_difference(Choices({1: a}, 4), Choices({1: None}, 4)) == 1


def test_programs_are_the_same_for_the_same_seed_only() -> None:
    def drawn(seed: int, salt: str) -> list[object]:
        trial = trial_of(Driver(Lru), seed=seed)
        return [*drawn_programs(trial, 4, salt, durations=(1.0,))]

    assert drawn(0, "a") == drawn(0, "a")
    assert drawn(0, "a") != drawn(1, "a")
    assert drawn(0, "a") != drawn(0, "b")


def test_a_reset_in_a_program_for_another_host_is_left_out() -> None:
    (a,) = keys("a")
    program = [op.PrepareStore("r", (a,)), op.Reset(), op.PrepareStore("q", (a,))]
    driver = Driver(Fifo)
    driver.host = VLLM_021
    trial = trial_of(driver)
    law = ClearedIsNew()
    drawn = drawn_programs(trial, 1, "one")[0].with_operations(program)
    assert law.broken_by(trial, drawn) is None


class SparesTheCleared(SparesSessions):
    """A key that a session stored before a reset is still of it."""

    @override
    def clear(self) -> None:
        Fifo.clear(self)


@pytest.mark.parametrize("seed", by_lot(range(3), one_of=3))
def test_what_hints_have_left_behind_is_found_with_any_seed(seed: int) -> None:
    for target, breaks in ((SparesSessions, False), (SparesTheCleared, True)):
        trial = trial_of(OfSessions(target), seed=seed)
        ClearedIsNew().run(trial)
        assert bool(trial.breaches) is breaks, target


def test_what_a_request_said_before_the_reset_is_not_held_against_a_policy() -> None:
    """A new policy was never told, so that it would choose otherwise for a good reason."""
    a, b, c = keys("a b c")
    operations = (
        op.NewRequest("r1", {"session": "s1"}),
        op.Reset(),
        op.PrepareStore("r1", (a,)),
        op.PrepareStore("r2", (b,)),
        op.CompleteStore("r1", (a,)),
        op.CompleteStore("r2", (b,)),
        op.PrepareStore("r2", (c,)),
    )
    trial = trial_of(OfSessions(SparesSessions))
    assert ClearedIsNew().broken_by(trial, Program(2, operations)) is None


class TakesPinnedOnceItRefused(Fifo):
    """After an eviction that failed the oldest goes, be it in use or not; there are no others."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.refused: bool = False

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        victims = super().evict(n, protected)
        self.refused |= victims is None
        return victims

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return list(self.chunks)[:n] if self.refused else idle[:n]


def test_what_comes_after_a_breach_is_no_matter_of_a_law() -> None:
    """It is seen to differ where nothing is judged, and is compared again where all is."""
    law = AskedInVain()
    trial = trial_of(Driver(TakesPinnedOnceItRefused))
    programs = law.programs(trial)
    assert any(law.suspects(trial, program) for program in programs)
    assert not any(law.broken_by(trial, program) for program in programs)
    law.run(trial)
    assert trial.breaches == {}


def test_what_is_right_is_not_judged_to_be_compared() -> None:
    judged = 0
    trial = trial_of(Driver(Fifo))
    make = trial.make_invariants

    def counted(capacity: int) -> Sequence[Invariant[PolicyBooks]]:
        nonlocal judged
        judged += 1
        return make(capacity)

    trial.make_invariants = counted
    AskedInVain().run(trial)
    assert judged == 0
    assert trial.reach[AskedInVain.situation]
    trial.begin(1)
    assert judged == 1
