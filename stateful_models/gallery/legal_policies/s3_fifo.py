"""S3-FIFO, after J. Yang, Y. Zhang, Z. Qiu, Y. Yue and K. V. Rashmi, "FIFO queues are all you
need for cache eviction", SOSP 2023.

Three queues: *small* for newcomers, *main* for what was used while it was there, *ghost* for keys
that left small too early. What is pinned or protected is passed and keeps its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

from attrs import define
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims

SMALL_SHARE: Final = 0.1
MAX_USES: Final = 3
"""Two bits a chunk."""


@define
class _Slot:
    chunk: ChunkStatus
    uses: int = 0

    def is_idle(self) -> bool:
        return self.chunk.ref_cnt == 0


class S3FIFO(CachePolicy):
    """The queues are dicts, the head first."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._small_size = max(1, int(cache_capacity * SMALL_SHARE))
        self._small: dict[OffloadKey, _Slot] = {}
        self._main: dict[OffloadKey, _Slot] = {}
        self._ghost: dict[OffloadKey, None] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        slot = self._slot(key)
        return None if slot is None else slot.chunk

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        # INSERT: a ghost has proved its worth, anything else has to.
        if key in self._ghost:
            del self._ghost[key]
            self._main[key] = _Slot(chunk)
        else:
            self._small[key] = _Slot(chunk)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._small.pop(key, None)
        self._main.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        # READ: a hit counts, and moves nothing.
        for key in keys:
            slot = self._slot(key)
            if slot is not None:
                slot.uses = min(slot.uses + 1, MAX_USES)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        for keys in key_groups:
            self.touch([key for key in keys if key in reused_keys], req_context)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        candidates = sum(
            slot.is_idle() and key not in protected
            for queue in (self._small, self._main)
            for key, slot in queue.items()
        )
        if candidates < n:
            return None
        return [self._evict_one(protected) for _ in range(n)]

    @override
    def clear(self) -> None:
        self._small.clear()
        self._main.clear()
        self._ghost.clear()

    def _slot(self, key: OffloadKey) -> _Slot | None:
        return self._small.get(key) or self._main.get(key)

    def _evict_one(self, protected: Set[OffloadKey]) -> tuple[OffloadKey, ChunkStatus]:
        """EVICT; there is somebody who may go."""
        while True:
            victim = None
            if len(self._small) >= self._small_size:
                victim = self._evict_small(protected)
            victim = victim or self._evict_main(protected) or self._evict_small(protected)
            if victim is not None:
                return victim

    def _evict_small(self, protected: Set[OffloadKey]) -> tuple[OffloadKey, ChunkStatus] | None:
        """EVICTS: what was used more than once goes to main, the first other one leaves."""
        for key, slot in list(self._small.items()):
            if not slot.is_idle() or key in protected:
                continue
            del self._small[key]
            if slot.uses > 1:
                slot.uses = 0
                self._main[key] = slot
                continue
            self._ghost[key] = None
            if len(self._ghost) > self.cache_capacity:
                del self._ghost[next(iter(self._ghost))]
            return key, slot.chunk
        return None

    def _evict_main(self, protected: Set[OffloadKey]) -> tuple[OffloadKey, ChunkStatus] | None:
        """EVICTM: what was used goes round once more for each use, the first other one leaves."""
        for key, slot in list(self._main.items()):
            if not slot.is_idle() or key in protected:
                continue
            del self._main[key]
            if slot.uses == 0:
                return key, slot.chunk
            slot.uses -= 1
            self._main[key] = slot
        return None
