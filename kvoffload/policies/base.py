"""The cache policy interface: who goes when room is needed.

A policy orders chunks. Who is resident, pinned or pending is the manager's to decide and to
remember; `docs/writing-a-policy.md` has the calls in the order in which a host makes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, Set
from itertools import chain
from typing import ClassVar

from attrs import define, field

from kvoffload.keys import OffloadKey
from kvoffload.requests import ReqContext


@define(eq=False, weakref_slot=False)
class ChunkStatus:
    """A resident chunk.

    `chunk_id` is its slot. `ref_cnt` is -1 while its store is pending, else the number of loads
    that read it. Only the manager changes either; a policy keeps the object it was given and
    reads `ref_cnt`. Always true in a boolean context.
    """

    chunk_id: int
    ref_cnt: int = field(default=-1)

    @property
    def is_ready(self) -> bool:
        """Whether the chunk may be read."""
        return self.ref_cnt >= 0


class CachePolicy(ABC):
    """Chooses the chunks that leave when room is needed (POL-1 to POL-9).

    Six methods are required; the hooks after them have the defaults that their docstrings say.
    A host passes keys that are not resident to `get`, `touch` and the hooks, hints that a client
    made up, and pins chunks in any order, so none of these may raise, and none but `insert`,
    `remove`, `evict` and `clear` may change who is resident (POL-7).
    """

    may_refuse: ClassVar[str | None] = None
    """Why `evict` may answer None although enough chunks are idle (POL-3); None: it never does."""

    def __init__(self, cache_capacity: int) -> None:
        self.cache_capacity = cache_capacity

    @abstractmethod
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """The very chunk that `insert` gave for `key`, None when there is none (POL-1)."""

    @abstractmethod
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        """`key` became resident; `chunk.ref_cnt` is -1. Never called for a resident key."""

    @abstractmethod
    def remove(self, key: OffloadKey) -> None:
        """`key` is gone: its store failed."""

    @abstractmethod
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """The keys, resident or not, were used; head of the prefix first (TOUCH-1)."""

    @abstractmethod
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """Remove exactly `n` idle chunks, none of them protected, and return them (POL-2).

        None when there are fewer: then nothing has changed, and later choices are as if it had
        not been called.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, whatever its pins (POL-6)."""

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """The keys will be stored, if there is room; told before `evict` and `insert`.

        Once a key and request. Default: a touch.
        """
        self.touch(keys, req_context)

    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """The request sees these keys for the first time; maybe not resident. Default: nothing."""
        return None

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        """The request ended; told once a request and generation (FIN-1).

        `key_groups`: the keys seen, one sequence a KV-cache group, head of the prefix first.
        The two sets say which of them it only inserted, and which it found and reused.
        Default: a touch for each group.
        """
        for keys in key_groups:
            self.touch(keys, req_context)

    def mark_evictable(self, key: OffloadKey) -> None:
        """The chunk became idle: stored, or read by nobody any more. Default: nothing."""
        return None

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """The chunk is being read and no longer idle. Default: nothing."""
        return None

    def insert_all(
        self,
        keys: Sequence[OffloadKey],
        chunks: Sequence[ChunkStatus],
        req_context: ReqContext,
    ) -> None:
        """`insert` for each key and its chunk, in order, in one call.

        An override saves a call for every chunk. A host uses it only if it is no further up in
        the class hierarchy than `insert`, so overriding `insert` alone is always enough.
        """
        for key, chunk in zip(keys, chunks, strict=True):
            self.insert(key, chunk, req_context)

    def mark_all_evictable(self, keys: Sequence[OffloadKey]) -> None:
        """`mark_evictable` for each key, in order, in one call; overridden like `insert_all`."""
        for key in keys:
            self.mark_evictable(key)


def order_request_keys(
    key_groups: Sequence[Sequence[OffloadKey]], req_context: ReqContext
) -> list[OffloadKey]:
    """All keys of a request from head to tail (LRU-1), given the groups of its end (FIN-1).

    By position over all groups when every key has one (on a tie the lower group first), else
    group after group. A single group comes in that order already.
    """
    if len(key_groups) == 1:
        return list(key_groups[0])
    return order_by_position(list(chain.from_iterable(key_groups)), req_context)


def order_by_position(keys: list[OffloadKey], req_context: ReqContext) -> list[OffloadKey]:
    """`keys` by their end tokens, ties as given; all as given unless every key has one."""
    ends = req_context.get_offload_key_positions(keys)
    if ends is None or ends == sorted(ends):
        return keys
    return [keys[i] for i in sorted(range(len(keys)), key=ends.__getitem__)]
