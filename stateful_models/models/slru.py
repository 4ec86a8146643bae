"""Segmented LRU on two plain lists, the key that was used longest ago first.

Right because each method is a sentence of its paper: misses enter probation, hits move to the
protected list, what that cannot hold goes back, and victims come from probation first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kvoffload.keys import OffloadKey
from stateful_models.models.policy import Ends
from stateful_models.models.uses import UseModel
from stateful_models.operations import RequestId


class SLRUModel(UseModel):
    """Probation and protected; `protected_percent` of the capacity are for the latter."""

    SITUATIONS: ClassVar[tuple[str, ...]] = (
        "a key got another chance",
        "a protected key left",
    )

    def __init__(
        self, capacity: int, tail_first: bool = False, protected_percent: int = 80
    ) -> None:
        super().__init__(capacity, tail_first)
        self.probation: list[OffloadKey] = []
        self.protected: list[OffloadKey] = []
        self.protected_size: int = capacity * protected_percent // 100

    def choose(self, count: int, candidates: Sequence[OffloadKey]) -> list[OffloadKey]:
        victims = [key for key in self.probation + self.protected if key in candidates][:count]
        for key in victims:
            if key in self.protected:
                self.reached.add("a protected key left")
            self.forget(key)
        return victims

    def admit(self, key: OffloadKey, request: RequestId, ends: Ends) -> None:
        self.probation.append(key)

    def forget(self, key: OffloadKey) -> None:
        (self.probation if key in self.probation else self.protected).remove(key)

    def restart(self) -> None:
        self.probation.clear()
        self.protected.clear()

    def use(self, key: OffloadKey) -> None:
        self.forget(key)
        self.protected.append(key)
        if len(self.protected) > self.protected_size:
            self.reached.add("a key got another chance")
            self.probation.append(self.protected.pop(0))

    def renew(self, key: OffloadKey) -> None:
        segment = self.probation if key in self.probation else self.protected
        segment.remove(key)
        segment.append(key)
