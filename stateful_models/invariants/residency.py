"""Residency: look-ups agree with what was stored, completed and evicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

from kvoffload.keys import OffloadKey
from kvoffload.lookup import LookupResult
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    CompleteStore,
    Lookup,
    Operation,
    PrepareStore,
    Reset,
    key_text,
)
from stateful_models.steps import Step, Stored

KEPT = 65_536
"""How many failed or ignored keys are remembered, to say why a look-up is wrong."""


class _Cause(NamedTuple):
    """What was done with a key, the clause of that, and the answer which it promises; None: that
    it changes nothing."""

    clause: str
    reason: str
    promised: LookupResult | None


class Residency(Invariant[Account]):
    """LOOK-1, DONE-1, DONE-2, DONE-3, and of STORE-4 that a refused offer stores nothing."""

    clauses: ClassVar[tuple[str, ...]] = ("LOOK-1", "DONE-1", "DONE-2", "DONE-3", "STORE-4")
    concerns: ClassVar[tuple[type[Operation], ...]] = (
        Lookup,
        PrepareStore,
        CompleteStore,
        Reset,
    )

    def __init__(self) -> None:
        # Why the next look-up of a key may be wrong: what was last done with it, after which it
        # is to be answered like this. Of keys that left, and that no look-up has missed since, no
        # refusal is the reason.
        self._cause: dict[OffloadKey, _Cause] = {}
        self._left: dict[OffloadKey, None] = {}

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
            if step.result is expected:
                # What was promised of it was kept, and what comes later is another's doing.
                self._cause.pop(operation.key, None)
                self._left.pop(operation.key, None)
            else:
                yield from self._wrong(operation.key, expected, step.result)
        elif isinstance(operation, Reset):
            self._leave(books.resident)
        elif isinstance(operation, CompleteStore):
            self._completed(operation, books)
        elif isinstance(step.result, Stored):
            for key in step.result.keys:
                self._cause.pop(key, None)
                self._left.pop(key, None)
            self._leave(step.result.evicted)
        elif isinstance(operation, PrepareStore):
            for key in operation.keys:
                if key not in books.resident and key not in self._left:
                    refused = _Cause("STORE-4", "its offer was refused", LookupResult.MISS)
                    self._cause.setdefault(key, refused)
            self._shorten()

    def _leave(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            self._cause.pop(key, None)
            self._left[key] = None
        self._shorten()

    def _completed(self, store: CompleteStore, books: Account) -> None:
        done = _Cause("DONE-2", "its store failed", LookupResult.MISS)
        if store.success:
            done = _Cause("DONE-1", "its store succeeded", LookupResult.HIT)
        for key in books.acted:
            self._cause[key] = done
        if len(books.acted) < len(store.keys):
            for key in set(store.keys).difference(books.acted):
                told = "it was completed while it was not pending"
                self._cause[key] = _Cause("DONE-3", told, None)
        self._shorten()

    def _shorten(self) -> None:
        while len(self._cause) > KEPT:
            del self._cause[next(iter(self._cause))]
        while len(self._left) > KEPT:
            del self._left[next(iter(self._left))]

    def _wrong(self, key: OffloadKey, expected: LookupResult, got: object) -> Iterator[Finding]:
        shown = got.name if isinstance(got, LookupResult) else repr(got)
        yield Finding("LOOK-1", f"{key_text(key)} is answered {shown}, and is {expected.name}")
        cause = self._cause.get(key)
        if cause is not None and cause.promised in (None, expected):
            yield Finding(cause.clause, f"{key_text(key)} is answered {shown} after {cause.reason}")
