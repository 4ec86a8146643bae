"""Segmented LRU: a probation, and a shelter for what was used again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle

SHELTER_SHARE: Final = 0.8


class SegmentedLRU(CachePolicy):
    """Two LRU lists. A use in the probation moves to the shelter; what that cannot hold returns.

    Victims come from the probation, and from the shelter when there is none.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._shelter_size = int(cache_capacity * SHELTER_SHARE)
        self._probation: dict[OffloadKey, ChunkStatus] = {}
        self._shelter: dict[OffloadKey, ChunkStatus] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._probation.get(key) or self._shelter.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._probation[key] = chunk

    @override
    def remove(self, key: OffloadKey) -> None:
        self._probation.pop(key, None)
        self._shelter.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            self._use(key)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        for keys in reversed(key_groups):
            for key in reversed(keys):
                if key in reused_keys:
                    self._use(key)
                elif key in self._probation:
                    self._probation[key] = self._probation.pop(key)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = idle(self._probation.items(), protected)[:n]
        victims += idle(self._shelter.items(), protected)[: n - len(victims)]
        if len(victims) < n:
            return None
        return [(key, self._take(key)) for key in victims]

    @override
    def clear(self) -> None:
        self._probation.clear()
        self._shelter.clear()

    def _use(self, key: OffloadKey) -> None:
        chunk = self.get(key)
        if chunk is None:
            return
        self.remove(key)
        if not chunk.is_ready:
            # Still being stored: that is its first use.
            self._probation[key] = chunk
            return
        self._shelter[key] = chunk
        if len(self._shelter) > self._shelter_size:
            oldest = next(iter(self._shelter))
            self._probation[oldest] = self._shelter.pop(oldest)

    def _take(self, key: OffloadKey) -> ChunkStatus:
        part = self._probation if key in self._probation else self._shelter
        return part.pop(key)
