"""W-TinyLFU on three plain lists, oldest use first, and a dict of approximate counts.

Right because `choose` is one sentence of the paper after another: what newcomers push out of the
window enters the main part while that has room, else it stays only if it was used more often than
the main part's next victim. The counts are a count-min sketch, spelled out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from zlib import crc32

from kvoffload.keys import OffloadKey
from stateful_models.models.policy import Ends
from stateful_models.models.uses import UseModel, first_of
from stateful_models.operations import RequestId

MULTIPLIERS = (2654435761, 2246822519, 3266489917, 668265263)
"""One a row: what the checksum of a key is multiplied by."""


class CountModel:
    """Four rows of counters up to 15; a key's count is the least of its four."""

    def __init__(self, capacity: int) -> None:
        self.counters: dict[tuple[int, int], int] = {}
        self.counted: int = 0
        self.halved: bool = False
        self.sample: int = max(1, 10 * capacity)
        self.width: int = 16
        while self.width < 4 * capacity:
            self.width *= 2

    def places(self, key: OffloadKey) -> list[tuple[int, int]]:
        """Row and column of the counters of a key: the high bits of 32 of its products."""
        products = [crc32(key) * multiplier % 2**32 for multiplier in MULTIPLIERS]
        return [(row, product * self.width // 2**32) for row, product in enumerate(products)]

    def count(self, key: OffloadKey) -> None:
        """The key was used; when that makes a sample, everything is halved."""
        for place in self.places(key):
            self.counters[place] = min(self.counters.get(place, 0) + 1, 15)
        self.counted += 1
        if self.counted == self.sample:
            self.halved = True
            self.counted //= 2
            self.counters = {place: count // 2 for place, count in self.counters.items()}

    def estimate(self, key: OffloadKey) -> int:
        """How often it was used, or more."""
        return min(self.counters.get(place, 0) for place in self.places(key))


class WTinyLFUModel(UseModel):
    """Window, probation and protected: 1%, at least 1, are window, 80% of the rest protected."""

    SITUATIONS: ClassVar[tuple[str, ...]] = (
        "a candidate found room",
        "a candidate stayed",
        "a candidate went",
        "the main part gave, unasked",
        "a key got another chance",
        "the counts were halved",
    )

    def __init__(
        self,
        capacity: int,
        tail_first: bool = False,
        window_percent: int = 1,
        protected_percent: int = 80,
    ) -> None:
        super().__init__(capacity, tail_first)
        self.window: list[OffloadKey] = []
        self.probation: list[OffloadKey] = []
        self.protected: list[OffloadKey] = []
        self.counts: CountModel = CountModel(capacity)
        self.window_size: int = max(1, capacity * window_percent // 100)
        self.main_size: int = capacity - self.window_size
        self.protected_size: int = self.main_size * protected_percent // 100

    def main_has_room(self) -> bool:
        """Whether the main part is not full."""
        return len(self.probation) + len(self.protected) < self.main_size

    def choose(self, count: int, candidates: Sequence[OffloadKey]) -> list[OffloadKey]:
        allowed = set(candidates)
        victims: list[OffloadKey] = []
        while len(victims) < count:
            candidate = first_of(self.window, allowed)
            rival = first_of(self.probation + self.protected, allowed)
            if candidate is None:
                self.reached.add("the main part gave, unasked")
                victim = rival
            elif self.main_has_room():
                self.reached.add("a candidate found room")
                victim = None
            elif rival is not None and self.admits(candidate, rival):
                self.reached.add("a candidate stayed")
                victim = rival
            else:
                self.reached.add("a candidate went")
                victim = candidate
            if victim is not None:
                self.forget(victim)
                allowed.remove(victim)
                victims.append(victim)
            if candidate is not None and candidate != victim:
                self.window.remove(candidate)
                self.probation.append(candidate)
        return victims

    def admits(self, candidate: OffloadKey, rival: OffloadKey) -> bool:
        """Whether the candidate stays and its rival goes."""
        return self.counts.estimate(candidate) > self.counts.estimate(rival)

    def admit(self, key: OffloadKey, request: RequestId, ends: Ends) -> None:
        self.window.append(key)
        if len(self.window) > self.window_size:
            self.probation.append(self.window.pop(0))

    def part_of(self, key: OffloadKey) -> list[OffloadKey]:
        """The list that a key is in."""
        return next(part for part in (self.window, self.probation, self.protected) if key in part)

    def forget(self, key: OffloadKey) -> None:
        self.part_of(key).remove(key)

    def restart(self) -> None:
        for part in (self.window, self.probation, self.protected):
            part.clear()
        self.counts = CountModel(self.capacity)

    def miss(self, keys: Sequence[OffloadKey]) -> None:
        for key in keys:
            self.count(key)

    def want(self, key: OffloadKey) -> None:
        self.count(key)
        super().want(key)

    def count(self, key: OffloadKey) -> None:
        """The key was used."""
        self.counts.count(key)
        if self.counts.halved:
            self.reached.add("the counts were halved")

    def use(self, key: OffloadKey) -> None:
        if key in self.window:
            self.renew(key)
            return
        self.forget(key)
        self.protected.append(key)
        if len(self.protected) > self.protected_size:
            self.reached.add("a key got another chance")
            self.probation.append(self.protected.pop(0))

    def renew(self, key: OffloadKey) -> None:
        part = self.part_of(key)
        part.remove(key)
        part.append(key)
