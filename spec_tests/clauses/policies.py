"""Policies of the clause tests: a plain one, one that writes down its calls, and their host."""

from collections.abc import Iterable, Sequence, Set
from typing import ClassVar, NamedTuple

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, CPUOffloadingManager, OffloadKey, ReqContext
from spec_tests.clauses.helpers import request

Victims = list[tuple[OffloadKey, ChunkStatus]]


class FIFOPolicy(CachePolicy):
    """First in, first out; overrides nothing that is optional."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.chunks: dict[OffloadKey, ChunkStatus] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.chunks.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.chunks[key] = chunk

    @override
    def remove(self, key: OffloadKey) -> None:
        self.chunks.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        return None

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = [
            (key, chunk)
            for key, chunk in self.chunks.items()
            if chunk.ref_cnt == 0 and key not in protected
        ][:n]
        if len(victims) < n:
            return None
        for key, _ in victims:
            del self.chunks[key]
        return victims

    @override
    def clear(self) -> None:
        self.chunks.clear()


class Call(NamedTuple):
    hook: str
    keys: tuple[OffloadKey, ...] = ()


class Finish(NamedTuple):
    groups: list[tuple[OffloadKey, ...]]
    inserted: set[OffloadKey]
    reused: set[OffloadKey]
    req_id: str


class RecordingPolicy(FIFOPolicy):
    """Writes down every call, and for a mark what `ref_cnt` was then."""

    made: ClassVar[list["RecordingPolicy"]] = []

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.calls: list[Call] = []
        self.evictions: list[tuple[int, frozenset[OffloadKey]]] = []
        self.finishes: list[Finish] = []
        self.marked_at: list[tuple[OffloadKey, int]] = []
        self.inserted_at: list[tuple[int, int]] = []
        self.made.append(self)

    def hooks(self) -> list[str]:
        return [call.hook for call in self.calls]

    def keys_of(self, hook: str) -> list[tuple[OffloadKey, ...]]:
        return [call.keys for call in self.calls if call.hook == hook]

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.calls.append(Call("insert", (key,)))
        self.inserted_at.append((chunk.chunk_id, chunk.ref_cnt))
        super().insert(key, chunk, req_context)

    @override
    def remove(self, key: OffloadKey) -> None:
        self.calls.append(Call("remove", (key,)))
        super().remove(key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.calls.append(Call("touch", tuple(keys)))

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        self.calls.append(Call("evict"))
        self.evictions.append((n, frozenset(protected)))
        return super().evict(n, protected)

    @override
    def clear(self) -> None:
        self.calls.append(Call("clear"))
        super().clear()

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.calls.append(Call("on_store_miss", tuple(keys)))

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.calls.append(Call("on_request_access", tuple(keys)))

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        self.calls.append(Call("on_request_finished"))
        self.finishes.append(
            Finish(
                list(map(tuple, key_groups)),
                set(insertion_only_keys),
                set(reused_keys),
                req_context.req_id,
            )
        )

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self.calls.append(Call("mark_evictable", (key,)))
        self.marked_at.append((key, self.chunks[key].ref_cnt))

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.calls.append(Call("mark_non_evictable", (key,)))


def recorded(
    num_chunks: int,
    *,
    store_threshold: int = 1,
    policy_cls: type[RecordingPolicy] = RecordingPolicy,
) -> tuple[CPUOffloadingManager, RecordingPolicy]:
    """A manager with events, and its policy, which writes down its calls."""
    manager = CPUOffloadingManager(
        num_chunks, policy_cls, enable_events=True, store_threshold=store_threshold
    )
    return manager, RecordingPolicy.made.pop()


class PolicyHost:
    """Calls a policy as a manager does: sets `ref_cnt` first, then tells."""

    def __init__(self, policy: CachePolicy) -> None:
        self.policy = policy
        self.chunks: dict[OffloadKey, ChunkStatus] = {}
        self.context = request("host")

    def pending(self, keys: Iterable[OffloadKey], context: ReqContext | None = None) -> None:
        for key in keys:
            self.chunks[key] = chunk = ChunkStatus(len(self.chunks))
            self.policy.insert(key, chunk, context or self.context)

    def store(self, keys: Iterable[OffloadKey], context: ReqContext | None = None) -> None:
        keys = list(keys)
        self.pending(keys, context)
        self.complete(keys)

    def complete(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            self.chunks[key].ref_cnt = 0
            self.policy.mark_evictable(key)

    def fail(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            del self.chunks[key]
            self.policy.remove(key)

    def pin(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            chunk = self.chunks[key]
            if chunk.ref_cnt == 0:
                self.policy.mark_non_evictable(key)
            chunk.ref_cnt += 1

    def unpin(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            chunk = self.chunks[key]
            chunk.ref_cnt -= 1
            if chunk.ref_cnt == 0:
                self.policy.mark_evictable(key)

    def touch(self, *keys: OffloadKey) -> None:
        self.policy.touch(keys, self.context)

    def access(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        self.policy.on_request_access(keys, context)

    def miss(self, *keys: OffloadKey) -> None:
        self.policy.on_store_miss(keys, self.context)

    def finish(
        self,
        groups: Sequence[Sequence[OffloadKey]],
        context: ReqContext | None = None,
        *,
        inserted: Iterable[OffloadKey] = (),
        reused: Iterable[OffloadKey] = (),
    ) -> None:
        self.policy.on_request_finished(groups, set(inserted), set(reused), context or self.context)

    def evict(self, n: int, protected: Iterable[OffloadKey] = ()) -> list[OffloadKey] | None:
        """The victims' keys; each must come with the chunk it was inserted with."""
        victims = self.policy.evict(n, set(protected))
        if victims is None:
            return None
        for key, chunk in victims:
            assert self.chunks.pop(key) is chunk
        return [key for key, _ in victims]

    def idle(self) -> list[OffloadKey]:
        return [key for key, chunk in self.chunks.items() if chunk.ref_cnt == 0]

    def evict_all(self) -> list[OffloadKey]:
        """All idle keys, one by one, in the order in which they go."""
        order: list[OffloadKey] = []
        for _ in self.idle():
            victims = self.evict(1)
            assert victims is not None
            order += victims
        return order

    def clear(self) -> None:
        self.policy.clear()
        self.chunks.clear()
