"""What outlives `clear`, or a removal (POL-6)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence, Set

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.adaptive import Adaptive
from stateful_models.gallery.broken_policies.base import Plain, Victims


class Numbered(Plain):
    """Right: each use gives a number, and the lowest goes first."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.numbers: dict[OffloadKey, int] = {}
        self.uses: int = 0

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.use(key)

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self.numbers.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            if key in self.chunks:
                self.use(key)

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return sorted(super().candidates(protected), key=self.numbers.__getitem__)

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        for key in victims:
            del self.numbers[key]
        return super().take(victims)

    @override
    def clear(self) -> None:
        super().clear()
        self.numbers.clear()
        self.uses = 0

    def use(self, key: OffloadKey) -> None:
        """The key takes the next number."""
        self.uses += 1
        self.numbers[key] = self.uses


class Pol6OldPlaces(Numbered):
    """A key that comes back after a reset takes the place that it had before."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._before: dict[OffloadKey, int] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        if key in self._before:
            self.numbers[key] = self._before.pop(key)

    @override
    def clear(self) -> None:
        before = dict(self.numbers)
        super().clear()
        self._before = before


class Pol6OldFrequencies(Plain):
    """How often a key was used is still known after a reset, and decides who goes."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._uses: dict[OffloadKey, int] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self._uses[key] = self._uses.get(key, 0) + 1

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self._uses.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            if key in self.chunks:
                self._uses[key] += 1

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return sorted(super().candidates(protected), key=self._uses.__getitem__)

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        for key in victims:
            del self._uses[key]
        return super().take(victims)

    @override
    def clear(self) -> None:
        # Those of the generation before this one are let go.
        self._uses = {key: self._uses[key] for key in self.chunks}
        super().clear()


class Pol6OldGhosts(Adaptive):
    """A reset forgets the chunks and remembers who had left before it."""

    @override
    def clear(self) -> None:
        once, frequent = dict(self.b1), dict(self.b2)
        super().clear()
        self.b1.update(once)
        self.b2.update(frequent)


class Pol6OldTarget(Adaptive):
    """What was learnt of the traffic before a reset decides after it."""

    @override
    def clear(self) -> None:
        target = self.target
        super().clear()
        self.target = target


class Pol6RandomGoesOn(Plain):
    """Random victims from a seeded generator, which a reset does not seed again."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._random = random.Random(0)

    @override
    def choose(self, n: int, protected: Set[OffloadKey]) -> list[OffloadKey]:
        idle = self.candidates(protected)
        return self._random.sample(idle, n) if n <= len(idle) else []


class Pol6OldPlaceAfterRemoval(Numbered):
    """A key whose store failed is where it was when it is stored again."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._removed: dict[OffloadKey, int] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        if key in self._removed:
            self.numbers[key] = self._removed.pop(key)

    @override
    def remove(self, key: OffloadKey) -> None:
        if key in self.numbers:
            self._removed = {key: self.numbers[key]}
        super().remove(key)

    @override
    def clear(self) -> None:
        super().clear()
        self._removed.clear()
