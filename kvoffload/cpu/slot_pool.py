"""The slots of the CPU tier: which are free, and in which order they are handed out (STORE-7)."""

from __future__ import annotations

from collections.abc import Sequence, Set

from kvoffload.errors import InvariantError


class SlotPool:
    """Slots 0 to capacity - 1. Never used ones go first, ascending; then the last freed first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._fresh = 0
        self._freed: list[int] = []

    @property
    def num_free(self) -> int:
        return self.capacity - self._fresh + len(self._freed)

    def preview(self, count: int, returning: Sequence[int] = ()) -> list[int]:
        """The slots that `take` would hand out, once those in `returning` are freed in order."""
        if self._fresh == self.capacity and count == len(returning):
            # The usual case: a full cache stores into what it has evicted.
            return list(returning[::-1])
        end = min(self._fresh + count, self.capacity)
        slots = list(range(self._fresh, end))
        missing = count - len(slots)
        if missing:
            slots += reversed(returning[max(0, len(returning) - missing) :])
            missing = count - len(slots)
            if missing:
                slots += reversed(self._freed[len(self._freed) - missing :])
        return slots

    def take(self, count: int, returning: Sequence[int] = ()) -> None:
        """Free `returning`, then hand out `count` slots: those that `preview` named."""
        if self._fresh == self.capacity and count == len(returning):
            # The usual case: they go from hand to hand.
            return
        fresh = min(count, self.capacity - self._fresh)
        self._fresh += fresh
        self._freed += returning
        reused = count - fresh
        if reused:
            del self._freed[-reused:]

    def free(self, slots: Sequence[int]) -> None:
        """Take slots back, in this order."""
        self._freed += slots

    def clear(self) -> None:
        """All slots are as if never used."""
        self._fresh = 0
        self._freed.clear()

    def check(self, used: Set[int], num_used: int) -> None:
        """Raise InvariantError unless free and used slots partition the range (SLOT-1)."""
        free = set(self._freed).union(range(self._fresh, self.capacity))
        if (
            len(free) != self.num_free
            or len(used) != num_used
            or not free.isdisjoint(used)
            or free | used != set(range(self.capacity))
        ):
            raise InvariantError(
                f"slot pool of {self.capacity}: fresh from {self._fresh}, freed {self._freed}, "
                f"{num_used} used {sorted(used)}"
            )
