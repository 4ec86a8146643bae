"""Chunks with a time to live."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from typing import Final

from attrs import define
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle

SHORT_S: Final = 60.0
LONG_S: Final = 1800.0


@define
class _Timed:
    chunk: ChunkStatus
    deadline: float


class TimeToLive(CachePolicy):
    """What was used once lives a minute, what was used again half an hour, from its last use on.

    The expired go first, the longest expired before all; then the least recently used. Expiring
    makes a chunk the next to go, and no more: it is found, and stays as long as it is read. The
    clock is a default argument, bound when this module is imported.
    """

    def __init__(self, cache_capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(cache_capacity)
        self._clock = clock
        self._timed: dict[OffloadKey, _Timed] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        timed = self._timed.get(key)
        return None if timed is None else timed.chunk

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._timed[key] = _Timed(chunk, self._clock() + SHORT_S)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._timed.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        deadline = self._clock() + LONG_S
        for key in reversed(list(keys)):
            timed = self._timed.pop(key, None)
            if timed is not None:
                timed.deadline = deadline
                self._timed[key] = timed

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        now = self._clock()

        def rank(key: OffloadKey) -> float:
            # Sorting is stable: those that live keep the order of their last use.
            return min(self._timed[key].deadline, now)

        pairs = ((key, timed.chunk) for key, timed in self._timed.items())
        victims = sorted(idle(pairs, protected), key=rank)[:n]
        if len(victims) < n:
            return None
        return [(key, self._timed.pop(key).chunk) for key in victims]

    @override
    def clear(self) -> None:
        self._timed.clear()
