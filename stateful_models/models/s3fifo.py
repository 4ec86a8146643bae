"""S3-FIFO on three plain lists, the key that entered first at the front, and a dict of counts.

Right because `evict_small` and `evict_main` are the paper's evictS and evictM, which look for the
first key that can go, and `choose` is its evict, once for each newcomer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kvoffload.keys import OffloadKey
from stateful_models.models.policy import Ends
from stateful_models.models.uses import UseModel, first_of
from stateful_models.operations import RequestId


class S3FIFOModel(UseModel):
    """Small, main and ghosts; `small_percent` of the capacity, at least 1, are small."""

    SITUATIONS: ClassVar[tuple[str, ...]] = (
        "a key left small for main",
        "main ran over",
        "a key went round in main",
        "a ghost returned",
        "a ghost was forgotten",
    )

    def __init__(self, capacity: int, tail_first: bool = False, small_percent: int = 10) -> None:
        super().__init__(capacity, tail_first)
        self.small: list[OffloadKey] = []
        self.main: list[OffloadKey] = []
        self.ghosts: list[OffloadKey] = []
        self.freq: dict[OffloadKey, int] = {}
        self.small_size: int = max(1, capacity * small_percent // 100)
        self.main_size: int = capacity - self.small_size

    def choose(self, count: int, candidates: Sequence[OffloadKey]) -> list[OffloadKey]:
        allowed = set(candidates)
        victims: list[OffloadKey] = []
        free = self.capacity - len(self.states)
        for newcomers in range(free, free + count):
            victim = None
            if len(self.small) + newcomers >= self.small_size:
                victim = self.evict_small(allowed)
            # What leaves small may stay in main.
            for evict in (self.evict_main, self.evict_small, self.evict_main):
                victim = victim or evict(allowed)
            if victim is not None:
                victims.append(victim)
                allowed.remove(victim)
        if len(self.ghosts) > self.main_size:
            self.reached.add("a ghost was forgotten")
            del self.ghosts[: len(self.ghosts) - self.main_size]
        return victims

    def evict_small(self, allowed: set[OffloadKey]) -> OffloadKey | None:
        """The next victim of small, or of main if that runs over meanwhile."""
        while (key := first_of(self.small, allowed)) is not None:
            self.small.remove(key)
            if self.freq[key] <= 1:
                self.ghosts.append(key)
                return key
            self.reached.add("a key left small for main")
            self.freq[key] = 0
            self.main.append(key)
            if len(self.main) > self.main_size:
                self.reached.add("main ran over")
                return self.evict_main(allowed)
        return None

    def evict_main(self, allowed: set[OffloadKey]) -> OffloadKey | None:
        """The next victim of main."""
        while (key := first_of(self.main, allowed)) is not None:
            self.main.remove(key)
            if self.freq[key] == 0:
                return key
            self.reached.add("a key went round in main")
            self.freq[key] -= 1
            self.main.append(key)
        return None

    def admit(self, key: OffloadKey, request: RequestId, ends: Ends) -> None:
        self.freq[key] = 0
        if key in self.ghosts:
            self.reached.add("a ghost returned")
            self.ghosts.remove(key)
            self.main.append(key)
        else:
            self.small.append(key)

    def forget(self, key: OffloadKey) -> None:
        (self.small if key in self.small else self.main).remove(key)

    def restart(self) -> None:
        for keys in (self.small, self.main, self.ghosts):
            keys.clear()

    def use(self, key: OffloadKey) -> None:
        self.freq[key] = min(self.freq[key] + 1, 3)

    def renew(self, key: OffloadKey) -> None:
        queue = self.small if key in self.small else self.main
        queue.remove(key)
        queue.append(key)
