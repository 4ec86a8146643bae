"""Least frequently used, on a heap that is put right only when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Set
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims

STALE_FLOOR: Final = 32
"""So many stale entries are not worth a compaction."""


class _Entry(NamedTuple):
    # `moment` is unique, so that keys are never compared.
    uses: int
    moment: int
    key: OffloadKey


class LazyHeap(CachePolicy):
    """A use pushes a new entry and leaves the old one stale, to be dropped when it comes up.

    Of a key's entries the one in `_entries` counts. The heap is compacted when most of it is
    stale, so that it never holds more than twice what is resident and a little.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        self._entries: dict[OffloadKey, _Entry] = {}
        self._heap: list[_Entry] = []
        self._moment = 0

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._chunks.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._chunks[key] = chunk
        self._push(key, 1)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._chunks.pop(key, None)
        self._entries.pop(key, None)
        self._compact()

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            entry = self._entries.get(key)
            if entry is not None:
                self._push(key, entry.uses + 1)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims: list[_Entry] = []
        passed: list[_Entry] = []
        while self._heap and len(victims) < n:
            entry = heappop(self._heap)
            if self._entries.get(entry.key) is not entry:
                continue
            may_go = self._chunks[entry.key].ref_cnt == 0 and entry.key not in protected
            (victims if may_go else passed).append(entry)
        enough = len(victims) == n
        for entry in passed if enough else passed + victims:
            heappush(self._heap, entry)
        if not enough:
            return None
        for entry in victims:
            del self._entries[entry.key]
        return [(entry.key, self._chunks.pop(entry.key)) for entry in victims]

    @override
    def clear(self) -> None:
        self._chunks.clear()
        self._entries.clear()
        self._heap.clear()
        self._moment = 0

    def _push(self, key: OffloadKey, uses: int) -> None:
        self._moment += 1
        entry = self._entries[key] = _Entry(uses, self._moment, key)
        heappush(self._heap, entry)
        self._compact()

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + STALE_FLOOR:
            self._heap = list(self._entries.values())
            heapify(self._heap)
