"""Victims that depend on more than the calls (POL-5)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Set
from itertools import count
from typing import ClassVar, Final

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.base import Plain, Victims

_EVICTIONS: Final = count()
FAVOURITES: Final = 4
_VARIABLE: Final = "KVOFFLOAD_GALLERY_EVICTIONS"


class Pol5SetOrder(Plain):
    """Victims are the first of a set: another process hashes otherwise and evicts others."""

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return list(set(super().candidates(protected)))


class Pol5Addresses(Plain):
    """Among equals the address in memory decides."""

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return sorted(super().candidates(protected), key=lambda key: id(self.chunks[key]))


class Pol5OneCounterForAll(Plain):
    """Every third eviction takes the newest, counted for all policies of the process together."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        idle = self.candidates(protected)
        if len(idle) < n:
            return None
        if next(_EVICTIONS) % 3 == 2:
            idle.reverse()
        return self.take(idle[:n])


class Pol5Unseeded(Plain):
    """Random victims, from a generator that nobody seeded."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._random = random.Random()

    @override
    def choose(self, n: int, protected: Set[OffloadKey]) -> list[OffloadKey]:
        idle = self.candidates(protected)
        return self._random.sample(idle, min(n, len(idle)))


class Pol5ClassState(Plain):
    """The latest favourites were made with the class, not with the object: all objects share
    them."""

    _favourites: ClassVar[dict[OffloadKey, None]] = {}

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = list(keys)
        super().touch(keys, req_context)
        for key in keys:
            if key in self.chunks:
                self._favourites.pop(key, None)
                self._favourites[key] = None
        while len(self._favourites) > FAVOURITES:
            del self._favourites[next(iter(self._favourites))]

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return sorted(super().candidates(protected), key=lambda key: key in self._favourites)

    @override
    def clear(self) -> None:
        super().clear()
        self._favourites.clear()


class Pol5Environment(Plain):
    """How often anything was evicted is kept in an environment variable, and every third time
    the newest goes."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        idle = self.candidates(protected)
        if len(idle) < n:
            return None
        evictions = os.environ.get(_VARIABLE, "")
        os.environ[_VARIABLE] = "" if len(evictions) == 2 else evictions + "I"
        if len(evictions) == 2:
            idle.reverse()
        return self.take(idle[:n])


class Pol5KeepsTheList(Plain):
    """The list of a touch is kept as it is and read at the next eviction, when its owner may
    have put other keys into it."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._touched: Iterable[OffloadKey] = ()

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._renew()
        self._touched = keys if isinstance(keys, list) else list(keys)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._renew()
        super().insert(key, chunk, req_context)

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        self._renew()
        return super().candidates(protected)

    @override
    def clear(self) -> None:
        super().clear()
        self._touched = ()

    def _renew(self) -> None:
        for key in reversed(list(self._touched)):
            if key in self.chunks:
                self.chunks[key] = self.chunks.pop(key)
        self._touched = ()
