"""A list of chunks in order of use, oldest first, with a place in it for each running request.

Runs. A running request keeps its keys together at the number that it took when it began: behind
a marker, tail of the prefix first, however late they join. The marker is a node with a chunk
that is never idle. Everything else joins at the newest end only. What is met while pinned is
parked, markers included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import pairwise
from typing import Final
from weakref import ref

from kvoffload.errors import InvariantError
from kvoffload.keys import OffloadKey
from kvoffload.policies.base import ChunkStatus
from kvoffload.policies.parking import NO_KEY, NOWHERE, Node, Parking, Place

# What a node has that holds nothing, or marks a place: never idle.
NO_CHUNK: Final = ChunkStatus(-1)


class Run:
    """The keys of one running request; `marker` stands just before the first of them."""

    __slots__ = ("__weakref__", "last_placed", "marker", "number")

    def __init__(self, number: int) -> None:
        self.number: int = number
        # The marker's `end`, which no order needs, holds the run's number.
        self.marker: Node = Node(NO_KEY, NO_CHUNK, number)
        # Where the search for the next one's place begins: keys come in order of the prefix.
        self.last_placed: Node = self.marker


class RecencyList:
    """Nodes in order of use. `sweep` takes the oldest idle ones."""

    def __init__(self) -> None:
        # The ends meet in a head: head.newer is the oldest node, head.older the newest.
        self._head = head = Node(NO_KEY, NO_CHUNK)
        head.older = head.newer = head
        # Even; a run takes the odd number above, so a run's number is never that of another use.
        self._number = 0
        self.parking: Parking = Parking()
        # What the last sweep took from there, for `restore`.
        self._left_parking: dict[Node, Place] = {}
        self._moment = 0
        self._markers: dict[ref[Run], Node] = {}
        # Markers of runs that ended, to be taken off.
        self._ended: list[Node] = []
        # Runs whose marker is parked, by number: the place of the marker.
        self._passed_runs: dict[int, int] = {}
        # Nodes that left and hold nothing, for the next to come: to fill one is a fraction of the
        # work of making it.
        self._spare: list[Node] = []

    def renew(self, nodes: Sequence[Node]) -> None:
        """Move nodes to the newest end, the first of them becoming the oldest of these.

        They may be on any list or none, but not parked on another one.
        """
        self._move_to_newest(nodes, self._number)

    def _move_to_newest(self, nodes: Sequence[Node], number: int) -> None:
        # Neighbours that stay neighbours, as the keys of a prefix do, move together: those from
        # `first` up to what follows them.
        head = self._head
        first = following = head
        for node in nodes:
            node.number = number
            if node is not following:
                if following is not head:
                    self._splice_to_newest(first, following)
                if node.older is NOWHERE:
                    self.parking.remove(node)
                    self._link_newest(node)
                first = node
            following = node.newer
        # Those that end at the head are there already.
        if following is not head:
            self._splice_to_newest(first, following)

    def _splice_to_newest(self, first: Node, following: Node) -> None:
        """Move the linked nodes from `first` up to `following`, which stays, to the newest end."""
        head = self._head
        older, last = first.older, following.older
        older.newer = following
        following.older = older
        newest = head.older
        newest.newer = first
        first.older = newest
        last.newer = head
        head.older = last

    def _link_newest(self, node: Node) -> None:
        head = self._head
        newest = head.older
        newest.newer = head.older = node
        node.older = newest
        node.newer = head

    def append(self, node: Node) -> None:
        """Put a node that is on no list at the newest end."""
        node.number = self._number
        self._link_newest(node)

    def detach(self, node: Node) -> None:
        """Take a node off this list, parked or not."""
        older = node.older
        if older is NOWHERE:
            self.parking.remove(node)
        else:
            newer = node.newer
            older.newer = newer
            newer.older = older
            node.older = node.newer = NOWHERE

    def sweep(self, n: int, protected: Set[OffloadKey]) -> list[Node]:
        """Take up to `n` idle, unprotected nodes off the list, oldest first.

        Fewer only if there are no more; then `restore` undoes it.
        """
        if self._ended:
            self._drop_ended()
        taken: list[Node] = []
        self._left_parking = {}
        if self.parking.num_returned:
            self._left_parking = dict(self.parking.take(n, protected)[0])
            taken += self._left_parking
        head = self._head
        node = head.newer
        runs = self._passed_runs
        moment = self._moment
        # Mostly all of the oldest are idle.
        from_parking = len(taken)
        for _ in range(n - from_parking):
            if node.chunk.ref_cnt or node.key in protected:
                break
            taken.append(node)
            node.older = NOWHERE
            node = node.newer
        if len(taken) < n:
            # Their places matter only to a sweep that may come to the end of the list.
            for idle in taken[from_parking:]:
                moment += 1
                if idle.number not in runs:
                    idle.end = moment
        missing = n - len(taken)
        while missing > 0 and node is not head:
            following = node.newer
            # Off the list in any case: what is left behind would be met again next time.
            node.older = node.newer = NOWHERE
            moment += 1
            if node.number not in runs and node.key is not NO_KEY:
                # No order needs the `end` of a node that is in no run, so it holds its place.
                node.end = moment
            if node.chunk.ref_cnt == 0 and node.key not in protected:
                taken.append(node)
                missing -= 1
            elif node.key is NO_KEY:
                runs[node.end] = moment
                self.parking.park(node, (moment, 0, NO_KEY))
            else:
                self.parking.park(node, self._place_of(node))
            node = following
        self._moment = moment
        head.newer = node
        node.older = head
        return taken

    def restore(self, taken: Sequence[Node]) -> None:
        """Give back what `sweep` took, so that later sweeps choose as if it had not been."""
        left = self._left_parking
        for node in taken:
            self.parking.park(node, left[node] if node in left else self._place_of(node))

    def let_go(self, taken: list[Node]) -> None:
        """What `sweep` took will not be given back."""
        for node in taken:
            node.key = NO_KEY
            node.chunk = NO_CHUNK
        self._spare = taken

    def is_newest(self, run: Run) -> bool:
        """Whether the run is empty so far, and nothing was used since it began."""
        return self._head.older is run.marker

    def begin_run(self) -> Run:
        """Begin a run at the newest end: it takes the next number.

        It ends when nobody holds the `Run` any more: until then a node may join.
        """
        if self._ended:
            self._drop_ended()
        run = Run(self._number + 1)
        self._number += 2
        marker = run.marker
        self._link_newest(marker)
        self._markers[ref(run, self._end_run)] = marker
        return run

    def _end_run(self, ended: ref[Run]) -> None:
        # The garbage collector may call this in the middle of a sweep, so the marker waits.
        self._ended.append(self._markers.pop(ended))

    def _drop_ended(self) -> None:
        while self._ended:
            marker = self._ended.pop()
            self._passed_runs.pop(marker.end, None)
            self.detach(marker)

    def join_run(self, run: Run, nodes: Sequence[Node]) -> None:
        """Put nodes, from wherever they are on this list, into the run by their `end`.

        `nodes` are in the order of the run among themselves.
        """
        if self.is_newest(run):
            self._move_to_newest(nodes, run.number)
            run.last_placed = nodes[-1]
        else:
            # All of them first: one that stays in the run has another `end` now than its place.
            for node in nodes:
                self.detach(node)
            for node in nodes:
                self.insert_into_run(run, node)

    def extend_run(
        self,
        run: Run,
        keys: Sequence[OffloadKey],
        chunks: Sequence[ChunkStatus],
        ends: Sequence[int],
    ) -> list[Node]:
        """Put new nodes into the run by their `ends`, which ascend; answers the nodes."""
        nodes = self._make_nodes(keys, chunks, ends)
        marker = run.marker
        newer = marker.newer
        number = run.number
        if marker.older is NOWHERE or (newer.number == number and newer.end >= ends[0]):
            for node in nodes:
                self.insert_into_run(run, node)
            return nodes
        # The usual case: the prefix grows, and its new tail goes first.
        for node in nodes:
            node.number = number
            newer.older = node
            node.newer = newer
            newer = node
        marker.newer = newer
        newer.older = marker
        return nodes

    def _make_nodes(
        self, keys: Sequence[OffloadKey], chunks: Sequence[ChunkStatus], ends: Sequence[int]
    ) -> list[Node]:
        nodes = self._spare[: len(keys)]
        self._spare = []
        for node, key, chunk, end in zip(nodes, keys, chunks, ends, strict=False):
            node.key = key
            node.chunk = chunk
            node.end = end
        filled = len(nodes)
        nodes += map(Node, keys[filled:], chunks[filled:], ends[filled:])
        return nodes

    def insert_into_run(self, run: Run, node: Node) -> None:
        """Put a node that is on no list into the run by its `end`."""
        number = node.number = run.number
        after = run.last_placed
        if after.older is NOWHERE or after.number != number:
            after = run.marker
            if after.older is NOWHERE:
                after = self._head
        while after.number == number and node.precedes(after):
            after = after.older
        following = after.newer
        while following.number == number and following.precedes(node):
            after = following
            following = after.newer
        if after is self._head:
            # The sweep has passed the marker, and may have parked newer nodes than this one.
            self.parking.park(node, self._place_of(node))
            return
        after.newer = following.older = node
        node.older = after
        node.newer = following
        run.last_placed = node

    def _place_of(self, node: Node) -> Place:
        run = self._passed_runs.get(node.number)
        return (node.end, 0, NO_KEY) if run is None else (run, -node.end, node.key)

    def clear(self) -> None:
        """Take everything off. Neighbours hold each other, so they are parted here and now."""
        for node in list(self):
            node.older = node.newer = NOWHERE
        head = self._head
        head.older = head.newer = head
        self.parking.clear()
        self._markers.clear()
        self._ended.clear()
        self._passed_runs.clear()
        self._spare.clear()
        self._number = self._moment = 0

    def __iter__(self) -> Iterator[Node]:
        """The linked nodes, oldest first; markers too."""
        node = self._head.newer
        while node is not self._head:
            yield node
            node = node.newer

    def check(self, expected: Set[Node]) -> None:
        """Raise InvariantError unless the list holds exactly `expected`, each once, in order."""
        linked = list(self)
        broken = [node for node in linked if node.newer.older is not node]
        broken += [
            node
            for node, following in pairwise(linked)
            # Keys of one run; markers, which no order binds, have the number -1.
            if 0 < node.number == following.number
            and node.number % 2
            and not node.precedes(following)
        ]
        held = [node for node in [*linked, *self.parking] if node.key is not NO_KEY]
        self.parking.check()
        if (
            broken
            or len(held) != len(expected)
            or set(held) != expected
            or any(node.older is not NOWHERE for node in self.parking)
        ):
            raise InvariantError(
                f"recency list: linked {[node.key for node in linked]}, "
                f"parked {[node.key for node in self.parking]}, "
                f"broken links at {[node.key for node in broken]}, "
                f"expected {[node.key for node in expected]}"
            )
