"""A policy written for a host of earlier times."""

from __future__ import annotations

from collections.abc import Iterable, Set

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey
from stateful_models.gallery.legal_policies.victims import Victims, idle


class OldInterface(CachePolicy):
    """Least recently used, by methods that were not told of the request.

    Hosts serve such policies; the types know only of the present interface.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._chunks: dict[OffloadKey, ChunkStatus] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._chunks.get(key)

    # The interface of a former time is the oddity here.
    @override
    def insert(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, key: OffloadKey, chunk: ChunkStatus
    ) -> None:
        self._chunks[key] = chunk

    @override
    def remove(self, key: OffloadKey) -> None:
        self._chunks.pop(key, None)

    # As above.
    @override
    def touch(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, keys: Iterable[OffloadKey]
    ) -> None:
        for key in reversed(list(keys)):
            if key in self._chunks:
                self._chunks[key] = self._chunks.pop(key)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = idle(self._chunks.items(), protected)[:n]
        if len(victims) < n:
            return None
        return [(key, self._chunks.pop(key)) for key in victims]

    @override
    def clear(self) -> None:
        self._chunks.clear()
