"""Eviction protection: who may go, how many go, and when an offer may be refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from kvoffload.wording import counted
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import Operation, PrepareStore, key_text
from stateful_models.steps import Step, Stored


class EvictionProtection(Invariant[Account]):
    """LOAD-3, STORE-4 and STORE-5.

    `may_refuse`: the cache policy refuses by design, so that a refusal proves nothing (POL-3).
    `may_evict_more`: where any have to go, it may give more.
    """

    clauses: ClassVar[tuple[str, ...]] = ("LOAD-3", "STORE-4", "STORE-5")
    concerns: ClassVar[tuple[type[Operation], ...]] = (PrepareStore,)

    def __init__(self, *, may_refuse: bool = False, may_evict_more: bool = False) -> None:
        self._may_refuse = may_refuse
        self._may_evict_more = may_evict_more

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        operation = step.operation
        if not isinstance(operation, PrepareStore) or step.error is not None:
            return
        if isinstance(step.result, Stored):
            if step.result.evicted:
                yield from self._victims(operation, step.result, books)
            yield from self._number(step.result, books)
        elif not self._may_refuse:
            yield from self._refused(operation, books)

    def _victims(self, offer: PrepareStore, stored: Stored, books: Account) -> Iterator[Finding]:
        offered = set(offer.keys)
        gone = set(stored.evicted)
        if len(gone) < len(stored.evicted):
            yield Finding("STORE-4", "a key was evicted twice in one call")
        for key in stored.evicted:
            entry = books.resident.get(key)
            if entry is None:
                yield Finding("STORE-4", f"{key_text(key)} was evicted, which was not resident")
            elif entry.pending:
                yield Finding("LOAD-3", f"{key_text(key)} was evicted while it was being stored")
            elif entry.loaders:
                yield Finding(
                    "LOAD-3", f"{key_text(key)} was evicted while {len(entry.loaders)} pinned it"
                )
            if key in offered and entry is not None:
                yield Finding("STORE-5", f"{key_text(key)} was evicted by an offer that names it")

    def _number(self, stored: Stored, books: Account) -> Iterator[Finding]:
        free = books.free
        if free is None:
            return
        lacking = max(0, len(stored.keys) - free)
        gone = len(stored.evicted)
        if gone != lacking and not (self._may_evict_more and 0 < lacking < gone):
            yield Finding(
                "STORE-4",
                f"{counted(len(stored.keys), 'key')} and {counted(free, 'free slot')}: {lacking} "
                f"should be evicted, {gone} were",
            )

    def _refused(self, offer: PrepareStore, books: Account) -> Iterator[Finding]:
        free = books.free
        if free is None:
            return
        idle = books.idle
        new = 0
        for key in dict.fromkeys(offer.keys):
            entry = books.resident.get(key)
            if entry is None:
                new += 1
            elif entry.idle:
                idle -= 1
        # The reuse threshold may have left out some of the new keys, but can add none.
        if 0 < new <= free + idle:
            yield Finding(
                "STORE-4",
                f"an offer with {counted(new, 'new key')} was refused, with "
                f"{counted(free, 'slot')} free and {counted(idle, 'chunk')} idle that it does "
                "not name",
            )
