"""ARC-1 to ARC-5: the order in which ARC evicts, and how it adapts."""

from itertools import pairwise
from random import Random

import pytest

from kvoffload import CPUOffloadingManager, OffloadKey, ReqContext
from kvoffload.policies.arc import ARCCachePolicy
from spec_tests.clauses.helpers import (
    LETTERS,
    A,
    B,
    C,
    D,
    E,
    F,
    G,
    H,
    evict_order,
    key,
    many,
    pin,
    put,
    request,
)
from spec_tests.clauses.policies import PolicyHost


class ARC(PolicyHost):
    """ARC and its target. While that is 0, `evict_all` names T1 and then T2, oldest first."""

    def __init__(self, capacity: int = 8) -> None:
        self.arc = ARCCachePolicy(cache_capacity=capacity)
        super().__init__(self.arc)

    @property
    def target(self) -> float:
        return self.arc.target

    def store_frequent(self, *keys: OffloadKey) -> None:
        """Into T2, the first becoming the oldest there."""
        self.store(keys)
        for each in keys:
            self.touch(each)

    def with_target(self, target: int) -> None:
        """Raise the target by misses of one ghost in B1, B2 being empty."""
        ghost = key("ghost")
        self.store([ghost])
        assert self.evict(1, set(self.chunks) - {ghost}) == [ghost]
        for _ in range(target):
            self.miss(ghost)
        assert self.target == target


# ARC-1


@pytest.mark.clause("ARC-1")
def test_new_keys_enter_t1() -> None:
    arc = ARC()
    arc.store_frequent(A, B)
    arc.store([C, D])
    assert arc.evict_all() == [C, D, A, B]


@pytest.mark.clause("ARC-1")
def test_a_ghost_that_returns_enters_t1_too() -> None:
    arc = ARC()
    arc.store_frequent(A, B)
    arc.store([C])
    assert arc.evict(1, [A, B]) == [C]
    assert arc.evict(1, [B]) == [A]
    # One a ghost of T1, one of T2.
    arc.store([C, A])
    assert arc.evict_all() == [C, A, B]


@pytest.mark.clause("ARC-1")
def test_at_finish_reused_keys_go_to_the_recent_end_of_t2_last_first() -> None:
    arc = ARC()
    arc.store_frequent(A, B)
    arc.store([C, D, E])
    arc.finish([[D, A, C]], reused=[A, C, D])
    assert arc.evict_all() == [E, B, C, A, D]


@pytest.mark.clause("ARC-1")
def test_at_finish_insertion_only_keys_go_to_the_recent_end_of_their_list_last_first() -> None:
    arc = ARC()
    arc.store_frequent(A, B, C)
    arc.store([D, E, F])
    arc.finish([[A, D, B, E]], inserted=[A, B, D, E])
    assert arc.evict_all() == [F, E, D, C, B, A]


@pytest.mark.clause("ARC-1")
def test_at_finish_keys_are_applied_by_position_over_all_groups() -> None:
    a, b, c, d = key("A", 0), key("B", 0), key("A", 1), key("B", 1)
    context = ReqContext("r")
    for each, end in {a: 16, b: 48, c: 32, d: 48}.items():
        context.set_offload_key_position(each, end)
    arc = ARC()
    arc.store([a, b, c, d])
    arc.finish([[a, b], [c, d]], context, inserted=[a, b, c, d])
    assert arc.evict_all() == [d, b, c, a]


@pytest.mark.clause("ARC-1")
def test_at_finish_pending_and_pinned_keys_are_applied_too() -> None:
    arc = ARC()
    arc.store([A, B, C])
    arc.pending([D])
    arc.pin([A])
    arc.finish([[A, D]], inserted=[D], reused=[A])
    arc.complete([D])
    arc.unpin([A])
    assert arc.evict_all() == [B, C, D, A]


@pytest.mark.clause("ARC-1")
def test_at_finish_keys_that_are_gone_are_passed_over() -> None:
    arc = ARC()
    arc.store([A, B])
    assert arc.evict(1) == [A]
    arc.finish([[A, C, B]], inserted=[C], reused=[A, B])
    assert arc.target == 0
    arc.store([A])
    assert arc.evict_all() == [A, B]


@pytest.mark.clause("ARC-1")
def test_a_touch_moves_ready_t1_keys_to_t2_last_key_first() -> None:
    arc = ARC()
    arc.store([A, B, C, D])
    arc.touch(A, C)
    assert arc.evict_all() == [B, D, C, A]


@pytest.mark.clause("ARC-1")
def test_a_touch_refreshes_t2() -> None:
    arc = ARC()
    arc.store_frequent(A, B, C)
    arc.touch(A)
    assert arc.evict_all() == [B, C, A]


@pytest.mark.clause("ARC-1")
def test_a_touch_keeps_a_pending_key_in_t1_most_recent() -> None:
    arc = ARC()
    arc.store_frequent(A)
    arc.pending([B])
    arc.store([C, D])
    arc.touch(B)
    arc.complete([B])
    assert arc.evict_all() == [C, D, B, A]


@pytest.mark.clause("ARC-1")
def test_a_touch_moves_pinned_keys_as_ready_ones() -> None:
    arc = ARC()
    arc.store([A, B, C])
    arc.pin([A])
    # Met by an eviction first, then touched.
    assert arc.evict(1, [C]) == [B]
    arc.touch(A)
    arc.unpin([A])
    assert arc.evict_all() == [C, A]


@pytest.mark.clause("ARC-1")
def test_touching_a_ghost_adapts_each_time() -> None:
    arc = ARC()
    arc.store([A])
    arc.evict(1)
    for times in range(1, 4):
        arc.touch(A)
        assert arc.target == times
    arc.touch(A, A)
    assert arc.target == 5


@pytest.mark.clause("ARC-1")
def test_first_accesses_marks_and_look_ups_move_nothing() -> None:
    arc = ARC()
    arc.store([A, B, C])
    arc.access([A], request("r", [A]))
    arc.pin([B])
    arc.unpin([B])
    arc.policy.get(A)
    assert arc.evict_all() == [A, B, C]


# ARC-2


def ghosts(b1: int, b2: int, capacity: int = 8) -> tuple[ARC, list[OffloadKey], list[OffloadKey]]:
    """So many ghosts of T1 and of T2."""
    arc = ARC(capacity)
    once, frequent = many(b1, "once"), many(b2, "frequent")
    arc.store(once)
    assert b1 == 0 or arc.evict(b1) == once
    arc.store_frequent(*frequent)
    assert b2 == 0 or arc.evict(b2) == frequent
    assert arc.target == 0
    return arc, once, frequent


@pytest.mark.clause("ARC-2")
@pytest.mark.parametrize(
    ("b1", "b2", "step"), [(1, 0, 1), (3, 1, 1), (2, 2, 1), (1, 4, 4), (2, 5, 2.5), (4, 3, 1)]
)
def test_a_miss_in_b1_raises_the_target(b1: int, b2: int, step: float) -> None:
    arc, once, _ = ghosts(b1, b2)
    arc.miss(once[0])
    assert arc.target == step


@pytest.mark.clause("ARC-2")
@pytest.mark.parametrize(
    ("b1", "b2", "step"), [(0, 1, 1), (1, 3, 1), (2, 2, 1), (4, 1, 4), (5, 2, 2.5), (3, 4, 1)]
)
def test_a_miss_in_b2_lowers_it(b1: int, b2: int, step: float) -> None:
    arc, once, frequent = ghosts(b1, b2)
    # As high as misses in B1 bring it; without ghosts there it is, and stays, 0.
    for _ in range(8 if b1 else 0):
        arc.miss(once[0])
    high = arc.target
    arc.miss(frequent[0])
    assert high == (8 if b1 else 0)
    assert arc.target == max(0, high - step)


@pytest.mark.clause("ARC-2")
def test_the_target_is_clamped() -> None:
    arc, once, frequent = ghosts(3, 3, capacity=4)
    for _ in range(6):
        arc.miss(once[1])
    assert arc.target == 4
    for _ in range(6):
        arc.miss(frequent[1])
    assert arc.target == 0


@pytest.mark.clause("ARC-2")
def test_misses_are_applied_last_key_first() -> None:
    arc, once, frequent = ghosts(1, 2)
    # First down by 1, which stays 0, then up by 2; the other way round it would end at 1.
    arc.miss(once[0], frequent[0])
    assert arc.target == 2
    arc, once, frequent = ghosts(1, 2)
    arc.miss(frequent[0], once[0])
    assert arc.target == 1


@pytest.mark.clause("ARC-2")
def test_a_miss_that_is_no_ghost_does_not_adapt() -> None:
    arc, _, _ = ghosts(2, 2)
    arc.store([A])
    arc.miss(A, B)
    assert arc.target == 0


@pytest.mark.clause("ARC-2")
@pytest.mark.parametrize("touched", [False, True])
def test_the_ghost_hit_becomes_the_most_recent_of_its_list(touched: bool) -> None:
    arc = ARC(3)
    arc.store([A, B, C])
    assert arc.evict(3) == [A, B, C]
    (arc.touch if touched else arc.miss)(A)
    arc.store([D])
    # A fourth ghost drives out the oldest, which is B.
    assert arc.evict(1) == [D]
    target = arc.target
    arc.miss(B)
    assert arc.target == target
    arc.miss(A)
    assert arc.target == target + 1


@pytest.mark.clause("ARC-2")
def test_insertion_drops_the_ghost() -> None:
    arc, once, _ = ghosts(2, 0)
    arc.store([once[0]])
    arc.miss(once[0])
    assert arc.target == 0
    # And it counts no more: a hit of the other raises by max(1, 0/1).
    arc.miss(once[1])
    assert arc.target == 1


@pytest.mark.clause("ARC-2")
def test_the_target_moves_before_victims_are_chosen() -> None:
    manager = CPUOffloadingManager(2, "arc")
    put(manager, [A, B])
    manager.touch([A, B], request())
    # T2 is B, A.
    assert put(manager, [C]).evicted_keys == [B]
    # T1 is C, B2 is B. Without ghosts of T1 the target stays at 0.
    assert put(manager, [D]).evicted_keys == [C]
    # C is in B1: its miss raises the target to 1, and |T1| = 1 is still not below it.
    assert put(manager, [C]).evicted_keys == [D]
    # D raises it to 2, above |T1|: now T2 gives.
    assert put(manager, [D]).evicted_keys == [A]


@pytest.mark.clause("ARC-2")
def test_a_request_adapts_once_for_each_key() -> None:
    policies: list[ARCCachePolicy] = []

    class Watched(ARCCachePolicy):
        def __init__(self, cache_capacity: int) -> None:
            super().__init__(cache_capacity)
            policies.append(self)

    manager = CPUOffloadingManager(1, Watched)
    put(manager, [A])
    put(manager, [B])
    pin(manager, [B])
    context = request()
    for _ in range(3):
        assert manager.prepare_store([A], context) is None
    assert policies[0].target == 1


# ARC-3


@pytest.mark.clause("ARC-3")
def test_victims_come_from_t1_while_it_is_not_below_the_target() -> None:
    arc = ARC()
    arc.store_frequent(A, B, C)
    arc.store([D, E, F])
    arc.with_target(2)
    # |T1| = 3, 2 give; at 1 it is below 2, so T2 gives, and T1 again when T2 is empty.
    assert arc.evict(6) == [D, E, A, B, C, F]


@pytest.mark.clause("ARC-3")
def test_the_choice_is_made_victim_by_victim_over_calls_too() -> None:
    arc = ARC()
    arc.store_frequent(A, B, C)
    arc.store([D, E, F])
    arc.with_target(2)
    assert arc.evict_all() == [D, E, A, B, C, F]


@pytest.mark.clause("ARC-3")
def test_the_target_is_rounded_down() -> None:
    arc, once, _ = ghosts(2, 5)
    arc.miss(once[0])
    assert arc.target == 2.5
    arc.store_frequent(A, B)
    arc.store([C, D, E])
    assert arc.evict_all() == [C, D, A, B, E]


@pytest.mark.clause("ARC-3")
def test_pinned_and_pending_chunks_count_in_the_size_of_t1() -> None:
    arc = ARC()
    arc.store_frequent(A, B)
    arc.store([C, D])
    arc.pending([E])
    arc.pin([C])
    arc.with_target(3)
    # |T1| = 3 with C pinned and E pending: one gives, then it is below.
    assert arc.evict(2) == [D, A]


@pytest.mark.clause("ARC-3")
def test_chunks_that_were_passed_while_pinned_count_still() -> None:
    arc = ARC()
    arc.store_frequent(A, B, C)
    arc.store([D, E, F, G])
    arc.with_target(3)
    arc.pin([D, E])
    assert arc.evict(1) == [F]
    # |T1| = 3 (D and E among them), so T1 gives once more.
    assert arc.evict(2) == [G, A]


@pytest.mark.clause("ARC-3")
def test_whatever_stays_among_the_oldest_is_passed() -> None:
    arc = ARC()
    arc.store([A, B, C, D, E, F, G, H])
    arc.pin([A, B, E])
    assert arc.evict(3, [D, G]) == [C, F, H]
    arc.unpin([B, E])
    assert arc.evict(4, ()) == [B, D, E, G]


@pytest.mark.clause("ARC-3")
def test_the_other_list_serves_when_the_first_has_no_candidate() -> None:
    arc = ARC()
    arc.store_frequent(A, B)
    arc.store([C, D])
    arc.pin([C, D])
    # T1 is due, but all pinned.
    assert arc.evict(1) == [A]
    arc.unpin([C, D])
    # Due again, but all protected.
    assert arc.evict(1, [C, D]) == [B]
    # T2 is due, but empty.
    other = ARC()
    other.store([C, D])
    other.with_target(5)
    assert other.evict(1) == [C]


@pytest.mark.clause("ARC-3")
def test_victims_become_ghosts_of_their_list() -> None:
    arc = ARC()
    arc.store_frequent(A)
    arc.store([B, C])
    assert arc.evict(3) == [B, C, A]
    arc.miss(B)
    assert arc.target == 1
    arc.miss(C)
    assert arc.target == 2
    # B1 holds two, B2 one: down by 2.
    arc.miss(A)
    assert arc.target == 0


@pytest.mark.clause("ARC-3")
def test_a_failed_store_leaves_no_ghost() -> None:
    arc = ARC()
    arc.pending([A])
    arc.fail([A])
    arc.miss(A)
    assert arc.target == 0


@pytest.mark.clause("ARC-3")
@pytest.mark.parametrize("frequent", [False, True])
def test_each_ghost_list_holds_the_capacity_oldest_out(frequent: bool) -> None:
    arc = ARC(3)
    if frequent:
        arc.with_target(3)
    for each in (A, B, C, D):
        if frequent:
            arc.store_frequent(each)
        else:
            arc.store([each])
        assert arc.evict(1) == [each]
    before = arc.target
    arc.miss(A)
    assert arc.target == before
    for each in (B, C, D):
        before = arc.target
        arc.miss(each)
        assert arc.target != before


@pytest.mark.clause("ARC-3")
def test_ghosts_of_one_list_do_not_drive_out_those_of_the_other() -> None:
    arc = ARC(3)
    arc.store_frequent(A)
    assert arc.evict(1) == [A]
    arc.store([B, C, D])
    assert arc.evict(3) == [B, C, D]
    arc.miss(B)
    assert arc.target == 1
    arc.miss(A)
    assert arc.target == 0


# ARC-4


@pytest.mark.clause("ARC-4")
@pytest.mark.parametrize("seed", range(5))
def test_a_key_is_in_at_most_one_list(seed: int) -> None:
    rng, arc = Random(seed), ARC(4)
    evicted = 0
    for _ in range(500):
        keys = rng.sample(LETTERS, 2)
        draw = rng.random()
        if draw < 0.4:
            absent = [each for each in keys if each not in arc.chunks]
            arc.miss(*absent)
            lacking = len(arc.chunks) + len(absent) - 4
            victims = arc.evict(lacking, keys) if lacking > 0 else []
            if victims is not None:
                evicted += len(victims)
                arc.pending(absent)
        elif draw < 0.6:
            pending = [each for each in arc.chunks if arc.chunks[each].ref_cnt < 0]
            (arc.complete if rng.random() < 0.8 else arc.fail)(pending)
        elif draw < 0.75:
            arc.pin([each for each in arc.idle() if each in keys])
        elif draw < 0.9:
            arc.unpin([k for k, chunk in arc.chunks.items() if chunk.ref_cnt > 0 and k in keys])
        elif draw < 0.95:
            arc.touch(*keys)
        else:
            arc.finish([keys], inserted=keys[:1], reused=keys[1:])
        # Raises for a key in two lists, too many ghosts, or a target out of range.
        arc.arc.check()
        for each in LETTERS:
            assert arc.policy.get(each) is arc.chunks.get(each)
    assert evicted > 40


@pytest.mark.clause("ARC-4")
def test_a_key_that_moved_is_not_found_where_it_was() -> None:
    arc = ARC()
    arc.store([A, B])
    arc.touch(A)
    assert arc.evict(2) == [B, A]
    assert arc.evict(1) is None
    # As a ghost of T2 only, A lowers and does not raise.
    arc.miss(A)
    assert arc.target == 0


# ARC-5


@pytest.mark.clause("ARC-5")
@pytest.mark.parametrize("positions", [False, True])
def test_after_a_finish_the_tail_goes_first_within_t1_and_within_t2(positions: bool) -> None:
    manager = CPUOffloadingManager(8, "arc")
    put(manager, [A, B, C, D])
    prompt = [A, B, C, D, E, F, G, H]
    context = request("r", prompt if positions else [])
    loaded = pin(manager, [A, B, C, D], context)
    put(manager, [E, F], context)
    put(manager, [G, H], context)
    manager.complete_load([D, A, C, B], context, ticket=loaded.ticket)
    manager.on_request_finished(context)
    # E to H were only inserted, A to D reused.
    assert evict_order(manager, 8)[:4] == [H, G, F, E]
    policy = ARC()
    policy.store([D, A, C, B])
    policy.finish([[A, B, C, D]], context, reused=[A, B, C, D])
    assert policy.evict_all() == [D, C, B, A]


@pytest.mark.clause("ARC-5")
@pytest.mark.parametrize("seed", range(5))
def test_of_a_finished_request_no_head_goes_before_its_tail(seed: int) -> None:
    rng, arc = Random(seed), ARC(30)
    prompts = [[key(f"{name}{i}") for i in range(6)] for name in "abcde"]
    for prompt in prompts:
        context = request(f"r{prompt[0]!r}", prompt if rng.random() < 0.5 else [])
        arc.store(rng.sample(prompt, 6), context)
        arc.finish([prompt], context, inserted=prompt)
        if rng.random() < 0.5:
            again = request("again", prompt)
            arc.finish([prompt], again, reused=prompt)
    gone = arc.evict_all()
    for prompt in prompts:
        places = [gone.index(each) for each in prompt]
        assert all(head > tail for head, tail in pairwise(places))


@pytest.mark.clause("ARC-5")
def test_what_was_passed_while_pending_is_renewed_at_a_finish_like_any_other() -> None:
    arc = ARC()
    context = request("storing", [A])
    arc.pending([A], context)
    arc.store([B, C])
    # A is met here, and cannot go.
    assert arc.evict(1) == [B]
    arc.complete([A])
    arc.finish([[A]], context, inserted=[A])
    assert arc.evict_all() == [C, A]
