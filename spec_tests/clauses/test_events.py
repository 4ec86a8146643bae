"""EVT-1 to EVT-6: what listeners are told, and what it adds up to."""

from collections.abc import Collection, Iterable
from random import Random

import attrs
import pytest
from typing_extensions import override

from kvoffload import (
    CPUOffloadingManager,
    LoadStoreSpec,
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)
from spec_tests.clauses.helpers import (
    LETTERS,
    A,
    B,
    C,
    D,
    E,
    believed,
    key,
    many,
    pin,
    prepare,
    put,
    put_each,
    ready,
    request,
)

BOTH = pytest.mark.parametrize("policy", ["lru", "arc"])


def new_manager(num_chunks: int, policy: str = "lru") -> CPUOffloadingManager:
    return CPUOffloadingManager(num_chunks, policy, enable_events=True)


def told(events: Iterable[OffloadingEvent]) -> list[tuple[str, list[OffloadKey]]]:
    return [("removed" if event.removed else "stored", event.keys) for event in events]


# EVT-1, EVT-2


@pytest.mark.clause("EVT-1")
@BOTH
@pytest.mark.parametrize("seed", range(5))
def test_events_add_up_to_the_ready_set_after_every_drain(policy: str, seed: int) -> None:
    rng, manager = Random(seed), new_manager(4, policy)
    stored: set[OffloadKey] = set()
    removals = 0
    for step in range(400):
        context = request(str(step))
        draw = rng.random()
        if draw < 0.6:
            manager.prepare_store(rng.sample(LETTERS, rng.randint(1, 3)), context)
        elif draw < 0.98:
            completed = rng.sample(LETTERS, 3)
            manager.complete_store(completed, context, success=rng.random() < 0.7)
        else:
            manager.reset_cache()
        if rng.random() < 0.4:
            events = manager.take_events()
            removals += sum(event.removed for event in events)
            stored = believed(events, stored)
            assert stored == set(ready(manager, LETTERS))
    assert removals > 20


@pytest.mark.clause("EVT-1")
def test_a_pending_key_is_not_announced() -> None:
    manager, context = new_manager(2), request()
    prepare(manager, [A, B], context)
    assert manager.take_events() == []
    manager.complete_store([A], context)
    assert told(manager.take_events()) == [("stored", [A])]


@pytest.mark.clause("EVT-1")
def test_evicted_keys_are_announced_in_the_order_in_which_they_go() -> None:
    manager = new_manager(3)
    put_each(manager, [A, B, C])
    manager.take_events()
    output = prepare(manager, [D, E])
    assert output.evicted_keys == [A, B]
    assert told(manager.take_events()) == [("removed", [A, B])]


@pytest.mark.clause("EVT-1")
def test_a_refused_store_announces_nothing() -> None:
    manager = new_manager(2)
    put(manager, [A, B])
    pin(manager, [A])
    manager.take_events()
    assert manager.prepare_store([C, D], request()) is None
    assert manager.take_events() == []


@pytest.mark.clause("EVT-2")
def test_events_come_in_the_order_things_happened() -> None:
    manager = new_manager(1)
    put(manager, [A])
    put(manager, [B])
    put(manager, [A])
    assert told(manager.take_events()) == [
        ("stored", [A]),
        ("removed", [A]),
        ("stored", [B]),
        ("removed", [B]),
        ("stored", [A]),
    ]


@pytest.mark.clause("EVT-2")
def test_a_removal_precedes_the_store_that_reuses_its_slot() -> None:
    manager, context = new_manager(1), request()
    put(manager, [A])
    manager.take_events()
    output = prepare(manager, [B], context)
    # Announced when the slot is given away, not when the new bytes have arrived.
    assert told(manager.take_events()) == [("removed", [A])]
    manager.complete_store([B], context, ticket=output.ticket)
    assert told(manager.take_events()) == [("stored", [B])]


@pytest.mark.clause("EVT-2")
def test_a_removal_names_its_keys_in_the_order_in_which_they_went() -> None:
    manager = new_manager(3)
    put_each(manager, [A, B, C])
    manager.take_events()
    output = prepare(manager, [D, E, key("F")], request())
    assert output.evicted_keys == [A, B, C]
    assert told(manager.take_events()) == [("removed", [A, B, C])]


@pytest.mark.clause("EVT-2")
def test_no_event_is_empty() -> None:
    manager, context = new_manager(2), request()
    put(manager, [])
    manager.complete_store([A], context)
    manager.complete_store([], context)
    prepare(manager, [A], context)
    manager.complete_store([A], context, success=False)
    manager.reset_cache()
    assert manager.take_events() == []


@pytest.mark.clause("EVT-2")
def test_an_event_describes_a_chunk_of_this_tier() -> None:
    manager = new_manager(1)
    put(manager, [A])
    put(manager, [B])
    manager.reset_cache()
    put(manager, [C])
    put(manager, [D])
    events = manager.take_events()
    assert {event.removed for event in events} == {True, False}
    for event in events:
        assert event.medium is Medium.CPU
        assert event.locality is None
        assert event.ownership is None
        assert event.removal_expected is False


# EVT-3


@pytest.mark.clause("EVT-3")
def test_taking_delivers_even_if_nobody_iterates() -> None:
    manager = new_manager(2)
    put(manager, [A])
    manager.take_events()
    assert list(manager.take_events()) == []
    put(manager, [B])
    assert told(manager.take_events()) == [("stored", [B])]


@pytest.mark.clause("EVT-3")
def test_a_broken_iteration_repeats_and_loses_nothing() -> None:
    manager = new_manager(1)
    put(manager, [A])
    put(manager, [B])
    events = manager.take_events()
    for event in events:
        assert event.keys == [A]
        break
    put(manager, [C])
    assert told(manager.take_events()) == [("removed", [B]), ("stored", [C])]
    # What was taken earlier is still all there.
    assert told(events) == [("stored", [A]), ("removed", [A]), ("stored", [B])]


@pytest.mark.clause("EVT-3")
def test_events_arising_during_an_iteration_wait_for_the_next_call() -> None:
    manager = new_manager(4)
    put(manager, [A])
    for event in manager.take_events():
        assert event.keys == [A]
        put(manager, [B])
    assert told(manager.take_events()) == [("stored", [B])]


@pytest.mark.clause("EVT-3")
def test_a_listener_may_do_with_the_events_what_it_likes() -> None:
    manager = new_manager(2)
    put(manager, [A, B])
    for event in manager.take_events():
        event.keys.clear()
    manager.reset_cache()
    assert told(manager.take_events()) == [("removed", [A, B])]


# EVT-4


@pytest.mark.clause("EVT-4")
def test_disabled_nothing_accumulates() -> None:
    manager = CPUOffloadingManager(2)
    put_each(manager, many(50))
    manager.reset_cache()
    assert list(manager.take_events()) == []


def churn(manager: CPUOffloadingManager, count: int, prefix: str) -> None:
    """A long life that nobody listens to."""
    for number in range(count):
        put(manager, [key(f"{prefix}{number}"), key(f"{prefix}{number + 1}")])


@pytest.mark.clause("EVT-4")
@BOTH
def test_undrained_the_backlog_stays_bounded(policy: str) -> None:
    def backlog(stores: int) -> int:
        manager = new_manager(6, policy)
        churn(manager, stores, "x")
        return sum(len(event.keys) for event in manager.take_events())

    # Three and twelve thousand keys came and went; only the capacity counts, and a constant.
    assert backlog(3_000) <= 1_500
    assert backlog(12_000) <= 1_500


@pytest.mark.clause("EVT-4")
@BOTH
@pytest.mark.parametrize("drained", [False, True])
def test_undrained_the_backlog_still_adds_up(policy: str, drained: bool) -> None:
    manager = new_manager(6, policy)
    universe = [*many(4_001, "x"), *LETTERS]
    put(manager, [A, B, C, D])
    before = believed(manager.take_events()) if drained else set[OffloadKey]()
    pin(manager, [B])
    churn(manager, 4_000, "x")
    put_each(manager, [A, C, A, D])
    events = manager.take_events()
    assert believed(events, before) == set(ready(manager, universe))
    assert all(event.keys for event in events)
    manager.check()


@pytest.mark.clause("EVT-4")
def test_what_listeners_believe_is_taken_back_by_a_folded_backlog() -> None:
    manager = new_manager(3)
    put_each(manager, [A, B, C])
    before = believed(manager.take_events())
    churn(manager, 3_000, "x")
    put_each(manager, [A])
    removed = [k for event in manager.take_events() if event.removed for k in event.keys]
    assert before <= set(removed)


@pytest.mark.clause("EVT-4")
def test_a_folded_backlog_keeps_the_order_of_what_is_left() -> None:
    manager = new_manager(3)
    put_each(manager, [A, B])
    manager.take_events()
    pin(manager, [B])
    churn(manager, 3_000, "x")
    events = manager.take_events()
    assert told(events)[0] == ("removed", [A])
    assert believed(events, {A, B}) == {B, key("x2999"), key("x3000")}


@pytest.mark.clause("EVT-4")
def test_little_that_is_undrained_is_told_in_full() -> None:
    manager = new_manager(1)
    put_each(manager, many(20))
    assert len(manager.take_events()) == 39


# EVT-5


@pytest.mark.clause("EVT-5")
def test_a_reset_takes_back_what_was_announced_in_that_order() -> None:
    manager = new_manager(4)
    put(manager, [C, A])
    put(manager, [B])
    manager.take_events()
    manager.reset_cache()
    assert told(manager.take_events()) == [("removed", [C, A, B])]
    assert manager.take_events() == []


@pytest.mark.clause("EVT-5")
def test_announced_order_is_that_of_the_latest_announcement() -> None:
    manager = new_manager(2)
    put_each(manager, [A, B])
    put_each(manager, [C])
    put_each(manager, [A])
    manager.take_events()
    manager.reset_cache()
    assert told(manager.take_events()) == [("removed", [C, A])]


@pytest.mark.clause("EVT-5")
def test_undelivered_events_are_dropped_by_a_reset() -> None:
    manager = new_manager(2)
    put(manager, [A])
    manager.take_events()
    # Neither the removal of A nor the life of B was delivered.
    put(manager, [B, C])
    manager.reset_cache()
    assert told(manager.take_events()) == [("removed", [A])]


@pytest.mark.clause("EVT-5")
def test_there_is_no_removal_when_nothing_was_announced() -> None:
    manager = new_manager(2)
    put(manager, [A])
    manager.reset_cache()
    assert manager.take_events() == []


@pytest.mark.clause("EVT-5")
def test_there_is_none_for_what_was_taken_back_already() -> None:
    manager = new_manager(1)
    put(manager, [A])
    put(manager, [B])
    manager.take_events()
    manager.reset_cache()
    assert told(manager.take_events()) == [("removed", [B])]
    manager.reset_cache()
    assert manager.take_events() == []


@pytest.mark.clause("EVT-5")
def test_two_resets_take_back_once() -> None:
    manager = new_manager(2)
    put(manager, [A, B])
    manager.take_events()
    manager.reset_cache()
    put(manager, [C])
    manager.reset_cache()
    assert told(manager.take_events()) == [("removed", [A, B])]


@pytest.mark.clause("EVT-5")
def test_the_removal_precedes_what_happens_after_the_reset() -> None:
    manager = new_manager(2)
    put(manager, [A, B])
    before = believed(manager.take_events())
    manager.reset_cache()
    put(manager, [B])
    events = manager.take_events()
    assert told(events) == [("removed", [A, B]), ("stored", [B])]
    assert believed(events, before) == {B}


# EVT-6


class Composed(OffloadingManager):
    """Two tiers as one; its own part is nothing but routing by group."""

    def __init__(self) -> None:
        self.children = [CPUOffloadingManager(1, enable_events=True) for _ in range(2)]

    def child(self, keys: Iterable[OffloadKey]) -> CPUOffloadingManager:
        return self.children[int(any(each[-1] for each in keys))]

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return self.child([key]).lookup(key, req_context)

    @override
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        return self.child(keys).prepare_load(keys, req_context)

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        return self.child(keys).prepare_store(keys, req_context)

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        self.child(keys).complete_store(keys, req_context, success, ticket=ticket)

    @override
    def reset_cache(self) -> None:
        for child in self.children:
            child.reset_cache()

    @override
    def take_events(self) -> Iterable[OffloadingEvent]:
        first, second = self.children
        yield from first.take_events()
        for event in second.take_events():
            yield attrs.evolve(event, ownership="second", locality=Locality.REMOTE)


@pytest.mark.clause("EVT-6")
def test_a_composing_manager_may_merge_its_childrens_streams() -> None:
    composed, context = Composed(), request()
    other = key("A", 1)
    for stored in (A, other, B):
        composed.prepare_store([stored], context)
        composed.complete_store([stored], context)
    events = list(composed.take_events())
    assert told(e for e in events if e.ownership is None) == [
        ("stored", [A]),
        ("removed", [A]),
        ("stored", [B]),
    ]
    assert told(e for e in events if e.ownership == "second") == [("stored", [other])]
    assert {event.locality for event in events} == {None, Locality.REMOTE}
    composed.reset_cache()
    assert believed(composed.take_events(), believed(events)) == set()


@pytest.mark.clause("EVT-6")
def test_the_interface_makes_up_no_events_for_anybody() -> None:
    class Silent(Composed):
        @override
        def take_events(self) -> Iterable[OffloadingEvent]:
            return OffloadingManager.take_events(self)

    composed, context = Silent(), request()
    composed.prepare_store([A], context)
    composed.complete_store([A], context)
    assert list(composed.take_events()) == []
    # What the children announced is still theirs to deliver.
    assert told(composed.children[0].take_events()) == [("stored", [A])]
