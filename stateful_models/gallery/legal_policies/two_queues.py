"""2Q, after T. Johnson and D. Shasha, "2Q: A Low Overhead High Performance Buffer Management
Replacement Algorithm", VLDB 1994; its names for the queues are kept."""

from __future__ import annotations

from collections.abc import Iterable, Set

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle


class TwoQueues(CachePolicy):
    """A1in holds newcomers, first in first out; A1out remembers those that left it; Am holds what
    came back while it was remembered, least recently used first.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        # The paper's Kin and Kout: a quarter and a half of the capacity.
        self._k_in = max(1, cache_capacity // 4)
        self._k_out = max(1, cache_capacity // 2)
        self._a1_in: dict[OffloadKey, ChunkStatus] = {}
        self._a1_out: dict[OffloadKey, None] = {}
        self._am: dict[OffloadKey, ChunkStatus] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._a1_in.get(key) or self._am.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        if key in self._a1_out:
            del self._a1_out[key]
            self._am[key] = chunk
        else:
            self._a1_in[key] = chunk

    @override
    def remove(self, key: OffloadKey) -> None:
        self._a1_in.pop(key, None)
        self._am.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        # In A1in a further use changes nothing: it is taken for part of the first.
        for key in reversed(list(keys)):
            if key in self._am:
                self._am[key] = self._am.pop(key)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        new = idle(self._a1_in.items(), protected)
        old = idle(self._am.items(), protected)
        if len(new) + len(old) < n:
            return None
        new.reverse()
        old.reverse()
        victims: Victims = []
        for _ in range(n):
            if new and (len(self._a1_in) > self._k_in or not old):
                key = new.pop()
                victims.append((key, self._a1_in.pop(key)))
                self._remember(key)
            else:
                key = old.pop()
                victims.append((key, self._am.pop(key)))
        return victims

    @override
    def clear(self) -> None:
        self._a1_in.clear()
        self._a1_out.clear()
        self._am.clear()

    def _remember(self, key: OffloadKey) -> None:
        self._a1_out[key] = None
        if len(self._a1_out) > self._k_out:
            del self._a1_out[next(iter(self._a1_out))]
