"""Policies in every shape that a host serves, each logging how it is called.

They grab what they are given: lists and sets are emptied after a call, as a policy may do with
what it was handed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any, ClassVar

from attrs import frozen

from kvoffload import CachePolicy, OffloadKey, ReqContext
from kvoffload.policies.base import ChunkStatus
from spec_tests.engines.fifo import REFUSES_EVERY, Call, FIFOOrder, Victims


def empty(*given: object) -> None:
    """Empty lists and sets, which are the policy's own from now on."""
    for one in given:
        if isinstance(one, list | set):
            taken: list[Any] | set[Any] = one
            taken.clear()


class Plain(FIFOOrder, CachePolicy):
    """The six methods, and the defaults of the interface for everything else."""

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.look(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.log.append(("insert", req_context.req_id, key))
        self.put(key, chunk)

    def remove(self, key: OffloadKey) -> None:
        self.log.append(("remove", key))
        del self.chunks[key]

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.log.append(("touch", req_context.req_id, tuple(keys)))
        empty(keys)

    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        self.log.append(("evict", n, frozenset(protected)))
        victims = self.oldest(n, protected)
        empty(protected)
        return victims

    def clear(self) -> None:
        self.log.append(("clear",))
        self.chunks.clear()


class Native(Plain):
    """Every hook, one key at a time."""

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.log.append(("on_store_miss", req_context.req_id, tuple(keys)))
        empty(keys)

    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.log.append(("on_request_access", req_context.req_id, tuple(keys)))
        empty(keys)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        sets = (frozenset(insertion_only_keys), frozenset(reused_keys))
        groups = tuple(map(tuple, key_groups))
        self.log.append(("on_request_finished", req_context.req_id, groups, *sets))
        empty(key_groups, *key_groups)

    def mark_evictable(self, key: OffloadKey) -> None:
        self.log.append(("mark_evictable", key))

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.log.append(("mark_non_evictable", key))


class Bulk(Native):
    """Takes insertions and marks by the batch."""

    def insert_all(
        self,
        keys: Sequence[OffloadKey],
        chunks: Sequence[ChunkStatus],
        req_context: ReqContext,
    ) -> None:
        self.log.append(("insert_all", req_context.req_id, tuple(keys)))
        for key, chunk in zip(keys, chunks, strict=True):
            self.put(key, chunk)
        empty(keys, chunks)

    def mark_all_evictable(self, keys: Sequence[OffloadKey]) -> None:
        self.log.append(("mark_all_evictable", tuple(keys)))
        empty(keys)


class SingleAgain(Bulk):
    """Overrides the single forms of a class that has batches: the batches are out of date."""

    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)

    def mark_evictable(self, key: OffloadKey) -> None:
        super().mark_evictable(key)


class OwnHooks(Bulk):
    """Has single forms of its own on the object: no class can have known them."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        for name in ("insert", "mark_evictable"):
            setattr(self, name, getattr(super(), name))
        told = super().on_store_miss

        def on_store_miss(keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
            told(keys, req_context)

        # A plain function: nothing binds it.
        setattr(self, on_store_miss.__name__, on_store_miss)


class Refusing(Native):
    """Refuses by design now and then, and says so."""

    may_refuse: ClassVar[str | None] = "to see what comes of it"

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.evictions = 0

    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        self.evictions += 1
        if self.evictions % REFUSES_EVERY:
            return super().evict(n, protected)
        self.log.append(("evict", n, frozenset(protected)))
        return None


class Foreign(FIFOOrder):
    """Derives from nothing of ours and has the six methods alone, in their older forms."""

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.look(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        self.log.append(("insert", None, key))
        self.put(key, chunk)

    def remove(self, key: OffloadKey) -> None:
        self.log.append(("remove", key))
        del self.chunks[key]

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        self.log.append(("touch", None, tuple(keys)))

    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        self.log.append(("evict", n, frozenset(protected)))
        return self.oldest(n, protected)

    def clear(self) -> None:
        self.log.append(("clear",))
        self.chunks.clear()


class OneArgument(Plain):
    """Derives from the interface, whose defaults pass `touch` more than this one takes."""

    def touch(self, keys: Iterable[OffloadKey]) -> None:  # type: ignore[override]
        self.log.append(("touch", None, tuple(keys)))


class Slotted:
    """Derives from nothing, and has no attributes but its slots."""

    __slots__ = ("chunks", "log", "order")

    def __init__(self, cache_capacity: int) -> None:
        self.order = Foreign(cache_capacity)
        self.chunks: dict[OffloadKey, ChunkStatus] = self.order.chunks
        self.log: list[Call] = self.order.log

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.order.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        self.order.insert(key, chunk)

    def remove(self, key: OffloadKey) -> None:
        self.order.remove(key)

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        self.order.touch(keys)

    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.order.evict(n, protected)

    def clear(self) -> None:
        self.order.clear()


@frozen
class Shape:
    """A class of policy, and how it differs from one that has every hook, one key at a time.

    `hooks`: has the optional ones. `batches`: takes insertions and marks by the batch. `inserts`
    and `touches`: is told whose request an insertion or a touch is of.
    """

    policy: type[FIFOOrder | Slotted]
    hooks: bool = True
    batches: bool = False
    inserts: bool = True
    touches: bool = True
    refuses: bool = False


SHAPES = (
    Shape(Native),
    Shape(Plain, hooks=False),
    Shape(Foreign, hooks=False, inserts=False, touches=False),
    Shape(Slotted, hooks=False, inserts=False, touches=False),
    Shape(OneArgument, hooks=False, touches=False),
    Shape(Bulk, batches=True),
    Shape(SingleAgain),
    Shape(OwnHooks),
    Shape(Refusing, refuses=True),
)
