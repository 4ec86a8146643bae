"""Managers whose reuse threshold counts the wrong things."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from typing_extensions import override

from kvoffload import (
    CPUOffloadingManager,
    LookupResult,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)
from kvoffload.cpu.reuse_tracker import ReuseTracker


class _LookUpTracker(ReuseTracker):
    """Counts what is looked up, and not what is offered."""

    @override
    def record(self, offer: Sequence[OffloadKey]) -> None:
        return None

    def look_up(self, key: OffloadKey) -> None:
        self._counts[key] = self._counts.get(key, 0) + 1


class Store3CountsLookUps(CPUOffloadingManager):
    """Look-ups are counted instead of offers: a prompt looked up twice needs no second offer."""

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if type(self._tracker) is ReuseTracker:
            self._tracker = _LookUpTracker(self.store_threshold, self.max_tracker_size)
        answer = super().lookup(key, req_context)
        if isinstance(self._tracker, _LookUpTracker):
            self._tracker.look_up(key)
        return answer


class _SelfishTracker(ReuseTracker):
    """An ordinary LRU of counts: one long offer pushes out its own beginning."""

    @override
    def record(self, offer: Sequence[OffloadKey]) -> None:
        for key in offer:
            self._counts[key] = self._counts.get(key, 0) + 1
            self._counts.move_to_end(key)
            if len(self._counts) > self.capacity:
                self._counts.popitem(last=False)


class Store12PushesItselfOut(CPUOffloadingManager):
    """An offer longer than the tracker is never admitted, however often it comes."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        if type(self._tracker) is ReuseTracker:
            self._tracker = _SelfishTracker(self.store_threshold, self.max_tracker_size)
        return super().prepare_store(keys, req_context)


class _LastingTracker(ReuseTracker):
    """Remembers for ever."""

    @override
    def clear(self) -> None:
        return None


class Gen1KeepsCounting(CPUOffloadingManager):
    """Offers from before a reset count after it, as in vLLM 0.33."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        if type(self._tracker) is ReuseTracker:
            self._tracker = _LastingTracker(self.store_threshold, self.max_tracker_size)
        return super().prepare_store(keys, req_context)
