"""Events: what was announced adds up to what is there."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from kvoffload.events import OffloadingEvent
from kvoffload.keys import OffloadKey
from kvoffload.tiers import Medium
from kvoffload.wording import counted
from stateful_models.account import Account
from stateful_models.contract import Kind
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    CompleteStore,
    Operation,
    PrepareStore,
    Reset,
    TakeEvents,
    TakeFirstEvent,
    key_text,
    keys_text,
)
from stateful_models.steps import Delivered, Step, Stored

LIMIT = 1 << 20
"""How many undelivered keys are remembered in order; beyond, only what they add up to."""
BACKLOG_PER_SLOT = 8
BACKLOG_FLOOR = 2_048
"""How many keys may come out of one drain: so many for each slot, and these."""


class _Change(NamedTuple):
    """What one call did to the ready set."""

    removed: bool
    keys: list[OffloadKey]


class Events(Invariant[Account]):
    """EVT-1 to EVT-5, and the events of DONE-1 and DONE-2.

    It keeps what listeners believe, and what happened since the last drain. At a drain the two
    must explain the events that come out. The ready set itself is never walked. A drain that was
    broken off has delivered everything. Events that are marked as `metadata_only`, as vLLM marks
    the cleaning up after a failed store, tell listeners nothing of what is there.
    """

    clauses: ClassVar[tuple[str, ...]] = (
        "EVT-1",
        "EVT-2",
        "EVT-3",
        "EVT-4",
        "EVT-5",
        "DONE-1",
        "DONE-2",
    )
    concerns: ClassVar[tuple[type[Operation], ...]] = (
        PrepareStore,
        CompleteStore,
        Reset,
        TakeEvents,
        TakeFirstEvent,
    )

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._believed: dict[OffloadKey, None] = {}
        self._happened: list[_Change] = []
        self._num_keys = 0
        self._in_order = True
        self._reset = False
        self._broken_off = False
        self._failed: set[OffloadKey] = set()

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        if step.error is not None:
            return
        if isinstance(step.result, Delivered):
            events = [e for e in step.result.events if not getattr(e, "metadata_only", False)]
            if isinstance(step.operation, TakeFirstEvent):
                broken_off = bool(self._happened)
                self._deliver()
                self._broken_off = broken_off
            elif self._enabled:
                yield from self._drained(events)
                yield from self._bounded(events, books)
            elif events:
                yield Finding("EVT-4", "events came out of a manager with events disabled")
        elif self._enabled:
            self._note(step, books)

    def _note(self, step: Step, books: Account) -> None:
        operation = step.operation
        if isinstance(step.result, Stored):
            gone = [key for key in step.result.evicted if books.ready(key)]
            if gone:
                self._add(_Change(True, gone))
        elif isinstance(operation, CompleteStore):
            if operation.success and books.acted:
                self._add(_Change(False, list(books.acted)))
                self._failed.difference_update(books.acted)
            elif len(self._failed) < LIMIT:
                self._failed.update(books.acted)
        elif isinstance(operation, Reset):
            self._happened = [_Change(True, list(self._believed))] if self._believed else []
            self._num_keys, self._in_order = len(self._believed), True
            self._reset = True

    def _add(self, change: _Change) -> None:
        self._happened.append(change)
        self._num_keys += len(change.keys)
        if self._num_keys > LIMIT:
            ready = {key: not removed for key, removed in _flat(self._happened)}
            gone = [key for key, stored in ready.items() if not stored and key in self._believed]
            new = [key for key, stored in ready.items() if stored and key not in self._believed]
            self._happened = [_Change(True, gone), _Change(False, new)]
            self._num_keys = len(gone) + len(new)
            self._in_order = False

    def _drained(self, events: Sequence[OffloadingEvent]) -> Iterator[Finding]:
        yield from _shapes(events)
        told = [_Change(event.removed, list(event.keys)) for event in events if event.keys]
        if told != self._happened:
            for finding in self._disagreement(told):
                # A reset has one removal of its own to make; whatever is wrong then is that.
                # And whatever is wrong after a drain that was broken off comes of that.
                clause = finding.clause
                if self._broken_off:
                    yield Finding("EVT-3", f"after a drain broken off {finding.message}")
                elif self._reset and clause.startswith("EVT"):
                    yield Finding("EVT-5", finding.message)
                else:
                    yield finding
        self._deliver()

    def _deliver(self) -> None:
        for change in self._happened:
            for key in change.keys:
                self._believed.pop(key, None)
                if not change.removed:
                    self._believed[key] = None
        self._happened, self._num_keys = [], 0
        self._in_order, self._reset, self._broken_off = True, False, False
        self._failed.clear()

    def _bounded(self, events: Sequence[OffloadingEvent], books: Account) -> Iterator[Finding]:
        if books.num_chunks is None:
            return
        most = BACKLOG_PER_SLOT * books.num_chunks + BACKLOG_FLOOR
        backlog = sum(len(event.keys) for event in events)
        if backlog > most:
            yield Finding(
                "EVT-4",
                f"one drain named {counted(backlog, 'key')}, of "
                f"{counted(books.num_chunks, 'slot')}",
                Kind.REFERENCE,
            )

    def _disagreement(self, told: Sequence[_Change]) -> Iterator[Finding]:
        flat_told, flat_happened = _flat(told), _flat(self._happened)
        believed = {key: key in self._believed for key, _ in flat_told + flat_happened}
        truth = dict(believed)
        for key, removed in flat_happened:
            truth[key] = not removed
        wrong = False
        surplus = Counter(flat_told) - Counter(flat_happened)
        failed = [key for key, removed in surplus if not removed and key in self._failed]
        if failed and not self._reset:
            yield Finding("DONE-2", f"{keys_text(failed)} was announced, whose store failed")
        for key, removed in flat_told:
            if believed[key] == (not removed):
                wrong = True
                what = "removed while nobody believed it stored" if removed else "stored twice"
                yield Finding("EVT-1", f"{key_text(key)} was announced as {what}")
            believed[key] = not removed
        for key, stored in truth.items():
            if believed[key] != stored:
                wrong = True
                yield Finding(
                    "EVT-1",
                    f"{key_text(key)} is {'' if stored else 'not '}ready, and after a full drain "
                    f"listeners believe it is {'not ' if stored else ''}",
                )
        if wrong or not self._in_order:
            return
        if not _follows(told, self._happened):
            yield Finding("EVT-2", "events did not come in the order in which things happened")
        elif len(flat_told) < len(flat_happened):
            return
        elif self._reset and told[0] != self._happened[0]:
            yield Finding("EVT-5", "a reset did not take back in the order of announcement")
        elif [c for c in told if not c.removed] != [c for c in self._happened if not c.removed]:
            yield Finding(
                "DONE-1",
                "a store was announced in another order or other groups than it was completed",
                Kind.REFERENCE,
            )


def _follows(told: Sequence[_Change], happened: Sequence[_Change]) -> bool:
    """Whether what was told, or left out, goes through what happened in order.

    Keys of one change happened at once. A pair of a store and a removal may be missing.
    """
    places: dict[tuple[OffloadKey, bool], deque[int]] = {}
    for place, change in enumerate(happened):
        for key in change.keys:
            places.setdefault((key, change.removed), deque()).append(place)
    last = 0
    for change in told:
        for key in change.keys:
            of_key = places.get((key, change.removed), deque())
            while of_key and of_key[0] < last:
                of_key.popleft()
            if not of_key:
                return False
            last = of_key.popleft()
    return True


def _flat(changes: Sequence[_Change]) -> list[tuple[OffloadKey, bool]]:
    return [(key, change.removed) for change in changes for key in change.keys]


def _shapes(events: Sequence[OffloadingEvent]) -> Iterator[Finding]:
    for event in events:
        if not event.keys:
            yield Finding("EVT-2", "an event without keys")
        # Others' events may come from enumerations of their own, so the values are compared.
        if getattr(event.medium, "value", event.medium) != Medium.CPU.value:
            yield Finding("EVT-2", f"an event of the medium {event.medium}")
        if event.removal_expected or event.locality is not None or event.ownership is not None:
            yield Finding("EVT-2", "an event that claims another tier or an expected removal")
