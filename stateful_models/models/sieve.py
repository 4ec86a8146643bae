"""SIEVE on a plain list, oldest key first, a set of visited keys, and the key that the hand is at.

Right because `choose` is the paper's Algorithm 1, line by line, for a hand that steps over what
cannot go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kvoffload.keys import OffloadKey
from stateful_models.models.policy import Ends
from stateful_models.models.uses import UseModel
from stateful_models.operations import RequestId


class SIEVEModel(UseModel):
    """One queue and a hand; None: it begins at the oldest key."""

    SITUATIONS: ClassVar[tuple[str, ...]] = (
        "the hand spared a key",
        "the hand stepped over a key",
        "the hand went round",
        "the key at the hand left",
    )

    def __init__(self, capacity: int, tail_first: bool = False) -> None:
        super().__init__(capacity, tail_first)
        self.queue: list[OffloadKey] = []
        self.visited: set[OffloadKey] = set()
        self.hand: OffloadKey | None = None

    def choose(self, count: int, candidates: Sequence[OffloadKey]) -> list[OffloadKey]:
        allowed = set(candidates)
        victims: list[OffloadKey] = []
        while len(victims) < count:
            key = self.queue[0] if self.hand is None else self.hand
            self.hand = self.next_newer(key)
            if self.hand is None:
                self.reached.add("the hand went round")
            if key not in allowed:
                self.reached.add("the hand stepped over a key")
            elif key in self.visited:
                self.reached.add("the hand spared a key")
                self.visited.remove(key)
            else:
                self.queue.remove(key)
                allowed.remove(key)
                victims.append(key)
        return victims

    def next_newer(self, key: OffloadKey) -> OffloadKey | None:
        """The key that came after this one, None if it is the newest."""
        newer = self.queue[self.queue.index(key) + 1 :]
        return newer[0] if newer else None

    def admit(self, key: OffloadKey, request: RequestId, ends: Ends) -> None:
        self.queue.append(key)

    def forget(self, key: OffloadKey) -> None:
        if self.hand == key:
            self.reached.add("the key at the hand left")
            self.hand = self.next_newer(key)
        self.queue.remove(key)
        self.visited.discard(key)

    def restart(self) -> None:
        self.queue.clear()
        self.visited.clear()
        self.hand = None

    def use(self, key: OffloadKey) -> None:
        self.visited.add(key)

    def renew(self, key: OffloadKey) -> None:
        if self.hand == key:
            # The newest stays where it is, and the hand at it.
            self.hand = self.next_newer(key) or key
        self.queue.remove(key)
        self.queue.append(key)
