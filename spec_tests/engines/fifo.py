"""First in, first out: an order that a reader can follow, for engines that are not about order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from kvoffload import OffloadKey
from kvoffload.policies.base import ChunkStatus
from stateful_models.models import PolicyModel
from stateful_models.models.policy import Ends
from stateful_models.operations import RequestId

Victims: TypeAlias = list[tuple[OffloadKey, ChunkStatus]]
Call: TypeAlias = tuple[object, ...]

REFUSES_EVERY: Final = 3
"""A refusing FIFO refuses one in so many evictions that it could serve."""


class FIFOOrder:
    """The six methods of a policy that keeps chunks in order of insertion, and logs its calls."""

    def __init__(self, cache_capacity: int) -> None:
        self.cache_capacity = cache_capacity
        self.chunks: dict[OffloadKey, ChunkStatus] = {}
        self.log: list[Call] = []

    def look(self, key: OffloadKey) -> ChunkStatus | None:
        return self.chunks.get(key)

    def put(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        self.chunks[key] = chunk

    def oldest(self, n: int, protected: Iterable[OffloadKey]) -> Victims | None:
        """Take out the `n` oldest that are idle and not protected, or nothing."""
        kept = set(protected)
        idle = [(k, c) for k, c in self.chunks.items() if c.ref_cnt == 0 and k not in kept]
        if len(idle) < n:
            return None
        for key, _ in idle[:n]:
            del self.chunks[key]
        return idle[:n]


class FIFOModel(PolicyModel):
    """What such a policy answers, and which calls of it a host has to make, in order."""

    def __init__(self, capacity: int, *, refuses: bool = False) -> None:
        super().__init__(capacity)
        self.order: list[OffloadKey] = []
        self.log: list[Call] = []
        # Whose call is being predicted; the models of policies are not told of it everywhere.
        self.request: RequestId = ""
        self.refuses = refuses
        self.evictions = 0

    def evict(self, count: int, protected: Iterable[OffloadKey]) -> list[OffloadKey] | None:
        protected = frozenset(protected)
        if 0 < count <= len(self.idle(protected)):
            self.log.append(("evict", count, protected))
            self.evictions += 1
            if self.refuses and self.evictions % REFUSES_EVERY == 0:
                return None
        return super().evict(count, protected)

    def mark_evictable(self, key: OffloadKey) -> None:
        self.log.append(("mark_evictable", key))
        super().mark_evictable(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.log.append(("mark_non_evictable", key))
        super().mark_non_evictable(key)

    def choose(self, count: int, candidates: Sequence[OffloadKey]) -> list[OffloadKey]:
        victims = [key for key in self.order if key in candidates][:count]
        self.order = [key for key in self.order if key not in victims]
        return victims

    def admit(self, key: OffloadKey, request: RequestId, ends: Ends) -> None:
        self.log.append(("insert", request, key))
        self.order.append(key)

    def forget(self, key: OffloadKey) -> None:
        self.log.append(("remove", key))
        self.order.remove(key)

    def restart(self) -> None:
        self.log.append(("clear",))
        self.order.clear()

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        self.log.append(("touch", self.request, tuple(keys)))

    def miss(self, keys: Sequence[OffloadKey]) -> None:
        if keys:
            self.log.append(("on_store_miss", self.request, tuple(keys)))

    def access(self, keys: Sequence[OffloadKey], request: RequestId, ends: Ends) -> None:
        self.log.append(("on_request_access", request, tuple(keys)))

    def finish(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only: Iterable[OffloadKey],
        reused: Iterable[OffloadKey],
        ends: Ends,
    ) -> None:
        groups = tuple(map(tuple, key_groups))
        sets = (frozenset(insertion_only), frozenset(reused))
        self.log.append(("on_request_finished", self.request, groups, *sets))
