"""The order behind LRU, where a request's context goes away at an awkward moment."""

from __future__ import annotations

from collections.abc import Iterator, Set

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext, make_offload_key
from kvoffload.policies.lru import LRUCachePolicy


def key(number: int) -> OffloadKey:
    return make_offload_key(bytes([number]) * 8, 0)


def stored(policy: CachePolicy, number: int, context: ReqContext) -> None:
    """An idle chunk that the request inserted, with a position."""
    context.set_offload_key_position(key(number), 16 * (number + 1))
    policy.insert(key(number), ChunkStatus(number), context)
    chunk = policy.get(key(number))
    assert chunk is not None
    chunk.ref_cnt = 0
    policy.mark_evictable(key(number))


class DroppingContexts(Set[OffloadKey]):
    """Protects nothing, and lets go of the contexts it holds when it is first asked."""

    def __init__(self, contexts: list[ReqContext]) -> None:
        self.contexts = contexts

    @override
    def __contains__(self, item: object) -> bool:
        self.contexts.clear()
        return False

    @override
    def __iter__(self) -> Iterator[OffloadKey]:
        return iter(())

    @override
    def __len__(self) -> int:
        return 0


def test_contexts_may_go_in_the_middle_of_an_eviction() -> None:
    """As when the garbage collector runs there: the markers that go are just what is walked."""
    policy = LRUCachePolicy(8)
    contexts = [ReqContext(f"request-{number}") for number in range(6)]
    for number, context in enumerate(contexts):
        stored(policy, number, context)
    # The policy remembers the request that it saw last; another one takes that place.
    policy.on_request_access([key(99)], ReqContext("last"))
    victims = policy.evict(6, DroppingContexts(contexts))
    assert victims is not None
    assert [victim for victim, _ in victims] == [key(number) for number in range(6)]
    policy.check()


def test_a_key_may_be_accessed_again_at_another_position() -> None:
    policy = LRUCachePolicy(4)
    earlier, context = ReqContext("earlier"), ReqContext("request")
    for number in range(3):
        stored(policy, number, earlier)
    for number, end in ((0, 128), (1, 176)):
        context.set_offload_key_position(key(number), end)
        policy.on_request_access([key(number)], context)
    context.set_offload_key_position(key(2), 96)
    context.set_offload_key_position(key(1), 16)
    policy.on_request_access([key(2), key(1)], context)
    policy.check()
    victims = policy.evict(3, set())
    assert victims is not None
    assert [victim for victim, _ in victims] == [key(0), key(2), key(1)]


def test_requests_that_insert_nothing_leave_a_sound_order() -> None:
    """Their markers stand side by side."""
    policy = LRUCachePolicy(4)
    contexts = [ReqContext(f"request-{number}") for number in range(3)]
    for context in contexts:
        policy.on_request_access([key(1)], context)
    policy.check()
    assert policy.evict(1, set()) is None
    policy.check()
