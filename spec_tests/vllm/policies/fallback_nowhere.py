"""A policy with vLLM's base in no version, and nobody is told."""

from compat import CachePolicy, OffloadKey
from shelf import Shelf


class NowhereFIFO(CachePolicy):
    """First in, first out."""

    def __init__(self, cache_capacity: int) -> None:
        self.shelf = Shelf()

    def get(self, key: OffloadKey):
        return self.shelf.held.get(key)

    def insert(self, key: OffloadKey, chunk, req_context):
        self.shelf.held[key] = chunk

    def remove(self, key: OffloadKey):
        del self.shelf.held[key]

    def touch(self, keys, req_context):
        pass

    def on_store_miss(self, keys, req_context):
        pass

    def on_request_access(self, keys, req_context):
        pass

    def on_request_finished(self, key_groups, insertion_only_keys, reused_keys, req_context):
        pass

    def mark_evictable(self, key: OffloadKey):
        pass

    def mark_non_evictable(self, key: OffloadKey):
        pass

    def evict(self, n, protected):
        idle = self.shelf.idle(protected)
        return None if len(idle) < n else self.shelf.take(idle[:n])

    def clear(self):
        self.shelf.held.clear()
