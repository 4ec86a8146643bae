"""Adaptive replacement as the contract has it (ARC-1 to ARC-5): what broken ones start from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.base import Victims
from stateful_models.gallery.broken_policies.ranked import prefix_order


class Adaptive(CachePolicy):
    """ARC on four dicts, each oldest first; the ghosts' values mean nothing.

    Each step that a broken one may get wrong is a method of its own.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.t1: dict[OffloadKey, ChunkStatus] = {}
        self.t2: dict[OffloadKey, ChunkStatus] = {}
        self.b1: dict[OffloadKey, None] = {}
        self.b2: dict[OffloadKey, None] = {}
        self.target: float = 0.0

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.t1.get(key) or self.t2.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.drop_ghost(key)
        self.t1[key] = chunk

    @override
    def remove(self, key: OffloadKey) -> None:
        self.t1.pop(key, None)
        self.t2.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            chunk = self.get(key)
            if chunk is None:
                self.adapt(key)
            elif key in self.t1 and not chunk.is_ready:
                self.renew(key)
            else:
                self.promote(key)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            self.adapt(key)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        for key in reversed(self.finish_order(key_groups, req_context)):
            if self.get(key) is None:
                continue
            if key in reused_keys:
                self.promote(key)
            elif key in insertion_only_keys:
                self.renew(key)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        idle: list[list[OffloadKey]] = [
            [key for key, chunk in part.items() if chunk.ref_cnt == 0 and key not in protected]
            for part in (self.t1, self.t2)
        ]
        if len(idle[0]) + len(idle[1]) < n:
            return None
        once, often = (iter(keys) for keys in idle)
        return [self.evict_one(once, often) for _ in range(n)]

    @override
    def clear(self) -> None:
        for part in (self.t1, self.t2, self.b1, self.b2):
            part.clear()
        self.target = 0.0

    def evict_one(
        self, once: Iterator[OffloadKey], often: Iterator[OffloadKey]
    ) -> tuple[OffloadKey, ChunkStatus]:
        """Take one of those that may go: `once` of T1 and `often` of T2."""
        parts = (once, often) if self.takes_from_t1() else (often, once)
        key = next(candidate for part in parts for candidate in part)
        if key in self.t1:
            chunk, ghosts = self.t1.pop(key), self.b1
        else:
            chunk, ghosts = self.t2.pop(key), self.b2
        self.leave_ghost(key, ghosts)
        return key, chunk

    def takes_from_t1(self) -> bool:
        """Whether T1 gives the next victim, if it has one (ARC-3)."""
        return len(self.t1) >= int(self.target)

    def leave_ghost(self, key: OffloadKey, ghosts: dict[OffloadKey, None]) -> None:
        """A victim is remembered (ARC-3)."""
        ghosts[key] = None
        while len(ghosts) > self.ghost_bound():
            del ghosts[next(iter(ghosts))]

    def ghost_bound(self) -> int:
        """How many ghosts a list may hold."""
        return self.cache_capacity

    def drop_ghost(self, key: OffloadKey) -> None:
        """A ghost has become resident."""
        self.b1.pop(key, None)
        self.b2.pop(key, None)

    def adapt(self, key: OffloadKey) -> None:
        """A miss on a ghost moves the target (ARC-2)."""
        if key in self.b1:
            self.target += max(1.0, len(self.b2) / len(self.b1))
            ghosts = self.b1
        elif key in self.b2:
            self.target -= max(1.0, len(self.b1) / len(self.b2))
            ghosts = self.b2
        else:
            return
        self.target = min(max(self.target, 0.0), self.ceiling())
        del ghosts[key]
        ghosts[key] = None

    def ceiling(self) -> float:
        """How far up the target may go."""
        return float(self.cache_capacity)

    def promote(self, key: OffloadKey) -> None:
        """To the recent end of T2 (ARC-1)."""
        chunk = self.t1.pop(key, None) or self.t2.pop(key)
        self.t2[key] = chunk

    def renew(self, key: OffloadKey) -> None:
        """To the recent end of the list that it is in."""
        part = self.t1 if key in self.t1 else self.t2
        part[key] = part.pop(key)

    def finish_order(
        self, key_groups: Sequence[Sequence[OffloadKey]], req_context: ReqContext
    ) -> list[OffloadKey]:
        """The keys of a finished request, head first (ARC-5)."""
        return prefix_order(key_groups, req_context)
