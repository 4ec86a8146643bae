"""Variant 3: `touch` gets the context of the request, whose hints say when it comes again. A clock
that is bound at import, and one that is the default of an argument."""

from collections.abc import Iterable
from time import monotonic

from shelf import Shelf
from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import BlockStatus, CachePolicy

DEFAULT_GAP, LONGEST_GAP = 30.0, 3600.0


class GapPolicy(CachePolicy):
    """What nobody waits for any more goes first, then the least recently touched."""

    def __init__(self, cache_capacity: int, clock=monotonic):
        self.shelf = Shelf()
        self.due: dict[OffloadKey, float] = {}
        self.clock = clock

    def gap(self, params: object) -> float:
        """Seconds after which the request comes again, as its client said."""
        gap = params.get("expected_gap") if isinstance(params, dict) else None
        sound = isinstance(gap, (int, float)) and 0 <= gap <= LONGEST_GAP
        return gap if sound else DEFAULT_GAP

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.shelf.held.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus) -> None:
        self.shelf.held[key] = block
        self.due[key] = self.clock() + DEFAULT_GAP

    def remove(self, key: OffloadKey) -> None:
        del self.shelf.held[key]
        del self.due[key]

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = list(keys)
        self.shelf.renew(keys)
        due = monotonic() + self.gap(req_context.kv_transfer_params)
        self.due.update((key, due) for key in keys if key in self.due)

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, BlockStatus]] | None:
        now = self.clock()
        idle = sorted(self.shelf.idle(protected), key=lambda key: self.due[key] > now)
        if len(idle) < n:
            return None
        for key in idle[:n]:
            del self.due[key]
        return self.shelf.take(idle[:n])

    def clear(self) -> None:
        self.shelf.held.clear()
        self.due.clear()


class TrustingGapPolicy(GapPolicy):
    """Believes what clients send."""

    def gap(self, params: object) -> float:
        return float((params or {}).get("expected_gap", DEFAULT_GAP))


class StubbornGapPolicy(GapPolicy):
    """Gives up nothing that somebody still waits for, and does not say so anywhere."""

    def evict(self, n, protected):
        now = self.clock()
        over = [key for key in self.shelf.idle(protected) if self.due[key] <= now]
        if len(over) < n:
            return None
        for key in over[:n]:
            del self.due[key]
        return self.shelf.take(over[:n])
