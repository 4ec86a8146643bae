"""A queue of chunks in order of use, oldest first, for policies whose order has no exceptions.

An ordered dict holds the line; chunks met while pinned are parked. `RecencyList` does the same
for an order that can be joined in the middle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set

from attrs import define

from kvoffload.errors import InvariantError
from kvoffload.keys import OffloadKey
from kvoffload.policies.base import ChunkStatus
from kvoffload.policies.parking import NO_KEY, Node, Parking, Place


@define
class Sweep:
    """Victims taken from a queue, and what `restore` needs to know of where they stood."""

    victims: list[tuple[OffloadKey, ChunkStatus]]
    # The first victims come from the parking, one for each of these places.
    left_parking: list[Place]
    # The others stood in line from this moment on, but for the steps at which one was passed.
    moment: int
    passed: list[int]
    # Whether there was nothing more to take, and if not, how many a next sweep can skip.
    exhausted: bool
    known_protected: int


class ChunkQueue:
    """Chunks in order of use. `line` is open to a policy's loops; `parked` ones are not in it."""

    def __init__(self) -> None:
        self.line: OrderedDict[OffloadKey, ChunkStatus] = OrderedDict()
        self.parked: dict[OffloadKey, Node] = {}
        self._parking = Parking()
        self._moment = 0

    def __len__(self) -> int:
        return len(self.line) + len(self.parked)

    def __contains__(self, key: object) -> bool:
        return key in self.line or key in self.parked

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        chunk = self.line.get(key)
        if chunk is None and key in self.parked:
            return self.parked[key].chunk
        return chunk

    def pop(self, key: OffloadKey) -> ChunkStatus | None:
        """Take a chunk out; None if it is not in the queue."""
        chunk = self.line.pop(key, None)
        return self.pop_parked(key) if chunk is None else chunk

    def pop_parked(self, key: OffloadKey) -> ChunkStatus | None:
        """Take a chunk out of the parking; None if it is not parked."""
        if self.parked:
            node = self.parked.pop(key, None)
            if node is not None:
                self._parking.remove(node)
                return node.chunk
        return None

    def renew(self, key: OffloadKey) -> None:
        """Move a chunk of the queue to its newest end."""
        if key in self.line:
            self.line.move_to_end(key)
        else:
            self.renew_parked(key)

    def renew_parked(self, key: OffloadKey) -> None:
        """Move a chunk to the newest end if it is parked."""
        chunk = self.pop_parked(key)
        if chunk is not None:
            self.line[key] = chunk

    def release(self, key: OffloadKey) -> None:
        """The chunk became idle: if it is parked, it can be taken again."""
        node = self.parked.get(key)
        if node is not None:
            self._parking.release(node)

    def sweep(self, n: int, protected: Set[OffloadKey], before: Sweep | None = None) -> Sweep:
        """Take out up to `n` idle, unprotected chunks, oldest first; fewer if there are no more.

        `before` is an earlier sweep for the same `protected`, with nothing done since.
        """
        victims: list[tuple[OffloadKey, ChunkStatus]] = []
        left_parking: list[Place] = []
        known = 0 if before is None else before.known_protected
        if self.parked:
            taken, known = self._parking.take(n, protected, known)
            for node, place in taken:
                victims.append((node.key, node.chunk))
                left_parking.append(place)
                del self.parked[node.key]
        passed: list[tuple[OffloadKey, ChunkStatus]] = []
        passed_at: list[int] = []
        steps = -len(victims)
        line, take = self.line, self.line.popitem
        while line and len(victims) < n:
            # As many as are lacking, for mostly all of them can go.
            oldest = [take(False) for _ in range(min(n - len(victims), len(line)))]
            staying = [key for key, chunk in oldest if chunk.ref_cnt or key in protected]
            if not staying:
                victims += oldest
                break
            rest = iter(staying)
            next_to_stay: OffloadKey | None = next(rest)
            for item in oldest:
                if item[0] is not next_to_stay:
                    victims.append(item)
                else:
                    # Put back in line it would be met again next time.
                    passed_at.append(steps + len(victims) + len(passed))
                    passed.append(item)
                    next_to_stay = next(rest, None)
        moment = self._moment
        self._moment = moment + steps + len(victims) + len(passed)
        if passed:
            for step, (key, chunk) in zip(passed_at, passed, strict=True):
                self._park(key, chunk, (moment + step, 0, NO_KEY))
            # What the line was asked for, the parking did not have: all of it is protected.
            known = self._parking.num_returned
        return Sweep(victims, left_parking, moment, passed_at, len(victims) < n, known)

    def restore(self, sweep: Sweep) -> None:
        """Give back what a sweep took, so that later ones choose as if it had not been."""
        passed = set(sweep.passed)
        places = iter(sweep.left_parking)
        step = 0
        for key, chunk in sweep.victims:
            place = next(places, None)
            if place is None:
                while step in passed:
                    step += 1
                place = (sweep.moment + step, 0, NO_KEY)
                step += 1
            self._park(key, chunk, place)

    def clear(self) -> None:
        self.line.clear()
        self.parked.clear()
        self._parking.clear()
        self._moment = 0

    def check(self) -> None:
        """Raise InvariantError if a chunk is both in line and parked, or parked by halves."""
        self._parking.check()
        if (
            not self.line.keys().isdisjoint(self.parked)
            or set(self.parked.values()) != set(self._parking)
            or any(key != node.key for key, node in self.parked.items())
        ):
            raise InvariantError(
                f"queue: {list(self.line)} in line, {list(self.parked)} parked, "
                f"{[node.key for node in self._parking]} in the parking"
            )

    def _park(self, key: OffloadKey, chunk: ChunkStatus, place: Place) -> None:
        self.parked[key] = node = Node(key, chunk)
        self._parking.park(node, place)
