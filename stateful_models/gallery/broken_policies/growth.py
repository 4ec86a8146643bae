"""What is remembered grows without end (POL-4)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence, Set

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.base import Plain, Victims


class Pol4CountsEveryKey(Plain):
    """Uses of every key are counted for good, as the key may come back."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._uses: Counter[OffloadKey] = Counter()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self._uses[key] += 1

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return sorted(super().candidates(protected), key=self._uses.__getitem__)

    @override
    def clear(self) -> None:
        super().clear()
        self._uses.clear()


class Pol4CountsRequests(Plain):
    """Requests are counted by their id, also when they are long over."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._offers: Counter[str] = Counter()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self._offers[req_context.req_id] += 1

    @override
    def clear(self) -> None:
        super().clear()
        self._offers.clear()


class Pol4KeepsContexts(Plain):
    """The contexts of requests are kept for later use, and with each all that it knows."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._seen: dict[str, ReqContext] = {}

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._seen[req_context.req_id] = req_context

    @override
    def clear(self) -> None:
        super().clear()
        self._seen.clear()


class Pol4UntrimmedGhosts(Plain):
    """Victims are remembered, and those that come back stay longer; no ghost is ever forgotten
    otherwise."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._ghosts: set[OffloadKey] = set()
        self._returned: set[OffloadKey] = set()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        if key in self._ghosts:
            self._ghosts.remove(key)
            self._returned.add(key)

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self._returned.discard(key)

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return sorted(super().candidates(protected), key=lambda key: key in self._returned)

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        self._ghosts.update(victims)
        self._returned.difference_update(victims)
        return super().take(victims)

    @override
    def clear(self) -> None:
        super().clear()
        self._ghosts.clear()
        self._returned.clear()


class Pol4GhostsBehindTheLiving(Plain):
    """One queue for residents and ghosts, cleaned from its front alone. The newest goes first
    here, so that at the front one stays that lives, and behind it ghosts pile up."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._queue: deque[OffloadKey] = deque()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self._queue.append(key)
        while self._queue and self._queue[0] not in self.chunks:
            self._queue.popleft()

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return super().candidates(protected)[::-1]

    @override
    def clear(self) -> None:
        super().clear()
        self._queue.clear()
