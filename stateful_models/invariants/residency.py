"""Residency: look-ups agree with what was stored, completed and evicted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from kvoffload.keys import OffloadKey
from kvoffload.lookup import LookupResult
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import CompleteStore, Lookup, Operation, PrepareStore, key_text
from stateful_models.steps import Step, Stored

KEPT = 65_536
"""How many failed or ignored keys are remembered, to say why a look-up is wrong."""


class Residency(Invariant[Account]):
    """LOOK-1, DONE-1, DONE-2, DONE-3, and of STORE-4 that a refused offer stores nothing."""

    clauses: ClassVar[tuple[str, ...]] = ("LOOK-1", "DONE-1", "DONE-2", "DONE-3", "STORE-4")
    concerns: ClassVar[tuple[type[Operation], ...]] = (Lookup, PrepareStore, CompleteStore)

    def __init__(self) -> None:
        # Why the next look-up of a key may be wrong: what was last done with it.
        self._cause: dict[OffloadKey, tuple[str, str]] = {}

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        operation = step.operation
        if step.error is not None:
            return
        if isinstance(operation, Lookup):
            entry = books.resident.get(operation.key)
            if entry is None:
                expected = LookupResult.MISS
            elif entry.pending:
                expected = LookupResult.HIT_PENDING
            else:
                expected = LookupResult.HIT
            if step.result is not expected:
                yield from self._wrong(operation.key, expected, step.result)
        elif isinstance(operation, CompleteStore):
            self._completed(operation, books)
        elif isinstance(step.result, Stored):
            for key in step.result.keys:
                self._cause.pop(key, None)
        elif isinstance(operation, PrepareStore):
            for key in operation.keys:
                if key not in books.resident:
                    self._cause[key] = ("STORE-4", "its offer was refused")
            self._shorten()

    def _completed(self, store: CompleteStore, books: Account) -> None:
        done = (
            ("DONE-1", "its store succeeded") if store.success else ("DONE-2", "its store failed")
        )
        for key in books.acted:
            self._cause[key] = done
        if len(books.acted) < len(store.keys):
            for key in set(store.keys).difference(books.acted):
                self._cause[key] = ("DONE-3", "it was completed while it was not pending")
        self._shorten()

    def _shorten(self) -> None:
        while len(self._cause) > KEPT:
            del self._cause[next(iter(self._cause))]

    def _wrong(self, key: OffloadKey, expected: LookupResult, got: object) -> Iterator[Finding]:
        shown = got.name if isinstance(got, LookupResult) else repr(got)
        yield Finding("LOOK-1", f"{key_text(key)} is answered {shown}, and is {expected.name}")
        if key in self._cause:
            clause, reason = self._cause[key]
            yield Finding(clause, f"{key_text(key)} is answered {shown} after {reason}")
