"""A policy of somebody else: what comes with a priority leaves after what comes without."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import ClassVar

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.capabilities import Capabilities


class TwoLanes(CachePolicy):
    """Two queues, first in first out; the fast lane is spared as long as the slow one can give."""

    capabilities: ClassVar[Capabilities] = Capabilities(key_blind=True, growth=1)

    def __init__(self, cache_capacity: int, spare_priority: int = 1) -> None:
        super().__init__(cache_capacity)
        self.spare_priority = spare_priority
        self.slow: dict[OffloadKey, ChunkStatus] = {}
        self.fast: dict[OffloadKey, ChunkStatus] = {}

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.slow.get(key) or self.fast.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        lane = self.fast if priority_of(req_context) >= self.spare_priority else self.slow
        lane[key] = chunk

    def remove(self, key: OffloadKey) -> None:
        self.slow.pop(key, None)
        self.fast.pop(key, None)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            if key in self.slow:
                self.slow[key] = self.slow.pop(key)

    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        victims = [
            (key, chunk)
            for lane in (self.slow, self.fast)
            for key, chunk in lane.items()
            if chunk.ref_cnt == 0 and key not in protected
        ][:n]
        if len(victims) < n:
            return None
        for key, _ in victims:
            self.remove(key)
        return victims

    def clear(self) -> None:
        self.slow.clear()
        self.fast.clear()


class WithoutLanes(TwoLanes):
    """What it forgets: keys that are offered may be evicted for the rest of their offer."""

    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        return super().evict(n, frozenset())


def priority_of(req_context: ReqContext) -> int:
    """What the client asked for, if it is a number at all."""
    hints = req_context.kv_transfer_params
    asked = hints.get("priority") if isinstance(hints, dict) else None
    return asked if type(asked) is int else 0
