"""Admission: which keys of an offer are to be stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from kvoffload.keys import OffloadKey
from stateful_models.account import Account
from stateful_models.contract import Kind
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import Operation, PrepareStore, Reset, keys_text
from stateful_models.steps import Step, Stored


class Admission(Invariant[Account]):
    """STORE-1, STORE-2, STORE-3, STORE-9 and STORE-12, and GEN-1 for offers before a reset.

    `store_threshold` and `max_tracker_size` are the manager's; None: not known, at least one.
    With a threshold it remembers how often every key was offered, one number a key. None may be
    admitted too early; too late only while all keys offered fit the tracker, for what happens
    beyond is the tracker's own business, but for the same offer made again and again.
    """

    clauses: ClassVar[tuple[str, ...]] = (
        "STORE-1",
        "STORE-2",
        "STORE-3",
        "STORE-9",
        "STORE-12",
        "GEN-1",
    )
    concerns: ClassVar[tuple[type[Operation], ...]] = (PrepareStore, Reset)

    def __init__(self, store_threshold: int = 1, max_tracker_size: int | None = None) -> None:
        self._threshold = store_threshold
        self._tracker_size = max_tracker_size
        self._offers: Counter[OffloadKey] = Counter()
        # Offers that raised may have been counted or not; those of earlier generations must not.
        self._raised: Counter[OffloadKey] = Counter()
        self._former: Counter[OffloadKey] = Counter()
        # The offer of which nothing was stored, and how often it was made in a row.
        self._row: tuple[OffloadKey, ...] = ()
        self._times_in_row = 0

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        offer = step.operation
        if not isinstance(offer, PrepareStore):
            if step.error is None:
                self._start_anew()
            return
        distinct = dict.fromkeys(offer.keys)
        if step.error is not None:
            if self._threshold >= 2:
                self._raised.update(distinct.keys())
            return
        if self._threshold >= 2:
            self._offers.update(distinct.keys())
        new = [key for key in distinct if key not in books.resident]
        if isinstance(step.result, Stored):
            if step.result.keys != tuple(new):
                yield from self._admitted(step.result, new, distinct, books)
            if self._threshold >= 2:
                yield from self._counted(step.result, new)
        elif not new:
            yield Finding("STORE-9", "an offer with nothing to store was refused")
        if self._threshold >= 2:
            yield from self._insisted(tuple(distinct), new, step)

    def _start_anew(self) -> None:
        if self._threshold >= 2:
            self._former.update(self._offers)
            self._offers.clear()
            self._raised.clear()
            self._row, self._times_in_row = (), 0

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

    def _counted(self, stored: Stored, new: list[OffloadKey]) -> Iterator[Finding]:
        threshold, offers = self._threshold, self._offers
        early = [key for key in stored.keys if offers[key] + self._raised[key] < threshold]
        old = [key for key in early if offers[key] + self._former[key] >= threshold]
        if old:
            yield Finding(
                "GEN-1",
                f"{keys_text(old)} was admitted for offers from before the reset",
                Kind.REFERENCE,
            )
        elif early:
            yield Finding(
                "STORE-3", f"{keys_text(early)} was admitted before its {threshold}th offer"
            )
        size = self._tracker_size
        if size is not None and len(offers) + len(self._raised) <= size:
            admitted = set(stored.keys)
            late = [key for key in new if offers[key] >= threshold and key not in admitted]
            if late:
                yield Finding(
                    "STORE-3", f"{keys_text(late)} was not admitted on its {threshold}th offer"
                )

    def _insisted(
        self, offer: tuple[OffloadKey, ...], new: list[OffloadKey], step: Step
    ) -> Iterator[Finding]:
        # With a resident key in it, the tracker may be full of such. An offer that was refused
        # had something to store.
        nothing = isinstance(step.result, Stored) and not step.result.keys
        if not nothing or not offer or len(new) < len(offer) or self._tracker_size == 0:
            self._row, self._times_in_row = (), 0
            return
        self._times_in_row = self._times_in_row + 1 if offer == self._row else 1
        self._row = offer
        if self._times_in_row >= self._threshold:
            yield Finding(
                "STORE-12",
                f"{keys_text(offer)} was offered {self._times_in_row} times in a row, and nothing "
                "of it admitted",
            )
