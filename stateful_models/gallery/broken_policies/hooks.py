"""Hooks that raise, or that change who is resident (POL-7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.adaptive import Adaptive
from stateful_models.gallery.broken_policies.base import Plain, Victims


class Pol7PendingTouch(Adaptive):
    """A pending key is taken out of T1, and then made the latest of what it is no longer in."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            chunk = self.t1.pop(key, None)
            if chunk is None:
                super().touch([key], req_context)
            elif chunk.is_ready:
                self.t2[key] = chunk
            else:
                self.t1[key] = self.t1.pop(key)


class Pol7UnknownTouch(Plain):
    """Keys are taken to be resident when they are touched."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            self.chunks[key] = self.chunks.pop(key)


class Pol7NoKeys(Plain):
    """The last key is read before anybody asks whether there is one."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = list(keys)
        newest = keys[-1]
        super().touch(keys if newest in self.chunks else keys[:-1], req_context)


class Pol7FinishOfTheGone(Plain):
    """At the end of a request its keys are taken to be where it left them."""

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        for keys in key_groups:
            for key in reversed(keys):
                self.chunks[key] = self.chunks.pop(key)


class Pol7TouchRevives(Plain):
    """A touched ghost becomes resident again, with the chunk that has been given away."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._ghosts: dict[OffloadKey, ChunkStatus] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._ghosts.pop(key, None)
        super().insert(key, chunk, req_context)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = list(keys)
        for key in keys:
            if key in self._ghosts:
                self.chunks[key] = self._ghosts.pop(key)
        super().touch(keys, req_context)

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        taken = super().take(victims)
        self._ghosts = dict(taken[-self.cache_capacity :])
        return taken

    @override
    def clear(self) -> None:
        super().clear()
        self._ghosts.clear()


class Pol7MissReserves(Plain):
    """A miss makes the key resident at once, with a chunk of the policy's own, in the hope that
    the store succeeds."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._reserved: set[OffloadKey] = set()

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in self._reserved:
            del self.chunks[key]
        self._reserved = {key for key in keys if key not in self.chunks}
        self.chunks.update((key, ChunkStatus(-1)) for key in sorted(self._reserved))

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._reserved.discard(key)
        self.chunks.pop(key, None)
        super().insert(key, chunk, req_context)

    @override
    def clear(self) -> None:
        super().clear()
        self._reserved.clear()


class Pol7PinnedIsGone(Plain):
    """What can no longer be evicted is dropped, as if that were all the policy is for."""

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.chunks.pop(key, None)


class Pol7ReadsTwice(Plain):
    """The keys are gone through twice, so that a generator is empty when it matters."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        if any(key in self.chunks for key in keys):
            super().touch(keys, req_context)


class _Link:
    def __init__(self, key: OffloadKey | None) -> None:
        self.key = key
        self.older: _Link = self
        self.newer: _Link = self

    def unlink(self) -> None:
        self.older.newer = self.newer
        self.newer.older = self.older

    def put_before(self, other: _Link) -> None:
        self.older, self.newer = other.older, other
        self.older.newer = other.older = self


class Pol7RingAndMap(Plain):
    """The order is a ring of links beside the map. Removing keeps the two together; where victims
    are taken one call was forgotten, and the ring names keys that the map has let go."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._links: dict[OffloadKey, _Link] = {}
        self._end = _Link(None)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self._links[key] = _Link(key)
        self._links[key].put_before(self._end)

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self._links.pop(key).unlink()

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            link = self._links.get(key)
            if link is not None:
                link.unlink()
                link.put_before(self._end)

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        idle: list[OffloadKey] = []
        link = self._end.newer
        while link.key is not None:
            if self.chunks[link.key].ref_cnt == 0 and link.key not in protected:
                idle.append(link.key)
            link = link.newer
        return idle

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        for key in victims:
            del self._links[key]
        return super().take(victims)

    @override
    def clear(self) -> None:
        super().clear()
        self._links.clear()
        self._end = _Link(None)
