"""A line of victims beside the table of chunks, and the two do not agree (POL-2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.base import Plain, Victims


class Lined(Plain):
    """Right: the table says who is there, and a line of its own who goes."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.line: dict[OffloadKey, ChunkStatus] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.line.pop(key, None)
        self.line[key] = chunk

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self.line.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            if key in self.chunks:
                self.line[key] = self.line.pop(key, self.chunks[key])

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return [
            key for key, chunk in self.line.items() if chunk.ref_cnt == 0 and key not in protected
        ]

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        for key in victims:
            self.chunks.pop(key, None)
        return [(key, self.line.pop(key)) for key in victims]

    @override
    def clear(self) -> None:
        super().clear()
        self.line.clear()


class Pol2OffersWhatFailed(Lined):
    """Who is in line is idle, and needs no second look; a failed store gets into it too."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._failed: set[OffloadKey] = set()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self._failed.discard(key)

    @override
    def remove(self, key: OffloadKey) -> None:
        self.chunks.pop(key, None)
        self._failed = {key}

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return [
            key
            for key, chunk in self.line.items()
            if (chunk.ref_cnt == 0 or key in self._failed) and key not in protected
        ]

    @override
    def clear(self) -> None:
        super().clear()
        self._failed.clear()


class Pol2KeepsVictims(Lined):
    """A victim leaves the table and stays in line, where it is met again."""

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        for key in victims:
            self.chunks.pop(key, None)
        return [(key, self.line[key]) for key in victims]


class Pol2LineSurvivesClear(Lined):
    """A reset empties the table and not the line; before the first reset all is well."""

    @override
    def clear(self) -> None:
        self.chunks.clear()
