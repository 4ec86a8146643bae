"""Adaptive replacement, after N. Megiddo and D. Modha, "ARC: A Self-Tuning, Low Overhead
Replacement Cache", FAST 2003, in the request-wise form of ARC-1 to ARC-5.

The paper's lists keep their names: T1 holds what was used once of late, T2 what was used again,
B1 and B2 the keys that left either (ghosts), and `target` is the paper's p, the size that T1
should have. Unlike the paper's, requests are what counts as a use, whole prefixes leave at
once, and each ghost list may grow to the capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import TypeAlias

from typing_extensions import override

from kvoffload.errors import InvalidValueError, InvariantError
from kvoffload.keys import OffloadKey
from kvoffload.policies.base import CachePolicy, ChunkStatus, order_request_keys
from kvoffload.policies.ghosts import GhostList
from kvoffload.policies.queue import ChunkQueue
from kvoffload.requests import ReqContext

Victims: TypeAlias = list[tuple[OffloadKey, ChunkStatus]]


class ARCCachePolicy(CachePolicy):
    """T1 and T2 are lists of chunks, B1 and B2 of ghosts; a key is in at most one (ARC-4)."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._t1 = ChunkQueue()
        self._t2 = ChunkQueue()
        self._b1 = GhostList()
        self._b2 = GhostList()
        self._target: float = 0.0

    @override
    def clear(self) -> None:
        for part in (self._t1, self._t2, self._b1, self._b2):
            part.clear()
        self._target = 0.0

    @property
    def target(self) -> float:
        """The size that T1 should have, in [0, cache_capacity]: the paper's p."""
        return self._target

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._t1.get(key) or self._t2.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.insert_all((key,), (chunk,), req_context)

    @override
    def insert_all(
        self,
        keys: Sequence[OffloadKey],
        chunks: Sequence[ChunkStatus],
        req_context: ReqContext,
    ) -> None:
        t1, t2 = self._t1, self._t2
        for resident in (t1.line, t2.line, t1.parked, t2.parked):
            if resident and not resident.keys().isdisjoint(keys):
                key = next(key for key in keys if key in resident)
                raise InvalidValueError("key", key, "a key that is not resident")
        # Case IV of the paper puts new keys into T1. Cases II and III put ghosts into T2; here
        # they enter T1 too (ARC-1), and the adaptation came with the miss.
        once = self._t1.line
        for key, chunk in zip(keys, chunks, strict=True):
            once[key] = chunk
        self._b1.discard_all(keys)
        self._b2.discard_all(keys)

    @override
    def remove(self, key: OffloadKey) -> None:
        if self._t1.pop(key) is None:
            self._t2.pop(key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        t1, t2, b1, b2 = self._t1, self._t2, self._b1.keys, self._b2.keys
        once, frequent = t1.line, t2.line
        renew_frequent = frequent.move_to_end
        some_parked = bool(t1.parked or t2.parked)
        for key in reversed(list(keys)):
            if key in frequent:
                renew_frequent(key)
            elif key in once:
                # Case I: a hit moves the key to the recent end of T2. One that is being stored
                # has not been used a second time yet.
                chunk = once.pop(key)
                (frequent if chunk.ref_cnt >= 0 else once)[key] = chunk
            elif key in b1 or (b2 and key in b2):
                self._adapt(key)
            elif some_parked:
                parked = t1.pop_parked(key)
                if parked is None:
                    t2.renew_parked(key)
                else:
                    (frequent if parked.ref_cnt >= 0 else once)[key] = parked

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        # Before the victims are chosen, and before insertion drops the ghosts.
        missed = list(keys)
        b1, b2 = self._b1.keys, self._b2.keys
        if (b1 and not b1.isdisjoint(missed)) or (b2 and not b2.isdisjoint(missed)):
            for key in reversed(missed):
                self._adapt(key)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        t1, t2 = self._t1, self._t2
        once, frequent = t1.line, t2.line
        renew_once, renew_frequent = once.move_to_end, frequent.move_to_end
        for key in reversed(order_request_keys(key_groups, req_context)):
            if key in reused_keys:
                try:
                    renew_frequent(key)
                except KeyError:
                    if (chunk := t1.pop(key)) is not None:
                        frequent[key] = chunk
                    else:
                        t2.renew_parked(key)
            elif key in insertion_only_keys:
                # Stored and no more: recent, but not frequent.
                try:
                    renew_once(key)
                except KeyError:
                    if key in t1:
                        t1.renew(key)
                    elif key in t2:
                        t2.renew(key)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        # REPLACE, n times over: T1 gives while it is not below its target, then T2; the other
        # serves when the first has no candidate left.
        t1, t2 = self._t1, self._t2
        surplus = len(t1) - int(self._target) + 1
        first = t1.sweep(n if n <= surplus else max(0, surplus), protected)
        if len(first.victims) == n:
            self._become_ghosts(first.victims, self._b1)
            return first.victims
        second = t2.sweep(n - len(first.victims), protected)
        missing = n - len(first.victims) - len(second.victims)
        last = t1.sweep(0 if first.exhausted else missing, protected, first)
        if len(last.victims) < missing:
            t1.restore(first)
            t1.restore(last)
            t2.restore(second)
            return None
        self._become_ghosts(first.victims, self._b1)
        self._become_ghosts(second.victims, self._b2)
        self._become_ghosts(last.victims, self._b1)
        return first.victims + second.victims + last.victims

    @override
    def mark_all_evictable(self, keys: Sequence[OffloadKey]) -> None:
        if self._t1.parked or self._t2.parked:
            super().mark_all_evictable(keys)

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self._t1.release(key)
        self._t2.release(key)

    def check(self) -> None:
        """Raise InvariantError if a key is in two lists, or ghosts or target exceed capacity."""
        places: list[set[OffloadKey]] = [
            {*self._t1.line, *self._t1.parked},
            {*self._t2.line, *self._t2.parked},
            set(self._b1),
            set(self._b2),
        ]
        if len(set[OffloadKey]().union(*places)) < sum(map(len, places)):
            raise InvariantError(f"ARC: a key in two of T1, T2, B1, B2: {places}")
        ghosts = max(len(self._b1), len(self._b2))
        if ghosts > self.cache_capacity or not 0 <= self._target <= self.cache_capacity:
            raise InvariantError(
                f"ARC: {len(self._b1)} and {len(self._b2)} ghosts, target {self._target}, "
                f"capacity {self.cache_capacity}"
            )
        for part in (self._t1, self._t2, self._b1, self._b2):
            part.check()

    def _become_ghosts(self, victims: Victims, ghosts: GhostList) -> None:
        ghosts.extend([key for key, _ in victims], self.cache_capacity)

    def _adapt(self, key: OffloadKey) -> None:
        """A miss on a ghost shifts the target (ARC-2), and makes the ghost its list's latest."""
        b1, b2 = self._b1, self._b2
        if key in b1.keys:
            # Case II: p grows by |B2|/|B1|, at least 1.
            step = max(1.0, len(b2) / len(b1))
            self._target = min(self._target + step, float(self.cache_capacity))
            b1.renew(key)
        elif key in b2.keys:
            # Case III: p shrinks by |B1|/|B2|, at least 1.
            step = max(1.0, len(b1) / len(b2))
            self._target = max(self._target - step, 0.0)
            b2.renew(key)
