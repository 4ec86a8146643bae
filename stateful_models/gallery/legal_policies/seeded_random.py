"""Random replacement, the same each time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Set

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle


class SeededRandom(CachePolicy):
    """Victims are drawn from all that may go; a seed makes them the same in every run.

    Nothing is drawn for an eviction that must be refused, as a draw would change all later ones.
    """

    def __init__(self, cache_capacity: int, seed: int = 0) -> None:
        super().__init__(cache_capacity)
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        self._seed = seed
        self._random = random.Random(seed)

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
        return None

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        candidates = idle(self._chunks.items(), protected)
        if len(candidates) < n:
            return None
        return [(key, self._chunks.pop(key)) for key in self._random.sample(candidates, n)]

    @override
    def clear(self) -> None:
        self._chunks.clear()
        self._random = random.Random(self._seed)
