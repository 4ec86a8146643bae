"""Admission: which keys of an offer are to be stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from kvoffload.keys import OffloadKey
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import Operation, PrepareStore, Reset, keys_text
from stateful_models.steps import Step, Stored


class Admission(Invariant[Account]):
    """STORE-1, STORE-2, STORE-3 and STORE-9, for a manager with this `store_threshold`.

    With a threshold it remembers how often every key was offered, one number a key: how long a
    key may be forgotten by the manager's tracker is not judged, only that none comes too early.
    """

    clauses: ClassVar[tuple[str, ...]] = ("STORE-1", "STORE-2", "STORE-3", "STORE-9")
    concerns: ClassVar[tuple[type[Operation], ...]] = (PrepareStore, Reset)

    def __init__(self, store_threshold: int = 1) -> None:
        self._threshold = store_threshold
        self._offers: Counter[OffloadKey] = Counter()

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        offer = step.operation
        if step.error is not None:
            return
        if not isinstance(offer, PrepareStore):
            self._offers.clear()
            return
        distinct = dict.fromkeys(offer.keys)
        if self._threshold >= 2:
            self._offers.update(distinct.keys())
        new = [key for key in distinct if key not in books.resident]
        if isinstance(step.result, Stored):
            if step.result.keys != tuple(new):
                yield from self._admitted(step.result, new, distinct, books)
            if self._threshold >= 2:
                early = [k for k in step.result.keys if self._offers[k] < self._threshold]
                if early:
                    yield Finding(
                        "STORE-3",
                        f"{keys_text(early)} was admitted before its {self._threshold}th offer",
                    )
        elif not new:
            yield Finding("STORE-9", "an offer with nothing to store was refused")

    def _admitted(
        self,
        stored: Stored,
        new: list[OffloadKey],
        distinct: dict[OffloadKey, None],
        books: Account,
    ) -> Iterator[Finding]:
        again = [key for key, times in Counter(stored.keys).items() if times > 1]
        if again:
            yield Finding("STORE-1", f"{keys_text(again)} is to be stored more than once")
        resident = [key for key in stored.keys if key in books.resident]
        if resident:
            yield Finding("STORE-2", f"{keys_text(resident)} is to be stored, and was resident")
        foreign = [key for key in stored.keys if key not in distinct]
        if foreign:
            yield Finding("STORE-2", f"{keys_text(foreign)} is to be stored, and was not offered")
        if again or resident or foreign:
            return
        admitted = set(stored.keys)
        if stored.keys != tuple(key for key in new if key in admitted):
            yield Finding("STORE-1", "the keys to store are not in the order of the offer")
        elif self._threshold < 2:
            missing = [key for key in new if key not in admitted]
            yield Finding("STORE-3", f"{keys_text(missing)} was left out, without a threshold")
