"""LOOK, LOAD, TOUCH and PIN: reading chunks, and what protects them meanwhile."""

from random import Random

import pytest

from kvoffload import (
    ChunkNotFoundError,
    ChunkNotReadyError,
    CPUOffloadingManager,
    KVOffloadError,
    LookupResult,
    NotPinnedError,
    OffloadKey,
    TransferKind,
)
from spec_tests.clauses.helpers import (
    LETTERS,
    A,
    B,
    C,
    D,
    E,
    books,
    in_flight,
    key,
    lookups,
    pin,
    prepare,
    put,
    put_each,
    request,
    resident,
    slot_of,
    slots,
)
from spec_tests.clauses.policies import Finish, recorded

HIT, MISS, HIT_PENDING = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING
BOTH = pytest.mark.parametrize("policy", ["lru", "arc"])


# LOOK


@pytest.mark.clause("LOOK-1")
def test_a_look_up_tells_missing_pending_and_ready_apart() -> None:
    manager, context = CPUOffloadingManager(4), request()
    assert lookups(manager, [A]) == [MISS]
    output = prepare(manager, [A], context)
    assert lookups(manager, [A, B]) == [HIT_PENDING, MISS]
    manager.complete_store([A], context, ticket=output.ticket)
    assert lookups(manager, [A]) == [HIT]
    pin(manager, [A])
    assert lookups(manager, [A]) == [HIT]


@pytest.mark.clause("LOOK-1")
def test_a_look_up_misses_what_was_evicted_failed_or_reset() -> None:
    manager, context = CPUOffloadingManager(1), request()
    put(manager, [A])
    put(manager, [B])
    assert lookups(manager, [A, B]) == [MISS, HIT]
    manager.reset_cache()
    assert lookups(manager, [B]) == [MISS]
    prepare(manager, [C], context)
    manager.complete_store([C], context, success=False)
    assert lookups(manager, [C]) == [MISS]


@pytest.mark.clause("LOOK-1")
def test_a_single_tier_never_answers_retry() -> None:
    manager = CPUOffloadingManager(2, enable_events=True)
    rng = Random(1)
    for step in range(200):
        context = request(str(step))
        offered = rng.sample(LETTERS, 2)
        if manager.prepare_store(offered, context) is not None and rng.random() < 0.7:
            manager.complete_store(offered, context, success=rng.random() < 0.8)
        assert LookupResult.RETRY not in lookups(manager, LETTERS)


@pytest.mark.clause("LOOK-2")
@BOTH
def test_looking_up_changes_nothing(policy: str) -> None:
    def run(*, looking: bool) -> list[list[OffloadKey]]:
        manager = CPUOffloadingManager(3, policy, enable_events=True)
        put_each(manager, [A, B, C])
        reader = request("reader")
        for _ in range(5 if looking else 0):
            lookups(manager, LETTERS)
            manager.lookup(A, reader)
        before = books(manager)
        manager.on_request_finished(reader)
        assert books(manager) == before
        evicted = [put(manager, [new]).evicted_keys for new in (D, E)]
        return [*evicted, [k for event in manager.take_events() for k in event.keys]]

    assert run(looking=True) == run(looking=False)


@pytest.mark.clause("LOOK-2")
def test_looking_up_tells_the_policy_nothing() -> None:
    manager, policy = recorded(2)
    put(manager, [A])
    told = len(policy.calls)
    lookups(manager, LETTERS)
    assert len(policy.calls) == told


# LOAD


@pytest.mark.clause("LOAD-1")
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_load_with_a_missing_key_pins_nothing(at: int) -> None:
    manager = CPUOffloadingManager(4)
    put(manager, [A, B])
    before = books(manager)
    wanted = [A, B]
    wanted.insert(at, C)
    with pytest.raises(ChunkNotFoundError) as caught:
        manager.prepare_load(wanted, request())
    assert caught.value.key == C
    assert repr(C) in str(caught.value)
    assert "not resident" in str(caught.value)
    assert isinstance(caught.value, KVOffloadError)
    assert books(manager) == before
    assert manager.outstanding("r") == ()


@pytest.mark.clause("LOAD-1")
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_load_with_a_pending_key_pins_nothing(at: int) -> None:
    manager = CPUOffloadingManager(4)
    put(manager, [A, B])
    prepare(manager, [C])
    before = books(manager)
    wanted = [A, B]
    wanted.insert(at, C)
    with pytest.raises(ChunkNotReadyError) as caught:
        manager.prepare_load(wanted, request())
    assert caught.value.key == C
    assert repr(C) in str(caught.value)
    assert "pending" in str(caught.value)
    assert books(manager) == before


@pytest.mark.clause("LOAD-1")
@pytest.mark.parametrize("pending", [False, True])
def test_a_refused_load_is_no_access(pending: bool) -> None:
    manager, policy = recorded(4)
    put(manager, [A])
    if pending:
        prepare(manager, [B])
    context = request()
    told = len(policy.calls)
    with pytest.raises((ChunkNotFoundError, ChunkNotReadyError)):
        manager.prepare_load([A, B], context)
    assert len(policy.calls) == told
    manager.on_request_finished(context)
    assert not any(finish.groups for finish in policy.finishes)


@pytest.mark.clause("LOAD-1")
def test_a_load_of_nothing_is_an_empty_spec() -> None:
    manager = CPUOffloadingManager(4)
    before = books(manager)
    assert slots(manager.prepare_load([], request())) == []
    assert books(manager) == before
    assert manager.outstanding("r") == ()


@pytest.mark.clause("LOAD-2")
def test_each_occurrence_takes_a_pin() -> None:
    manager, context = CPUOffloadingManager(4), request()
    put(manager, [A, B])
    pin(manager, [A, B, A, A], context)
    for _ in range(3):
        assert in_flight(manager)[1] >= 1
        manager.complete_load([A], context)
    assert in_flight(manager) == (0, 1)
    with pytest.raises(NotPinnedError):
        manager.complete_load([A], context)
    manager.complete_load([B], context)
    assert in_flight(manager) == (0, 0)


@pytest.mark.clause("LOAD-2")
def test_pins_of_several_requests_add_up() -> None:
    manager = CPUOffloadingManager(1)
    put(manager, [A])
    first, second = pin(manager, [A], request("1")), pin(manager, [A], request("2"))
    manager.complete_load([A], request("1"), ticket=first.ticket)
    assert manager.prepare_store([B], request()) is None
    manager.complete_load([A], request("2"), ticket=second.ticket)
    assert prepare(manager, [B]).evicted_keys == [A]


@pytest.mark.clause("LOAD-2")
def test_block_ids_are_the_slots_of_the_keys_in_their_order() -> None:
    manager = CPUOffloadingManager(4)
    stored = dict(zip([A, B, C, D], slots(put(manager, [A, B, C, D]).store_spec), strict=True))
    wanted = [C, A, A, D, B, C]
    assert slots(pin(manager, wanted)) == [stored[each] for each in wanted]


@pytest.mark.clause("LOAD-3")
@BOTH
def test_a_pinned_chunk_is_neither_evicted_nor_moved(policy: str) -> None:
    manager = CPUOffloadingManager(3, policy)
    put_each(manager, [A, B, C])
    [slot] = slots(pin(manager, [A]))
    for number in range(20):
        output = prepare(manager, [key(f"new{number}")])
        assert A not in output.evicted_keys
        assert slot not in slots(output.store_spec)
        manager.complete_store(output.keys_to_store, request("store"), ticket=output.ticket)
        assert slot_of(manager, A) == slot


@pytest.mark.clause("LOAD-3")
@BOTH
def test_nor_is_one_that_was_released_and_pinned_again(policy: str) -> None:
    manager = CPUOffloadingManager(3, policy)
    put_each(manager, [A, B, C])
    first = pin(manager, [A, B])
    # The evictions meet A and B while they are pinned, and then while they are idle.
    assert put(manager, [D]).evicted_keys == [C]
    manager.complete_load([A, B], request("pin"), ticket=first.ticket)
    pin(manager, [A])
    assert put(manager, [E]).evicted_keys == [B]
    assert put(manager, [C]).evicted_keys == [D]
    assert slot_of(manager, A) == slots(pin(manager, [A]))[0] == 0


@pytest.mark.clause("LOAD-3")
@BOTH
def test_a_pending_chunk_is_neither_evicted_nor_handed_out_again(policy: str) -> None:
    manager, storer = CPUOffloadingManager(3, policy), request("storer")
    output = prepare(manager, [A], storer)
    [slot] = slots(output.store_spec)
    for number in range(20):
        other = prepare(manager, [key(f"new{number}")])
        assert A not in other.evicted_keys
        assert slot not in slots(other.store_spec)
        manager.complete_store(
            other.keys_to_store, request("store"), number % 3 > 0, ticket=other.ticket
        )
    manager.complete_store([A], storer, ticket=output.ticket)
    assert slot_of(manager, A) == slot


@pytest.mark.clause("LOAD-3")
def test_when_everything_is_pinned_a_store_is_refused() -> None:
    manager = CPUOffloadingManager(2)
    put(manager, [A, B])
    pin(manager, [A, B])
    assert manager.prepare_store([C], request()) is None
    assert resident(manager, LETTERS) == [A, B]


@pytest.mark.clause("LOAD-4")
def test_a_completion_releases_one_pin_an_occurrence() -> None:
    manager, context = CPUOffloadingManager(2), request()
    put(manager, [A, B])
    pin(manager, [A, A, B], context)
    manager.complete_load([A, B], context)
    assert in_flight(manager) == (0, 1)
    manager.complete_load([A], context)
    assert in_flight(manager) == (0, 0)


@pytest.mark.clause("LOAD-4")
@pytest.mark.parametrize(
    "released", [[A, B, B], [B, A, A], [A, A], [C], [A, C]], ids=lambda keys: f"{len(keys)} keys"
)
def test_releasing_more_than_is_held_releases_nothing(released: list[OffloadKey]) -> None:
    manager, policy = recorded(3)
    context = request()
    put(manager, [A, B, C])
    pin(manager, [A, B], context)
    before, told = books(manager), len(policy.calls)
    with pytest.raises(NotPinnedError) as caught:
        manager.complete_load(released, context)
    assert caught.value.key in released
    assert caught.value.held < caught.value.released
    assert books(manager) == before
    assert len(policy.calls) == told
    manager.complete_load([A, B], context)
    assert in_flight(manager) == (0, 0)


@pytest.mark.clause("LOAD-4")
@pytest.mark.parametrize("at", [0, 1])
def test_completing_an_unknown_key_releases_nothing(at: int) -> None:
    manager, context = CPUOffloadingManager(2), request()
    put(manager, [A])
    pin(manager, [A], context)
    before = books(manager)
    released = [A]
    released.insert(at, D)
    with pytest.raises(ChunkNotFoundError) as caught:
        manager.complete_load(released, context)
    assert caught.value.key == D
    assert books(manager) == before


@pytest.mark.clause("LOAD-4")
def test_a_pending_key_has_no_pin_to_release() -> None:
    manager, context = CPUOffloadingManager(2), request()
    prepare(manager, [A], context)
    before = books(manager)
    with pytest.raises(NotPinnedError):
        manager.complete_load([A], context)
    assert books(manager) == before


@pytest.mark.clause("LOAD-5")
def test_what_a_request_loads_it_reuses() -> None:
    manager, policy = recorded(4)
    put(manager, [A, B])
    context = request()
    pin(manager, [A, B], context)
    manager.on_request_finished(context)
    assert policy.finishes == [Finish([(A, B)], set(), {A, B}, "r")]


@pytest.mark.clause("LOAD-5")
def test_what_a_request_inserted_itself_is_not_reused_by_loading_it() -> None:
    manager, policy = recorded(4)
    put(manager, [B])
    context = request()
    put(manager, [A], context)
    pin(manager, [A, B], context)
    manager.on_request_finished(context)
    assert policy.finishes == [Finish([(A, B)], {A}, {B}, "r")]


@pytest.mark.clause("LOAD-5")
def test_an_internal_transfer_is_no_access() -> None:
    manager, policy = recorded(4)
    put(manager, [A, B])
    told = policy.hooks().count("on_request_access")
    context = request()
    spec = manager.prepare_load([A], context, record_access=False)
    assert in_flight(manager) == (0, 1)
    manager.complete_load([A], context, ticket=spec.ticket)
    manager.on_request_finished(context)
    assert policy.hooks().count("on_request_access") == told
    assert [f for f in policy.finishes if f.groups or f.inserted or f.reused] == []


@pytest.mark.clause("LOAD-5")
def test_a_ready_key_that_is_offered_again_is_reused() -> None:
    manager, policy = recorded(4)
    put(manager, [A])
    context = request()
    put(manager, [A, B], context)
    manager.on_request_finished(context)
    assert policy.finishes[-1] == Finish([(A, B)], {B}, {A}, "r")


@pytest.mark.clause("LOAD-5")
def test_offering_again_what_the_request_inserted_is_no_reuse() -> None:
    manager, policy = recorded(4)
    context = request()
    put(manager, [A], context)
    put(manager, [A, B], context)
    manager.on_request_finished(context)
    assert policy.finishes[-1] == Finish([(A, B)], {A, B}, set(), "r")


@pytest.mark.clause("LOAD-5")
def test_what_was_reused_before_the_request_inserted_it_stays_reused() -> None:
    manager, policy = recorded(1)
    put(manager, [A])
    context = request()
    put(manager, [A], context)
    put(manager, [B])
    assert put(manager, [A], context).keys_to_store == [A]
    manager.on_request_finished(context)
    assert policy.finishes[-1] == Finish([(A,)], set(), {A}, "r")


# TOUCH


@pytest.mark.clause("TOUCH-1")
@BOTH
def test_a_touch_changes_neither_residency_nor_slots_nor_pins_nor_events(policy: str) -> None:
    manager = CPUOffloadingManager(4, policy, enable_events=True)
    put(manager, [A, B])
    prepare(manager, [C])
    pin(manager, [B])
    manager.take_events()
    before, where = books(manager), [slot_of(manager, each) for each in (A, B)]
    manager.touch(list(LETTERS), request())
    assert books(manager) == before
    assert [slot_of(manager, each) for each in (A, B)] == where
    assert manager.take_events() == []


@pytest.mark.clause("TOUCH-1")
@BOTH
def test_a_touch_refreshes(policy: str) -> None:
    manager = CPUOffloadingManager(2, policy)
    put_each(manager, [A, B])
    manager.touch([A], request())
    assert put(manager, [C]).evicted_keys == [B]


@pytest.mark.clause("TOUCH-1")
@BOTH
def test_touching_unknown_keys_is_harmless(policy: str) -> None:
    manager = CPUOffloadingManager(2, policy)
    put_each(manager, [A, B])
    manager.touch([D, E, D], request())
    manager.touch([], request())
    assert put(manager, [C]).evicted_keys == [A]


@pytest.mark.clause("TOUCH-1")
def test_a_touch_is_no_access_of_the_request() -> None:
    manager, policy = recorded(2)
    put(manager, [A])
    context = request()
    manager.touch([A, B], context)
    manager.on_request_finished(context)
    assert policy.calls[-1] == ("touch", (A, B))


# PIN


@pytest.mark.clause("PIN-1")
@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ticketed", [False, True])
def test_when_every_prepare_is_completed_nothing_is_pinned_or_pending(
    policy: str, seed: int, ticketed: bool
) -> None:
    rng, manager = Random(seed), CPUOffloadingManager(5, policy)
    open_loads: list[tuple[list[OffloadKey], int | None, str]] = []
    open_stores: list[tuple[list[OffloadKey], int | None, str]] = []
    most = 0
    for step in range(300):
        context = request(f"r{step % 7}-{step // 40}")
        if rng.random() < 0.5:
            wanted = [k for k in LETTERS if manager.lookup(k, context) is HIT]
            wanted = rng.choices(wanted, k=rng.randint(1, 4)) if wanted else []
            ticket = manager.prepare_load(wanted, context).ticket
            open_loads.append((wanted, ticket if ticketed else None, context.req_id))
        else:
            output = manager.prepare_store(rng.sample(LETTERS, 2), context)
            if output is not None:
                ticket = output.ticket if ticketed else None
                open_stores.append((output.keys_to_store, ticket, context.req_id))
        most = max(most, sum(in_flight(manager)))
        while len(open_loads) > 3:
            keys, ticket, req_id = open_loads.pop(rng.randrange(len(open_loads)))
            manager.complete_load(keys, request(req_id), ticket=ticket)
        while len(open_stores) > 2:
            keys, ticket, req_id = open_stores.pop(rng.randrange(len(open_stores)))
            manager.complete_store(keys, request(req_id), rng.random() < 0.7, ticket=ticket)
    for keys, ticket, req_id in open_loads:
        manager.complete_load(keys, request(req_id), ticket=ticket)
    for keys, ticket, req_id in open_stores:
        manager.complete_store(keys, request(req_id), ticket=ticket)
    assert most >= 4, "the run has hardly held anything"
    assert in_flight(manager) == (0, 0)
    assert not any(manager.outstanding(f"r{i}-{j}") for i in range(7) for j in range(8))
    manager.check()


@pytest.mark.clause("PIN-2")
def test_what_a_request_holds_is_listed_oldest_first() -> None:
    manager, context = CPUOffloadingManager(4), request()
    put(manager, [A, B])
    load = pin(manager, [A, B, A], context)
    store = prepare(manager, [C], context)
    pin(manager, [B], request("other"))
    held = manager.outstanding("r")
    assert [(t.ticket, t.kind) for t in held] == [
        (load.ticket, TransferKind.LOAD),
        (store.ticket, TransferKind.STORE),
    ]
    assert sorted(held[0].keys) == [A, A, B]
    assert held[1].keys == (C,)


@pytest.mark.clause("PIN-2")
def test_a_request_that_holds_nothing_has_nothing_outstanding() -> None:
    manager, context = CPUOffloadingManager(4), request()
    assert manager.outstanding("r") == ()
    put(manager, [A], context)
    assert manager.outstanding("r") == ()
    pin(manager, [A], context)
    manager.reset_cache()
    assert manager.outstanding("r") == ()


@pytest.mark.clause("PIN-2")
def test_partly_completed_transfers_list_what_is_left() -> None:
    manager, context = CPUOffloadingManager(4), request()
    output = prepare(manager, [A, B], context)
    manager.complete_store([A], context, ticket=output.ticket)
    assert [t.keys for t in manager.outstanding("r")] == [(B,)]


@pytest.mark.clause("PIN-2")
def test_an_aborted_request_can_be_released_by_what_is_listed() -> None:
    manager, context = CPUOffloadingManager(4), request()
    put(manager, [A, B])
    pin(manager, [A, A], context)
    pin(manager, [A, B], context)
    prepare(manager, [C, D], context)
    manager.on_request_finished(context)
    for transfer in manager.outstanding("r"):
        if transfer.kind is TransferKind.LOAD:
            manager.complete_load(transfer.keys, context, ticket=transfer.ticket)
        else:
            manager.complete_store(transfer.keys, context, success=False, ticket=transfer.ticket)
    assert in_flight(manager) == (0, 0)
    assert manager.outstanding("r") == ()
    assert manager.stale_completions == 0
    assert resident(manager, LETTERS) == [A, B]
