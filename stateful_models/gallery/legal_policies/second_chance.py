"""CLOCK: first in, first out, but what was used gets a second chance."""

from __future__ import annotations

from collections.abc import Iterable, Set

from attrs import define
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle


@define
class _Place:
    chunk: ChunkStatus
    referenced: bool = False


class SecondChance(CachePolicy):
    """A ring of places with a bit each; the hand stands at the first of the dict.

    Before the hand moves it is known that enough may go: a hand that has moved, and bits that it
    has cleared, would change later choices.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._ring: dict[OffloadKey, _Place] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        place = self._ring.get(key)
        return None if place is None else place.chunk

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._ring[key] = _Place(chunk)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._ring.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            place = self._ring.get(key)
            if place is not None:
                place.referenced = True

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        pairs = ((key, place.chunk) for key, place in self._ring.items())
        if len(idle(pairs, protected)) < n:
            return None
        victims: Victims = []
        while len(victims) < n:
            key, place = next(iter(self._ring.items()))
            del self._ring[key]
            if place.chunk.ref_cnt or key in protected:
                self._ring[key] = place
            elif place.referenced:
                place.referenced = False
                self._ring[key] = place
            else:
                victims.append((key, place.chunk))
        return victims

    @override
    def clear(self) -> None:
        self._ring.clear()
