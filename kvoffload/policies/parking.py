"""Where chunks wait that were met, while pinned, by somebody looking for one to evict.

A list in order of use would do if every chunk could be evicted. But chunks are pinned, and
walking past the same pinned ones at every eviction is what makes one eviction cost as much as
the cache is large. So a chunk met while it is pinned is *parked*: taken off the list, its place
remembered. When it becomes idle it is *returned*: filed, in order of those places, before
everything that is still on the list. A pinned chunk is thus met once a pin (POL-8), and when
pins are released never decides who goes (POL-9).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Set
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, Generic, Protocol, TypeAlias

from typing_extensions import TypeVar

from kvoffload.errors import InvariantError
from kvoffload.keys import OffloadKey
from kvoffload.policies.base import ChunkStatus

Place: TypeAlias = tuple[int, int, bytes]
"""Where a chunk stood: the moment at which it was met; within a run, minus its end and its key."""

NO_KEY: Final = OffloadKey(b"")


class Node:
    """A chunk that can be on a list. On none, and while parked, its neighbours are `NOWHERE`.

    `number` says when it was last used, as far as runs need to know: it is that of the list at
    the time, or of the run that the node is in. `end` is where the tokens of a run's node end.
    """

    __slots__ = ("chunk", "end", "key", "newer", "number", "older")

    def __init__(self, key: OffloadKey, chunk: ChunkStatus, end: int = 0) -> None:
        self.key: OffloadKey = key
        self.chunk: ChunkStatus = chunk
        self.number: int = -1
        self.end: int = end
        self.older: Node = NOWHERE
        self.newer: Node = NOWHERE

    def precedes(self, other: Node) -> bool:
        """Order within a run: tail of the prefix first, ties by key bytes (LRU-1)."""
        return self.end > other.end or (self.end == other.end and self.key < other.key)


# A node linked to itself would do, were it not a cycle: every victim would be left to the garbage
# collector.
NOWHERE: Final = Node.__new__(Node)


class Parkable(Protocol):
    """What a parking asks of a node. Nodes are told by their identity."""

    key: OffloadKey
    chunk: ChunkStatus


N = TypeVar("N", bound=Parkable, default=Node)

# The heap of a parking may hold this many stale entries before it is made anew.
STALE_FLOOR: Final = 8


class Parking(Generic[N]):
    """Parked nodes by place. Those returned can be taken; the others wait for `release`."""

    def __init__(self) -> None:
        self._places: dict[N, Place] = {}
        self._returned: list[Place] = []
        self._returned_nodes: dict[Place, N] = {}
        # All that are parked, and stale entries; kept from when somebody first asks for it.
        self._heap: list[tuple[Place, N]] | None = None

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[N]:
        return iter(self._places)

    @property
    def num_returned(self) -> int:
        """How many can be taken."""
        return len(self._returned)

    def park(self, node: N, place: Place) -> None:
        """`node` was met at `place`; if it is idle it can be taken again at once."""
        self.park_pinned(node, place)
        if node.chunk.ref_cnt == 0:
            self._file(node, place)

    def park_pinned(self, node: N, place: Place) -> None:
        """`node`, which is known to be pinned or pending, was met at `place`."""
        self._places[node] = place
        if self._heap is not None:
            if len(self._heap) > 2 * len(self._places) + STALE_FLOOR:
                self._heap = None
            else:
                heappush(self._heap, (place, node))

    def release(self, node: N) -> None:
        """The chunk became idle: if it is parked, it can be taken."""
        place = self._places.get(node)
        if place is not None and place not in self._returned_nodes:
            self._file(node, place)

    def release_all(self, nodes: Collection[N]) -> None:
        """`release` for each, of which mostly none is parked, though others may be for long."""
        if not self._places.keys().isdisjoint(nodes):
            for node in nodes:
                self.release(node)

    def remove(self, node: N) -> None:
        """The node is parked no more, if it was."""
        place = self._places.pop(node, None)
        if place is not None and self._returned_nodes.pop(place, None) is not None:
            del self._returned[bisect_left(self._returned, place)]

    def take(
        self, n: int, protected: Set[OffloadKey], skip: int = 0
    ) -> tuple[list[tuple[N, Place]], int]:
        """Remove up to `n` idle, unprotected nodes, the first places first.

        Answers how many of those that can be taken, counted from the first, are now known to be
        protected: given as `skip`, another call for the same `protected` passes over them.
        """
        taken: list[tuple[N, Place]] = []
        kept: list[Place] = []
        met = skip
        for place in islice(self._returned, skip, None):
            if len(taken) == n:
                break
            met += 1
            node = self._returned_nodes[place]
            # The protected are met at every call, so they are told by one look at their key.
            if node.key in protected:
                kept.append(place)
                continue
            if node.chunk.ref_cnt == 0:
                del self._places[node]
                taken.append((node, place))
            # Else it was pinned again, and is returned when that pin goes.
            del self._returned_nodes[place]
        self._returned[skip:met] = kept
        return taken, skip + len(kept)

    def take_between(self, low: Place, high: Place | None) -> list[N]:
        """Remove all that can be taken and whose place is in [low, high), the first place first."""
        places = self._returned
        first = bisect_left(places, low)
        last = len(places) if high is None else bisect_left(places, high, first)
        nodes = [self._returned_nodes.pop(place) for place in places[first:last]]
        # In one go: one by one, each would move all those behind it.
        del places[first:last]
        for node in nodes:
            del self._places[node]
        return nodes

    def first(self) -> N | None:
        """The parked node whose place is the first, whether it can be taken or not."""
        if not self._places:
            return None
        heap = self._heap
        if heap is None:
            heap = self._heap = [(place, node) for node, place in self._places.items()]
            heapify(heap)
        while self._places.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][1]

    def clear(self) -> None:
        self._places.clear()
        self._returned.clear()
        self._returned_nodes.clear()
        self._heap = None

    def check(self) -> None:
        """Raise InvariantError unless the returned ones are parked, in order."""
        if self._returned != sorted(self._returned_nodes) or any(
            self._places.get(node) != place for place, node in self._returned_nodes.items()
        ):
            raise InvariantError(
                f"parking: {[(place, node.key) for node, place in self._places.items()]}, "
                f"returned {self._returned}"
            )

    def _file(self, node: N, place: Place) -> None:
        self._returned_nodes[place] = node
        insort(self._returned, place)
