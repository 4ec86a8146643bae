"""LRU of 0.19 to 0.23: one list of all blocks, the least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Set
from itertools import islice

from typing_extensions import override

from kvoffload.keys import OffloadKey
from kvoffload.vllm.standins.contexts import Positioned
from kvoffload.vllm.standins.facets import Shelf, Victims
from kvoffload.vllm.standins.status import SlotStatus


class ListedLRU(Shelf):
    """`blocks` is the list; pinned blocks have their place in it too, and are passed over."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.blocks: OrderedDict[OffloadKey, SlotStatus] = OrderedDict()

    @override
    def _standin_get(self, key: OffloadKey) -> SlotStatus | None:
        return self.blocks.get(key)

    @override
    def _standin_insert(
        self, key: OffloadKey, chunk: SlotStatus, req_context: Positioned | None
    ) -> None:
        self.blocks[key] = chunk

    @override
    def _standin_remove(self, key: OffloadKey) -> None:
        del self.blocks[key]

    @override
    def _standin_touch(self, keys: Iterable[OffloadKey]) -> None:
        for key in reversed(list(keys)):
            if key in self.blocks:
                self.blocks.move_to_end(key)

    @override
    def _standin_evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        idle = (
            (key, block)
            for key, block in self.blocks.items()
            if block.ref_cnt == 0 and key not in protected
        )
        victims = list(islice(idle, n))
        if len(victims) < n:
            return None
        for key, _ in victims:
            del self.blocks[key]
        return victims

    @override
    def _standin_clear(self) -> None:
        self.blocks.clear()
