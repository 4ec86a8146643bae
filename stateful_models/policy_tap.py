"""The policy tap: a cache policy that writes down what its manager tells it.

What a manager owes its policy (STORE-6, STORE-8, FIN-1, LOAD-5, TOUCH-1, the mark hooks) can be
seen nowhere else. A manager builds its policy itself, from a class; so a tap makes a class that
knows where to write:

    tap = Tap()
    manager = CPUOffloadingManager(100, cache_policy=tap.policy_cls)
    subject = ManagerSubject(manager, tap=tap)

Then every step says what the policy was told during it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence, Set
from typing import ClassVar

from typing_extensions import override

from kvoffload import CachePolicy, CachePolicyFactory, ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.hooks import PolicyHooks
from stateful_models import operations as op


class Tap:
    """Collects the calls that a policy of `policy_cls` gets, until they are drained.

    `inner` decides who is evicted: a class, a registered name, or by default a small LRU that
    believes nothing but `ref_cnt`. A tap is for one manager, and grows until it is drained.
    """

    def __init__(self, inner: type[CachePolicy] | str | None = None) -> None:
        if inner is None:
            inner_cls: type[CachePolicy] = LeastRecentPolicy
        elif isinstance(inner, str):
            inner_cls = CachePolicyFactory.get_cache_policy_cls(inner)
        else:
            inner_cls = inner
        log = self._log = list[op.PolicyOperation]()

        class Tapped(TapPolicy):
            may_refuse: ClassVar[str | None] = getattr(inner_cls, "may_refuse", None)

            def __init__(self, cache_capacity: int) -> None:
                super().__init__(cache_capacity, inner_cls, log)

        Tapped.__name__ = Tapped.__qualname__ = f"Tapped{inner_cls.__name__}"
        self.policy_cls: type[CachePolicy] = Tapped

    def drain(self) -> tuple[op.PolicyOperation, ...]:
        """The calls since last asked, oldest first."""
        log = self._log
        if not log:
            return ()
        told = tuple(log)
        log.clear()
        return told


class TapPolicy(CachePolicy):
    """Writes each call into `log`, then passes it on to a policy of `inner_cls`.

    `get` is not written down: managers look whatever they like up. That a policy is made counts
    as `clear`, since a manager may as well begin a generation with a new one.
    """

    def __init__(
        self, cache_capacity: int, inner_cls: type[CachePolicy], log: list[op.PolicyOperation]
    ) -> None:
        super().__init__(cache_capacity)
        self.inner: CachePolicy = inner_cls(cache_capacity=cache_capacity)
        self._hooks = PolicyHooks(self.inner)
        self._log = log
        log.append(op.Clear())

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.inner.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._log.append(op.Insert(key, chunk.chunk_id, req_context.req_id))
        self._hooks.insert(key, chunk, req_context)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._log.append(op.Remove(key))
        self.inner.remove(key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = tuple(keys)
        self._log.append(op.TouchKeys(req_context.req_id, keys))
        self._hooks.touch(keys, req_context)

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        self._log.append(op.Evict(n, frozenset(protected)))
        return self.inner.evict(n, protected)

    @override
    def clear(self) -> None:
        self._log.append(op.Clear())
        self.inner.clear()

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = tuple(keys)
        self._log.append(op.StoreMiss(req_context.req_id, keys))
        self._hooks.on_store_miss(list(keys), req_context)

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = tuple(keys)
        self._log.append(op.RequestAccess(req_context.req_id, keys))
        if self._hooks.on_request_access is not None:
            self._hooks.on_request_access(list(keys), req_context)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        groups = tuple(map(tuple[OffloadKey, ...], key_groups))
        self._log.append(
            op.RequestFinished(
                req_context.req_id, groups, frozenset(insertion_only_keys), frozenset(reused_keys)
            )
        )
        self._hooks.on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self._log.append(op.MarkEvictable(key))
        if self._hooks.mark_all_evictable is not None:
            self._hooks.mark_all_evictable([key])

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._log.append(op.MarkNonEvictable(key))
        if self._hooks.mark_all_non_evictable is not None:
            self._hooks.mark_all_non_evictable([key])

    def check(self) -> None:
        """Have the inner policy check itself, if it can."""
        check = getattr(self.inner, "check", None)
        if check is not None:
            check()


class LeastRecentPolicy(CachePolicy):
    """The least recently inserted or touched goes first; who may go is read off `ref_cnt`."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._chunks: OrderedDict[OffloadKey, ChunkStatus] = OrderedDict()

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._chunks.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._chunks[key] = chunk

    @override
    def remove(self, key: OffloadKey) -> None:
        self._chunks.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            if key in self._chunks:
                self._chunks.move_to_end(key)

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        victims: list[tuple[OffloadKey, ChunkStatus]] = []
        for key, chunk in self._chunks.items():
            if len(victims) == n:
                break
            if chunk.ref_cnt == 0 and key not in protected:
                victims.append((key, chunk))
        if len(victims) < n:
            return None
        for key, _ in victims:
            del self._chunks[key]
        return victims

    @override
    def clear(self) -> None:
        self._chunks.clear()
