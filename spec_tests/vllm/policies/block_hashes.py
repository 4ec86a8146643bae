"""Variant 1: keys are block hashes, `touch` gets nothing else, and nothing is cleared."""

from collections.abc import Iterable

from shelf import Shelf
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.kv_offload.cpu.policies.abstract import BlockStatus, CachePolicy


class HashLRU(CachePolicy):
    """Least recently touched."""

    def __init__(self, cache_capacity: int):
        self.shelf = Shelf()

    def get(self, block_hash: BlockHash) -> BlockStatus | None:
        return self.shelf.held.get(block_hash)

    def insert(self, block_hash: BlockHash, block: BlockStatus) -> None:
        self.shelf.held[block_hash] = block

    def remove(self, block_hash: BlockHash) -> None:
        del self.shelf.held[block_hash]

    def touch(self, block_hashes: Iterable[BlockHash]) -> None:
        self.shelf.renew(block_hashes)

    def evict(
        self, n: int, protected: set[BlockHash]
    ) -> list[tuple[BlockHash, BlockStatus]] | None:
        idle = self.shelf.idle(protected)
        return None if len(idle) < n else self.shelf.take(idle[:n])


class HashLRUThatForgetsPins(HashLRU):
    """Takes a block that is being read: most recently used first."""

    def evict(self, n, protected):
        ready = [
            key
            for key, block in reversed(self.shelf.held.items())
            if block.ref_cnt >= 0 and key not in protected
        ]
        return None if len(ready) < n else self.shelf.take(ready[:n])
