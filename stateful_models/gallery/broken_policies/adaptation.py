"""Claims of ARC that do not hold (ARC-1 to ARC-5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.adaptive import Adaptive
from stateful_models.gallery.broken_policies.ranked import prefix_order

LARGE: Final = 10_000
"""What a policy takes for the size of every cache that it was not told of."""


class Arc1InsertionPromotes(Adaptive):
    """What a request only stored counts as used a second time when the request ends."""

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        super().on_request_finished(
            key_groups, frozenset(), insertion_only_keys | reused_keys, req_context
        )


class Arc1TouchOnEveryCall(Adaptive):
    """Each access of a running request promotes, as if it were a request of its own."""

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            chunk = self.get(key)
            if chunk is not None and chunk.is_ready:
                self.promote(key)


class Arc2NeverLearns(Adaptive):
    """Misses are not looked at, and so no ghost ever moves the target."""

    @override
    def adapt(self, key: OffloadKey) -> None:
        return None


class Arc2AdaptsTooLate(Adaptive):
    """The target is moved when the key comes in; by then the victim has been chosen, and the
    ghost dropped."""

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        return None

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.adapt(key)


class Arc2TargetOfAConstant(Adaptive):
    """The target may rise to a constant, beyond what the cache holds, and then takes as long to
    come down again."""

    @override
    def ceiling(self) -> float:
        return float(LARGE)


class Arc3GhostsOfAConstant(Adaptive):
    """Ghosts are kept for a cache of a constant size, however small this one is."""

    @override
    def ghost_bound(self) -> int:
        return LARGE


class Arc3GhostsUnbounded(Adaptive):
    """The bound of the ghosts is one of bytes, and compared with their number."""

    @override
    def ghost_bound(self) -> int:
        return self.cache_capacity * 1024 * 1024


class Arc3GhostsByTarget(Adaptive):
    """B2 is trimmed to what the target leaves T2, not to the capacity: with a high target it
    never fills."""

    @override
    def leave_ghost(self, key: OffloadKey, ghosts: dict[OffloadKey, None]) -> None:
        super().leave_ghost(key, ghosts)
        while len(self.b2) > self.cache_capacity - self.target:
            del self.b2[next(iter(self.b2))]


class Arc3ComparesT2(Adaptive):
    """The target is held against the length of T2, where that of T1 is meant."""

    @override
    def takes_from_t1(self) -> bool:
        return len(self.t2) >= int(self.target)


class Arc3BeyondTheTarget(Adaptive):
    """T1 gives only while it is longer than its target: one too late."""

    @override
    def takes_from_t1(self) -> bool:
        return len(self.t1) > int(self.target)


class Arc2NoGhosts(Adaptive):
    """A victim of T1 leaves without being noted, so that there is nothing to learn from."""

    @override
    def leave_ghost(self, key: OffloadKey, ghosts: dict[OffloadKey, None]) -> None:
        if ghosts is self.b2:
            super().leave_ghost(key, ghosts)


class Arc4ResidentGhost(Adaptive):
    """A key that comes back stays a ghost as well, and is in two lists."""

    @override
    def drop_ghost(self, key: OffloadKey) -> None:
        return None


class Arc5HeadFirst(Adaptive):
    """A finished request is applied from its head on, so that the head is the oldest."""

    @override
    def finish_order(
        self, key_groups: Sequence[Sequence[OffloadKey]], req_context: ReqContext
    ) -> list[OffloadKey]:
        return prefix_order(key_groups, req_context)[::-1]
