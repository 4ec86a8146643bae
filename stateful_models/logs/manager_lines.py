"""The calls of a manager as lines of a log: how each is written, and how it is read again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec
from typing_extensions import override

from kvoffload import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadPolicy,
    RequestOffloadingContext,
)
from stateful_models import operations as op
from stateful_models.logs.lines import Figure, Line, hints_of
from stateful_models.logs.policy_lines import PolicyLine
from stateful_models.logs.pseudonyms import key_of, keys_of
from stateful_models.steps import Delivered, Loaded, Reported, Result, Stored

Answer: TypeAlias = Literal["MISS", "HIT", "HIT_PENDING", "RETRY"]
Level: TypeAlias = Literal["block_level", "chunk_level", "request_level"]


class LoadedLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a load was answered with."""

    slots: list[int] | None = None
    ticket: int | None = None


class StoredLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What an offer was answered with."""

    keys: list[str]
    slots: list[int] | None = None
    evicted: tuple[str, ...] = ()
    ticket: int | None = None


class EventLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One event; a medium that is not ours is told as STORAGE, a locality as REMOTE."""

    keys: list[str]
    removed: bool
    medium: Literal["CPU", "STORAGE"] = "CPU"
    locality: Literal["LOCAL", "REMOTE"] | None = None
    ownership: str | None = None
    removal_expected: bool = False

    def event(self) -> OffloadingEvent:
        """The event. Raises ValueError for what is no key."""
        return OffloadingEvent(
            list(keys_of(self.keys)),
            Medium(self.medium),
            self.removed,
            None if self.locality is None else Locality(self.locality),
            self.ownership,
            self.removal_expected,
        )


class ManagerCall(Line, kw_only=True):
    """A call of a manager; `told` is what it told its policy during it, if anybody listened."""

    told: list[PolicyLine] | None = None


class NewRequestLine(ManagerCall, tag="on_new_request"):
    """`on_new_request`."""

    request: str
    context: int | None = None
    hints: dict[str, object] | None = None
    hint_values: bool = False
    policy: Level | None = None

    @override
    def operation(self) -> op.NewRequest:
        hints = hints_of(self.hints, values=self.hint_values)
        return op.NewRequest(self.request, hints, context=self.context)

    @override
    def result(self) -> Result:
        if self.policy is None:
            return None
        level = self.policy == "request_level"
        policy = OffloadPolicy.REQUEST_LEVEL if level else OffloadPolicy.BLOCK_LEVEL
        return RequestOffloadingContext(policy)


class LookupLine(ManagerCall, tag="lookup"):
    """`lookup`."""

    request: str
    key: str
    context: int | None = None
    answer: Answer | None = None

    @override
    def operation(self) -> op.Lookup:
        return op.Lookup(self.request, key_of(self.key), context=self.context)

    @override
    def result(self) -> Result:
        return None if self.answer is None else LookupResult[self.answer]


class PrepareLoadLine(ManagerCall, tag="prepare_load"):
    """`prepare_load`."""

    request: str
    keys: list[str]
    context: int | None = None
    attempt: int | None = None
    internal: bool = False
    loaded: LoadedLine | None = None

    @override
    def operation(self) -> op.PrepareLoad:
        return op.PrepareLoad(
            self.request,
            keys_of(self.keys),
            self.attempt,
            context=self.context,
            internal=self.internal,
        )

    @override
    def result(self) -> Result:
        loaded = self.loaded
        if loaded is None:
            return None
        return Loaded(_slots(loaded.slots), loaded.ticket)


class CompleteLoadLine(ManagerCall, tag="complete_load"):
    """`complete_load`."""

    request: str
    keys: list[str]
    context: int | None = None
    attempt: int | None = None

    @override
    def operation(self) -> op.CompleteLoad:
        keys = keys_of(self.keys)
        return op.CompleteLoad(self.request, keys, self.attempt, context=self.context)


class TouchLine(ManagerCall, tag="touch"):
    """`touch`."""

    request: str
    keys: list[str]
    context: int | None = None

    @override
    def operation(self) -> op.Touch:
        return op.Touch(self.request, keys_of(self.keys), context=self.context)


class PrepareStoreLine(ManagerCall, tag="prepare_store"):
    """`prepare_store`; without `stored` it was refused."""

    request: str
    keys: list[str]
    context: int | None = None
    attempt: int | None = None
    stored: StoredLine | None = None

    @override
    def operation(self) -> op.PrepareStore:
        keys = keys_of(self.keys)
        return op.PrepareStore(self.request, keys, self.attempt, context=self.context)

    @override
    def result(self) -> Result:
        stored = self.stored
        if stored is None:
            return None
        return Stored(
            keys_of(stored.keys), _slots(stored.slots), keys_of(stored.evicted), stored.ticket
        )


class CompleteStoreLine(ManagerCall, tag="complete_store"):
    """`complete_store`."""

    request: str
    keys: list[str]
    context: int | None = None
    success: bool = True
    attempt: int | None = None

    @override
    def operation(self) -> op.CompleteStore:
        keys = keys_of(self.keys)
        return op.CompleteStore(
            self.request, keys, self.success, self.attempt, context=self.context
        )


class FinishRequestLine(ManagerCall, tag="on_request_finished"):
    """`on_request_finished`."""

    request: str
    context: int | None = None

    @override
    def operation(self) -> op.FinishRequest:
        return op.FinishRequest(self.request, context=self.context)


class TakeEventsLine(ManagerCall, tag="take_events"):
    """`take_events`, read to its end."""

    events: list[EventLine] | None = None

    @override
    def operation(self) -> op.TakeEvents:
        return op.TakeEvents()

    @override
    def result(self) -> Result:
        if self.events is None:
            return None
        return Delivered(tuple(line.event() for line in self.events))


class GetStatsLine(ManagerCall, tag="get_stats"):
    """`get_stats`: figures by name, or none in a form that is known."""

    values: dict[str, Figure] | None = None

    @override
    def operation(self) -> op.GetStats:
        return op.GetStats()

    @override
    def result(self) -> Result:
        if self.values is None:
            return None
        return Reported({name: float(value) for name, value in self.values.items()})


class ResetLine(ManagerCall, tag="reset_cache"):
    """`reset_cache`."""

    @override
    def operation(self) -> op.Reset:
        return op.Reset()


class ResetFlushedLine(ManagerCall, tag="on_reset_flushed"):
    """`on_reset_flushed`."""

    @override
    def operation(self) -> op.ResetFlushed:
        return op.ResetFlushed()


class ScheduleEndLine(ManagerCall, tag="on_schedule_end"):
    """`on_schedule_end`."""

    new: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()

    @override
    def operation(self) -> op.ScheduleEnd:
        return op.ScheduleEnd(self.new, self.preempted)


ManagerLine: TypeAlias = (
    NewRequestLine
    | LookupLine
    | PrepareLoadLine
    | CompleteLoadLine
    | TouchLine
    | PrepareStoreLine
    | CompleteStoreLine
    | FinishRequestLine
    | TakeEventsLine
    | GetStatsLine
    | ResetLine
    | ResetFlushedLine
    | ScheduleEndLine
)


def told_of(lines: Iterable[PolicyLine] | None) -> tuple[op.PolicyOperation, ...] | None:
    """What a policy was told. Raises ValueError for what is no key."""
    if lines is None:
        return None
    calls = (line.operation() for line in lines)
    return tuple(call for call in calls if isinstance(call, op.PolicyOperation))


def _slots(slots: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if slots is None else tuple(slots)
