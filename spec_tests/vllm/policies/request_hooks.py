"""Variant 4: ChunkStatus, and hooks that tell of requests."""

from collections.abc import Iterable, Sequence

from shelf import Shelf
from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus


class FinishedFIFO(CachePolicy):
    """In the order in which requests end, each with its tail first."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.shelf = Shelf()
        self.misses = 0

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.shelf.held.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        assert chunk.chunk_id < self.cache_capacity
        self.shelf.held[key] = chunk

    def remove(self, key: OffloadKey) -> None:
        del self.shelf.held[key]

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        pass

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.misses += len(list(keys))

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        for group in key_groups:
            self.shelf.renew(group)

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        idle = self.shelf.idle(protected)
        return None if len(idle) < n else self.shelf.take(idle[:n])

    def clear(self) -> None:
        self.shelf.held.clear()
        self.misses = 0


class FinishedFIFOThatExpectsKeys(FinishedFIFO):
    """Takes it for granted that what a request has used is still there when it ends."""

    def on_request_finished(self, key_groups, insertion_only_keys, reused_keys, req_context):
        for group in key_groups:
            for key in group:
                self.shelf.held[key] = self.shelf.held.pop(key)


class FinishedFIFOThatGivesFewer(FinishedFIFO):
    """Gives what it has."""

    def evict(self, n, protected):
        return self.shelf.take(self.shelf.idle(protected)[:n])
