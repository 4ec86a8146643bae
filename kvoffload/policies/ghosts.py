"""Keys that left a cache, the longest gone first: the ghost lists of adaptive replacement.

Keys come by the batch and most leave at the old end, so the order is a plain queue and only
membership is a table. A key that leaves early or is renewed stays in the queue as a stale entry,
and is passed over when it comes up: amortised, a key costs one entry in and one out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from typing_extensions import override

from kvoffload.errors import InvariantError
from kvoffload.keys import OffloadKey

# A queue may hold this many stale entries before it is worth sweeping them out.
STALE_FLOOR = 64


class GhostList:
    """Distinct keys in the order in which they came. `keys` is open to a policy's loops."""

    def __init__(self) -> None:
        self.keys: set[OffloadKey] = set()
        # Of the entries for one key the last is live if the key is in `keys`, the others stale.
        self._order: deque[OffloadKey] = deque()
        self._stale: dict[OffloadKey, int] = {}
        self._num_stale = 0

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[OffloadKey]:
        """The keys, oldest first."""
        return iter(self._live())

    @override
    def __repr__(self) -> str:
        return f"GhostList({self._live()})"

    @property
    def num_entries(self) -> int:
        """The length of the queue, stale entries included: at most 2 x len + STALE_FLOOR."""
        return len(self._order)

    def extend(self, keys: Sequence[OffloadKey], bound: int) -> None:
        """Add keys that are not in the list, and forget the oldest beyond `bound`."""
        self.keys.update(keys)
        self._order.extend(keys)
        for _ in range(len(self.keys) - bound):
            self._forget_oldest()

    def renew(self, key: OffloadKey) -> None:
        """A key of the list becomes its latest."""
        self._order.append(key)
        self._leave_stale(key)

    def discard_all(self, keys: Sequence[OffloadKey]) -> None:
        """Take out those of distinct `keys` that are in the list."""
        if self.keys and not self.keys.isdisjoint(keys):
            for key in keys:
                if key in self.keys:
                    self.keys.remove(key)
                    self._leave_stale(key)

    def clear(self) -> None:
        self.keys.clear()
        self._order.clear()
        self._stale.clear()
        self._num_stale = 0

    def check(self) -> None:
        """Raise InvariantError unless the queue holds each key once, stale entries aside."""
        live = self._live()
        if (
            set(live) != self.keys
            or len(live) != len(self.keys)
            or sum(self._stale.values()) != self._num_stale
            or len(self._order) != len(self.keys) + self._num_stale
        ):
            raise InvariantError(
                f"ghosts: {self.keys} of queue {list(self._order)}, stale {self._stale}, "
                f"{self._num_stale} in all"
            )

    def _forget_oldest(self) -> None:
        key = self._order.popleft()
        while key in self._stale:
            self._num_stale -= 1
            left = self._stale.pop(key) - 1
            if left:
                self._stale[key] = left
            key = self._order.popleft()
        self.keys.remove(key)

    def _leave_stale(self, key: OffloadKey) -> None:
        self._stale[key] = self._stale.get(key, 0) + 1
        self._num_stale += 1
        if self._num_stale > len(self.keys) + STALE_FLOOR:
            self._order = deque(self._live())
            self._stale.clear()
            self._num_stale = 0

    def _live(self) -> list[OffloadKey]:
        stale = dict(self._stale)
        live: list[OffloadKey] = []
        for key in self._order:
            if stale.get(key, 0):
                stale[key] -= 1
            else:
                live.append(key)
        return live
