"""Least frequently used, with counts that age."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from attrs import define
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle

SAMPLE: Final = 8
"""Counts are halved after so many uses for each chunk of capacity."""


@define
class _Counted:
    chunk: ChunkStatus
    uses: int
    last: int


class AgingLFU(CachePolicy):
    """Evicts what has the lowest count, the least recently used among equals."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._counted: dict[OffloadKey, _Counted] = {}
        self._moment = 0

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        counted = self._counted.get(key)
        return None if counted is None else counted.chunk

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._counted[key] = _Counted(chunk, 0, 0)
        self._use(self._counted[key])

    @override
    def remove(self, key: OffloadKey) -> None:
        self._counted.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            counted = self._counted.get(key)
            if counted is not None:
                self._use(counted)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        pairs = ((key, counted.chunk) for key, counted in self._counted.items())
        victims = sorted(idle(pairs, protected), key=self._rank)[:n]
        if len(victims) < n:
            return None
        return [(key, self._counted.pop(key).chunk) for key in victims]

    @override
    def clear(self) -> None:
        self._counted.clear()
        self._moment = 0

    def _use(self, counted: _Counted) -> None:
        self._moment += 1
        counted.uses += 1
        counted.last = self._moment
        if self._moment % (SAMPLE * max(1, self.cache_capacity)) == 0:
            for each in self._counted.values():
                each.uses //= 2

    def _rank(self, key: OffloadKey) -> tuple[int, int]:
        counted = self._counted[key]
        return counted.uses, counted.last
