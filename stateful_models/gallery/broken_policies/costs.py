"""Claims of a bounded cost that do not hold (POL-8)."""

from __future__ import annotations

from collections.abc import Set

from typing_extensions import override

from kvoffload import OffloadKey
from stateful_models.gallery.broken_policies.base import Plain, Victims
from stateful_models.gallery.broken_policies.clearing import Numbered


class Pol8WalksThePinned(Plain):
    """There is one list for all, so that every eviction walks past the same pinned chunks."""

    @override
    def choose(self, n: int, protected: Set[OffloadKey]) -> list[OffloadKey]:
        victims: list[OffloadKey] = []
        for key, chunk in self.chunks.items():
            if len(victims) == n:
                break
            if chunk.ref_cnt == 0 and key not in protected:
                victims.append(key)
        return victims


class Pol8RestartsForEach(Plain):
    """For each victim the search starts at the cold end again."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims: list[OffloadKey] = []
        while len(victims) < n:
            victim = next(
                (
                    key
                    for key, chunk in self.chunks.items()
                    if chunk.ref_cnt == 0 and key not in protected and key not in victims
                ),
                None,
            )
            if victim is None:
                return None
            victims.append(victim)
        return self.take(victims)


class Pol8SortsEachTime(Numbered):
    """No order is kept: all that is resident is looked at and sorted at every eviction."""


class Pol8CountsFirst(Plain):
    """Whether enough are idle is found out by counting them all, before any is taken."""

    @override
    def choose(self, n: int, protected: Set[OffloadKey]) -> list[OffloadKey]:
        if sum(chunk.ref_cnt == 0 for chunk in self.chunks.values()) < n:
            return []
        return super().choose(n, protected)
