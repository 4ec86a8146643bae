"""A wrapper around the LRU of vLLM 0.33, which looks inside it."""

from vllm.v1.kv_offload.cpu.policies.base import CachePolicy
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy


class Watchful(CachePolicy):
    """Refuses by itself where it can see that the policy inside would."""

    def __init__(self, cache_capacity: int, inner: CachePolicy | None = None) -> None:
        super().__init__(cache_capacity)
        self.inner = LRUCachePolicy(cache_capacity) if inner is None else inner

    @property
    def idle(self) -> set[bytes]:
        """What may go, as the policy inside has it."""
        return {key for key in self.inner._evictable if self.inner.chunks[key].ref_cnt == 0}

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
        if len(self.idle - protected) < n:
            return None
        return self.inner.evict(n, protected)

    def clear(self):
        self.inner.clear()

    def mark_evictable(self, key):
        self.inner.mark_evictable(key)

    def mark_non_evictable(self, key):
        self.inner.mark_non_evictable(key)


class WatchfulThatMiscounts(Watchful):
    """Keeps one chunk back, whatever is asked for."""

    def evict(self, n, protected):
        if len(self.idle - protected) <= n:
            return None
        return self.inner.evict(n, protected)
