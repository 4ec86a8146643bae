"""A policy that knows of no base class."""

from __future__ import annotations

from collections.abc import Iterable, Set

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle


class SixMethods:
    """First in, first out, with the six methods that a host cannot do without."""

    def __init__(self, cache_capacity: int) -> None:
        self.cache_capacity: int = cache_capacity
        self._chunks: dict[OffloadKey, ChunkStatus] = {}

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """The chunk of a resident key."""
        return self._chunks.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        """Last in."""
        self._chunks[key] = chunk

    def remove(self, key: OffloadKey) -> None:
        """Out before its turn."""
        self._chunks.pop(key, None)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Use changes nothing."""

    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        """First out."""
        victims = idle(self._chunks.items(), protected)[:n]
        if len(victims) < n:
            return None
        return [(key, self._chunks.pop(key)) for key in victims]

    def clear(self) -> None:
        """All out."""
        self._chunks.clear()
