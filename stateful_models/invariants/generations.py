"""Generations and attempts: what is over has no effect any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeVar

from kvoffload.errors import UnknownTicketError
from kvoffload.keys import OffloadKey
from kvoffload.lookup import LookupResult
from stateful_models.account import Account
from stateful_models.contract import Kind
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    Attempt,
    CompleteLoad,
    CompleteStore,
    Lookup,
    PrepareLoad,
    PrepareStore,
    Reset,
    key_text,
    keys_text,
)
from stateful_models.steps import Loaded, Step, Stored

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

KEPT = 65_536
"""How many attempts and suspicious keys are remembered."""


class Generations(Invariant[Account]):
    """GEN-1, GEN-2 and DONE-4.

    Judged where it shows: in look-ups and victims after a reset or after a stale completion,
    and in the counters that a manager may show of itself.
    """

    clauses: ClassVar[tuple[str, ...]] = ("GEN-1", "GEN-2", "DONE-4")

    def __init__(self) -> None:
        self._before: set[OffloadKey] = set()
        self._tickets: dict[int, None] = {}
        self._generation_of: dict[Attempt, int] = {}
        self._suspects: dict[OffloadKey, str] = {}
        self._generation: int | None = None
        self._stale: int | None = None

    def judge(self, step: Step, books: Account) -> Iterable[Finding]:
        operation = step.operation
        kind = type(operation)
        if kind is Lookup:
            # By far the most frequent step, and rarely of interest.
            return self._looked_up(step, books) if self._before or self._suspects else ()
        if isinstance(operation, (CompleteLoad, CompleteStore)):
            return self._completed(operation, step, books)
        if isinstance(operation, (PrepareStore, PrepareLoad)):
            return self._prepared(operation, step, books)
        return self._other(step, books)

    def _looked_up(self, step: Step, books: Account) -> Iterator[Finding]:
        operation = step.operation
        if not isinstance(operation, Lookup) or not isinstance(step.result, LookupResult):
            return
        key, hit = operation.key, step.result is not LookupResult.MISS
        if key in self._before and key not in books.resident and hit:
            yield Finding("GEN-1", f"{key_text(key)} is from before the reset, and is still found")
        if key in self._suspects:
            clause = self._suspects.pop(key)
            entry = books.resident.get(key)
            found = (entry is not None, entry is not None and not entry.pending)
            if found != (hit, step.result is LookupResult.HIT):
                yield Finding(clause, f"a stale completion changed what {key_text(key)} is")

    def _prepared(
        self, operation: PrepareStore | PrepareLoad, step: Step, books: Account
    ) -> Iterator[Finding]:
        result = step.result
        if not isinstance(result, (Loaded, Stored)):
            return
        if isinstance(result, Stored):
            for key in result.evicted:
                entry = books.resident.get(key)
                if entry is None and key in self._before:
                    yield Finding(
                        "GEN-1", f"{key_text(key)} was evicted, which a reset had removed"
                    )
                elif key in self._suspects and entry is not None and not entry.idle:
                    yield Finding(
                        self._suspects.pop(key),
                        f"{key_text(key)} was evicted after a stale completion released it",
                    )
            self._before.difference_update(result.keys)
            for key in (*result.keys, *result.evicted):
                self._suspects.pop(key, None)
        ticket = result.ticket
        if ticket is not None:
            if ticket in self._tickets:
                yield Finding("DONE-4", f"ticket {ticket} was given out twice")
            self._tickets[ticket] = None
            _shorten(self._tickets)
            if operation.attempt is not None:
                self._generation_of[operation.attempt] = books.generation
                _shorten(self._generation_of)

    def _completed(
        self, completion: CompleteLoad | CompleteStore, step: Step, books: Account
    ) -> Iterator[Finding]:
        attempt = completion.attempt
        if attempt is None:
            return
        made_in = self._generation_of.get(attempt)
        if step.error is not None:
            if made_in is not None and isinstance(step.error, UnknownTicketError):
                yield Finding("DONE-4", f"attempt {attempt} was made, and its ticket is unknown")
            return
        stale = len(books.acted) < len(completion.keys)
        if stale:
            old = made_in is not None and made_in < books.generation
            for key in set(completion.keys).difference(books.acted):
                self._suspects[key] = "GEN-2" if old else "DONE-4"
            _shorten(self._suspects)
        shown = step.visible.stale_completions
        if shown is not None:
            if self._stale is not None and shown - self._stale != int(stale):
                yield Finding(
                    "DONE-4",
                    f"a completion of {keys_text(completion.keys)} was "
                    f"{'' if stale else 'not '}stale, and {shown - self._stale} were counted",
                )
            self._stale = shown

    def _other(self, step: Step, books: Account) -> Iterator[Finding]:
        reset = isinstance(step.operation, Reset) and step.error is None
        if reset:
            self._before.update(books.resident)
            self._suspects.clear()
        shown = step.visible.generation
        if shown is not None:
            if self._generation is not None and shown != self._generation + reset:
                yield Finding(
                    "GEN-1",
                    f"the generation went from {self._generation} to {shown}",
                    Kind.REFERENCE,
                )
            self._generation = shown
        if self._stale is None or reset:
            self._stale = step.visible.stale_completions


def _shorten(remembered: dict[KeyT, ValueT]) -> None:
    while len(remembered) > KEPT:
        del remembered[next(iter(remembered))]
