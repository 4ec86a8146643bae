"""LRU by LRU-1: every key has a rank, and victims are the lowest of a sorted list.

Right because it says nothing else than the clause: one counter, one dictionary, one sort.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvoffload.keys import OffloadKey
from stateful_models.models.policy import Ends, PolicyModel, prefix_order
from stateful_models.operations import RequestId


class LRUModel(PolicyModel):
    """Least recently used, with one number for all that a running request uses."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.uses: int = 0
        self.rank: dict[OffloadKey, tuple[int, int]] = {}
        self.number_of: dict[RequestId, int] = {}

    def next_use(self) -> int:
        """The next number of the one counter."""
        self.uses += 1
        return self.uses

    def choose(self, count: int, candidates: Sequence[OffloadKey]) -> list[OffloadKey]:
        victims = sorted(candidates, key=lambda key: (self.rank[key], key))[:count]
        for key in victims:
            del self.rank[key]
        return victims

    def admit(self, key: OffloadKey, request: RequestId, ends: Ends) -> None:
        if key in ends:
            self.rank[key] = (self.request_number(request), -ends[key])
        else:
            self.rank[key] = (self.next_use(), 0)

    def forget(self, key: OffloadKey) -> None:
        del self.rank[key]

    def restart(self) -> None:
        self.uses = 0
        self.rank.clear()
        self.number_of.clear()

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        for key in reversed(keys):
            if key in self.rank:
                self.rank[key] = (self.next_use(), 0)

    def miss(self, keys: Sequence[OffloadKey]) -> None:
        pass

    def access(self, keys: Sequence[OffloadKey], request: RequestId, ends: Ends) -> None:
        number = self.request_number(request)
        for key in keys:
            if key in self.rank and key in ends:
                self.rank[key] = max(self.rank[key], (number, -ends[key]))

    def finish(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only: Iterable[OffloadKey],
        reused: Iterable[OffloadKey],
        ends: Ends,
    ) -> None:
        self.touch(prefix_order(key_groups, ends))

    def request_number(self, request: RequestId) -> int:
        """The number that all accesses of a request share, taken at its first one."""
        if request not in self.number_of:
            self.number_of[request] = self.next_use()
        return self.number_of[request]
