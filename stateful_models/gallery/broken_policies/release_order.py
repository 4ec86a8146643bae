"""Claims that the end of a pin does not matter, which do not hold (POL-9)."""

from __future__ import annotations

from collections.abc import Sequence, Set

from typing_extensions import override

from kvoffload import OffloadKey
from stateful_models.gallery.broken_policies.base import Plain, Victims


class Pol9CompletionIsUse(Plain):
    """A chunk that becomes idle is the most recent: what is loaded last is taken for what was
    used last, in whatever order transfers happen to end."""

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        if key in self.chunks:
            self.chunks[key] = self.chunks.pop(key)


class Pol9BackOfTheLine(Plain):
    """Only idle chunks are in line, which saves walking; one that is pinned loses its place."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._line: dict[OffloadKey, None] = {}

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        if key in self.chunks:
            self._line[key] = None

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._line.pop(key, None)

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return [key for key in self._line if key not in protected]

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        for key in victims:
            del self._line[key]
        return super().take(victims)

    @override
    def clear(self) -> None:
        super().clear()
        self._line.clear()
