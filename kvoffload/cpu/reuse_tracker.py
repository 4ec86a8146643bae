"""How often keys were offered of late: the admission threshold's memory (STORE-3)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from kvoffload.errors import InvariantError
from kvoffload.keys import OffloadKey


class ReuseTracker:
    """Counts offers of at most `capacity` keys, the longest not offered first.

    A key is admitted at its `threshold`-th offer. Counting happens per offer, not per look-up:
    a look-up stops at the first miss and would never count the tail of a prompt.
    """

    def __init__(self, threshold: int, capacity: int) -> None:
        self.threshold = threshold
        self.capacity = capacity
        self._counts: OrderedDict[OffloadKey, int] = OrderedDict()

    def record(self, offer: Sequence[OffloadKey]) -> None:
        """Count an offer of distinct keys.

        Those tracked already are counted and become the latest; new ones follow, each taking
        the place of the longest not offered when the tracker is full. No key of this offer
        makes room for another of it, or a long offer would push itself out and never be
        admitted.
        """
        counts = self._counts
        replaceable = len(counts)
        new: list[OffloadKey] = []
        for key in offer:
            if key in counts:
                counts[key] += 1
                counts.move_to_end(key)
                replaceable -= 1
            else:
                new.append(key)
        for key in new:
            if len(counts) >= self.capacity:
                if not replaceable:
                    return
                counts.popitem(last=False)
                replaceable -= 1
            counts[key] = 1

    def admits(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Those of `keys` that have been offered often enough."""
        threshold = self.threshold
        count = self._counts.get
        return [key for key in keys if count(key, 0) >= threshold]

    def would_admit(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Those of `keys` that `admits` would name after one more offer of them."""
        threshold = self.threshold - 1
        count = self._counts.get
        return [key for key in keys if count(key, 0) >= threshold]

    def clear(self) -> None:
        self._counts.clear()

    def check(self) -> None:
        """Raise InvariantError if more keys are tracked than there is room for."""
        if len(self._counts) > self.capacity or any(n < 1 for n in self._counts.values()):
            raise InvariantError(f"reuse tracker of {self.capacity}: {dict(self._counts)}")
