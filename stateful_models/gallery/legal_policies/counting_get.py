"""Popularity counted where it shows first: in `get`."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from attrs import define
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle

MOST: Final = 255


@define
class _Counted:
    chunk: ChunkStatus
    gets: int = 0


class CountingGet(CachePolicy):
    """Evicts what was looked up least, the longest resident among equals.

    `get` has a side effect: it counts. An eviction halves the counts, so that they age.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._counted: dict[OffloadKey, _Counted] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        counted = self._counted.get(key)
        if counted is None:
            return None
        counted.gets = min(counted.gets + 1, MOST)
        return counted.chunk

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._counted[key] = _Counted(chunk)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._counted.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        return None

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        pairs = ((key, counted.chunk) for key, counted in self._counted.items())
        candidates = idle(pairs, protected)
        if len(candidates) < n:
            return None
        victims = sorted(candidates, key=lambda key: self._counted[key].gets)[:n]
        taken = [(key, self._counted.pop(key).chunk) for key in victims]
        for counted in self._counted.values():
            counted.gets //= 2
        return taken

    @override
    def clear(self) -> None:
        self._counted.clear()
