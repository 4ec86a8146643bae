"""Marks: the policy is told exactly when chunks become idle, stop being idle, or fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import ClassVar

from kvoffload.keys import OffloadKey
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    Attempt,
    CompleteLoad,
    CompleteStore,
    MarkEvictable,
    MarkNonEvictable,
    Operation,
    PolicyOperation,
    PrepareLoad,
    PrepareStore,
    Remove,
    keys_text,
)
from stateful_models.steps import Loaded, Step, Stored

KEPT = 65_536
"""Of how many attempts it is remembered when they were made."""


class Marks(Invariant[Account]):
    """What DONE-1 to DONE-4, LOAD-2, LOAD-3, PIN-1 and GEN-2 mean for the policy.

    Judged where a tap tells what the policy was told. A manager that never marks anything keeps an
    older protocol, in which policies read `ref_cnt` alone: its marks are not judged.
    """

    clauses: ClassVar[tuple[str, ...]] = (
        "DONE-1",
        "DONE-2",
        "DONE-3",
        "DONE-4",
        "LOAD-2",
        "LOAD-3",
        "PIN-1",
        "GEN-2",
    )
    concerns: ClassVar[tuple[type[Operation], ...]] = (
        PrepareLoad,
        PrepareStore,
        CompleteLoad,
        CompleteStore,
    )

    def __init__(self) -> None:
        self._marks = False
        self._generation_of: dict[Attempt, int] = {}

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        told = step.told
        if told is None:
            return
        operation = step.operation
        if isinstance(operation, (PrepareLoad, PrepareStore)):
            if operation.attempt is not None and isinstance(step.result, (Loaded, Stored)):
                self._generation_of[operation.attempt] = books.generation
                while len(self._generation_of) > KEPT:
                    del self._generation_of[next(iter(self._generation_of))]
        if step.error is not None:
            return
        idle = _of(told, MarkEvictable)
        busy = _of(told, MarkNonEvictable)
        self._marks = self._marks or bool(idle or busy)
        if isinstance(operation, CompleteStore):
            yield from self._stored(operation, idle, busy, _of(told, Remove), books)
        elif self._marks and isinstance(operation, CompleteLoad):
            yield from self._released(operation, idle, busy, books)
        elif self._marks and isinstance(operation, PrepareLoad):
            yield from _pinned(operation, idle, busy, books)

    def _stored(
        self,
        store: CompleteStore,
        idle: Counter[OffloadKey],
        busy: Counter[OffloadKey],
        removed: Counter[OffloadKey],
        books: Account,
    ) -> Iterator[Finding]:
        acted = Counter(books.acted)
        foreign = [key for key in idle + busy + removed if key not in acted]
        if foreign:
            clause = self._meddling(store, foreign, books)
            yield Finding(
                clause,
                f"completing a store told the policy of {keys_text(foreign)}, which is not of it",
            )
            return
        clause = "DONE-1" if store.success else "DONE-2"
        marked, other = (idle, removed) if store.success else (removed, idle)
        missing = list(acted - marked) if self._marks or not store.success else []
        surplus = [*(marked - acted), *other, *busy]
        what = "succeeded" if store.success else "failed"
        if missing:
            yield Finding(
                clause, f"the store of {keys_text(missing)} {what}, and the policy was not told"
            )
        if surplus:
            yield Finding(
                clause, f"the store of {keys_text(surplus)} {what}, and the policy was told more"
            )

    def _meddling(
        self,
        completion: CompleteLoad | CompleteStore,
        keys: Iterable[OffloadKey],
        books: Account,
    ) -> str:
        """The clause that a completion breaks by acting on keys that it does not hold."""
        attempt = completion.attempt
        made = None if attempt is None else self._generation_of.get(attempt)
        if made is not None and made < books.generation:
            return "GEN-2"
        entries = map(books.resident.get, keys)
        if isinstance(completion, CompleteStore) and not any(
            entry is not None and entry.pending for entry in entries
        ):
            return "DONE-3"
        return "DONE-4"

    def _released(
        self,
        load: CompleteLoad,
        idle: Counter[OffloadKey],
        busy: Counter[OffloadKey],
        books: Account,
    ) -> Iterator[Finding]:
        acted = Counter(books.acted)
        foreign = [key for key in idle + busy if key not in acted]
        if foreign and load.attempt is not None:
            yield Finding(
                self._meddling(load, foreign, books),
                f"completing a load told the policy of {keys_text(foreign)}, which it does not pin",
            )
            return
        expected = Counter(key for key, times in acted.items() if books.pins(key) == times)
        early = list(idle - expected)
        if early:
            yield Finding(
                "LOAD-3", f"{keys_text(early)} was called evictable while it is still pinned"
            )
        missing = [*(expected - idle), *busy]
        if missing:
            yield Finding(
                "PIN-1",
                f"the last pin of {keys_text(missing)} was released, and for the policy it is "
                "not evictable",
            )


def _pinned(
    load: PrepareLoad, idle: Counter[OffloadKey], busy: Counter[OffloadKey], books: Account
) -> Iterator[Finding]:
    if idle:
        yield Finding("LOAD-3", f"{keys_text(idle)} was called evictable by the load that pins it")
    expected = Counter(key for key in set(load.keys) if books.ready(key) and not books.pins(key))
    missing = list(expected - busy)
    if missing:
        yield Finding(
            "LOAD-3", f"{keys_text(sorted(missing))} was pinned, and the policy was not told"
        )
    surplus = list(busy - expected)
    if surplus:
        yield Finding(
            "LOAD-2", f"the policy was told of a first pin of {keys_text(surplus)}, which is not"
        )


def _of(
    told: Iterable[PolicyOperation],
    kind: type[MarkEvictable] | type[MarkNonEvictable] | type[Remove],
) -> Counter[OffloadKey]:
    return Counter(call.key for call in told if isinstance(call, kind))
