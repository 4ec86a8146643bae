"""FIN-1 and FIN-2: what the policy is told of a request that ends, and what it may still do."""

from collections.abc import Sequence

import pytest

from kvoffload import (
    CPUOffloadingManager,
    LookupResult,
    OffloadKey,
    ReqContext,
    RequestFinishedError,
)
from spec_tests.clauses.helpers import (
    LETTERS,
    A,
    B,
    C,
    D,
    E,
    books,
    key,
    pin,
    prepare,
    put,
    request,
    resident,
)
from spec_tests.clauses.policies import Finish, RecordingPolicy, recorded


def positioned(ends: dict[OffloadKey, int]) -> ReqContext:
    context = ReqContext("r")
    for each, end in ends.items():
        context.set_offload_key_position(each, end)
    return context


def groups_of(order: Sequence[OffloadKey], context: ReqContext) -> list[tuple[OffloadKey, ...]]:
    """The groups that the policy is told of when a request has seen keys in this order."""
    manager, policy = recorded(8)
    for each in order:
        put(manager, [each], context)
    manager.on_request_finished(context)
    [finish] = policy.finishes
    return finish.groups


# FIN-1


@pytest.mark.clause("FIN-1")
def test_the_policy_is_told_once() -> None:
    manager, policy = recorded(4)
    context = request()
    put(manager, [A], context)
    for _ in range(3):
        manager.on_request_finished(context)
    assert len(policy.finishes) == 1


@pytest.mark.clause("FIN-1")
def test_it_is_told_once_in_each_generation() -> None:
    manager, policy = recorded(4)
    context = request()
    for _ in range(2):
        put(manager, [A], context)
        manager.on_request_finished(context)
        manager.on_request_finished(context)
        manager.reset_cache()
    assert len(policy.finishes) == 2


@pytest.mark.clause("FIN-1")
def test_it_is_told_what_was_seen_inserted_and_reused() -> None:
    manager, policy = recorded(8)
    put(manager, [A, B])
    prepare(manager, [C], request("other"))
    context = request()
    pin(manager, [A], context)
    put(manager, [B, C, D], context)
    manager.touch([E], context)
    manager.on_request_finished(context)
    assert policy.finishes == [Finish([(A, B, D)], {D}, {A, B}, "r")]


@pytest.mark.clause("FIN-1")
def test_inserted_and_not_reused_means_just_that() -> None:
    manager, policy = recorded(1)
    put(manager, [A])
    context = request()
    pinned = pin(manager, [A], context)
    manager.complete_load([A], context, ticket=pinned.ticket)
    put(manager, [B])
    put(manager, [A], context)
    manager.on_request_finished(context)
    # Reused first, inserted afterwards: it is named once, as reused.
    assert policy.finishes[-1] == Finish([(A,)], set(), {A}, "r")


@pytest.mark.clause("FIN-1")
def test_keys_come_as_first_seen_without_positions() -> None:
    assert groups_of([C, A, B, A], request()) == [(C, A, B)]


@pytest.mark.clause("FIN-1")
def test_groups_come_ascending() -> None:
    in_2, in_0, in_10 = key("A", 2), key("A", 0), key("A", 10)
    wide = key("A", 2**31)
    assert groups_of([wide, in_2, in_10, in_0], request()) == [(in_0,), (in_2,), (in_10,), (wide,)]


@pytest.mark.clause("FIN-1")
def test_keys_of_one_offer_and_of_other_requests_are_told_by_group_too() -> None:
    manager, policy = recorded(8)
    in_1, in_2 = key("a", 1), key("a", 2)
    context = request()
    put(manager, [in_2, A, in_1], context)
    manager.on_request_finished(context)
    reader = request("reader")
    pin(manager, [in_2, A], reader)
    manager.on_request_finished(reader)
    assert [finish.groups for finish in policy.finishes] == [
        [(A,), (in_1,), (in_2,)],
        [(A,), (in_2,)],
    ]


@pytest.mark.clause("FIN-1")
def test_a_group_comes_by_position_when_all_of_it_have_one() -> None:
    assert groups_of([C, A, B], positioned({A: 16, B: 32, C: 48})) == [(A, B, C)]


@pytest.mark.clause("FIN-1")
def test_a_group_comes_as_first_seen_when_one_of_it_has_no_position() -> None:
    assert groups_of([C, A, B], positioned({A: 16, C: 48})) == [(C, A, B)]


@pytest.mark.clause("FIN-1")
def test_positions_of_another_group_do_not_matter() -> None:
    other, another = key("A", 1), key("B", 1)
    context = positioned({A: 32, B: 16})
    assert groups_of([A, another, B, other], context) == [(B, A), (another, other)]


@pytest.mark.clause("FIN-1")
def test_equal_positions_stay_as_first_seen() -> None:
    assert groups_of([C, B, A, D], positioned({A: 16, B: 16, C: 16, D: 8})) == [(D, C, B, A)]


@pytest.mark.clause("FIN-1")
def test_a_position_set_after_the_key_was_seen_counts() -> None:
    manager, policy = recorded(4)
    context = request()
    put(manager, [A, B], context)
    context.set_offload_key_position(A, 32)
    context.set_offload_key_position(B, 16)
    manager.on_request_finished(context)
    assert policy.finishes[-1].groups == [(B, A)]


@pytest.mark.clause("FIN-1")
def test_evicted_and_failed_keys_were_seen_all_the_same() -> None:
    manager, policy = recorded(1)
    context = request()
    put(manager, [A], context)
    prepare(manager, [B], context)
    manager.complete_store([B], context, success=False)
    manager.on_request_finished(context)
    assert policy.finishes[-1] == Finish([(A, B)], {A, B}, set(), "r")


@pytest.mark.clause("FIN-1")
def test_requests_are_told_apart() -> None:
    manager, policy = recorded(4)
    first, second = request("same id"), request("same id")
    put(manager, [A], first)
    put(manager, [B], second)
    manager.on_request_finished(second)
    assert policy.finishes == [Finish([(B,)], {B}, set(), "same id")]


# FIN-2


def finished(manager: CPUOffloadingManager, seen: Sequence[OffloadKey] = (A,)) -> ReqContext:
    """A request that has seen these keys and finished."""
    context = request()
    put(manager, seen, context)
    manager.on_request_finished(context)
    return context


def state(manager: CPUOffloadingManager, policy: RecordingPolicy) -> tuple[object, int]:
    return books(manager), len(policy.calls)


@pytest.mark.clause("FIN-2")
def test_a_finished_request_loads_no_further_key() -> None:
    manager, policy = recorded(4)
    put(manager, [B])
    context = finished(manager)
    before = state(manager, policy)
    with pytest.raises(RequestFinishedError) as caught:
        manager.prepare_load([A, B], context)
    assert (caught.value.request_id, caught.value.key) == ("r", B)
    assert "'r'" in str(caught.value)
    assert repr(B) in str(caught.value)
    assert state(manager, policy) == before


@pytest.mark.clause("FIN-2")
@pytest.mark.parametrize("offer", [[B], [A, B], [C], [A, C], [C, D, A]])
def test_a_finished_request_offers_no_further_key(offer: list[OffloadKey]) -> None:
    manager, policy = recorded(4)
    put(manager, [B])
    context = finished(manager)
    before = state(manager, policy)
    with pytest.raises(RequestFinishedError) as caught:
        manager.prepare_store(offer, context)
    assert caught.value.key in offer
    assert caught.value.key != A
    assert state(manager, policy) == before
    assert resident(manager, LETTERS) == [A, B]


@pytest.mark.clause("FIN-2")
def test_a_refused_offer_is_not_counted_by_the_tracker() -> None:
    manager = CPUOffloadingManager(4, store_threshold=2)
    put(manager, [A])
    context = finished(manager)
    put(manager, [B])
    with pytest.raises(RequestFinishedError):
        manager.prepare_store([C, B], context)
    # C has been offered never, B once.
    assert put(manager, [C]).keys_to_store == []
    assert put(manager, [B]).keys_to_store == [B]
    assert manager.get_stats().reduce()["vllm:kv_offload_stores_skipped"] == 3


@pytest.mark.clause("FIN-2")
def test_an_offer_that_admits_nothing_new_shows_nothing_new() -> None:
    manager = CPUOffloadingManager(4, store_threshold=2)
    put(manager, [A])
    context = finished(manager)
    prepare(manager, [C], request("other"))
    assert prepare(manager, [A, B], context).keys_to_store == []
    # The second offer would admit B.
    with pytest.raises(RequestFinishedError):
        manager.prepare_store([B], context)


@pytest.mark.clause("FIN-2")
def test_what_the_request_has_seen_it_may_use_again() -> None:
    manager, policy = recorded(2)
    context = finished(manager)
    pinned = pin(manager, [A], context)
    assert prepare(manager, [A], context).keys_to_store == []
    manager.complete_load([A], context, ticket=pinned.ticket)
    put(manager, [B, C])
    assert put(manager, [A], context).keys_to_store == [A]
    assert len(policy.finishes) == 1


@pytest.mark.clause("FIN-2")
def test_look_ups_touches_and_completions_go_on() -> None:
    manager, policy = recorded(4)
    put(manager, [B])
    context = request()
    loaded = pin(manager, [B], context)
    stored = prepare(manager, [A], context)
    manager.on_request_finished(context)
    assert manager.lookup(C, context) is LookupResult.MISS
    manager.touch([B, C], context)
    assert policy.calls[-1] == ("touch", (B, C))
    manager.complete_load([B], context, ticket=loaded.ticket)
    manager.complete_store([A], context, ticket=stored.ticket)
    assert manager.lookup(A, context) is LookupResult.HIT


@pytest.mark.clause("FIN-2")
def test_internal_loads_go_on() -> None:
    manager, _ = recorded(4)
    put(manager, [B])
    context = finished(manager)
    spec = manager.prepare_load([B], context, record_access=False)
    manager.complete_load([B], context, ticket=spec.ticket)
    manager.check()


@pytest.mark.clause("FIN-2")
def test_a_finish_of_a_request_that_saw_nothing_counts() -> None:
    manager, _ = recorded(4)
    put(manager, [B])
    context = request()
    manager.on_new_request(context)
    manager.on_request_finished(context)
    with pytest.raises(RequestFinishedError):
        manager.prepare_load([B], context)
