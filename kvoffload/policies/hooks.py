"""A policy as a host calls it: every hook bound once, whatever interface it was written to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence, Set
from typing import TypeAlias, cast

from kvoffload.keys import OffloadKey
from kvoffload.policies.base import CachePolicy, ChunkStatus
from kvoffload.requests import ReqContext

Insert: TypeAlias = Callable[[OffloadKey, ChunkStatus, ReqContext], None]
InsertAll: TypeAlias = Callable[[Sequence[OffloadKey], Sequence[ChunkStatus], ReqContext], None]
MarkAll: TypeAlias = Callable[[Sequence[OffloadKey]], None]
Observe: TypeAlias = Callable[[Sequence[OffloadKey], ReqContext], None]
Mark: TypeAlias = Callable[[OffloadKey], None]
Evict: TypeAlias = Callable[
    [int, Set[OffloadKey]], "Sequence[tuple[OffloadKey, ChunkStatus]] | None"
]
Finish: TypeAlias = Callable[
    [Sequence[Sequence[OffloadKey]], Set[OffloadKey], Set[OffloadKey], ReqContext], None
]


class PolicyHooks:
    """The calls of one policy object.

    A hook that the policy leaves at a default that does nothing is None, so that the host does
    not call it for every chunk. Policies with a two-argument `insert(key, chunk)` or a
    one-argument `touch(keys)` are served, and so are classes that do not derive from
    `CachePolicy` and lack the optional hooks: they get the defaults.
    """

    def __init__(self, policy: CachePolicy) -> None:
        self.policy: CachePolicy = policy
        self.name: str = type(policy).__name__
        self.may_refuse: str | None = getattr(policy, "may_refuse", None)
        self.remove_all: MarkAll = self._remove_each
        self.evict: Evict = policy.evict
        self.clear: Callable[[], None] = policy.clear
        self.insert: Insert = policy.insert
        if not _takes(policy.insert, 3):
            insert_two = cast("Callable[[OffloadKey, ChunkStatus], None]", policy.insert)
            self.insert = lambda key, chunk, _: insert_two(key, chunk)
        self.insert_all: InsertAll = self._insert_each
        if self._bulk_is_current("insert_all", "insert"):
            self.insert_all = policy.insert_all
        self.touch: Observe = policy.touch
        if not _takes(policy.touch, 2):
            touch_one = cast("Callable[[Sequence[OffloadKey]], None]", policy.touch)
            self.touch = lambda keys, _: touch_one(keys)
        # The inherited defaults of these two call touch with two arguments; ours calls it right.
        self.on_store_miss: Observe = self.touch
        if self._overrides("on_store_miss"):
            self.on_store_miss = policy.on_store_miss
        self.on_request_finished: Finish = self._touch_groups
        if self._overrides("on_request_finished"):
            self.on_request_finished = policy.on_request_finished
        self.on_request_access: Observe | None = (
            policy.on_request_access if self._overrides("on_request_access") else None
        )
        self.mark_all_evictable: MarkAll | None = None
        if self._bulk_is_current("mark_all_evictable", "mark_evictable"):
            self.mark_all_evictable = policy.mark_all_evictable
        elif self._overrides("mark_evictable"):
            self.mark_all_evictable = self._mark_each_evictable
        self.mark_all_non_evictable: MarkAll | None = None
        if self._overrides("mark_non_evictable"):
            self.mark_all_non_evictable = self._mark_each_non_evictable

    def _overrides(self, hook: str) -> bool:
        own = getattr(self.policy, hook, None)
        if own is None:
            return False
        return getattr(own, "__func__", own) is not getattr(CachePolicy, hook)

    def _bulk_is_current(self, bulk: str, single: str) -> bool:
        """Whether the policy's bulk form was written knowing its single form."""
        if single in getattr(self.policy, "__dict__", ()):
            return False
        for cls in type(self.policy).__mro__:
            if cls is CachePolicy:
                break
            if bulk in vars(cls):
                return True
            if single in vars(cls):
                break
        return False

    def _insert_each(
        self,
        keys: Sequence[OffloadKey],
        chunks: Sequence[ChunkStatus],
        req_context: ReqContext,
    ) -> None:
        insert = self.insert
        for key, chunk in zip(keys, chunks, strict=True):
            insert(key, chunk, req_context)

    def _remove_each(self, keys: Sequence[OffloadKey]) -> None:
        remove = self.policy.remove
        for key in keys:
            remove(key)

    def _mark_each_non_evictable(self, keys: Sequence[OffloadKey]) -> None:
        for key in keys:
            self.policy.mark_non_evictable(key)

    def _mark_each_evictable(self, keys: Sequence[OffloadKey]) -> None:
        for key in keys:
            self.policy.mark_evictable(key)

    def _touch_groups(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        for keys in key_groups:
            self.touch(keys, req_context)


def _takes(method: Callable[..., object], arguments: int) -> bool:
    """Whether `method` can be called with this many positional arguments."""
    try:
        inspect.signature(method).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:
        # No signature to be had; then it is taken to be of the native form.
        return True
    return True
