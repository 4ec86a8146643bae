"""The laws that hold for those who claim them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.law_trials import BLIND, CLAIMED, NAMES, RemembersUses, broken, held
from spec_tests.lots import by_lot
from spec_tests.tiny_policies import (
    Fifo,
    Lru,
    Mru,
    OfSessions,
    SeededRandom,
    SparesSessions,
    trial_of,
)
from stateful_models import operations as op
from stateful_models.capabilities import BUILT_IN, Capabilities
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.claims import CapacityInclusion, Renaming
from stateful_models.engines.comparing import Law
from stateful_models.engines.completions import Reinsertion, ReleaseOrder
from stateful_models.engines.laws import WithoutHints
from stateful_models.hosts import PROTOCOLS, HostProtocol
from stateful_models.programs import Program, keys


@pytest.mark.parametrize("law", CLAIMED)
@pytest.mark.parametrize("host", by_lot(PROTOCOLS, one_of=3), ids=NAMES)
@pytest.mark.parametrize("name", ["lru", "arc"])
def test_what_our_policies_claim_holds(law: type[Law], host: HostProtocol, name: str) -> None:
    target: type[CachePolicy] = LRUCachePolicy if name == "lru" else ARCCachePolicy
    trial = held(law(), target, BUILT_IN[name], host)
    assert not trial.breaches
    if law is CapacityInclusion and name == "arc":
        assert trial.declined == {"LRU-1": "not claimed (lru)"}
    elif law is Reinsertion and host.touches_steps:
        assert list(trial.declined) == ["POL-6 C"]
    else:
        assert law.clause in trial.tried


@pytest.mark.parametrize("target", by_lot([Fifo, Lru, Mru], one_of=3))
@pytest.mark.parametrize("law", CLAIMED[:3])
def test_claims_of_others_hold(law: type[Law], target: type[Fifo]) -> None:
    trial = held(law(), target, BLIND)
    assert not trial.breaches
    assert law.clause in trial.tried


def test_what_is_not_claimed_is_not_tried() -> None:
    trial = trial_of(Driver(Lru))
    laws: tuple[type[Law], ...] = (*CLAIMED, WithoutHints)
    for law in laws:
        law().run(trial)
    assert trial.programs == 0
    assert not trial.tried
    assert trial.declined == {
        "POL-6 C": "not claimed (fresh_reinsertion)",
        "POL-9": "not claimed (release_order)",
        "key blind": "not claimed (key_blind)",
        "LRU-1": "not claimed (lru)",
        "without hints": "not claimed (without_hints)",
    }


class OldPlaceAgain(Fifo):
    """A key whose store failed goes where it was when it was removed."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.number = 0
        self.numbers: dict[OffloadKey, int] = {}
        self.gone: dict[OffloadKey, int] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.number += 1
        self.numbers[key] = self.gone.pop(key, self.number)

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self.gone[key] = self.numbers.pop(key)

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return sorted(idle, key=self.numbers.__getitem__)[:n]


class FailuresCount(RemembersUses):
    """Right about resets, but a store that failed still counts as one."""

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        chosen = super().choose(n, idle)
        for key in chosen:
            del self.uses[key]
        return chosen

    @override
    def clear(self) -> None:
        super().clear()
        self.uses.clear()


@pytest.mark.clause("POL-6")
@pytest.mark.parametrize("target", [OldPlaceAgain, FailuresCount])
def test_a_removal_that_leaves_traces_is_found(target: type[Fifo]) -> None:
    breach = broken(Reinsertion(), target, BLIND)
    assert (breach.clause, breach.kind) == ("POL-6", Kind.CLAIM)
    assert breach.program is not None
    # The program that is shown has the store that failed.
    failed = [
        one
        for one in breach.program.operations
        if isinstance(one, op.CompleteStore) and not one.success
    ]
    assert failed


class SparesTheRemoved(SparesSessions):
    """A key whose store failed is still of the session that stored it."""

    @override
    def remove(self, key: OffloadKey) -> None:
        Fifo.remove(self, key)


def tried_with_sessions(target: type[Fifo]) -> PolicyTrial[Fifo]:
    trial = trial_of(OfSessions(target), BLIND)
    Reinsertion().run(trial)
    return trial


@pytest.mark.clause("POL-6")
def test_a_removal_that_leaves_the_hints_of_its_request_is_found() -> None:
    trial = tried_with_sessions(SparesTheRemoved)
    (breach,) = trial.breaches.values()
    assert (breach.clause, breach.kind) == ("POL-6", Kind.CLAIM)
    assert breach.expected.endswith("where a store of another key failed")
    sound = tried_with_sessions(SparesSessions)
    assert not sound.breaches
    assert sound.reach[Reinsertion.situation]


class RemembersEvicted(Fifo):
    """A key that comes back after its eviction stays longer; once it is back that is forgotten."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.ghosts: set[OffloadKey] = set()
        self.returned: set[OffloadKey] = set()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        if key in self.ghosts:
            self.returned.add(key)
            self.ghosts.discard(key)

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self.returned.discard(key)

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        chosen = sorted(idle, key=self.returned.__contains__)[:n]
        self.ghosts.update(chosen)
        self.returned.difference_update(chosen)
        return chosen

    @override
    def clear(self) -> None:
        super().clear()
        self.ghosts.clear()
        self.returned.clear()


class CountsMisses(RemembersUses):
    """Misses count, as the policy was told of them; insertions do not."""

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.chunks[key] = chunk
        self.uses.setdefault(key, 0)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            self.uses[key] = self.uses.get(key, 0) + 1


@pytest.mark.parametrize("target", [RemembersEvicted, CountsMisses])
def test_what_was_learnt_otherwise_is_no_trace_of_a_removal(target: type[Fifo]) -> None:
    trial = held(Reinsertion(), target, BLIND)
    assert not trial.breaches
    assert "POL-6" in trial.tried


def test_a_store_is_not_made_to_fail_if_the_policy_would_be_told_of_it() -> None:
    b, c, d = keys("b c d")
    stores = [
        operation
        for key in (d, b)
        for operation in (op.PrepareStore("r", (key,)), op.CompleteStore("r", (key,)))
    ]
    program = Program(
        2, [op.Lookup("r", b), op.Lookup("r", d), *stores, op.PrepareStore("r", (c,))]
    )
    trial = trial_of(Driver(CountsMisses), BLIND)
    assert Reinsertion().broken_by(trial, program) is None
    assert not trial.reach[Reinsertion.situation]


class CompletionIsUse(Fifo):
    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        if key in self.chunks:
            self.chunks[key] = self.chunks.pop(key)


@pytest.mark.clause("POL-9")
def test_an_order_by_completions_is_found() -> None:
    breach = broken(ReleaseOrder(), CompletionIsUse, BLIND)
    assert (breach.clause, breach.kind) == ("POL-9", Kind.CLAIM)
    assert breach.program is not None
    assert any(isinstance(one, op.CompleteLoad) for one in breach.program.operations)
    assert "as they end here" in breach.expected


class StoredFirst(Fifo):
    """The end of a store decides, the end of a load does not: stores are no pins."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.known: set[OffloadKey] = set()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.known.discard(key)

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        if key in self.chunks and key not in self.known:
            self.known.add(key)
            self.chunks[key] = self.chunks.pop(key)


def test_a_load_that_had_not_begun_does_not_end_later() -> None:
    a, b, c = keys("a b c")
    program = Program(
        2,
        [
            op.PrepareStore("r", (a, b)),
            op.CompleteStore("r", (a, b)),
            op.CompleteLoad("r", (a,)),
            op.PrepareLoad("r", (a,)),
            op.PrepareStore("r", (c,)),
        ],
    )
    assert ReleaseOrder().broken_by(trial_of(Driver(Fifo), BLIND), program) is None


def test_the_end_of_a_store_is_no_release() -> None:
    assert not held(ReleaseOrder(), StoredFirst, BLIND).breaches


class ByName(Fifo):
    """Chooses by the last byte of a hash."""

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return sorted(idle, key=lambda key: key[-5] % 4)[:n]


class Alphabetical(Fifo):
    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return sorted(idle)[:n]


def test_choosing_by_more_than_the_order_of_keys_is_found() -> None:
    breach = broken(Renaming(), ByName, BLIND)
    assert (breach.clause, breach.kind, breach.invariant) == ("key blind", None, "key blind")
    assert breach.promise
    assert not held(Renaming(), Alphabetical, BLIND).breaches


@pytest.mark.clause("LRU-1")
@pytest.mark.parametrize("target", [Fifo, SeededRandom])
def test_a_larger_cache_that_lacks_what_a_smaller_one_holds_is_found(target: type[Fifo]) -> None:
    breach = broken(CapacityInclusion(), target, Capabilities(lru=True))
    assert (breach.clause, breach.kind) == ("LRU-1", Kind.CLAIM)
    assert "a cache of" in breach.message


class Hinted(Lru):
    """Equals `Lru`, but for requests that say how important they are."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.important: set[OffloadKey] = set()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        hints = req_context.kv_transfer_params or {}
        if hints.get("priority") == 1:
            self.important.add(key)

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return sorted(idle, key=self.important.__contains__)[:n]


class HintedByDefault(Hinted):
    """The first byte of a hash is taken for a hint where there is none."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        super().touch(keys, req_context)
        if not req_context.kv_transfer_params:
            self.important.update(key for key in self.chunks if key[0] % 3 == 0)


def test_a_difference_without_hints_is_found() -> None:
    claim = Capabilities(without_hints=Lru)
    breach = broken(WithoutHints(), HintedByDefault, claim)
    assert (breach.clause, breach.kind, breach.invariant) == (
        "without hints",
        None,
        "without hints",
    )
    trial = held(WithoutHints(), Hinted, claim)
    assert not trial.breaches
    assert "without hints" in trial.tried


def test_one_that_equals_another_policy_is_told_from_it() -> None:
    assert held(WithoutHints(), Mru, Capabilities(without_hints=Lru)).breaches
