"""SIEVE, after Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson and K. V. Rashmi, "SIEVE is Simpler than
LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", NSDI 2024.

One queue in order of insertion, a bit for each chunk, and a hand that goes from the oldest chunk
to the newest and round again. A use sets the bit and moves nothing; the hand clears the bits that
are set and takes the first chunk whose bit is not. The paper's names are kept: its tail is the
oldest, its head the newest chunk, NULL a hand that begins at the oldest again.

What a use is, and what becomes of what cannot go, is that of `LinePolicy`: the hand steps over
what is pinned, pending or protected, and clears no bit there. A batch of n is what n times one
would be. A store that fails takes its chunk from under the hand, which then stands at the next
newer one.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import chain
from typing import ClassVar

from typing_extensions import override

from kvoffload.errors import InvariantError
from kvoffload.keys import OffloadKey
from kvoffload.policies.base import ChunkStatus
from kvoffload.policies.lines import Entry, Line, LinePolicy, Victims
from kvoffload.policies.parking import NO_KEY


class SIEVECachePolicy(LinePolicy):
    """`uses` of an entry is its visited bit. The hand is a marker behind its last victim's place.

    What is newer than the marker it has yet to come to. At NULL the marker is before everything.
    """

    def __init__(self, cache_capacity: int) -> None:
        self._queue = Line()
        super().__init__(cache_capacity, [self._queue])
        self._hand = Entry(NO_KEY, ChunkStatus(-1))
        self._queue.place_marker(self._hand, None)

    @override
    def _admit(self, entry: Entry) -> None:
        # "Insert x in the head of T; x.visited <- 0"
        self._queue.append(entry)

    @override
    def _use(self, entry: Entry) -> None:
        # "if x is in T then x.visited <- 1"
        entry.uses = 1

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        queue, hand = self._queue, self._hand
        victims: list[Entry] = []
        spared: list[Entry] = []
        # "o <- p; if o is NULL then o <- tail of T", and "o <- o.prev", round to where it began.
        ring = chain(
            queue.candidates(protected, after=hand), queue.candidates(protected, until=hand)
        )
        while len(victims) < n and (entry := next(ring, None)) is not None:
            (spared if entry.uses else victims).append(entry)
        # On a second round the hand finds the bits cleared that were set on the first.
        missing = n - len(victims)
        if missing > len(spared):
            return None
        victims += spared[:missing]
        # "while o.visited = 1 do o.visited <- 0", now that it is known that enough can go.
        for entry in spared:
            entry.uses = 0
        # "p <- o.prev; Discard o in T"
        if victims:
            queue.place_marker(hand, victims[-1])
        answer = self._depart(victims)
        self._rewind()
        return answer

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self._rewind()

    @override
    def clear(self) -> None:
        super().clear()
        self._queue.place_marker(self._hand, None)

    @override
    def check(self) -> None:
        """Raise InvariantError unless the hand is in the queue and has something to come to."""
        super().check()
        entries = list(self._entries.values())
        newest = entries[-1].number if entries else 0
        if (
            sum(entry is self._hand for entry in self._queue) != 1
            or 0 < newest <= self._hand.number
            or any(entry.uses not in (0, 1) for entry in entries)
            or entries != self._queue.members()
        ):
            raise InvariantError(
                f"SIEVE: hand at {self._hand.number} of "
                f"{[(e.number, e.key, e.uses) for e in entries]}"
            )

    def _rewind(self) -> None:
        """The hand is NULL where nothing is newer than the place that it left."""
        # Residents are inserted, and renewed, in the order of the queue.
        newest = next(reversed(self._entries.values()), None)
        if newest is None or newest.number <= self._hand.number:
            self._queue.place_marker(self._hand, None)


class SIEVETailCachePolicy(SIEVECachePolicy):
    """SIEVE where what a request inserted enters at its end, the tail of the prefix first."""

    tail_first: ClassVar[bool] = True

    @override
    def _renew(self, entry: Entry) -> None:
        super()._renew(entry)
        self._entries[entry.key] = self._entries.pop(entry.key)
