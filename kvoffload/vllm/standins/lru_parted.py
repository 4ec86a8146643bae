"""LRU of 0.24 to 0.30: idle blocks have a list of their own, and come back to its end."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Set
from itertools import islice

from typing_extensions import override

from kvoffload.keys import OffloadKey
from kvoffload.vllm.standins.contexts import Positioned
from kvoffload.vllm.standins.facets import Marks, Shelf, Victims
from kvoffload.vllm.standins.status import SlotStatus


class PartedLRU(Shelf, Marks):
    """A use of a block that is not idle is forgotten: it counts as used when its transfer ends."""

    @property
    @abstractmethod
    def _standin_resident(self) -> dict[OffloadKey, SlotStatus]:
        """All blocks, by the name of the version."""

    @property
    @abstractmethod
    def _standin_idle(self) -> OrderedDict[OffloadKey, None]:
        """The idle ones, the least recently used first."""

    @override
    def _standin_get(self, key: OffloadKey) -> SlotStatus | None:
        return self._standin_resident.get(key)

    @override
    def _standin_insert(
        self, key: OffloadKey, chunk: SlotStatus, req_context: Positioned | None
    ) -> None:
        self._standin_resident[key] = chunk
        if chunk.ref_cnt == 0:
            self._standin_idle[key] = None

    @override
    def _standin_remove(self, key: OffloadKey) -> None:
        del self._standin_resident[key]
        self._standin_idle.pop(key, None)

    @override
    def _standin_touch(self, keys: Iterable[OffloadKey]) -> None:
        idle = self._standin_idle
        for key in reversed(list(keys)):
            if key in idle:
                idle.move_to_end(key)

    @override
    def _standin_evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        resident, idle = self._standin_resident, self._standin_idle
        chosen = list(islice((key for key in idle if key not in protected), n))
        if any(resident[key].ref_cnt for key in chosen):
            raise AssertionError("a block that was marked evictable is in use")
        if len(chosen) < n:
            return None
        for key in chosen:
            del idle[key]
        return [(key, resident.pop(key)) for key in chosen]

    @override
    def _standin_clear(self) -> None:
        self._standin_resident.clear()
        self._standin_idle.clear()

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self._standin_idle[key] = None

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        del self._standin_idle[key]


class PartedBlocks(PartedLRU):
    """0.24 to 0.29."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.evictable_blocks: OrderedDict[OffloadKey, None] = OrderedDict()
        self.blocks: dict[OffloadKey, SlotStatus] = {}

    @property
    @override
    def _standin_resident(self) -> dict[OffloadKey, SlotStatus]:
        return self.blocks

    @property
    @override
    def _standin_idle(self) -> OrderedDict[OffloadKey, None]:
        return self.evictable_blocks


class PartedChunks(PartedLRU):
    """0.30."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.evictable_chunks: OrderedDict[OffloadKey, None] = OrderedDict()
        self.chunks: dict[OffloadKey, SlotStatus] = {}

    @property
    @override
    def _standin_resident(self) -> dict[OffloadKey, SlotStatus]:
        return self.chunks

    @property
    @override
    def _standin_idle(self) -> OrderedDict[OffloadKey, None]:
        return self.evictable_chunks
