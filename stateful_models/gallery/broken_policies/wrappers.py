"""Wrappers that do not pass on what they are told.

Each takes its inner policy as the second argument of its constructor, and has one of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.adaptive import Adaptive
from stateful_models.gallery.broken_policies.base import Victims
from stateful_models.gallery.legal_policies.wrapper import Forwarding


class Pol1WrapperKeepsRemoved(Forwarding):
    """`remove` is not passed on: the wrapper was written for a host whose stores never fail."""

    @override
    def remove(self, key: OffloadKey) -> None:
        return None


class Pol3WrapperForgetsMarks(Forwarding):
    """The marks are not passed on, and the inner policy, once it has met a chunk while it was
    pinned, waits for the end of that pin in vain."""

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        return None


class Pol3WrapperSwallows(Forwarding):
    """Whatever goes wrong inside is swallowed, and looks like a refusal."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        try:
            return super().evict(n, protected)
        except Exception:
            return None


class Pol7WrapperInsertsTwice(Forwarding):
    """An insertion is passed on twice, by the wrapper and by its own base class; the inner policy
    refuses a key that is resident."""

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.inner.insert(key, chunk, req_context)


class Lru1WrapperForgetsFinish(Forwarding):
    """The end of a request is not passed on, so that its last use is not known."""

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        return None


class Lru2WrapperSortsKeys(Forwarding):
    """Keys are passed on sorted and without repetitions, since they are only a set of keys."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        super().touch(sorted(set(keys)), req_context)


class Arc2WrapperMissesTwice(Forwarding):
    """A miss is passed on as a miss and as a touch, and moves the target twice."""

    def __init__(self, cache_capacity: int, inner: CachePolicy | None = None) -> None:
        super().__init__(cache_capacity, Adaptive(cache_capacity) if inner is None else inner)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = list(keys)
        super().on_store_miss(keys, req_context)
        self.inner.touch(keys, req_context)
