"""LRU-1 and LRU-2: the order in which LRU evicts."""

from itertools import pairwise
from random import Random

import pytest

from kvoffload import CPUOffloadingManager, OffloadKey, ReqContext
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.clauses.helpers import (
    A,
    B,
    C,
    D,
    E,
    F,
    evict_order,
    key,
    many,
    pin,
    put,
    request,
)
from spec_tests.clauses.policies import PolicyHost


def lru() -> PolicyHost:
    return PolicyHost(LRUCachePolicy(cache_capacity=8))


# LRU-1


@pytest.mark.clause("LRU-1")
def test_without_positions_each_insertion_is_the_next_use() -> None:
    host = lru()
    host.store([B, A, C])
    assert host.evict_all() == [B, A, C]


@pytest.mark.clause("LRU-1")
def test_each_key_of_a_touch_is_the_next_use_last_key_first() -> None:
    host = lru()
    host.store([A, B, C, D])
    host.touch(A, B, C)
    assert host.evict_all() == [D, C, B, A]


@pytest.mark.clause("LRU-1")
def test_a_key_touched_twice_in_a_call_counts_at_its_first_place() -> None:
    host = lru()
    host.store([A, B, C])
    host.touch(A, B, A)
    assert host.evict_all() == [C, B, A]


@pytest.mark.clause("LRU-1")
def test_pending_and_pinned_keys_are_touched_too() -> None:
    host = lru()
    host.pending([A])
    host.store([B, C])
    host.pin([B])
    host.touch(B, A)
    host.complete([A])
    host.unpin([B])
    assert host.evict_all() == [C, A, B]


@pytest.mark.clause("LRU-1")
def test_what_a_request_inserts_with_positions_goes_by_its_first_access() -> None:
    host = lru()
    context = request("r", [A, B])
    host.store([A], context)
    host.store([C])
    host.store([B], context)
    # B came after C, but its request was there before.
    assert host.evict_all() == [B, A, C]


@pytest.mark.clause("LRU-1")
def test_an_access_of_what_is_not_resident_takes_the_number() -> None:
    host = lru()
    context = request("r", [A, B])
    host.access([A], context)
    host.store([C])
    host.store([A, B], context)
    assert host.evict_all() == [B, A, C]


@pytest.mark.clause("LRU-1")
@pytest.mark.parametrize("order", [[A, B, C, D], [D, C, B, A], [C, A, D, B]])
@pytest.mark.parametrize("at_once", [False, True])
def test_within_a_request_the_end_decides_and_key_bytes_on_a_tie(
    order: list[OffloadKey], at_once: bool
) -> None:
    manager, context = CPUOffloadingManager(4), ReqContext("r")
    for each, end in {A: 32, B: 16, C: 32, D: 48}.items():
        context.set_offload_key_position(each, end)
    for offer in [order] if at_once else [[each] for each in order]:
        put(manager, offer, context)
    assert evict_order(manager, 4) == [D, A, C, B]


@pytest.mark.clause("LRU-1")
def test_without_a_position_an_insertion_is_the_next_use_even_of_a_running_request() -> None:
    host = lru()
    context = request("r", [A, C])
    host.store([A], context)
    host.store([D])
    host.store([B, C], context)
    assert host.evict_all() == [C, A, D, B]


@pytest.mark.clause("LRU-1")
def test_a_resident_key_that_is_accessed_moves_up_to_the_request() -> None:
    host = lru()
    host.store([A, B, C])
    context = request("r", [A, B])
    host.access([A, B], context)
    host.store([D])
    assert host.evict_all() == [C, B, A, D]


@pytest.mark.clause("LRU-1")
def test_it_does_not_move_down() -> None:
    host = lru()
    host.store([A, B])
    context = request("r", [A, B])
    host.access([A], context)
    host.store([C])
    host.touch(B)
    host.access([B], context)
    # B was used after the request began.
    assert host.evict_all() == [A, C, B]


@pytest.mark.clause("LRU-1")
def test_nor_down_to_an_older_request() -> None:
    host = lru()
    older, newer = request("older", [A, B]), request("newer", [A, B])
    host.access([F], older)
    host.store([A], newer)
    host.store([C])
    host.access([A], older)
    host.store([B], older)
    assert host.evict_all() == [B, A, C]


@pytest.mark.clause("LRU-1")
@pytest.mark.parametrize(("end", "order"), [(8, [B, C, A]), (40, [B, A, C]), (90, [B, A, C])])
def test_nor_down_within_its_request(end: int, order: list[OffloadKey]) -> None:
    host, context = lru(), request("r", [C, A, B])
    host.store([A, B, C], context)
    assert [context.get_offload_key_position(each) for each in (C, A, B)] == [16, 32, 48]
    context.set_offload_key_position(A, end)
    host.access([A], context)
    assert host.evict_all() == order


@pytest.mark.clause("LRU-1")
def test_an_accessed_key_without_a_position_stays() -> None:
    host = lru()
    host.store([A, B])
    host.access([A], request("r"))
    assert host.evict_all() == [A, B]


@pytest.mark.clause("LRU-1")
def test_positions_of_another_request_do_not_matter() -> None:
    host = lru()
    host.store([A], request("one", [A, B]))
    host.store([B], request("other", [B, A]))
    host.store([C])
    assert host.evict_all() == [A, B, C]


@pytest.mark.clause("LRU-1")
def test_at_its_finish_a_request_uses_all_its_keys_last_first() -> None:
    host = lru()
    host.store([A, B, C])
    host.finish([[A, B]])
    assert host.evict_all() == [C, B, A]


@pytest.mark.clause("LRU-1")
def test_the_order_at_finish_is_group_after_group_without_positions() -> None:
    a, b, c, d = key("A", 0), key("B", 0), key("A", 1), key("B", 1)
    host = lru()
    host.store([a, b, c, d])
    host.finish([[a, b], [c, d]])
    assert host.evict_all() == [d, c, b, a]


@pytest.mark.clause("LRU-1")
def test_the_order_at_finish_is_by_position_over_all_groups() -> None:
    a, b, c, d = key("A", 0), key("B", 0), key("A", 1), key("B", 1)
    context = ReqContext("r")
    for each, end in {a: 16, b: 48, c: 32, d: 48}.items():
        context.set_offload_key_position(each, end)
    host = lru()
    host.store([a, b, c, d])
    host.finish([[a, b], [c, d]], context)
    # Of the equal ones b is of the lower group, hence the later used.
    assert host.evict_all() == [d, b, c, a]


@pytest.mark.clause("LRU-1")
def test_one_key_without_a_position_makes_it_group_after_group() -> None:
    a, b, c, d = key("A", 0), key("B", 0), key("A", 1), key("B", 1)
    context = ReqContext("r")
    for each, end in {a: 16, b: 48, c: 32}.items():
        context.set_offload_key_position(each, end)
    host = lru()
    host.store([a, b, c, d])
    host.finish([[a, b], [c, d]], context)
    assert host.evict_all() == [d, c, b, a]


@pytest.mark.clause("LRU-1")
def test_a_finish_counts_at_its_own_time() -> None:
    host = lru()
    context = request("r", [A, B])
    host.store([A, B], context)
    host.store([C])
    host.finish([[A, B]], context, inserted=[A, B])
    host.store([D])
    assert host.evict_all() == [C, B, A, D]


@pytest.mark.clause("LRU-1")
def test_a_finished_request_keeps_its_number_for_what_it_stores_again() -> None:
    host = lru()
    context = request("r", [A, B])
    host.store([A, B], context)
    host.store([C])
    host.finish([[A, B]], context)
    assert host.evict(1) == [C]
    assert host.evict(1) == [B]
    host.store([D])
    host.store([B], context)
    assert host.evict_all() == [B, A, D]


@pytest.mark.clause("LRU-1")
def test_a_request_takes_a_new_number_in_each_generation() -> None:
    host = lru()
    context = request("r", [A, B])
    host.store([A], context)
    host.clear()
    host.store([C])
    host.store([B], context)
    host.store([D])
    assert host.evict_all() == [C, B, D]


@pytest.mark.clause("LRU-1")
def test_misses_take_no_number() -> None:
    host = lru()
    context = request("r", [A])
    host.policy.on_store_miss([A], context)
    host.store([C])
    host.store([A], context)
    assert host.evict_all() == [C, A]


@pytest.mark.clause("LRU-1")
def test_a_run_may_be_joined_after_evictions_have_passed_it() -> None:
    host = lru()
    context = request("r", [A, B, C])
    host.store([A], context)
    host.store([D, E, F])
    assert host.evict(2) == [A, D]
    host.store([B, C], context)
    # Their request came before E and F.
    assert host.evict_all() == [C, B, E, F]


@pytest.mark.clause("LRU-1")
def test_pinned_members_of_a_run_go_in_their_turn_when_released() -> None:
    host = lru()
    context = request("r", [A, B, C])
    host.store([A, B, C], context)
    host.store([D, E])
    host.pin([A, B, C])
    assert host.evict(1) == [D]
    host.unpin([A])
    host.unpin([C])
    host.unpin([B])
    assert host.evict_all() == [C, B, A, E]


class Ranks:
    """LRU-1 as numbers: `rank[key]` is (number, -end, key), and the lowest goes."""

    def __init__(self) -> None:
        self.counter = 0
        self.rank: dict[OffloadKey, tuple[int, int, OffloadKey]] = {}
        self.number: dict[str, int] = {}

    def next_number(self) -> int:
        self.counter += 1
        return self.counter

    def number_of(self, context: ReqContext) -> int:
        return self.number.setdefault(context.req_id, 0) or self.take(context)

    def take(self, context: ReqContext) -> int:
        self.number[context.req_id] = self.next_number()
        return self.number[context.req_id]

    def insert(self, keys: list[OffloadKey], context: ReqContext) -> None:
        for each in keys:
            end = context.get_offload_key_position(each)
            if end is None:
                self.rank[each] = (self.next_number(), 0, each)
            else:
                self.rank[each] = (self.number_of(context), -end, each)

    def access(self, keys: list[OffloadKey], context: ReqContext) -> None:
        number = self.number_of(context)
        for each in keys:
            end = context.get_offload_key_position(each)
            if end is not None and each in self.rank and self.rank[each][0] < number:
                self.rank[each] = (number, -end, each)

    def touch(self, keys: list[OffloadKey]) -> None:
        for each in reversed(keys):
            if each in self.rank:
                self.rank[each] = (self.next_number(), 0, each)

    def evict(self, n: int, allowed: list[OffloadKey]) -> list[OffloadKey]:
        victims = sorted(allowed, key=self.rank.__getitem__)[:n]
        for each in victims:
            del self.rank[each]
        return victims


@pytest.mark.clause("LRU-1")
@pytest.mark.parametrize("seed", range(10))
def test_many_running_requests_keep_to_the_ranks(seed: int) -> None:
    """Runs joined late, passed by evictions, with pinned members, and joined after their end."""
    rng, host, ranks = Random(seed), lru(), Ranks()
    universe = many(40)
    running: list[tuple[ReqContext, list[OffloadKey]]] = []
    ended: list[tuple[ReqContext, list[OffloadKey]]] = []
    evicted = 0
    for step in range(700):
        if rng.random() < 0.15 or not running:
            prompt = rng.sample(universe, 12)
            running.append((request(f"r{step}", prompt[: rng.choice([0, 6, 12, 12])]), prompt))
        late = bool(ended) and rng.random() < 0.1
        context, prompt = rng.choice(ended if late else running)
        draw = rng.random()
        if draw < 0.4:
            keys = [k for k in rng.sample(prompt, 3) if k not in host.chunks]
            if keys:
                host.access(keys, context)
                ranks.access(keys, context)
                host.store(keys, context)
                ranks.insert(keys, context)
        elif draw < 0.55 and not late:
            keys = rng.sample(prompt, 3)
            host.access(keys, context)
            ranks.access(keys, context)
        elif draw < 0.65:
            keys = rng.sample(universe, 3)
            host.touch(*keys)
            ranks.touch(keys)
        elif draw < 0.75:
            idle, pinned = host.idle(), [k for k, c in host.chunks.items() if c.ref_cnt]
            host.unpin(rng.sample(pinned, min(len(pinned), rng.randint(0, 6))))
            host.pin(rng.sample(idle, min(len(idle), 4)))
        elif draw < 0.95:
            protected = rng.sample(universe, 2)
            allowed = [k for k in host.idle() if k not in protected]
            n = rng.randint(1, 3)
            victims = host.evict(n, protected)
            expected = ranks.evict(n, allowed) if n <= len(allowed) else None
            assert victims == expected
            evicted += len(victims or [])
        elif len(running) > 3:
            context, prompt = running.pop(rng.randrange(len(running)))
            keys = prompt[:6]
            host.finish([keys], context)
            ranks.touch(keys)
            # Few contexts outlive their request.
            ended = [*ended[-2:], (context, prompt)]
    host.unpin([k for k, c in host.chunks.items() if c.ref_cnt])
    assert host.evict_all() == ranks.evict(40, list(ranks.rank))
    assert evicted > 150


# LRU-2


@pytest.mark.clause("LRU-2")
def test_while_a_request_runs_its_tail_goes_first() -> None:
    manager = CPUOffloadingManager(6)
    context = request("r", [A, B, C, D])
    # The prompt grows block by block, and one comes late.
    for keys in ([A], [B, D], [C]):
        put(manager, keys, context)
    put(manager, [E, F])
    assert evict_order(manager, 6) == [D, C, B, A, E, F]


@pytest.mark.clause("LRU-2")
def test_its_tail_goes_first_whatever_the_order_of_completions() -> None:
    manager = CPUOffloadingManager(4)
    context = request("r", [A, B, C, D])
    put(manager, [A, B, C, D], context)
    first, second = pin(manager, [A, B], context), pin(manager, [C, D], context)
    manager.complete_load([C, D], context, ticket=second.ticket)
    manager.complete_load([B, A], context, ticket=first.ticket)
    assert evict_order(manager, 4) == [D, C, B, A]


@pytest.mark.clause("LRU-2")
@pytest.mark.parametrize("positions", [False, True])
def test_after_its_finish_the_tail_goes_first_for_all_keys(positions: bool) -> None:
    manager = CPUOffloadingManager(4)
    put(manager, [A, B])
    context = request("r", [A, B, C, D] if positions else [])
    loaded = pin(manager, [A, B], context)
    put(manager, [C, D], context)
    manager.complete_load([A, B], context, ticket=loaded.ticket)
    manager.on_request_finished(context)
    assert evict_order(manager, 4) == [D, C, B, A]


@pytest.mark.clause("LRU-2")
@pytest.mark.parametrize("seed", range(5))
def test_of_a_finished_request_no_head_goes_before_its_tail(seed: int) -> None:
    rng, manager = Random(seed), CPUOffloadingManager(30)
    prompts = [[key(f"{name}{i}") for i in range(6)] for name in "abcdefgh"]
    gone: list[OffloadKey] = []
    for prompt in prompts:
        context = request(f"r{prompt[0]!r}", prompt if rng.random() < 0.5 else [])
        offered = prompt
        while offered:
            cut = rng.randint(1, len(offered))
            gone += put(manager, offered[:cut], context).evicted_keys
            offered = offered[cut:]
        manager.on_request_finished(context)
    gone += evict_order(manager, 30)
    for prompt in prompts:
        places = [gone.index(each) for each in prompt]
        assert all(head > tail for head, tail in pairwise(places))
