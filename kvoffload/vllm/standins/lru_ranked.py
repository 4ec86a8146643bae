"""LRU since 0.31: every chunk has a rank, idle ones stand in a heap by it.

A rank may change while its entry is in the heap; the old entry stays and is passed over. Methods
with one underscore have vLLM's names: subclasses call them.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Iterable, Sequence, Set
from typing import Generic, NamedTuple, TypeVar

from typing_extensions import override

from kvoffload.keys import OffloadKey
from kvoffload.vllm.standins.contexts import Positioned, order_request_keys
from kvoffload.vllm.standins.facets import Marks, Shelf, TellsAccesses, TellsRequests, Victims
from kvoffload.vllm.standins.status import SlotStatus

Rank = TypeVar("Rank", int, tuple[int, int])

FEW = 64
"""Up to so many entries a heap is mended rather than built anew."""


class RankedLRU(Shelf, Marks, TellsRequests, Generic[Rank]):
    """Uses are numbered; the lowest rank leaves first, ties go by key."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.chunks: dict[OffloadKey, SlotStatus] = {}
        self._ranks: dict[OffloadKey, Rank] = {}
        self._evictable: set[OffloadKey] = set()
        self._heap: list[tuple[Rank, OffloadKey]] = []
        self._next_rank = 0

    @abstractmethod
    def _standin_rank(self) -> Rank:
        """The rank of a use by nobody in particular; later ones are higher."""

    def _assign_new_rank(self, key: OffloadKey) -> bool:
        """Rank a key highest, if it is there; whether it has to be put into the heap again."""
        resident = key in self.chunks
        if resident:
            self._ranks[key] = self._standin_rank()
        return resident and key in self._evictable

    def _push_evictable(self, key: OffloadKey) -> None:
        heapq.heappush(self._heap, (self._ranks[key], key))

    def _is_current(self, entry: tuple[Rank, OffloadKey]) -> bool:
        """Whether an entry of the heap tells the rank of an idle chunk."""
        return entry[1] in self._evictable and self._ranks.get(entry[1]) == entry[0]

    def _maybe_compact_heap(self) -> None:
        """Drop old entries when they are half of the heap."""
        if len(self._heap) >= max(FEW, 2 * len(self._evictable)):
            self._standin_rebuild()

    def _update_recency(self, keys: Iterable[OffloadKey]) -> None:
        """Count a use of each of the keys, one after the other."""
        self._standin_reheap([key for key in keys if self._assign_new_rank(key)])

    def _standin_reheap(self, moved: Sequence[OffloadKey]) -> None:
        """Idle chunks have new ranks."""
        if not moved:
            return
        if len(moved) >= max(FEW, len(self._evictable) // 4):
            self._standin_rebuild()
            return
        for key in moved:
            self._push_evictable(key)
        self._maybe_compact_heap()

    def _standin_rebuild(self) -> None:
        self._heap = [(self._ranks[key], key) for key in self._evictable]
        heapq.heapify(self._heap)

    @override
    def _standin_get(self, key: OffloadKey) -> SlotStatus | None:
        return self.chunks.get(key)

    @override
    def _standin_insert(
        self, key: OffloadKey, chunk: SlotStatus, req_context: Positioned | None
    ) -> None:
        self.chunks[key] = chunk
        self._ranks[key] = self._standin_first_rank(key, req_context)
        if chunk.ref_cnt == 0:
            self._evictable.add(key)
            self._push_evictable(key)

    def _standin_first_rank(self, key: OffloadKey, req_context: Positioned | None) -> Rank:
        """The rank of a key that is inserted."""
        return self._standin_rank()

    @override
    def _standin_remove(self, key: OffloadKey) -> None:
        del self.chunks[key]
        self._ranks.pop(key, None)
        self._evictable.discard(key)

    @override
    def _standin_touch(self, keys: Iterable[OffloadKey]) -> None:
        self._update_recency(reversed(list(keys)))

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: Positioned,
    ) -> None:
        self._update_recency(reversed(order_request_keys(key_groups, req_context)))

    @override
    def _standin_evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        # A chunk that was pinned in between can have two entries, which then are equal.
        chosen: dict[OffloadKey, tuple[Rank, OffloadKey]] = {}
        spared: list[tuple[Rank, OffloadKey]] = []
        while self._heap and len(chosen) < n:
            entry = heapq.heappop(self._heap)
            key = entry[1]
            if not self._is_current(entry):
                continue
            if key in protected:
                spared.append(entry)
            elif self.chunks[key].ref_cnt:
                raise AssertionError("a chunk that was marked evictable is in use")
            else:
                chosen[key] = entry
        complete = len(chosen) >= n
        if not complete:
            spared.extend(chosen.values())
        for entry in spared:
            heapq.heappush(self._heap, entry)
        if not complete:
            return None
        self._evictable.difference_update(chosen)
        victims: Victims = []
        for key in chosen:
            del self._ranks[key]
            victims.append((key, self.chunks.pop(key)))
        if victims:
            self._maybe_compact_heap()
        return victims

    @override
    def _standin_clear(self) -> None:
        self.chunks.clear()
        self._ranks.clear()
        self._evictable.clear()
        self._heap.clear()
        self._next_rank = 0

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self._evictable.add(key)
        self._push_evictable(key)
        self._maybe_compact_heap()

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._evictable.remove(key)


class NumberRankedLRU(RankedLRU[int]):
    """0.31 and 0.32: the rank is the number of the last use."""

    @override
    def _standin_rank(self) -> int:
        self._next_rank += 1
        return self._next_rank


class RequestRank(NamedTuple):
    """What a context keeps of the LRU that it was used with: one number for all the request does,
    until the LRU is cleared."""

    owner: RequestRankedLRU
    generation: int
    rank: int


class RequestRankedLRU(RankedLRU[tuple[int, int]], TellsAccesses):
    """Since 0.33: the number that a running request has, and minus the position, so that tails go
    before heads."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._cache_generation = 0

    @override
    def _standin_rank(self) -> tuple[int, int]:
        self._next_rank += 1
        return self._next_rank, 0

    def _get_request_rank(self, req_context: Positioned) -> int:
        """The number of a request, given at its first use."""
        kept = req_context.get_state(RequestRank)
        if kept is not None and kept.owner is self and kept.generation == self._cache_generation:
            return kept.rank
        self._next_rank += 1
        req_context.set_state(RequestRank(self, self._cache_generation, self._next_rank))
        return self._next_rank

    def _update_heap(self, updated_evictable: Sequence[OffloadKey]) -> None:
        """The name that 0.33 gave this."""
        self._standin_reheap(updated_evictable)

    @override
    def _standin_first_rank(
        self, key: OffloadKey, req_context: Positioned | None
    ) -> tuple[int, int]:
        end = None if req_context is None else req_context.get_offload_key_position(key)
        if end is None or req_context is None:
            return self._standin_rank()
        return self._get_request_rank(req_context), -end

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: Positioned) -> None:
        number = self._get_request_rank(req_context)
        moved: list[OffloadKey] = []
        for key in keys:
            end = req_context.get_offload_key_position(key)
            if end is not None and key in self.chunks and self._ranks[key] < (number, -end):
                self._ranks[key] = (number, -end)
                if key in self._evictable:
                    moved.append(key)
        self._standin_reheap(moved)

    @override
    def _standin_clear(self) -> None:
        super()._standin_clear()
        self._cache_generation += 1
