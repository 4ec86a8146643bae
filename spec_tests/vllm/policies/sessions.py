"""A policy whose own manager makes calls that no other does, and asks for victims otherwise."""

from collections.abc import Iterable

from shelf import Shelf
from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import BlockStatus, CachePolicy


class SessionScores(CachePolicy):
    """By score, then by tag, then the oldest first; for an urgent store, the oldest first."""

    def __init__(self, cache_capacity: int):
        super().__init__(cache_capacity)
        self.shelf = Shelf()
        self.scores: dict[OffloadKey, float] = {}
        self.tags: dict[OffloadKey, str] = {}
        self.offered: dict[OffloadKey, str] = {}
        self.open: set[str] = set()
        self.lookups = [0, 0]

    def open_session(self, name: str) -> None:
        self.open.add(name)

    def close_session(self, name: str) -> None:
        self.open.discard(name)

    def record_lookup(self, key: OffloadKey, hit: bool) -> None:
        self.lookups[hit] += 1

    def tag_keys(self, keys: Iterable[OffloadKey], tag: str) -> None:
        self.offered = dict.fromkeys(keys, tag)

    def set_score(self, key: OffloadKey, score: float) -> None:
        if key in self.shelf.held:
            self.scores[key] = score

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.shelf.held.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus) -> None:
        self.tags[key] = self.offered[key]
        self.shelf.held[key] = block

    def remove(self, key: OffloadKey) -> None:
        del self.shelf.held[key]
        self.forget(key)

    def forget(self, key: OffloadKey) -> None:
        del self.tags[key]
        self.scores.pop(key, None)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.shelf.renew(keys)

    def evict(
        self, n: int, protected: set[OffloadKey], urgent: bool
    ) -> list[tuple[OffloadKey, BlockStatus]] | None:
        idle = self.shelf.idle(protected)
        if len(idle) < n:
            return None
        if not urgent:
            idle.sort(key=lambda key: (self.scores.get(key, 0.0), self.tags[key] in self.open))
        for key in idle[:n]:
            self.forget(key)
        return self.shelf.take(idle[:n])

    def clear(self) -> None:
        self.shelf.held.clear()
        self.scores.clear()
        self.tags.clear()


class SessionScoresWithBadScore(SessionScores):
    """Expects that what is scored is still there."""

    def set_score(self, key: OffloadKey, score: float) -> None:
        if key not in self.shelf.held:
            raise KeyError(key)
        self.scores[key] = score
