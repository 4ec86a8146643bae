"""The attempts that a host remembers, to complete them late, twice, or never."""

from __future__ import annotations

from typing import Final, NamedTuple

from kvoffload import OffloadKey
from stateful_models import operations as op

KEPT_ATTEMPTS: Final = 8
"""How many are remembered, those that are over included."""


class Attempt(NamedTuple):
    """A load or a store that was accepted, with its keys."""

    number: op.Attempt
    request: op.RequestId
    keys: tuple[OffloadKey, ...]
    stores: bool


class Attempts:
    """The latest attempts."""

    def __init__(self) -> None:
        self._latest: list[Attempt] = []

    def __len__(self) -> int:
        return len(self._latest)

    def keep(self, attempt: Attempt) -> None:
        """Remember an attempt, and forget the oldest if there are too many."""
        self._latest = [*self._latest, attempt][-KEPT_ATTEMPTS:]

    def at(self, back: int) -> Attempt:
        """The attempt that is `back` places behind the latest, counted round."""
        return self._latest[-1 - back % len(self._latest)]
