"""A policy that imports nothing of vLLM's at all."""

from shelf import Shelf


class Duck:
    """Least recently touched."""

    def __init__(self, cache_capacity):
        self.shelf = Shelf()

    def get(self, key):
        return self.shelf.held.get(key)

    def insert(self, key, block):
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
