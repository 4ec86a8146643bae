"""Variant 5: `insert` gets the context too, and first accesses are told."""

from collections.abc import Iterable

from shelf import Shelf
from typing_extensions import override
from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus

LONGEST_MEMORY = 4


class SecondChance(CachePolicy):
    """What was accessed again, or gone and back, goes after what was not."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.once = Shelf()
        self.again = Shelf()
        self.gone: dict[OffloadKey, None] = {}

    def shelf_of(self, key: OffloadKey) -> Shelf:
        """Where it stands, or would."""
        return self.again if key in self.again.held else self.once

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.shelf_of(key).held.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        known = key in self.gone
        self.gone.pop(key, None)
        (self.again if known else self.once).held[key] = chunk

    @override
    def remove(self, key: OffloadKey) -> None:
        del self.shelf_of(key).held[key]

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            if key in self.once.held:
                self.again.held[key] = self.once.held.pop(key)
            self.again.renew([key])

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        pass

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.again.renew(keys)

    @override
    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        once, again = self.once.idle(protected)[:n], self.again.idle(protected)
        if len(once) + len(again) < n:
            return None
        victims = self.once.take(once) + self.again.take(again[: n - len(once)])
        self.remember(victims)
        return victims

    def remember(self, victims: list[tuple[OffloadKey, ChunkStatus]]) -> None:
        """Note what went, and forget what went long ago."""
        self.gone.update((key, None) for key, _ in victims)
        while len(self.gone) > LONGEST_MEMORY * self.cache_capacity:
            del self.gone[next(iter(self.gone))]

    @override
    def clear(self) -> None:
        self.once.held.clear()
        self.again.held.clear()
        self.gone.clear()


class SecondChanceThatNeverForgets(SecondChance):
    """Notes everything that ever went."""

    def remember(self, victims):
        self.gone.update((key, None) for key, _ in victims)


class SecondChanceThatRemembersResets(SecondChance):
    """Is not as new after a reset."""

    def clear(self):
        self.once.held.clear()
        self.again.held.clear()


class SecondChanceThatTakesOffers(SecondChance):
    """Does not spare what the request has just offered."""

    def evict(self, n, protected):
        return super().evict(n, set())


class SecondChanceThatRefusesHalfway(SecondChance):
    """Gives up some, finds that it is not enough, and says that nothing happened."""

    def evict(self, n, protected):
        victims = []
        while len(victims) < n:
            one = super().evict(1, protected)
            if one is None:
                return None
            victims += one
        return victims
