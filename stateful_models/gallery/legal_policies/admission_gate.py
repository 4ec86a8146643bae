"""A gate before the cache: what is seen for the first time pushes nobody out."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import ClassVar, Final

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle

PATIENCE: Final = 4
"""After so many calls without an eviction the gate opens whoever comes."""


class AdmissionGate(CachePolicy):
    """Evicts the least recently used, for offers with a key that was missed twice.

    Others are refused, and cost nobody anything. No refusal lasts: the next miss of such a key
    opens the gate, and so does any hook that is called often enough. Only hooks are counted,
    never refusals, since a refused eviction must leave no trace.
    """

    may_refuse: ClassVar[str | None] = "an offer of new keys alone may not push out what is in use"

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        self._misses: dict[OffloadKey, int] = {}
        self._waited = 0

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
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._wait()
        for key in keys:
            self._misses[key] = min(self._misses.pop(key, 0) + 1, 2)
        for key in list(self._misses)[: -2 * self.cache_capacity]:
            del self._misses[key]

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._wait()
        for key in reversed(list(keys)):
            if key in self._chunks:
                self._chunks[key] = self._chunks.pop(key)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        newcomers = [key for key in protected if key not in self._chunks]
        if newcomers and not self._admits(newcomers):
            return None
        victims = idle(self._chunks.items(), protected)[:n]
        if len(victims) < n:
            return None
        self._waited = 0
        return [(key, self._chunks.pop(key)) for key in victims]

    @override
    def clear(self) -> None:
        self._chunks.clear()
        self._misses.clear()
        self._waited = 0

    def _admits(self, newcomers: Iterable[OffloadKey]) -> bool:
        # `newcomers` comes in the order of a set, which must not matter, and does not to `any`.
        return self._waited >= PATIENCE or any(self._misses.get(key) == 2 for key in newcomers)

    def _wait(self) -> None:
        self._waited = min(self._waited + 1, PATIENCE)
