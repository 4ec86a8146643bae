"""Metrics: every figure equals a recount."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from kvoffload.errors import InvalidKeyError, RequestFinishedError
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.metrics import (
    ALLOCATED,
    ALLOCATIONS,
    READ_USAGE,
    SKIPPED,
    USAGE,
    WRITE_USAGE,
)
from stateful_models.operations import GetStats, Operation, PrepareStore
from stateful_models.steps import Reported, Step, Stored

TOLERANCE = 1e-9


class Metrics(Invariant[Account]):
    """MET-1 and MET-2, for managers that report under the names of MET-1."""

    clauses: ClassVar[tuple[str, ...]] = ("MET-1", "MET-2")
    concerns: ClassVar[tuple[type[Operation], ...]] = (PrepareStore, GetStats)

    def __init__(self, store_threshold: int = 1) -> None:
        self._threshold = store_threshold
        self._start()

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        operation = step.operation
        if isinstance(operation, PrepareStore):
            self._offered(operation, step, books)
        elif isinstance(step.result, Reported) and USAGE in step.result.values:
            yield from self._gauges(step.result, books)
            yield from self._intervals(step.result)
            self._start()

    def _start(self) -> None:
        # Lowest and highest that the interval can amount to: how many keys of a refused offer
        # were admitted is not told when there is a threshold.
        self._samples = [0, 0]
        self._allocated = [0, 0]
        self._skipped = [0, 0]

    def _offered(self, offer: PrepareStore, step: Step, books: Account) -> None:
        if isinstance(step.error, (InvalidKeyError, RequestFinishedError)):
            return
        resident = books.resident
        new = sum(key not in resident for key in dict.fromkeys(offer.keys))
        if step.error is not None:
            _add(self._samples, 0, 1)
            _add(self._allocated, 0, new)
            _add(self._skipped, 0, new)
        elif isinstance(step.result, Stored):
            admitted = len(step.result.keys)
            sampled = int(admitted > 0)
            _add(self._samples, sampled, sampled)
            _add(self._allocated, admitted, admitted)
            _add(self._skipped, new - admitted, new - admitted)
        else:
            least = 1 if self._threshold >= 2 else new
            _add(self._samples, 1, 1)
            _add(self._allocated, least, new)
            _add(self._skipped, 0, new - least)

    def _gauges(self, figures: Reported, books: Account) -> Iterator[Finding]:
        if books.num_chunks is None:
            return
        slots = max(1, books.num_chunks)
        for name, count in (
            (USAGE, books.pending + books.pinned),
            (WRITE_USAGE, books.pending),
            (READ_USAGE, books.pinned),
        ):
            shown = figures.values.get(name)
            if shown is None or abs(shown - count / slots) > TOLERANCE:
                yield Finding("MET-1", f"{name} is {shown}, a recount gives {count} of {slots}")

    def _intervals(self, figures: Reported) -> Iterator[Finding]:
        expected = [(ALLOCATIONS, self._samples), (ALLOCATED, self._allocated)]
        if self._threshold >= 2:
            expected.append((SKIPPED, self._skipped))
            if SKIPPED not in figures.values:
                yield Finding("MET-1", f"{SKIPPED} is missing, although there is a threshold")
        elif SKIPPED in figures.values:
            yield Finding("MET-1", f"{SKIPPED} is reported without a threshold")
        for name, (least, most) in expected:
            shown = figures.values.get(name, 0)
            if not least <= shown <= most:
                wanted = f"{least}" if least == most else f"{least} to {most}"
                yield Finding("MET-2", f"{name} is {shown:g}, since last asked it was {wanted}")


def _add(bounds: list[int], least: int, most: int) -> None:
    bounds[0] += least
    bounds[1] += most
