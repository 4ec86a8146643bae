"""A module that can be imported where vLLM cannot, or where it has changed."""

from shelf import Shelf

try:
    from vllm.v1.kv_offload.cpu.policies.base import BlockStatus, CachePolicy
except ImportError:
    BlockStatus = object

    class CachePolicy:
        """Stands for vLLM's where there is none."""


class FallbackLRU(CachePolicy):
    """Least recently touched."""

    def __init__(self, cache_capacity: int) -> None:
        self.shelf = Shelf()

    def get(self, key):
        return self.shelf.held.get(key)

    def insert(self, key, block: BlockStatus):
        self.shelf.held[key] = block

    def remove(self, key):
        del self.shelf.held[key]

    def touch(self, keys, req_context):
        self.shelf.renew(keys)

    def evict(self, n, protected):
        idle = self.shelf.idle(protected)
        return None if len(idle) < n else self.shelf.take(idle[:n])

    def clear(self):
        self.shelf.held.clear()
