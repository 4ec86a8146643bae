"""Mistakes of `get` (POL-1)."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.base import Plain, Victims


class Pol1Copy(Plain):
    """Chunks are taken for values, so a copy goes out; its pins are pins of nothing."""

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        chunk = super().get(key)
        return None if chunk is None else ChunkStatus(chunk.chunk_id, chunk.ref_cnt)


class Pol1FindsRemoved(Plain):
    """The key found last is kept at hand, and a removal does not know of that."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._last: tuple[OffloadKey, ChunkStatus] | None = None

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        chunk = super().get(key)
        self._last = None if chunk is None else (key, chunk)
        return chunk

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self._last = (key, chunk)

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        self._last = None
        return super().take(victims)

    @override
    def clear(self) -> None:
        super().clear()
        self._last = None


class Pol1HidesPinned(Plain):
    """Only what could be evicted is found, so that a chunk is gone while it is being read."""

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        chunk = super().get(key)
        return None if chunk is None or chunk.ref_cnt > 0 else chunk


class Pol1HidesPending(Plain):
    """Chunks that are not ready yet are not found; the host would store them once more."""

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        chunk = super().get(key)
        return None if chunk is None or not chunk.is_ready else chunk


class Pol1EarlierChunk(Plain):
    """The victim that left last is remembered with its chunk, and comes back with it."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._left: dict[OffloadKey, ChunkStatus] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, self._left.pop(key, chunk), req_context)

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        taken = super().take(victims)
        self._left = dict(taken[-1:])
        return taken

    @override
    def clear(self) -> None:
        super().clear()
        self._left.clear()
