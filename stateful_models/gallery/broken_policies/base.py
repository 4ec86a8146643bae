"""The right policy that most broken ones start from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import TypeAlias

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext

Victims: TypeAlias = list[tuple[OffloadKey, ChunkStatus]]
"""An answer of `evict`."""


class Plain(CachePolicy):
    """Least recently used, on one dict, oldest first; POL-1 to POL-7 hold.

    It claims nothing: it walks what is pinned, and takes each call as a use of its own.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.chunks: dict[OffloadKey, ChunkStatus] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.chunks.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.chunks[key] = chunk

    @override
    def remove(self, key: OffloadKey) -> None:
        self.chunks.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            chunk = self.chunks.pop(key, None)
            if chunk is not None:
                self.chunks[key] = chunk

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = self.choose(n, protected)
        return self.take(victims) if len(victims) == n else None

    @override
    def clear(self) -> None:
        self.chunks.clear()

    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        """Whatever may go, the first to go first."""
        return [
            key for key, chunk in self.chunks.items() if chunk.ref_cnt == 0 and key not in protected
        ]

    def choose(self, n: int, protected: Set[OffloadKey]) -> list[OffloadKey]:
        """The next `n` victims, or all there are; nothing changes."""
        return self.candidates(protected)[:n]

    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        """Remove the victims, and give them with their chunks."""
        return [(key, self.chunks.pop(key)) for key in victims]
