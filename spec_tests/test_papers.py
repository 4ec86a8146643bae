"""SIEVE, S3-FIFO, W-TinyLFU and segmented LRU by the sentences of their papers, on small examples.

The examples are followed by hand from the pseudo-code; none is longer than a reader can follow.
"""

from __future__ import annotations

from random import Random

import pytest

from kvoffload import (
    CachePolicy,
    CachePolicyFactory,
    ChunkStatus,
    InvalidValueError,
    OffloadKey,
    ReqContext,
)
from kvoffload.policies.lines import LinePolicy
from kvoffload.policies.s3fifo import S3FIFOCachePolicy
from kvoffload.policies.sieve import SIEVECachePolicy
from kvoffload.policies.sketch import FrequencySketch
from kvoffload.policies.slru import SLRUCachePolicy
from kvoffload.policies.wtinylfu import WTinyLFUCachePolicy
from spec_tests.clauses.helpers import LETTERS, A, B, C, D, E, F, G, H, key, many
from spec_tests.clauses.policies import PolicyHost
from spec_tests.engines.orders import RoomyS3FIFO, RoomySLRU, RoomyWTinyLFU, RoomyWTinyLFUTail
from stateful_models.capabilities import BUILT_IN
from stateful_models.models.wtinylfu import CountModel

FOUR = ("sieve", "s3fifo", "wtinylfu", "slru")
MODELLED = [name for name, claims in BUILT_IN.items() if claims.model is not None]


def hosted(policy_cls: type[CachePolicy], *keys: OffloadKey, capacity: int = 0) -> PolicyHost:
    """A cache that is full of these keys, or has room for more."""
    host = PolicyHost(policy_cls(cache_capacity=capacity or len(keys)))
    host.store(keys)
    return host


def replaced(host: PolicyHost, key: OffloadKey) -> list[OffloadKey] | None:
    """Who goes for a key that comes."""
    victims = host.evict(1, {key})
    host.store([key])
    return victims


def comes_back(host: PolicyHost, key: OffloadKey) -> None:
    """The one that goes next is stored again at once."""
    assert host.evict(1) == [key]
    host.store([key])


def cached(name: str) -> type[CachePolicy]:
    return CachePolicyFactory.get_cache_policy_cls(name)


# What all of them have in common


@pytest.mark.parametrize("name", MODELLED)
def test_names_are_registered_and_the_claims_say_so(name: str) -> None:
    assert name in CachePolicyFactory.names()
    assert issubclass(cached(name), LinePolicy)
    assert cached(name).may_refuse is None
    assert issubclass(cached(f"{name.removesuffix('-tail')}-tail"), cached(name))


@pytest.mark.parametrize("name", MODELLED)
def test_what_is_resident_is_not_inserted_again(name: str) -> None:
    host = hosted(cached(name), A, B)
    with pytest.raises(InvalidValueError, match="key"):
        host.policy.insert(A, ChunkStatus(7), host.context)
    assert host.policy.get(A) is host.chunks[A]
    assert sorted(host.evict_all()) == [A, B]


@pytest.mark.parametrize("name", MODELLED)
def test_insertion_alone_is_no_reuse(name: str) -> None:
    """A request that stored a key and ends has not used it."""
    told, untold = (hosted(cached(name), A, B, C) for _ in range(2))
    told.finish([[A]], inserted=[A])
    assert name.endswith("-tail") or told.evict_all() == untold.evict_all()


@pytest.mark.parametrize("name", FOUR)
def test_a_reuse_spares(name: str) -> None:
    """The newest in the window is not spared by one use; every other key is."""
    host = hosted(cached(name), A, B, C, D)
    host.finish([[A]], reused=[A])
    host.finish([[A]], reused=[A])
    assert A not in (host.evict(2) or ())


@pytest.mark.parametrize("name", MODELLED)
def test_what_is_pending_is_used_by_nobody(name: str) -> None:
    used, plain = (PolicyHost(cached(name)(cache_capacity=4)) for _ in range(2))
    for host in (used, plain):
        host.pending([A, B, C, D])
    used.touch(A)
    used.finish([[A]], reused=[A])
    for host in (used, plain):
        # Counts of misses and uses are the same for all.
        host.miss(A, A)
        host.complete([A, B, C, D])
    if not name.startswith("wtinylfu"):
        assert used.evict_all() == plain.evict_all()


@pytest.mark.parametrize("name", MODELLED)
def test_a_refusal_leaves_no_trace(name: str) -> None:
    asked, spared = (hosted(cached(name), *LETTERS) for _ in range(2))
    for host in (asked, spared):
        host.touch(A, B, B, C)
        host.pin([D, A])
    for n in (8, 7):
        assert asked.evict(n) is None
    assert asked.evict(6, {E}) is None
    for host in (asked, spared):
        host.unpin([A, D])
    assert asked.evict_all() == spared.evict_all()


@pytest.mark.parametrize("name", MODELLED)
def test_asking_for_nothing_gives_nothing(name: str) -> None:
    asked, spared = (hosted(cached(name), *LETTERS) for _ in range(2))
    assert asked.evict(0) == []
    assert asked.evict_all() == spared.evict_all()


@pytest.mark.parametrize("name", ["sieve", "s3fifo", "slru"])
def test_within_one_line_the_tail_goes_first_where_that_is_asked_for(name: str) -> None:
    plain, tail = (hosted(cached(each), A, B, C, D) for each in (name, f"{name}-tail"))
    for host in (plain, tail):
        host.finish([[A, B, C]], inserted=[A, B, C])
    assert plain.evict_all() == [A, B, C, D]
    assert tail.evict_all() == [D, C, B, A]


@pytest.mark.parametrize("name", ["sieve-tail", "s3fifo-tail", "slru-tail"])
def test_by_position_over_all_groups_if_every_key_has_one(name: str) -> None:
    a, b, c, d = key("A", 0), key("B", 0), key("A", 1), key("B", 1)
    context = ReqContext("r")
    for each, end in {a: 16, b: 48, c: 32, d: 64}.items():
        context.set_offload_key_position(each, end)
    for given, order in ((context, [d, b, c, a]), (ReqContext("s"), [d, c, b, a])):
        host = hosted(cached(name), a, b, c, d)
        host.finish([[a, b], [c, d]], given, inserted=[a, b, c, d])
        assert host.evict_all() == order


# SIEVE, Algorithm 1


def test_sieve_takes_the_oldest_that_was_not_visited() -> None:
    host = hosted(SIEVECachePolicy, A, B, C, D)
    host.touch(A, C)
    assert [replaced(host, key) for key in (E, F)] == [[B], [D]]


def test_sieve_leaves_what_it_spares_in_its_place() -> None:
    """FIFO-Reinsertion would move A behind E, and spare it longer than D."""
    host = hosted(SIEVECachePolicy, A, B, C, D)
    host.touch(A)
    assert replaced(host, E) == [B]
    # The hand goes on: C, D, E, and then A, whose bit it has cleared.
    assert [replaced(host, key) for key in (F, G)] == [[C], [D]]
    assert host.evict_all() == [E, F, G, A]


def test_sieve_begins_at_the_tail_again_when_it_took_the_head() -> None:
    """After that the hand is NULL: what comes in next is not what goes next."""
    host = hosted(SIEVECachePolicy, A, B, C)
    host.touch(A, B)
    assert replaced(host, D) == [C]
    assert replaced(host, E) == [A]
    assert host.evict_all() == [B, D, E]


def test_sieve_takes_the_first_on_its_second_round_if_all_were_visited() -> None:
    host = hosted(SIEVECachePolicy, A, B, C)
    host.touch(A, B, C)
    assert replaced(host, D) == [A]
    assert host.evict_all() == [B, C, D]


def test_sieve_has_one_bit() -> None:
    host = hosted(SIEVECachePolicy, A, B, C)
    host.touch(A, A, A, A, B)
    assert host.evict(3) == [C, A, B]


def test_sieve_steps_over_what_cannot_go_and_clears_no_bit() -> None:
    host = hosted(SIEVECachePolicy, A, B, C, D)
    host.touch(A, B)
    host.pin([A])
    assert replaced(host, E) == [C]
    host.unpin([A])
    # Next D and E, then A with its bit and B without.
    assert host.evict_all() == [D, E, B, A]


def test_sieve_takes_a_batch_as_one_by_one() -> None:
    batch, single = (hosted(SIEVECachePolicy, *LETTERS) for _ in range(2))
    for host in (batch, single):
        host.touch(A, B, E, E)
    assert batch.evict(5) == [C, D, F, G, H]
    assert [single.evict(1) for _ in range(5)] == [[C], [D], [F], [G], [H]]
    assert batch.evict_all() == single.evict_all() == [A, B, E]


def test_sieve_goes_on_behind_a_store_that_failed_at_its_hand() -> None:
    host = hosted(SIEVECachePolicy, A, B, capacity=5)
    host.pending([C])
    host.store([D])
    host.touch(A)
    assert host.evict(1) == [B]
    host.fail([C])
    assert host.evict_all() == [D, A]


# S3-FIFO, Algorithm 1. In a cache of four chunks S has one and M three.


def test_s3_fifo_lets_new_chunks_in_to_s_and_what_was_used_once_out() -> None:
    host = hosted(S3FIFOCachePolicy, A, B, C, D)
    host.touch(A, A, B)
    assert host.evict(1) == [B]
    assert host.evict_all() == [C, D, A]


def test_s3_fifo_lets_a_ghost_in_to_m() -> None:
    host = hosted(S3FIFOCachePolicy, A, B, C, D)
    comes_back(host, A)
    assert host.evict_all() == [B, C, D, A]


def test_s3_fifo_clears_the_bits_of_what_moves_to_m() -> None:
    host = hosted(S3FIFOCachePolicy, A, B, C, D)
    host.touch(A, A, A)
    # B leaves for A, which is in M already, and comes back as a ghost, behind it.
    comes_back(host, B)
    assert host.evict_all() == [C, D, A, B]


def test_s3_fifo_lets_m_go_round_once_for_each_use() -> None:
    host = hosted(S3FIFOCachePolicy, A, B, C, D)
    for ghost in (A, B):
        comes_back(host, ghost)
    host.touch(A)
    assert host.evict_all() == [C, D, B, A]


def test_s3_fifo_counts_to_three() -> None:
    host = hosted(S3FIFOCachePolicy, A, B, C, D)
    for ghost in (A, B):
        comes_back(host, ghost)
    host.touch(*[A] * 9, *[B] * 3)
    assert host.evict_all() == [C, D, A, B]


def test_s3_fifo_lets_a_ghost_start_anew() -> None:
    host = hosted(S3FIFOCachePolicy, A, B, C, D)
    host.touch(A)
    for ghost in (A, B):
        comes_back(host, ghost)
    # With the count that it left with A would go round, and B go first.
    assert host.evict_all() == [C, D, A, B]


def test_s3_fifo_forgets_ghosts_beyond_the_size_of_m() -> None:
    host = hosted(S3FIFOCachePolicy, A, B, C, D)
    assert host.evict(4) == [A, B, C, D]
    host.store([A, B, E])
    # A was the fourth ghost: it stands in S once more.
    assert host.evict(2) == [A, E]


def test_s3_fifo_takes_from_m_what_runs_over_when_s_gives_to_it() -> None:
    host = hosted(RoomyS3FIFO, A, B, C, D)
    assert host.evict(3) == [A, B, C]
    host.store([B, C, E])
    # Two are in M, which is for two, and two in S.
    host.touch(D, D)
    assert replaced(host, F) == [B]


def test_s3_fifo_takes_from_m_while_s_is_short() -> None:
    host = hosted(RoomyS3FIFO, A, B, C, D, E)
    assert host.evict(3) == [A, B, C]
    host.store([A, B, C])
    comes_back(host, D)
    # One of two is in S.
    assert replaced(host, F) == [A]
    assert replaced(host, G) == [E]


def test_s3_fifo_takes_a_batch_as_if_its_newcomers_stood_in_s() -> None:
    host = hosted(RoomyS3FIFO, A, B, C, D, E)
    assert host.evict(3) == [A, B, C]
    host.store([A, B, C])
    assert host.evict(2) == [D, E]


def test_s3_fifo_gives_although_all_that_can_go_has_to_move_first() -> None:
    """S is short, M has nothing that can go, and all in S was used: it goes from M then."""
    host = hosted(RoomyS3FIFO, A, B, C, D)
    assert host.evict(3) == [A, B, C]
    host.store([B, C, E])
    host.pin([B, C, E])
    host.touch(D, D)
    assert host.evict(1) == [D]


# W-TinyLFU. In a cache of four chunks the window has one and the main part three, two protected.


def test_w_tiny_lfu_prefers_who_is_there_on_a_tie() -> None:
    host = hosted(WTinyLFUCachePolicy, A, B, C, D)
    assert [replaced(host, key) for key in (E, F)] == [[D], [E]]


def test_w_tiny_lfu_keeps_a_candidate_that_was_wanted_more_often() -> None:
    host = hosted(WTinyLFUCachePolicy, A, B, C, D)
    host.miss(D)
    assert replaced(host, E) == [A]
    # D is the newest in probation now.
    host.miss(E, E)
    assert replaced(host, F) == [B]


def test_w_tiny_lfu_remembers_what_has_gone() -> None:
    host = hosted(WTinyLFUCachePolicy, A, B, C, D)
    host.miss(E)
    assert replaced(host, F) == [D]
    host.miss(E)
    assert replaced(host, E) == [F]
    assert replaced(host, G) == [A]


def test_w_tiny_lfu_fills_the_main_part_whatever_was_used() -> None:
    host = hosted(WTinyLFUCachePolicy, A, B, capacity=4)
    host.miss(A, A)
    # Of three that come two find room, and push B out of the window into the main part.
    assert host.evict(1) == [A]


def test_w_tiny_lfu_protects_what_was_used_in_the_main_part() -> None:
    host = hosted(WTinyLFUCachePolicy, A, B, C, D)
    host.touch(A)
    host.miss(D, D)
    assert replaced(host, E) == [B]


def test_w_tiny_lfu_has_a_window_in_order_of_use() -> None:
    host = hosted(RoomyWTinyLFU, A, B, capacity=4)
    host.touch(A)
    host.store([C, D])
    # The window gave B first, and then A.
    host.miss(C)
    assert replaced(host, E) == [B]


def test_w_tiny_lfu_gives_as_many_of_the_window_as_come() -> None:
    host = hosted(RoomyWTinyLFU, A, B, C, D)
    assert host.evict(3) == [C, D, A]


def test_w_tiny_lfu_applies_a_request_from_its_tail_where_that_is_asked_for() -> None:
    plain, tail = (hosted(each, A, B, C, D) for each in (RoomyWTinyLFU, RoomyWTinyLFUTail))
    for host in (plain, tail):
        host.finish([[A, B, C, D]], inserted=[A, B, C, D])
    assert plain.evict(4) == [C, D, A, B]
    assert tail.evict(4) == [D, C, B, A]


def test_the_sketch_counts_to_fifteen() -> None:
    sketch = FrequencySketch(100)
    counts: list[int] = []
    for _ in range(20):
        sketch.count(A)
        counts.append(sketch.estimate(A))
    assert counts == [*range(1, 16), *[15] * 5]
    assert sketch.estimate(B) == 0


def test_the_sketch_halves_all_when_a_sample_is_full() -> None:
    """Ten uses for each chunk of capacity; half of these count from then on."""
    sketch = FrequencySketch(1)
    counts: list[int] = []
    for _ in range(16):
        sketch.count(A)
        counts.append(sketch.estimate(A))
        sketch.check()
    assert counts == [1, 2, 3, 4, 5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]


@pytest.mark.parametrize("capacity", [0, 1, 3, 4, 5, 64, 1_000])
def test_the_sketch_is_the_one_that_is_spelled_out(capacity: int) -> None:
    sketch, model, chance = FrequencySketch(capacity), CountModel(capacity), Random(capacity)
    keys = many(40)
    for number in range(2_000):
        used = keys[min(chance.randrange(40), chance.randrange(40))]
        sketch.count(used)
        model.count(used)
        looked_at = keys if number % 20 == 0 else (used,)
        estimates = [sketch.estimate(each) for each in looked_at]
        assert estimates == [model.estimate(each) for each in looked_at]
    sketch.clear()
    assert [sketch.estimate(each) for each in keys] == [0] * 40


# Segmented LRU, by the sentences of Karedla, Love and Wherry


def test_slru_protects_what_was_hit() -> None:
    host = hosted(SLRUCachePolicy, A, B, C, D, E)
    host.touch(A)
    assert host.evict_all() == [B, C, D, E, A]


def test_slru_gives_another_chance_to_what_the_protected_segment_cannot_hold() -> None:
    host = hosted(RoomySLRU, A, B, C, D)
    host.touch(A, B, C)
    # A is the newest in probation now.
    assert host.evict_all() == [D, A, B, C]


def test_slru_keeps_either_segment_in_order_of_use() -> None:
    host = hosted(RoomySLRU, A, B, C, D)
    host.touch(A, B, A, C)
    assert host.evict_all() == [D, B, A, C]


def test_slru_moves_what_is_pinned_as_anything_else() -> None:
    """When a pin ends does not decide who goes (POL-9)."""
    early, late = (hosted(RoomySLRU, A, B, C, D) for _ in range(2))
    for host in (early, late):
        host.touch(A, B)
        host.pin([A, B])
        assert replaced(host, E) == [C]
        # Here they are met, and parked.
        assert host.evict(3) is None
    early.unpin([A, B])
    for host in (early, late):
        host.touch(D)
    late.unpin([B, A])
    assert early.evict_all() == late.evict_all() == [E, A, B, D]
