"""A wrapper around any policy, and its driver, which can build it around one that records."""

from shelf import Shelf
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

from stateful_models.drivers import Driver


class PassingOn(CachePolicy):
    """Passes everything on, and counts what goes."""

    def __init__(self, cache_capacity: int, inner: CachePolicy | None = None) -> None:
        super().__init__(cache_capacity)
        self.inner = LRUCachePolicy(cache_capacity) if inner is None else inner
        self.gone = 0

    def get(self, key):
        return self.inner.get(key)

    def insert(self, key, chunk, req_context):
        self.inner.insert(key, chunk, req_context)

    def remove(self, key):
        self.inner.remove(key)

    def touch(self, keys, req_context):
        self.inner.touch(keys, req_context)

    def on_store_miss(self, keys, req_context):
        self.inner.on_store_miss(keys, req_context)

    def on_request_access(self, keys, req_context):
        self.inner.on_request_access(keys, req_context)

    def on_request_finished(self, key_groups, insertion_only_keys, reused_keys, req_context):
        self.inner.on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)

    def evict(self, n, protected):
        victims = self.inner.evict(n, protected)
        self.gone += len(victims or ())
        return victims

    def clear(self):
        self.inner.clear()

    def mark_evictable(self, key):
        self.inner.mark_evictable(key)

    def mark_non_evictable(self, key):
        self.inner.mark_non_evictable(key)


class PassingOnInPart(PassingOn):
    """Keeps to itself what a request has accessed."""

    def on_request_access(self, keys, req_context):
        Shelf().renew(keys)


class AroundAnother(Driver[CachePolicy]):
    """Builds the wrapper around what is given."""

    def build_around(self, inner, capacity):
        return self.target(cache_capacity=capacity, inner=inner)
