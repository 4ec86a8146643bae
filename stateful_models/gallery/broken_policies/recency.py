"""Claims of LRU that do not hold (LRU-1, LRU-2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from typing_extensions import override

from kvoffload import OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.ranked import Ranked


class Lru1NewestFirst(Ranked):
    """The order is right, and read from the wrong end."""

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return super().candidates(protected)[::-1]


class Lru1UseByDecode(Ranked):
    """Every call for a running request is a use of its own, so that one long answer outweighs
    many requests."""

    @override
    def number_of(self, req_context: ReqContext) -> int:
        return self.next_use()


class Lru1GroupByGroup(Ranked):
    """At the end of a request the groups follow each other, though all positions are known."""

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        self.touch([key for group in key_groups for key in group], req_context)


class Lru2HeadFirst(Ranked):
    """A request's keys are renewed from head to tail, so that the head is the oldest, and goes
    while its useless tail stays."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        super().touch(list(keys)[::-1], req_context)


class Lru2HeadFirstWhileRunning(Ranked):
    """While a request runs, its keys go from the head on; its end puts them right."""

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        def rank(key: OffloadKey) -> tuple[int, int, OffloadKey]:
            number, minus_end = self.ranks[key]
            return number, -minus_end, key

        return sorted(super().candidates(protected), key=rank)
