"""ARC, alike in all versions but for two things: before 0.30 it gave up early, since 0.31 requests
count rather than touches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence, Set
from typing import ClassVar, NamedTuple

from typing_extensions import override

from kvoffload.keys import OffloadKey
from kvoffload.vllm.standins.contexts import Positioned, order_request_keys
from kvoffload.vllm.standins.facets import Shelf, TellsRequests, Victims
from kvoffload.vllm.standins.status import SlotStatus


class _Choice(NamedTuple):
    key: OffloadKey
    chunk: SlotStatus
    recent: bool


class TouchedARC(Shelf):
    """0.19 to 0.29. T1 holds what was used once, T2 what was used again, B1 and B2 their ghosts."""

    _standin_last_resort: ClassVar[bool] = False
    """Whether T1 gives a chunk although it is below its target, if T2 has no idle one."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.cache_capacity = cache_capacity
        self.target_t1_size: float = 0.0
        self.t1: OrderedDict[OffloadKey, SlotStatus] = OrderedDict()
        self.t2: OrderedDict[OffloadKey, SlotStatus] = OrderedDict()
        self.b1: OrderedDict[OffloadKey, None] = OrderedDict()
        self.b2: OrderedDict[OffloadKey, None] = OrderedDict()

    @override
    def _standin_get(self, key: OffloadKey) -> SlotStatus | None:
        return self.t1.get(key) or self.t2.get(key)

    @override
    def _standin_insert(
        self, key: OffloadKey, chunk: SlotStatus, req_context: Positioned | None
    ) -> None:
        self.t1[key] = chunk
        for ghosts in (self.b1, self.b2):
            ghosts.pop(key, None)

    @override
    def _standin_remove(self, key: OffloadKey) -> None:
        if self.t1.pop(key, None) is None:
            self.t2.pop(key, None)

    def _standin_adapt(self, key: OffloadKey) -> bool:
        """A missed key moves the target if it is a ghost; whether it is one."""
        for ghosts, others, sign in ((self.b1, self.b2, 1), (self.b2, self.b1, -1)):
            if key in ghosts:
                step = max(1, len(others) / len(ghosts))
                wanted = self.target_t1_size + sign * step
                self.target_t1_size = min(max(wanted, 0), self.cache_capacity)
                ghosts.move_to_end(key)
                return True
        return False

    @override
    def _standin_touch(self, keys: Iterable[OffloadKey]) -> None:
        for key in reversed(list(keys)):
            if key in self.t1:
                chunk = self.t1.pop(key)
                # What is still being stored has not been used twice.
                (self.t2 if chunk.is_ready else self.t1)[key] = chunk
            elif key in self.t2:
                self.t2.move_to_end(key)
            else:
                self._standin_adapt(key)

    @override
    def _standin_evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        if not n:
            return []
        recent = (
            _Choice(key, chunk, recent=True)
            for key, chunk in self.t1.items()
            if chunk.ref_cnt == 0 and key not in protected
        )
        frequent = (
            _Choice(key, chunk, recent=False)
            for key, chunk in self.t2.items()
            if chunk.ref_cnt == 0 and key not in protected
        )
        left = len(self.t1)
        chosen: list[_Choice] = []
        for _ in range(n):
            choice = next(recent, None) if left >= int(self.target_t1_size) else None
            choice = choice or next(frequent, None)
            if choice is None and self._standin_last_resort:
                choice = next(recent, None)
            if choice is None:
                return None
            left -= choice.recent
            chosen.append(choice)
        for choice in chosen:
            part, ghosts = (self.t1, self.b1) if choice.recent else (self.t2, self.b2)
            del part[choice.key]
            ghosts[choice.key] = None
        for ghosts in (self.b1, self.b2):
            while len(ghosts) > self.cache_capacity:
                ghosts.popitem(last=False)
        return [(choice.key, choice.chunk) for choice in chosen]

    @override
    def _standin_clear(self) -> None:
        for part in (self.t1, self.t2, self.b1, self.b2):
            part.clear()
        self.target_t1_size = 0.0


class ResortingARC(TouchedARC):
    """0.30."""

    _standin_last_resort: ClassVar[bool] = True


class RequestARC(ResortingARC, TellsRequests):
    """Since 0.31: misses move the target, and what a request reused enters T2 when it ends."""

    def _adapt_to_ghost_hit(self, key: OffloadKey) -> bool:
        return super()._standin_adapt(key)

    @override
    def _standin_adapt(self, key: OffloadKey) -> bool:
        # A subclass may have changed what has vLLM's name.
        return self._adapt_to_ghost_hit(key)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: Positioned) -> None:
        for key in reversed(list(keys)):
            self._adapt_to_ghost_hit(key)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: Positioned,
    ) -> None:
        for key in reversed(order_request_keys(key_groups, req_context)):
            stored_only = key in insertion_only_keys
            if key in self.t1 and stored_only:
                self.t1.move_to_end(key)
            elif key in self.t1 and key in reused_keys:
                self.t2[key] = self.t1.pop(key)
            elif key in self.t2 and (stored_only or key in reused_keys):
                self.t2.move_to_end(key)
