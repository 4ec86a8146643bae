"""First in, first out, in an array without holes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims


class EagerCompaction(CachePolicy):
    """Two arrays in order of arrival, and a table of places in them.

    Whatever leaves makes a hole, and all behind it move up at once: dear to change, and cheap to
    read. What a finished request reused arrives anew.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._keys: list[OffloadKey] = []
        self._chunks: list[ChunkStatus] = []
        self._place: dict[OffloadKey, int] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        place = self._place.get(key)
        return None if place is None else self._chunks[place]

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._place[key] = len(self._keys)
        self._keys.append(key)
        self._chunks.append(chunk)

    @override
    def remove(self, key: OffloadKey) -> None:
        if key in self._place:
            self._compact({key})

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        return None

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        # A later group's tail is the oldest, the first group's head the newest.
        keys = dict.fromkeys(key for group in reversed(key_groups) for key in reversed(group))
        again = [key for key in keys if key in reused_keys and key in self._place]
        chunks = [self._chunks[self._place[key]] for key in again]
        self._compact(set(again))
        for key, chunk in zip(again, chunks, strict=True):
            self.insert(key, chunk, req_context)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims: Victims = []
        for key, chunk in zip(self._keys, self._chunks, strict=True):
            if len(victims) == n:
                break
            if chunk.ref_cnt == 0 and key not in protected:
                victims.append((key, chunk))
        if len(victims) < n:
            return None
        self._compact({key for key, _ in victims})
        return victims

    @override
    def clear(self) -> None:
        self._keys.clear()
        self._chunks.clear()
        self._place.clear()

    def _compact(self, leaving: Set[OffloadKey]) -> None:
        """Take some out, and move up what stands behind them."""
        self._chunks = [
            chunk for key, chunk in zip(self._keys, self._chunks, strict=True) if key not in leaving
        ]
        self._keys = [key for key in self._keys if key not in leaving]
        self._place = {key: place for place, key in enumerate(self._keys)}
