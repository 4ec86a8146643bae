"""The engine that counts what evictions visit (POL-8)."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.judge.visits import CountedKey, counted_chunk
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models import operations as op
from stateful_models.capabilities import Capabilities
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.cost import Cost, Meter, bill
from stateful_models.engines.cost_programs import (
    SCENARIOS,
    in_vain,
    one_by_one,
    pinned_but_few,
)
from stateful_models.gallery.broken_policies.adaptive import Adaptive
from stateful_models.gallery.broken_policies.base import Plain, Victims
from stateful_models.host_types import OWN_TYPES, HostTypes
from stateful_models.hosts import VLLM_021
from stateful_models.levels import QUICK
from stateful_models.programs import Program, keys

CLAIMED = Capabilities(cost=True)


def trial_of(
    cls: type[CachePolicy], capabilities: Capabilities = CLAIMED, capacity: int = 64
) -> PolicyTrial[CachePolicy]:
    return PolicyTrial(
        Driver[CachePolicy](cls),
        lambda capacity: (),
        capabilities=capabilities,
        level=evolve(QUICK, cost_capacity=capacity, shrinking=60),
    )


def tried(cls: type[CachePolicy], capabilities: Capabilities = CLAIMED) -> PolicyTrial[CachePolicy]:
    trial = trial_of(cls, capabilities)
    Cost().run(trial)
    return trial


@pytest.mark.parametrize("cls", [LRUCachePolicy, ARCCachePolicy])
def test_our_own_policies_keep_what_they_claim(cls: type[CachePolicy]) -> None:
    trial = tried(cls)
    assert trial.breaches == {}
    assert trial.tried == {"POL-8"}
    assert trial.declined == {}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("capacity", [8, 64])
def test_every_scenario_evicts_or_is_refused(
    scenario: Callable[[int], Program], capacity: int
) -> None:
    counted = bill(trial_of(LRUCachePolicy), scenario(capacity))
    assert counted.failed is None
    assert counted.broken is None
    assert len(counted.evictions) >= (1 if scenario.__name__ == "by_the_batch" else 8)
    assert all(bool(one.given) == (scenario is not in_vain) for one in counted.evictions)


@pytest.mark.parametrize("cls", [Plain, Adaptive])
def test_a_claim_of_one_that_walks_past_pins_fails(cls: type[CachePolicy]) -> None:
    breach = tried(cls).breaches["POL-8", Kind.CLAIM]
    assert breach.message.endswith("is gone through again each time")
    assert breach.program is not None
    assert len(breach.program) <= 6


class Sorting(LRUCachePolicy):
    """Reads no pins twice, but puts all keys in order for every victim."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        sorted(self._nodes)
        return super().evict(n, protected)


class Lazy(LRUCachePolicy):
    """Answers with a generator, which puts all keys in order while it is read."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = super().evict(n, protected)
        if victims is None:
            return None

        def walk() -> Iterator[tuple[OffloadKey, ChunkStatus]]:
            sorted(self._nodes)
            yield from victims

        return walk()  # type: ignore[return-value]  # wrong on purpose; hosts take any iterable


@pytest.mark.parametrize("cls", [Sorting, Lazy])
def test_so_does_that_of_one_whose_visits_grow_with_the_cache(cls: type[CachePolicy]) -> None:
    counted = bill(trial_of(cls), one_by_one(64))
    assert counted.broken is not None
    assert "are allowed" in counted.broken
    assert ("POL-8", Kind.CLAIM) in tried(cls).breaches


def test_without_a_claim_the_worst_call_and_its_growth_are_noted() -> None:
    trial = tried(Plain, Capabilities())
    assert trial.breaches == {}
    assert trial.tried == set()
    assert "not claimed" in trial.declined["POL-8"]
    (note,) = trial.notes
    assert note.startswith("worst eviction: ")
    assert "for 1 chunk of 64" in note
    assert "That is 3.9 times what it takes in a cache of 1/4 of the chunks" in note


def test_visits_are_those_of_evict_alone() -> None:
    a, b = keys("a b")
    program = Program(
        1,
        (
            op.PrepareStore("r", (a,)),
            op.CompleteStore("r", (a,)),
            *[op.Touch("r", (a,))] * 5,
            op.PrepareStore("r", (b,)),
        ),
    )
    (eviction,) = bill(trial_of(Plain), program).evictions
    # One read of ref_cnt; the key is looked up among the protected, and taken out.
    assert eviction.visits == 3
    assert (eviction.asked, eviction.given, eviction.resident) == (1, 1, 1)


def test_a_pin_that_was_released_may_be_met_again() -> None:
    a, b, c, d = keys("a b c d")
    store = [op.PrepareStore("r", (a, b)), op.CompleteStore("r", (a, b))]
    pin, release = op.PrepareLoad("s", (a,)), op.CompleteLoad("s", (a,))
    evict = [[op.PrepareStore("r", (key,)), op.CompleteStore("r", (key,))] for key in (c, d)]
    trial = trial_of(Plain)
    once = Program(2, (*store, pin, *evict[0], release, pin, *evict[1]))
    assert bill(trial, once).broken is None
    twice = Program(2, (*store, pin, *evict[0], *evict[1]))
    told = bill(trial, twice).broken
    assert told is not None
    assert told.startswith("a/0 was pinned all the while, and two evictions looked at it")


class PlainBytesOnly(Plain):
    """Takes nothing for a key but bytes as such."""

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        if type(key) is not bytes:
            raise TypeError("no key")
        super().insert(key, chunk, req_context)


def test_keys_that_a_policy_tells_apart_are_not_counted_and_it_is_said() -> None:
    trial = tried(PlainBytesOnly, Capabilities())
    assert "only reads of ref_cnt are" in trial.notes[0]
    assert trial.notes[1].startswith("worst eviction: 64 visits for 1 chunk of 64")


class Raises(Plain):
    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        raise LookupError("touched")


def test_a_policy_that_fails_is_not_counted() -> None:
    trial = tried(Raises)
    assert trial.tried == set()
    assert trial.notes == ["cost: not counted, as the policy raised LookupError: touched"]


class Swaps(Plain):
    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        return [(OffloadKey(b"wrong"), chunk) for _, chunk in super().take(victims)]


def test_nor_is_one_that_answers_what_no_host_can_use() -> None:
    trial = tried(Swaps)
    assert trial.tried == set()
    assert trial.notes[0].startswith("cost: not counted, as the policy broke POL-2: evict answered")
    assert "which is not resident" in trial.notes[0]


class GivesPinned(Plain):
    """Gives away what is being read."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.take([key for key in self.chunks if key not in protected][:n])


def test_nor_is_one_that_gives_away_what_is_pinned_and_the_clause_is_named() -> None:
    trial = tried(GivesPinned)
    assert trial.tried == set()
    (note,) = trial.notes
    assert note.startswith(
        "cost: not counted, as the policy broke POL-2: evict answered the victim"
    )
    assert note.endswith("which is pinned")


class BlockStatus(ChunkStatus):
    made = 0

    def __init__(self, block_id: int) -> None:
        super().__init__(-1)
        self.block_id = block_id
        BlockStatus.made += 1


class OlderTypes(HostTypes):
    chunk = BlockStatus
    slot = "block_id"


def test_chunks_of_another_host_are_counted_too() -> None:
    trial, older = trial_of(Plain, Capabilities()), trial_of(Plain, Capabilities())
    older.driver.host = trial.driver.host = VLLM_021
    older.driver.types = OlderTypes()
    Cost().run(trial)
    Cost().run(older)
    assert BlockStatus.made
    assert older.notes == trial.notes != []


def test_a_cut_is_told() -> None:
    trial = trial_of(LRUCachePolicy)
    looks = iter(range(1_000))
    # Each look at the clock takes a sixth of the level's patience.
    trial.now = lambda: next(looks) * trial.level.patience_s / 6
    Cost().run(trial)
    assert any("cut after 6 of 8 scenarios" in note for note in trial.notes)


def test_counted_keys_and_chunks_equal_plain_ones() -> None:
    meter = Meter()

    class Key(CountedKey):
        pass

    Key.meter = meter
    key, plain = Key(b"a/0000"), b"a/0000"
    chunk = counted_chunk(OWN_TYPES.chunk, OWN_TYPES.slot, meter)(3)
    assert (hash(key), key == plain, {plain: 1}[key]) == (hash(plain), True, 1)
    assert (chunk.ref_cnt, chunk.is_ready, meter.visits) == (-1, False, 0)
    meter.counting = True
    assert (chunk.ref_cnt, chunk.is_ready, meter.visits) == (-1, False, 2)
    assert (key < b"b", key > b"a", key <= plain, key >= plain) == (True, True, True, True)
    assert meter.visits == 6


def test_pinned_but_a_few_is_what_it_says() -> None:
    counted = bill(trial_of(LRUCachePolicy), pinned_but_few(64))
    assert {one.pinned for one in counted.evictions} == {56}
