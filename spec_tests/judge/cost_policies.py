"""Policies whose calls cost what is known, and some that fail."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterable, Set

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.base import Plain


class Oldest(Plain):
    """First in, first out, by a dict; those after it are like it in one way less."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        pass

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        victims: list[tuple[OffloadKey, ChunkStatus]] = []
        for key, chunk in self.chunks.items():
            if len(victims) == n:
                break
            if chunk.ref_cnt == 0 and key not in protected:
                victims.append((key, chunk))
        return self.taken(victims, n)

    def taken(
        self, victims: list[tuple[OffloadKey, ChunkStatus]], n: int
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        if len(victims) < n:
            return None
        for key, _ in victims:
            del self.chunks[key]
        return victims


class Scan(Oldest):
    """Looks at every chunk for one to evict."""

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        idle = [(key, chunk) for key, chunk in self.chunks.items() if chunk.ref_cnt == 0]
        return self.taken([one for one in idle if one[0] not in protected][:n], n)


class InAList(Oldest):
    """Finds what is used by going through a list; evicting costs nothing."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.order: list[OffloadKey] = []

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.order.append(key)

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            if key in self.chunks:
                self.order.remove(key)
                self.order.append(key)

    @override
    def taken(
        self, victims: list[tuple[OffloadKey, ChunkStatus]], n: int
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        taken = super().taken(victims, n)
        for key, _ in taken or ():
            # Those that go are not looked for.
            self.order = [one for one in self.order if one is not key]
        return taken


class Heap(Oldest):
    """The smallest key goes, by a heap of keys."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.heap: list[OffloadKey] = []

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        heapq.heappush(self.heap, key)

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        victims: list[tuple[OffloadKey, ChunkStatus]] = []
        aside: list[OffloadKey] = []
        while self.heap and len(victims) < n:
            key = heapq.heappop(self.heap)
            if self.chunks[key].ref_cnt == 0 and key not in protected:
                victims.append((key, self.chunks[key]))
            else:
                aside.append(key)
        if len(victims) < n:
            aside += [key for key, _ in victims]
        for key in aside:
            heapq.heappush(self.heap, key)
        return self.taken(victims, n)


class Pairs(Oldest):
    """Compares everything with everything."""

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        for _ in self.chunks:
            for chunk in self.chunks.values():
                if chunk.ref_cnt < 0:
                    break
        return super().evict(n, protected)


class Choosy(Oldest):
    """Refuses, and has said so."""

    may_refuse = "it keeps what it has"

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        return None


class OneTooFew(Oldest):
    """Gives up less than it is asked for."""

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        return []


class FailsWhenLarge(Oldest):
    """Works with 100 chunks, and not with more."""

    def fail(self) -> None:
        raise RuntimeError("too large for me")

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        if self.cache_capacity > 100:
            self.fail()
        return super().evict(n, protected)


class HangsWhenLarge(FailsWhenLarge):
    """Does not come back."""

    @override
    def fail(self) -> None:
        while True:
            time.sleep(60)


class EndsWhenLarge(FailsWhenLarge):
    """Takes its process with it."""

    @override
    def fail(self) -> None:
        os._exit(3)
