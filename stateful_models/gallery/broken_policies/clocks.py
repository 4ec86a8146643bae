"""Policies that read a clock, wrong only when enough time has gone by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.base import Plain, Victims

TTL: Final = 600.0
"""Seconds after its last use at which a chunk expires."""


class Timed(Plain):
    """Right: whatever has expired goes first, then the least recently used.

    The clock is bound when the class is made, as many do.
    """

    def __init__(self, cache_capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(cache_capacity)
        self.clock: Callable[[], float] = clock
        self.used_at: dict[OffloadKey, float] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.used_at[key] = self.clock()

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self.used_at.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = list(keys)
        super().touch(keys, req_context)
        now = self.clock()
        self.used_at.update((key, now) for key in keys if key in self.chunks)

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return sorted(super().candidates(protected), key=lambda key: not self.has_expired(key))

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        for key in victims:
            del self.used_at[key]
        return super().take(victims)

    @override
    def clear(self) -> None:
        super().clear()
        self.used_at.clear()

    def has_expired(self, key: OffloadKey) -> bool:
        """Whether the last use of a resident key is longer ago than `TTL`."""
        return self.clock() - self.used_at[key] > TTL


class Pol1ExpiredIsNotFound(Timed):
    """What has expired is not found any more, though it is still there, and in use."""

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return super().get(key) if key in self.chunks and not self.has_expired(key) else None


class Pol2ExpiredThoughPinned(Timed):
    """What has expired goes, also while it is being read or written."""

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        expired = [key for key in self.chunks if key not in protected and self.has_expired(key)]
        return expired + [key for key in super().candidates(protected) if key not in expired]


class Pol3ExpiryStopsEviction(Timed):
    """What has expired is left to a sweeper, which only an insertion starts: a cache in which
    everything has expired takes nothing any more."""

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return [key for key in super().candidates(protected) if not self.has_expired(key)]
