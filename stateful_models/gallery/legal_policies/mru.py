"""Most recently used first: the best that can be done for a loop longer than the cache."""

from __future__ import annotations

from collections.abc import Iterable, Set

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle


class MRU(CachePolicy):
    """One dict, oldest use first; victims come from its end."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._chunks: dict[OffloadKey, ChunkStatus] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._chunks.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._chunks[key] = chunk

    @override
    def remove(self, key: OffloadKey) -> None:
        self._chunks.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        # Head to tail, so that of one prefix the tail is the most recent, and goes first.
        for key in keys:
            if key in self._chunks:
                self._chunks[key] = self._chunks.pop(key)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = idle(reversed(self._chunks.items()), protected)[:n]
        if len(victims) < n:
            return None
        return [(key, self._chunks.pop(key)) for key in victims]

    @override
    def clear(self) -> None:
        self._chunks.clear()
