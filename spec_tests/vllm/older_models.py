"""Models of the LRU and ARC that vLLM had before it counted by request, on plain lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from typing_extensions import override

from kvoffload.keys import OffloadKey
from stateful_models.models.arc import ARCModel
from stateful_models.models.lru import LRUModel
from stateful_models.models.policy import Ends, State
from stateful_models.operations import RequestId


class WhenIdleModel(LRUModel):
    """LRU of 0.24 to 0.30: the order is that of becoming idle, and of uses while idle."""

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        super().mark_evictable(key)
        self.rank[key] = (self.next_use(), 0)

    @override
    def touch(self, keys: Sequence[OffloadKey]) -> None:
        super().touch([key for key in keys if self.states.get(key) is State.IDLE])


class WhenTouchedModel(LRUModel):
    """LRU of 0.19 to 0.23: the order is that of insertions and of uses, pinned or not."""

    @override
    def access(self, keys: Sequence[OffloadKey], request: RequestId, ends: Ends) -> None:
        return None


class EarlyRefusalModel(ARCModel):
    """ARC of 0.19 to 0.29, which refuses where T2 should give a chunk and has none."""

    @override
    def evict(self, count: int, protected: Iterable[OffloadKey]) -> list[OffloadKey] | None:
        idle = set(self.idle(protected))
        recent, frequent = ([key in idle for key in part] for part in (self.t1, self.t2))
        left, given, late = len(self.t1), sum(recent), sum(frequent)
        for _ in range(count):
            if left >= int(self.target) and given:
                given -= 1
                left -= 1
            elif late:
                late -= 1
            else:
                return None
        return super().evict(count, protected)
