"""A search for a plainer program that fails as one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from attrs import define, field

from stateful_models.programs import Program

StillFails: TypeAlias = Callable[[Program], Program | None]
"""The program itself, perhaps cut where it fails, if it fails as before; else None."""


class OutOfBudgetError(Exception):
    """As many programs were tried as may be."""


@define
class Search:
    """`best` is the plainest program found that still fails; `budget` more may be tried."""

    best: Program
    still_fails: StillFails
    budget: int
    expired: Callable[[], bool] = lambda: False
    # As text, for hints have no hash.
    _tried: set[str] = field(factory=set[str], init=False)

    def attempt(self, candidate: Program) -> bool:
        """Whether another program fails too, which then is the best. Raises OutOfBudgetError.

        What was tried before is not tried again.
        """
        text = repr(candidate)
        if candidate == self.best or text in self._tried:
            return False
        if self.budget <= 0 or self.expired():
            raise OutOfBudgetError
        self.budget -= 1
        self._tried.add(text)
        failing = self.still_fails(candidate)
        if failing is None:
            return False
        self.best = failing
        return True
