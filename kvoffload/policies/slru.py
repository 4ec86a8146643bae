"""Segmented LRU, after R. Karedla, J. S. Love and B. G. Wherry, "Caching Strategies to Improve Disk
System Performance", IEEE Computer 27(3), 1994.

Two segments, each in order of use: the probationary one, which new chunks enter, and the protected
one, for what was used in it. The protected segment holds a share of the capacity; what it cannot
hold gets another chance in the other one, which gives the victims.

What a use is, and what becomes of what cannot go, is that of `LinePolicy`. Pinned and pending
chunks count against the share, and change segments as others do.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import islice
from typing import ClassVar

from typing_extensions import override

from kvoffload.keys import OffloadKey
from kvoffload.policies.lines import Entry, LinePolicy, Victims
from kvoffload.policies.segments import Segments


class SLRUCachePolicy(LinePolicy):
    """`protected_share` of the capacity, rounded down, is for what was used again."""

    protected_share: ClassVar[float] = 0.8

    def __init__(self, cache_capacity: int) -> None:
        self._segments = segments = Segments(int(cache_capacity * self.protected_share))
        super().__init__(cache_capacity, [segments.probation, segments.protected])

    @override
    def _admit(self, entry: Entry) -> None:
        # "Data from misses is added to the cache at the most recently accessed end of the
        # probationary segment."
        self._segments.probation.append(entry)

    @override
    def _use(self, entry: Entry) -> None:
        self._segments.use(entry)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = list(islice(self._segments.candidates(protected), n))
        return None if len(victims) < n else self._depart(victims)

    @override
    def check(self) -> None:
        super().check()
        self._segments.check()


class SLRUTailCachePolicy(SLRUCachePolicy):
    """Segmented LRU where the tail of a request goes first in either segment."""

    tail_first: ClassVar[bool] = True
