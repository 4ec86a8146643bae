"""Wrong victims, or the wrong number of them (POL-2)."""

from __future__ import annotations

from collections.abc import Sequence, Set

from typing_extensions import override

from kvoffload import (
    ChunkStatus,
    OffloadKey,
    ReqContext,
    get_offload_block_hash,
    get_offload_group_idx,
)
from stateful_models.gallery.broken_policies.base import Plain, Victims


class Pol2TooFew(Plain):
    """Whatever could be found is an answer, as if asking for n were asking for up to n."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.take(self.choose(n, protected))


class Pol2TooMany(Plain):
    """The loop waits for a counter that nobody counts down, and so empties the cache."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        idle = self.candidates(protected)
        return self.take(idle) if len(idle) >= n else None


class Pol2VictimTwice(Plain):
    """The cursor is not moved after the last victim but one, which is therefore met again."""

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        if len(victims) < 2:
            return super().take(victims)
        taken = super().take(victims[:-1])
        return [*taken, taken[-1]]


class Pol2PinnedVictim(Plain):
    """Ready is taken for idle: a chunk that is being read goes."""

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return [
            key for key, chunk in self.chunks.items() if chunk.is_ready and key not in protected
        ]


class Pol2PendingVictim(Plain):
    """Not being read is taken for idle: a chunk that is being written goes."""

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return [
            key for key, chunk in self.chunks.items() if chunk.ref_cnt <= 0 and key not in protected
        ]


class Pol2ProtectedVictim(Plain):
    """The offer that needs the room loses its own keys."""

    @override
    def choose(self, n: int, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return super().choose(n, frozenset())


class Pol2ProtectsTheFirst(Plain):
    """Protection is looked at for the first victim only; right as long as n is 1."""

    @override
    def choose(self, n: int, protected: Set[OffloadKey]) -> list[OffloadKey]:
        first = super().choose(1, protected)
        others = [key for key in super().choose(n, frozenset()) if key not in first]
        return (first + others)[:n] if first else []


class Pol2SwapsChunks(Plain):
    """Keys and chunks of a batch are collected apart, and put together off by one."""

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        taken = super().take(victims)
        chunks = [chunk for _, chunk in taken]
        return list(zip(victims, chunks[1:] + chunks[:1], strict=True))


class Pol2OtherGroupsUnpinned(Plain):
    """Pins are looked up by the block hash, and so only those of group 0 are seen."""

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return [
            key
            for key, chunk in self.chunks.items()
            if key not in protected
            and chunk.is_ready
            and (chunk.ref_cnt == 0 or get_offload_group_idx(key) == 1)
        ]


class Pol2UsesUpProtection(Plain):
    """A protected key is crossed off the set that was handed in when it is met: each is met but
    once. The second lap then finds it without protection."""

    @override
    def choose(self, n: int, protected: Set[OffloadKey]) -> list[OffloadKey]:
        victims = super().choose(n, protected)
        if len(victims) < n and isinstance(protected, set):
            protected.difference_update(self.chunks)
            victims = super().choose(n, protected)
        return victims


class Pol2UnpinsVictims(Plain):
    """What stands in the way is unpinned: the policy writes `ref_cnt`, which is the host's."""

    @override
    def choose(self, n: int, protected: Set[OffloadKey]) -> list[OffloadKey]:
        idle = super().choose(n, protected)
        pinned = [
            key for key, chunk in self.chunks.items() if chunk.ref_cnt > 0 and key not in protected
        ]
        needed = pinned[: n - len(idle)]
        if len(idle) + len(needed) == n:
            for key in needed:
                self.chunks[key].ref_cnt = 0
            return idle + needed
        return idle


class Pol2RemovesSiblings(Plain):
    """With a victim its block leaves all other groups, of which nothing is said."""

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        taken = super().take(victims)
        gone = {get_offload_block_hash(key) for key in victims}
        for key in [key for key in self.chunks if get_offload_block_hash(key) in gone]:
            if self.chunks[key].ref_cnt == 0:
                del self.chunks[key]
        return taken


class Pol2LosesWhenRefusing(Plain):
    """Victims are taken one by one; when they do not suffice, those taken are not put back."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        taken = self.take(self.choose(n, protected))
        return taken if len(taken) == n else None


class Pol2RefusalReorders(Plain):
    """What was taken before the refusal is put back, at the other end."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        taken = self.take(self.choose(n, protected))
        if len(taken) == n:
            return taken
        self.chunks.update(taken)
        return None


class Pol2SessionWithItsPins(Plain):
    """Sessions leave as a whole, chunks that are being read included. Without a `session_id`
    among the client's parameters there are no sessions, and everything is right."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._session_keys: set[OffloadKey] = set()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        hints = req_context.kv_transfer_params
        if isinstance(hints, dict) and hints.get("session_id") is not None:
            self._session_keys.add(key)

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self._session_keys.discard(key)

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return [
            key
            for key, chunk in self.chunks.items()
            if key not in protected
            and (chunk.ref_cnt == 0 or (key in self._session_keys and chunk.is_ready))
        ]

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        self._session_keys.difference_update(victims)
        return super().take(victims)

    @override
    def clear(self) -> None:
        super().clear()
        self._session_keys.clear()
