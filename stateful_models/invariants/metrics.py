"""Metrics: every figure equals a recount."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from attrs import define

from kvoffload.errors import InvalidKeyError, RequestFinishedError
from stateful_models.account import Account
from stateful_models.contract import Kind
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.metrics import (
    ALLOCATED,
    ALLOCATIONS,
    READ_USAGE,
    SKIPPED,
    USAGE,
    WRITE_USAGE,
)
from stateful_models.operations import GetStats, Operation, PrepareStore, Reset
from stateful_models.steps import Reported, Step, Stored

TOLERANCE = 1e-9


@define
class _Count:
    """Between how much and how much something amounts to.

    How many keys of a refused offer were admitted is not told when there is a threshold.
    """

    least: int = 0
    most: int = 0

    def add(self, least: int, most: int) -> None:
        self.least += least
        self.most += most

    def __contains__(self, shown: float) -> bool:
        return self.least <= shown <= self.most

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"


class Metrics(Invariant[Account]):
    """MET-1 and MET-2, for managers that report under the names of MET-1."""

    clauses: ClassVar[tuple[str, ...]] = ("MET-1", "MET-2")
    concerns: ClassVar[tuple[type[Operation], ...]] = (PrepareStore, GetStats, Reset)

    def __init__(self, store_threshold: int = 1) -> None:
        self._threshold = store_threshold
        names = (ALLOCATIONS, ALLOCATED, SKIPPED)
        # Since last asked, since the last reset after that, and from the start.
        self._interval: dict[str, _Count] = {name: _Count() for name in names}
        self._since_reset: dict[str, _Count] | None = None
        self._total: dict[str, _Count] = {name: _Count() for name in names}

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        operation = step.operation
        if isinstance(operation, PrepareStore):
            self._offered(operation, step, books)
        elif isinstance(operation, Reset):
            if step.error is None:
                self._since_reset = {name: _Count() for name in self._interval}
        elif isinstance(step.result, Reported) and USAGE in step.result.values:
            yield from self._gauges(step.result, books)
            yield from self._intervals(step.result)
            self._interval = {name: _Count() for name in self._interval}
            self._since_reset = None

    def _offered(self, offer: PrepareStore, step: Step, books: Account) -> None:
        if isinstance(step.error, (InvalidKeyError, RequestFinishedError)):
            return
        resident = books.resident
        new = sum(key not in resident for key in dict.fromkeys(offer.keys))
        if step.error is not None:
            self._add(ALLOCATIONS, 0, 1)
            self._add(ALLOCATED, 0, new)
            self._add(SKIPPED, 0, new)
        elif isinstance(step.result, Stored):
            admitted = len(step.result.keys)
            sampled = int(admitted > 0)
            self._add(ALLOCATIONS, sampled, sampled)
            self._add(ALLOCATED, admitted, admitted)
            self._add(SKIPPED, new - admitted, new - admitted)
        else:
            least = 1 if self._threshold >= 2 else new
            self._add(ALLOCATIONS, 1, 1)
            self._add(ALLOCATED, least, new)
            self._add(SKIPPED, 0, new - least)

    def _add(self, name: str, least: int, most: int) -> None:
        self._interval[name].add(least, most)
        self._total[name].add(least, most)
        if self._since_reset is not None:
            self._since_reset[name].add(least, most)

    def _gauges(self, figures: Reported, books: Account) -> Iterator[Finding]:
        slots = None if books.num_chunks is None else max(1, books.num_chunks)
        for name, count in (
            (USAGE, books.pending + books.pinned),
            (WRITE_USAGE, books.pending),
            (READ_USAGE, books.pinned),
        ):
            shown = figures.values.get(name)
            if shown is None:
                yield Finding("MET-1", f"{name} is not reported, and others are", Kind.HOST)
            elif slots is not None and abs(shown - count / slots) > TOLERANCE:
                yield Finding(
                    "MET-1",
                    f"{name} is {shown}, a recount gives {count} of {slots}",
                    Kind.SAFETY,
                )

    def _intervals(self, figures: Reported) -> Iterator[Finding]:
        names = [ALLOCATIONS, ALLOCATED]
        if self._threshold >= 2:
            names.append(SKIPPED)
            if SKIPPED not in figures.values:
                yield Finding(
                    "MET-1", f"{SKIPPED} is missing, although there is a threshold", Kind.HOST
                )
        elif SKIPPED in figures.values:
            yield Finding("MET-1", f"{SKIPPED} is reported without a threshold", Kind.HOST)
        for name in names:
            shown = figures.values.get(name, 0)
            if shown not in self._interval[name]:
                yield self._miscounted(name, shown)

    def _miscounted(self, name: str, shown: float) -> Finding:
        """MET-2 if the figure is of another interval, MET-1 if it is of none."""
        expected = f"since last asked it was {self._interval[name]}"
        if shown < 0:
            return Finding("MET-2", f"{name} is {shown:g}, and {expected}")
        if shown in self._total[name]:
            return Finding("MET-2", f"{name} is {shown:g}, all from the start, and {expected}")
        if self._since_reset is not None and shown in self._since_reset[name]:
            return Finding("MET-2", f"{name} is {shown:g}, lost by a reset, and {expected}")
        return Finding("MET-1", f"{name} is {shown:g}, and {expected}", Kind.HOST)
