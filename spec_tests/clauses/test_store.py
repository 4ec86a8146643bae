"""STORE-1 to STORE-9, STORE-12 and SLOT-1: what is admitted, who makes room, and where it goes."""

from random import Random

import pytest

from kvoffload import CPUOffloadingManager, LookupResult, OffloadKey
from spec_tests.clauses.helpers import (
    LETTERS,
    STORES_SKIPPED,
    A,
    B,
    C,
    D,
    E,
    F,
    G,
    H,
    believed,
    books,
    in_flight,
    many,
    pin,
    prepare,
    put,
    put_each,
    ready,
    request,
    resident,
    slot_of,
    slots,
)
from spec_tests.clauses.policies import Call, recorded

BOTH = pytest.mark.parametrize("policy", ["lru", "arc"])


def admitted(manager: CPUOffloadingManager, keys: list[OffloadKey]) -> list[OffloadKey]:
    """Which keys of an offer a request of its own is asked to store; the store fails."""
    context = request("offers")
    output = manager.prepare_store(keys, context)
    assert output is not None
    manager.complete_store(output.keys_to_store, context, success=False, ticket=output.ticket)
    return output.keys_to_store


# STORE-1, STORE-2


@pytest.mark.clause("STORE-1")
def test_a_repeated_key_counts_once_at_its_first_place() -> None:
    manager = CPUOffloadingManager(4)
    output = prepare(manager, [B, A, B, A, A])
    assert output.keys_to_store == [B, A]
    assert slots(output.store_spec) == [0, 1]
    assert in_flight(manager) == (2, 0)


@pytest.mark.clause("STORE-1")
def test_a_repeated_key_takes_no_second_slot() -> None:
    manager = CPUOffloadingManager(2)
    put(manager, [A, A, A])
    output = put(manager, [B, B])
    assert output.evicted_keys == []
    assert resident(manager, LETTERS) == [A, B]
    manager.check()


@pytest.mark.clause("STORE-1")
def test_a_repeated_key_counts_as_one_offer() -> None:
    manager = CPUOffloadingManager(4, store_threshold=2)
    assert admitted(manager, [A, A, A]) == []
    assert admitted(manager, [A]) == [A]


@pytest.mark.clause("STORE-2")
def test_resident_keys_are_not_stored_again() -> None:
    manager = CPUOffloadingManager(6)
    put(manager, [A, B])
    pin(manager, [B])
    prepare(manager, [C], request("other"))
    output = prepare(manager, [A, D, B, C, E])
    assert output.keys_to_store == [D, E]
    assert slots(output.store_spec) == [3, 4]


@pytest.mark.clause("STORE-2")
def test_pending_keys_are_not_seen() -> None:
    manager, policy = recorded(4)
    prepare(manager, [A], request("other"))
    context = request()
    put(manager, [A, B], context)
    manager.on_request_finished(context)
    assert policy.finishes[-1].groups == [(B,)]
    assert policy.finishes[-1].reused == set()


# STORE-3, STORE-12


@pytest.mark.clause("STORE-3")
@pytest.mark.parametrize("threshold", [2, 3, 5])
def test_a_key_is_admitted_on_its_t_th_offer(threshold: int) -> None:
    manager = CPUOffloadingManager(4, store_threshold=threshold)
    for _ in range(threshold - 1):
        assert admitted(manager, [A]) == []
    assert admitted(manager, [A, B]) == [A]


@pytest.mark.clause("STORE-3")
@pytest.mark.parametrize("threshold", [0, 1])
def test_below_two_nothing_is_filtered(threshold: int) -> None:
    manager = CPUOffloadingManager(4, store_threshold=threshold)
    assert admitted(manager, [A, B]) == [A, B]
    assert STORES_SKIPPED not in manager.get_stats().reduce()


@pytest.mark.clause("STORE-3")
def test_counts_survive_storing_and_eviction() -> None:
    manager = CPUOffloadingManager(1, store_threshold=2)
    manager.prepare_store([A], request())
    put(manager, [A])
    manager.prepare_store([B], request())
    assert put(manager, [B]).evicted_keys == [A]
    assert put(manager, [A]).keys_to_store == [A]


@pytest.mark.clause("STORE-3")
def test_an_offer_of_a_resident_key_is_counted() -> None:
    manager = CPUOffloadingManager(1, store_threshold=2, max_tracker_size=2)
    for offer in ([A], [A], [B], [C]):
        put(manager, offer)
    assert ready(manager, LETTERS) == [A]
    # B and C have pushed A out of the tracker: this is its first offer again.
    put(manager, [A])
    assert put(manager, [C]).evicted_keys == [A]
    assert put(manager, [A]).keys_to_store == [A]


@pytest.mark.clause("STORE-3")
def test_the_tracker_forgets_the_longest_not_offered() -> None:
    manager = CPUOffloadingManager(4, store_threshold=2, max_tracker_size=2)
    assert admitted(manager, [A]) == []
    assert admitted(manager, [B]) == []
    assert admitted(manager, [C]) == []
    # A made room for C, so this is its first offer again; it pushes out B.
    assert admitted(manager, [A]) == []
    assert admitted(manager, [C]) == [C]
    assert admitted(manager, [B]) == []


@pytest.mark.clause("STORE-3")
def test_an_offer_moves_a_tracked_key_to_the_recent_end() -> None:
    manager = CPUOffloadingManager(4, store_threshold=3, max_tracker_size=2)
    admitted(manager, [A])
    admitted(manager, [B])
    admitted(manager, [A])
    admitted(manager, [C])
    assert admitted(manager, [A]) == [A]


@pytest.mark.clause("STORE-3")
def test_tracked_keys_of_an_offer_are_counted_before_new_ones_come_in() -> None:
    manager = CPUOffloadingManager(4, store_threshold=2, max_tracker_size=2)
    admitted(manager, [A, B])
    # C and D would push out A and B if they came first; A and B are safe, C and D untracked.
    assert admitted(manager, [C, A, D, B]) == [A, B]
    assert admitted(manager, [C, D]) == []


@pytest.mark.clause("STORE-3")
def test_tracked_keys_keep_the_order_of_the_offer() -> None:
    manager = CPUOffloadingManager(4, store_threshold=3, max_tracker_size=3)
    admitted(manager, [A, B, C])
    admitted(manager, [C, A, B])
    # C is now the longest not offered.
    admitted(manager, [D])
    assert admitted(manager, [A, B, C]) == [A, B]


@pytest.mark.clause("STORE-3")
def test_no_new_key_of_an_offer_pushes_out_another_of_it() -> None:
    manager = CPUOffloadingManager(8, store_threshold=2, max_tracker_size=3)
    admitted(manager, [A])
    # One free place, then A's: a new key is neither of the first kind nor a place for others.
    admitted(manager, [B, C, D, E, F])
    assert admitted(manager, [B, C, D, E, F]) == [B, C, D]


@pytest.mark.clause("STORE-3")
def test_a_full_tracker_makes_room_one_by_one() -> None:
    manager = CPUOffloadingManager(8, store_threshold=2, max_tracker_size=3)
    admitted(manager, [A, B, C])
    admitted(manager, [D, E])
    assert admitted(manager, [A, B, C, D, E]) == [C, D, E]


@pytest.mark.clause("STORE-3")
def test_a_tracker_without_room_tracks_nothing() -> None:
    manager = CPUOffloadingManager(4, store_threshold=2, max_tracker_size=0)
    for _ in range(4):
        assert admitted(manager, [A]) == []


@pytest.mark.clause("STORE-3")
def test_skipped_candidates_are_counted() -> None:
    manager = CPUOffloadingManager(4, store_threshold=2)
    manager.prepare_store([A, B, B], request())
    assert manager.get_stats().reduce()[STORES_SKIPPED] == 2
    put(manager, [A, C])
    assert manager.get_stats().reduce()[STORES_SKIPPED] == 1
    # A resident key is no candidate.
    manager.prepare_store([A], request())
    assert manager.get_stats().reduce()[STORES_SKIPPED] == 0


@pytest.mark.clause("STORE-3")
def test_keys_that_are_not_admitted_are_not_seen() -> None:
    manager, policy = recorded(4, store_threshold=2)
    manager.prepare_store([A], request("other"))
    context = request()
    put(manager, [A, B], context)
    manager.on_request_finished(context)
    assert policy.finishes[-1].groups == [(A,)]
    assert policy.keys_of("on_store_miss") == [(A,)]


@pytest.mark.clause("STORE-12")
@pytest.mark.parametrize("threshold", [2, 3, 4])
@pytest.mark.parametrize("tracker", [1, 2, 3, 8])
def test_an_offer_repeated_t_times_in_a_row_admits_something(threshold: int, tracker: int) -> None:
    manager = CPUOffloadingManager(8, store_threshold=threshold, max_tracker_size=tracker)
    admitted(manager, [H, G])
    offer = [A, B, C, D, E]
    assert not any(admitted(manager, offer) for _ in range(threshold - 1))
    assert admitted(manager, offer) == offer[:tracker]


# STORE-4


@pytest.mark.clause("STORE-4")
@BOTH
@pytest.mark.parametrize("held", range(5))
@pytest.mark.parametrize("offered", range(1, 5))
def test_exactly_what_is_lacking_is_evicted(policy: str, held: int, offered: int) -> None:
    manager = CPUOffloadingManager(4, policy)
    put_each(manager, LETTERS[:held])
    output = prepare(manager, many(offered))
    assert len(output.evicted_keys) == max(0, offered - (4 - held))
    assert set(output.evicted_keys) <= set(LETTERS[:held])
    assert resident(manager, output.evicted_keys) == []
    assert len(resident(manager, LETTERS)) == held - len(output.evicted_keys)


@pytest.mark.clause("STORE-4")
def test_only_admitted_keys_make_others_go() -> None:
    manager = CPUOffloadingManager(2, store_threshold=2)
    put(manager, [A, B])
    assert put(manager, [A, B]).keys_to_store == [A, B]
    assert prepare(manager, [A, C, D]).evicted_keys == []
    assert prepare(manager, [A, C, E]).evicted_keys == [B]


@pytest.mark.clause("STORE-4")
@BOTH
def test_a_refused_store_leaves_residency_slots_pins_and_events(policy: str) -> None:
    manager = CPUOffloadingManager(4, policy, enable_events=True)
    put(manager, [A, B, C])
    loaded = pin(manager, [A, B])
    prepare(manager, [D], request("other"))
    manager.take_events()
    before, where = books(manager), slot_of(manager, C)
    # One chunk is idle, two are needed.
    assert manager.prepare_store([E, F], request()) is None
    assert books(manager) == before
    assert slot_of(manager, C) == where
    assert manager.take_events() == []
    assert manager.outstanding("r") == ()
    manager.complete_load([A, B], request("pin"), ticket=loaded.ticket)
    assert prepare(manager, [E, F]).keys_to_store == [E, F]


@pytest.mark.clause("STORE-4")
def test_more_than_the_capacity_is_refused() -> None:
    manager = CPUOffloadingManager(3)
    put(manager, [A, B])
    before = books(manager)
    assert manager.prepare_store([C, D, E, F], request()) is None
    assert books(manager) == before
    assert CPUOffloadingManager(0).prepare_store([A], request()) is None


@pytest.mark.clause("STORE-4")
@BOTH
def test_a_refused_store_changes_no_later_choice(policy: str) -> None:
    def choices(*, refused: bool) -> list[OffloadKey]:
        manager = CPUOffloadingManager(4, policy)
        put_each(manager, [A, B, C, D])
        spec = pin(manager, [A, C])
        if refused:
            assert manager.prepare_store(many(3, "refused"), request("refused")) is None
        manager.complete_load([C, A], request("pin"), ticket=spec.ticket)
        return prepare(manager, many(4)).evicted_keys

    assert choices(refused=True) == choices(refused=False)


@pytest.mark.clause("STORE-4")
def test_what_the_policy_was_told_before_a_refusal_stays() -> None:
    manager, policy = recorded(1)
    put(manager, [A])
    pin(manager, [A])
    context = request()
    told = len(policy.calls)
    assert manager.prepare_store([B], context) is None
    assert policy.calls[told:] == [
        Call("on_store_miss", (B,)),
        Call("on_request_access", (B,)),
    ]
    manager.on_request_finished(context)
    assert policy.finishes[-1] == ([(B,)], set(), set(), "r")


@pytest.mark.clause("STORE-4")
def test_a_refused_offer_stays_counted_by_the_tracker() -> None:
    manager = CPUOffloadingManager(1, store_threshold=2)
    manager.prepare_store([A], request())
    put(manager, [A])
    spec = pin(manager, [A])
    manager.prepare_store([B], request())
    assert manager.prepare_store([B], request()) is None
    manager.complete_load([A], request("pin"), ticket=spec.ticket)
    assert prepare(manager, [B]).keys_to_store == [B]


# STORE-5, STORE-6


@pytest.mark.clause("STORE-5")
@BOTH
def test_offered_keys_that_were_resident_stay_resident(policy: str) -> None:
    manager = CPUOffloadingManager(3, policy)
    put_each(manager, [A, B, C])
    output = prepare(manager, [D, A, B])
    assert output.evicted_keys == [C]
    assert ready(manager, LETTERS) == [A, B]


@pytest.mark.clause("STORE-5")
@BOTH
def test_a_key_that_is_not_admitted_is_protected_too_when_resident(policy: str) -> None:
    manager = CPUOffloadingManager(2, policy)
    put_each(manager, [A, B])
    assert manager.prepare_store([A, B, C], request()) is None
    assert ready(manager, LETTERS) == [A, B]


@pytest.mark.clause("STORE-5")
def test_the_whole_offer_is_protected() -> None:
    manager, policy = recorded(3)
    put(manager, [A, B])
    prepare(manager, [C], request("other"))
    prepare(manager, [D, A, C])
    assert policy.evictions == [(1, frozenset({D, A, C}))]


@pytest.mark.clause("STORE-6")
def test_the_policy_is_not_asked_when_fewer_are_idle_than_needed() -> None:
    manager, policy = recorded(2)
    put(manager, [A, B])
    pin(manager, [A])
    assert manager.prepare_store([C, D], request()) is None
    assert "evict" not in policy.hooks()


@pytest.mark.clause("STORE-6")
def test_idle_chunks_of_the_offer_do_not_count() -> None:
    manager, policy = recorded(3)
    put(manager, [A, B, C])
    assert manager.prepare_store([A, B, D, E], request()) is None
    assert "evict" not in policy.hooks()
    assert prepare(manager, [A, B, D]).evicted_keys == [C]


class CountedKey(bytes):
    """Counts how often it is hashed."""

    hashes = 0

    def __hash__(self) -> int:
        CountedKey.hashes += 1
        return super().__hash__()


@pytest.mark.clause("STORE-6")
@BOTH
def test_failing_costs_no_more_than_the_offer(policy: str) -> None:
    manager = CPUOffloadingManager(1_000, policy)
    stored = [OffloadKey(CountedKey(each)) for each in many(1_000)]
    put(manager, stored)
    pin(manager, stored[10:])
    offer = [*stored[:10], *(OffloadKey(CountedKey(each)) for each in many(10, "new"))]
    CountedKey.hashes = 0
    assert manager.prepare_store(offer, request()) is None
    assert CountedKey.hashes <= 16 * len(offer)


# STORE-7, SLOT-1


@pytest.mark.clause("STORE-7")
def test_fresh_slots_go_out_ascending() -> None:
    manager = CPUOffloadingManager(5)
    assert slots(put(manager, [A, B]).store_spec) == [0, 1]
    assert slots(prepare(manager, [C, D, E]).store_spec) == [2, 3, 4]


@pytest.mark.clause("STORE-7")
def test_fresh_slots_go_before_freed_ones() -> None:
    manager, context = CPUOffloadingManager(4), request()
    output = prepare(manager, [A, B], context)
    manager.complete_store([A, B], context, success=False, ticket=output.ticket)
    assert slots(prepare(manager, [C, D, E]).store_spec) == [2, 3, 1]


@pytest.mark.clause("STORE-7")
def test_the_last_freed_goes_out_first() -> None:
    manager, context = CPUOffloadingManager(3), request()
    output = prepare(manager, [A, B, C], context)
    manager.complete_store([B, C, A], context, success=False, ticket=output.ticket)
    assert slots(prepare(manager, [D, E, F]).store_spec) == [0, 2, 1]


@pytest.mark.clause("STORE-7")
def test_victims_are_freed_in_the_order_in_which_they_go() -> None:
    manager, context = CPUOffloadingManager(3), request()
    put(manager, [A, B])
    output = prepare(manager, [C], context)
    manager.complete_store([C], context, success=False, ticket=output.ticket)
    # Slot 2 was freed first, then A's 0 and B's 1.
    output = prepare(manager, [D, E, F])
    assert output.evicted_keys == [A, B]
    assert slots(output.store_spec) == [1, 0, 2]


@pytest.mark.clause("STORE-7")
def test_keys_slots_and_insertions_correspond() -> None:
    manager, policy = recorded(4)
    put(manager, [A])
    output = prepare(manager, [B, A, D, C])
    assert output.keys_to_store == [B, D, C]
    assert policy.keys_of("insert")[1:] == [(B,), (D,), (C,)]
    assert [slot for slot, _ in policy.inserted_at][1:] == slots(output.store_spec)
    manager.complete_store(output.keys_to_store, request("store"), ticket=output.ticket)
    assert [slot_of(manager, each) for each in (B, D, C)] == slots(output.store_spec)


@pytest.mark.clause("STORE-7")
@pytest.mark.clause("SLOT-1")
@BOTH
@pytest.mark.parametrize("seed", range(6))
def test_free_pending_and_ready_slots_partition_the_range_after_every_call(
    policy: str, seed: int
) -> None:
    capacity, rng = 5, Random(seed)
    manager = CPUOffloadingManager(capacity, policy)
    pending: dict[OffloadKey, int] = {}
    evicted = failed = 0
    held: list[int] = []
    for step in range(250):
        context = request(str(step))
        if pending and rng.random() < 0.5:
            done = rng.sample(list(pending), rng.randint(1, len(pending)))
            success = rng.random() < 0.6
            manager.complete_store(done, context, success=success)
            failed += not success
            for each in done:
                del pending[each]
        elif rng.random() < 0.02:
            manager.reset_cache()
            pending.clear()
        else:
            output = manager.prepare_store(rng.sample(LETTERS, rng.randint(1, 3)), context)
            if output is not None:
                evicted += len(output.evicted_keys)
                pending.update(zip(output.keys_to_store, slots(output.store_spec), strict=True))
        held = [slot_of(manager, each) for each in ready(manager, LETTERS)] + list(pending.values())
        assert len(set(held)) == len(held), "a slot was handed out twice"
        assert set(held) <= set(range(capacity))
        manager.check()
    assert evicted > 20
    assert failed > 5
    # What nobody holds is free: just as many can be stored without anybody having to go.
    free = capacity - len(resident(manager, LETTERS))
    output = prepare(manager, many(free))
    assert output.evicted_keys == []
    assert sorted([*slots(output.store_spec), *held]) == list(range(capacity))


# STORE-8, STORE-9


@pytest.mark.clause("STORE-8")
def test_the_hooks_come_in_order_and_in_the_order_of_the_offer() -> None:
    manager, policy = recorded(4)
    put(manager, [A, B, C])
    told = len(policy.calls)
    output = prepare(manager, [E, A, D])
    assert output.evicted_keys == [B]
    assert policy.calls[told:] == [
        Call("on_store_miss", (E, D)),
        Call("on_request_access", (E, A, D)),
        Call("evict"),
        Call("insert", (E,)),
        Call("insert", (D,)),
    ]


@pytest.mark.clause("STORE-8")
def test_chunks_are_inserted_pending() -> None:
    manager, policy = recorded(2)
    prepare(manager, [A, B])
    assert policy.inserted_at == [(0, -1), (1, -1)]


@pytest.mark.clause("STORE-8")
def test_evict_is_not_called_when_there_is_room() -> None:
    manager, policy = recorded(2)
    prepare(manager, [A, B])
    assert "evict" not in policy.hooks()


@pytest.mark.clause("STORE-8")
def test_a_miss_is_told_once_a_request_and_generation() -> None:
    manager, policy = recorded(1)
    context = request()
    put(manager, [A], context)
    put(manager, [B], request("other"))
    put(manager, [A], context)
    assert policy.keys_of("on_store_miss") == [(A,), (B,)]
    manager.reset_cache()
    put(manager, [A], context)
    assert policy.keys_of("on_store_miss") == [(A,), (B,), (A,)]


@pytest.mark.clause("STORE-8")
def test_only_first_accesses_are_told() -> None:
    manager, policy = recorded(4)
    context = request()
    put(manager, [A, B], context)
    put(manager, [B, C], context)
    pin(manager, [C, A], context)
    assert policy.keys_of("on_request_access") == [(A, B), (C,)]


@pytest.mark.clause("STORE-8")
def test_a_load_tells_each_key_once_in_its_order() -> None:
    manager, policy = recorded(4)
    put(manager, [A, B])
    told = len(policy.calls)
    pin(manager, [B, A, B])
    assert [call for call in policy.calls[told:] if call.hook == "on_request_access"] == [
        Call("on_request_access", (B, A))
    ]


@pytest.mark.clause("STORE-9")
def test_nothing_to_store_is_an_empty_output() -> None:
    manager = CPUOffloadingManager(2)
    put(manager, [A])
    prepare(manager, [B], request("other"))
    before = books(manager)
    for offer in ([], [A], [A, B, A]):
        output = manager.prepare_store(offer, request())
        assert output is not None
        assert output.keys_to_store == []
        assert output.evicted_keys == []
        assert slots(output.store_spec) == []
    assert books(manager) == before


@pytest.mark.clause("STORE-9")
def test_nothing_admitted_is_an_empty_output_even_when_all_is_pinned() -> None:
    manager = CPUOffloadingManager(1, store_threshold=2)
    manager.prepare_store([A], request())
    put(manager, [A])
    pin(manager, [A])
    output = manager.prepare_store([B], request())
    assert output is not None
    assert output.keys_to_store == []


@pytest.mark.clause("STORE-9")
def test_the_answer_is_the_callers_own() -> None:
    manager = CPUOffloadingManager(2, enable_events=True)
    context = request()
    output = prepare(manager, [A, B], context)
    keys = list(output.keys_to_store)
    output.keys_to_store.clear()
    manager.complete_store(keys, context, ticket=output.ticket)
    evicted = prepare(manager, [C, D], context).evicted_keys
    evicted.clear()
    assert believed(manager.take_events()) == set()
    assert manager.lookup(A, context) is LookupResult.MISS
    manager.check()
