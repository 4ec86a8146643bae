"""Refusing although enough may go (POL-3)."""

from __future__ import annotations

from collections.abc import Sequence, Set

from typing_extensions import override

from kvoffload import OffloadKey
from stateful_models.gallery.broken_policies.base import Plain, Victims


class Pol3SubtractsProtection(Plain):
    """All of the protected keys are taken off the number of idle ones, those too that are not
    resident and those that are pinned anyway."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        if len(self.candidates(frozenset())) - len(protected) < n:
            return None
        return super().evict(n, protected)


class Pol3Reserve(Plain):
    """The last chunk is kept back as a reserve, of which the host has not been told."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return super().evict(n, protected) if n < len(self.chunks) else None


class Pol3ForEver(Plain):
    """A refusal is remembered, to spare the search; nothing makes it forgotten."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._exhausted = False

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = None if self._exhausted else super().evict(n, protected)
        self._exhausted = victims is None
        return victims

    @override
    def clear(self) -> None:
        super().clear()
        self._exhausted = False


class Pol3FailedStoreCounts(Plain):
    """Idle chunks are counted, not looked for; a failed store counts as one that left them."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._num_idle = 0

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self._num_idle -= 1

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self._num_idle += 1

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._num_idle -= 1

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return super().evict(n, protected) if self._num_idle >= n else None

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        self._num_idle -= len(victims)
        return super().take(victims)

    @override
    def clear(self) -> None:
        super().clear()
        self._num_idle = 0


class Pol3PinnedForEver(Plain):
    """The beginning of a pin is noted, its end is not: what was read once never goes."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._pinned: set[OffloadKey] = set()

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        if key in self.chunks:
            self._pinned.add(key)

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return [key for key in super().candidates(protected) if key not in self._pinned]

    @override
    def clear(self) -> None:
        super().clear()
        self._pinned.clear()
