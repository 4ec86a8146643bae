"""Policies around another policy, which decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.gallery.legal_policies.victims import Victims


class Forwarding(CachePolicy):
    """Every call goes to `inner` once, as it came; LRU unless another inner policy is given."""

    def __init__(self, cache_capacity: int, inner: CachePolicy | None = None) -> None:
        super().__init__(cache_capacity)
        self.inner: CachePolicy = LRUCachePolicy(cache_capacity) if inner is None else inner

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.inner.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.inner.insert(key, chunk, req_context)

    @override
    def remove(self, key: OffloadKey) -> None:
        self.inner.remove(key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.inner.touch(keys, req_context)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.inner.evict(n, protected)

    @override
    def clear(self) -> None:
        self.inner.clear()

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.inner.on_store_miss(keys, req_context)

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.inner.on_request_access(keys, req_context)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        self.inner.on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self.inner.mark_evictable(key)

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.inner.mark_non_evictable(key)


class Metered(Forwarding):
    """Counts what goes by, and changes none of it."""

    def __init__(self, cache_capacity: int, inner: CachePolicy | None = None) -> None:
        super().__init__(cache_capacity, inner)
        self.evicted: int = 0
        self.refused: int = 0

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = super().evict(n, protected)
        if victims is None:
            self.refused += 1
        else:
            self.evicted += len(victims)
        return victims

    @override
    def clear(self) -> None:
        super().clear()
        self.evicted = self.refused = 0
