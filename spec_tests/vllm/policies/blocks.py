"""Variant 2: OffloadKey and BlockStatus; `touch` gets keys alone. As of 0.24 blocks are marked."""

from collections.abc import Iterable

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import OffloadKey
from vllm.v1.kv_offload.cpu.policies.base import BlockStatus, CachePolicy

logger = init_logger(__name__)


class BlockLFU(CachePolicy):
    """Least often touched; which blocks may go it knows from marks."""

    def __init__(self, cache_capacity: int):
        self.blocks: dict[OffloadKey, BlockStatus] = {}
        self.uses: dict[OffloadKey, int] = {}
        self.evictable: dict[OffloadKey, None] = {}
        logger.debug("a cache of %d blocks", cache_capacity)

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.blocks.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus) -> None:
        assert block.block_id >= 0
        self.blocks[key] = block
        self.uses[key] = 0

    def remove(self, key: OffloadKey) -> None:
        del self.blocks[key]
        del self.uses[key]
        self.evictable.pop(key, None)

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            if key in self.uses:
                self.uses[key] += 1

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, BlockStatus]] | None:
        candidates = [key for key in self.evictable if key not in protected]
        if len(candidates) < n:
            return None
        candidates.sort(key=self.uses.__getitem__)
        victims = [(key, self.blocks[key]) for key in candidates[:n]]
        for key, _ in victims:
            self.remove(key)
        return victims

    def clear(self) -> None:
        self.blocks.clear()
        self.uses.clear()
        self.evictable.clear()

    def mark_evictable(self, key: OffloadKey) -> None:
        self.evictable[key] = None

    def mark_non_evictable(self, key: OffloadKey) -> None:
        del self.evictable[key]


class BlockLFUThatSkipsMarks(BlockLFU):
    """Does not notice when a block is read, and most often touched is what goes first."""

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            if key in self.uses:
                self.uses[key] -= 1

    def mark_non_evictable(self, key: OffloadKey) -> None:
        pass


class BlockLFUWithBadTouch(BlockLFU):
    """Counts what is not there, and never stops."""

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            self.uses[key] = self.uses.get(key, 0) + 1
