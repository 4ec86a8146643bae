"""The engine that plays every program over a tiny universe."""

import re
from collections.abc import Hashable, Iterable, Iterator, Set
from typing import ClassVar

import pytest
from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models import operations as op
from stateful_models.capabilities import BUILT_IN, NONE, Capabilities
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.exhaustive import WORLDS, Exhaustive
from stateful_models.engines.runs import Surroundings
from stateful_models.gallery.broken_policies.base import Plain, Victims
from stateful_models.gallery.broken_policies.recency import Lru2HeadFirst
from stateful_models.gallery.broken_policies.victims import (
    Pol2LosesWhenRefusing,
    Pol2PendingVictim,
    Pol2PinnedVictim,
    Pol2ProtectedVictim,
    Pol2TooFew,
)
from stateful_models.hosts import VLLM_021
from stateful_models.invariants import PolicyContract
from stateful_models.invariants.orders import order_invariants
from stateful_models.levels import QUICK
from stateful_models.programs import keys


def trial_of(
    driver: Driver[CachePolicy],
    capabilities: Capabilities = NONE,
    depth: int = 3,
    programs: int = 200,
) -> PolicyTrial[CachePolicy]:
    return PolicyTrial(
        driver,
        lambda capacity: [PolicyContract(capabilities), *order_invariants(capabilities, capacity)],
        capabilities=capabilities,
        level=evolve(QUICK, depth=depth, programs=programs, shrinking=100),
    )


def tried(cls: type[CachePolicy], capabilities: Capabilities = NONE) -> PolicyTrial[CachePolicy]:
    trial = trial_of(Driver[CachePolicy](cls), capabilities)
    Exhaustive().run(trial)
    return trial


@pytest.mark.parametrize(
    ("cls", "capabilities", "claims"),
    [
        (LRUCachePolicy, BUILT_IN["lru"], {"LRU-1", "LRU-2"}),
        (ARCCachePolicy, BUILT_IN["arc"], {"ARC-1", "ARC-2", "ARC-3", "ARC-4", "ARC-5"}),
        (Plain, NONE, set[str]()),
    ],
)
def test_what_is_right_is_acquitted_and_everything_was_tried(
    cls: type[CachePolicy], capabilities: Capabilities, claims: set[str]
) -> None:
    trial = tried(cls, capabilities)
    assert trial.breaches == {}
    assert trial.tried == {"POL-1", "POL-2", "POL-3", "POL-6", "POL-7", "TOUCH-1"} | claims
    reached = (
        "eviction beside pins",
        "eviction beside keys of the offer",
        "refused eviction",
        "failed store",
        "finished request",
    )
    assert trial.reach.missing(reached) == []
    for world, note, depth in zip(WORLDS, trial.notes, (3, 3, 2), strict=True):
        told = f"exhaustive: {world.name}: every program of up to {depth} steps: "
        assert re.fullmatch(re.escape(told) + r"[\d,]+", note), note


@pytest.mark.parametrize(
    ("cls", "demand"),
    [
        (Pol2PendingVictim, ("POL-2", Kind.SAFETY)),
        (Pol2PinnedVictim, ("POL-2", Kind.SAFETY)),
        (Pol2ProtectedVictim, ("POL-2", Kind.SAFETY)),
        (Pol2LosesWhenRefusing, ("POL-2", Kind.SAFETY)),
        (Pol2TooFew, ("POL-2", Kind.HOST)),
    ],
)
def test_what_is_wrong_is_found(cls: type[CachePolicy], demand: tuple[str, Kind]) -> None:
    assert demand in tried(cls).breaches


@pytest.mark.parametrize("cls", [Pol2PendingVictim, Pol2PinnedVictim])
def test_every_program_ends_with_an_offer_beside_what_is_in_flight(
    cls: type[CachePolicy],
) -> None:
    trial = trial_of(Driver[CachePolicy](cls), depth=2)
    Exhaustive().run(trial)
    assert ("POL-2", Kind.SAFETY) in trial.breaches


def test_a_claim_that_fails_is_shown_by_a_short_program() -> None:
    breach = tried(Lru2HeadFirst, BUILT_IN["lru"]).breaches["LRU-2", Kind.CLAIM]
    assert breach.program is not None
    assert len(breach.program) <= 6


class ForgetsAfterThreeSteps(Plain):
    """Wrong only when a failed store, a touch and a load came in this order."""

    steps: tuple[str, ...] = ()

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self.steps = ("remove",)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        super().touch(keys, req_context)
        self.steps = (*self.steps, "touch")

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        if self.steps[-2:] == ("remove", "touch"):
            protected = frozenset()
        return super().evict(n, protected)

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return None if self.steps == ("remove", "touch") else super().get(key)


def test_a_breach_that_takes_one_sequence_of_three_is_found_at_that_depth_and_not_before() -> None:
    driver = Driver[CachePolicy](ForgetsAfterThreeSteps)
    shallow, deep = trial_of(driver, depth=1), trial_of(driver, depth=3)
    Exhaustive().run(shallow)
    Exhaustive().run(deep)
    assert shallow.breaches == {}
    assert deep.breaches


class Recorder(Plain):
    """Keeps the keys that each program names, as first named."""

    programs: ClassVar[list[list[str]]] = []

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.programs.append([])

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        # Misses come here too.
        touched = list(keys)
        self.programs[-1] += [op.key_text(key) for key in touched]
        super().touch(touched, req_context)


def test_keys_are_first_used_in_their_order() -> None:
    Recorder.programs.clear()
    tried(Recorder)
    orders = [[op.key_text(key) for key in world.keys] for world in WORLDS]
    used = {
        tuple(key for key in dict.fromkeys(named) if key[0] in "abc") for named in Recorder.programs
    }
    assert {("a/0", "b/0", "c/0"), ("a/0", "a/1", "b/0"), ("a/0",)} <= used
    assert all(any(list(keys) == order[: len(keys)] for order in orders) for keys in used)


def test_the_same_programs_are_played_every_time() -> None:
    first, second = tried(Plain), tried(Plain)
    assert first.programs == second.programs > 400
    assert first.notes == second.notes


class Keyed(Driver[CachePolicy]):
    """Knows a canonical state of the plain policy: its keys in order."""

    @override
    def canonical_state(self, policy: CachePolicy) -> Hashable | None:
        assert isinstance(policy, Plain)
        return tuple(policy.chunks)


def test_with_a_canonical_state_the_enumeration_comes_to_its_end() -> None:
    trial = trial_of(Keyed(Plain), programs=800)
    Exhaustive().run(trial)
    assert trial.breaches == {}
    assert trial.notes[0].startswith(f"exhaustive: {WORLDS[0].name}: closed: all ")
    # A larger universe does not come to its end within this budget, and says so.
    assert "and then no further, as the level plays no more: there are more" in trial.notes[1]


class TiresOfReading(Plain):
    """Loses its keys at the third load: deeper than any program that is enumerated blindly."""

    loads = 0

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.loads += 1
        if self.loads > 2:
            self.chunks.clear()

    @override
    def clear(self) -> None:
        super().clear()
        self.loads = 0

    def canonical_state(self) -> Hashable:
        return tuple(self.chunks), self.loads


def test_states_are_followed_to_any_depth_and_a_policy_may_tell_its_own() -> None:
    class Secretive(Driver[CachePolicy]):
        @override
        def canonical_state(self, policy: CachePolicy) -> Hashable | None:
            return None

    blind = trial_of(Secretive(TiresOfReading))
    Exhaustive().run(blind)
    assert blind.breaches == {}
    trial = trial_of(Driver[CachePolicy](TiresOfReading), programs=400)
    Exhaustive().run(trial)
    assert "POL-7" in {clause for clause, _ in trial.breaches}


def ticking(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def hurried(cls: type[CachePolicy], step: float) -> PolicyTrial[CachePolicy]:
    """A trial in which time passes by `step` whenever the clock is read."""
    trial = trial_of(Driver[CachePolicy](cls))
    clock = ticking(step)
    trial.now = lambda: next(clock)
    Exhaustive().run(trial)
    return trial


def test_it_stops_when_the_patience_of_the_level_ends_and_says_so() -> None:
    trial = hurried(Plain, 0.1)
    assert trial.programs < 100
    *worlds, cut = trial.notes
    assert all("for lack of time (" in note for note in worlds)
    assert cut == "exhaustive: cut after 4 of 8 depths (50%), for lack of time"


def test_every_world_has_its_share_of_the_patience_and_what_is_left_of_others() -> None:
    # A reading of the clock after each program, and one or two between worlds.
    step = QUICK.patience_s / 600
    trial = hurried(Plain, step)
    numbers = [
        [int(number.replace(",", "")) for number in re.findall(r"[\d,]+(?=, for lack|$)", note)]
        for note in trial.notes[:3]
    ]
    (first,), (second,), (third,) = numbers
    # The first world came to its end early, and the second had what it left.
    assert "every program of up to 3 steps: " in trial.notes[0]
    assert "every program of up to 2 steps; of those of 3 steps only" in trial.notes[1]
    assert first < 200 < trial.programs - first - third
    assert second > 0
    assert trial.notes[3] == "exhaustive: cut after 7 of 8 depths (87%), for lack of time"
    # The last has its share whatever came before, and that was enough.
    assert f"every program of up to 2 steps: {third}" in trial.notes[2]


def test_where_not_one_depth_is_completed_it_says_so() -> None:
    trial = hurried(Plain, QUICK.patience_s)
    *worlds, _ = trial.notes
    assert all("no depth was completed; of those of 1 step only 1" in n for n in worlds)
    assert len(worlds) == len(WORLDS)


class Busy(Driver[CachePolicy]):
    """Has a hook of its own."""

    events = 0

    @override
    def host_events(self) -> SearchStrategy[op.HostEvent]:
        return st.just(op.HostEvent("demote"))

    @override
    def perform_event(self, policy: CachePolicy, event: op.HostEvent) -> None:
        self.events += 1


def test_extra_hooks_and_the_passing_of_time_are_steps_too() -> None:
    driver, passed = Busy(Plain), list[float]()
    trial = trial_of(driver, depth=2)
    trial.surroundings = Surroundings(advance=passed.append)
    Exhaustive(durations=(1.0, 300.0)).run(trial)
    assert driver.events > 10
    assert set(passed) == {300.0}


def test_an_older_host_is_asked_for_nothing_it_cannot_do() -> None:
    driver = Driver[CachePolicy](Plain)
    driver.host = VLLM_021
    trial = trial_of(driver)
    Exhaustive().run(trial)
    assert trial.breaches == {}
    assert not trial.reach["reset"]
    assert "POL-6" not in trial.tried


def test_the_universes_are_as_small_as_they_say() -> None:
    assert [(world.capacity, len(world.keys)) for world in WORLDS] == [(1, 2), (2, 3), (2, 3)]
    assert WORLDS[1].usable(frozenset()) == list(keys("a"))
    assert WORLDS[1].usable(frozenset(keys("a"))) == list(keys("a b"))
