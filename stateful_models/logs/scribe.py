"""The scribe: turns steps into lines, with keys and requests under their pseudonyms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from functools import partial
from typing import TypeGuard, cast, get_args

from kvoffload import Locality, LookupResult, Medium, OffloadingEvent, OffloadKey
from kvoffload.keys import MIN_KEY_BYTES
from kvoffload.replay.hints import readable, type_name, value_line
from stateful_models import operations as op
from stateful_models.logs.lines import Hints, figure_line, hints_line
from stateful_models.logs.manager_lines import (
    Answer,
    CompleteLoadLine,
    CompleteStoreLine,
    EventLine,
    FinishRequestLine,
    GetStatsLine,
    Level,
    LoadedLine,
    LookupLine,
    ManagerCall,
    NewRequestLine,
    PrepareLoadLine,
    PrepareStoreLine,
    ResetFlushedLine,
    ResetLine,
    ScheduleEndLine,
    StoredLine,
    TakeEventsLine,
    TouchLine,
)
from stateful_models.logs.policy_lines import (
    ArgumentLine,
    ClearLine,
    EvictLine,
    FoundLine,
    GetLine,
    HostEventLine,
    InsertLine,
    MarkEvictableLine,
    MarkNonEvictableLine,
    PolicyLine,
    RemoveLine,
    RequestAccessLine,
    RequestFinishedLine,
    RequestSeenLine,
    SetPositionsLine,
    SetRefCountLine,
    StoreMissLine,
    TouchKeysLine,
    VictimLine,
)
from stateful_models.logs.pseudonyms import Pseudonyms
from stateful_models.steps import Delivered, Found, Loaded, Reported, Result, Step, Stored, Victims

_LEVELS: dict[str, Level] = {level: level for level in get_args(Level)}
_ANSWERS: dict[LookupResult, Answer] = {LookupResult[name]: name for name in get_args(Answer)}


def manager_line(step: Step, names: Pseudonyms, *, hints: Hints) -> ManagerCall | None:
    """The call of a step as a line; None for what is no call of a manager."""
    match step.operation:
        case op.Lookup(request, key) as lookup:
            result = step.result
            answer = _ANSWERS.get(result) if isinstance(result, LookupResult) else None
            return LookupLine(
                request=names.request(request),
                key=names.key(key),
                context=lookup.context,
                answer=answer,
            )
        case op.NewRequest():
            return _new_request_line(step.operation, step.result, names, hints=hints)
        case op.PrepareLoad(request, keys, attempt) as load:
            return PrepareLoadLine(
                request=names.request(request),
                keys=names.keys(keys),
                context=load.context,
                attempt=attempt,
                internal=load.internal,
                loaded=_loaded_line(step.result),
            )
        case op.CompleteLoad(request, keys, attempt) as done:
            return CompleteLoadLine(
                request=names.request(request),
                keys=names.keys(keys),
                context=done.context,
                attempt=attempt,
            )
        case op.Touch(request, keys) as touch:
            return TouchLine(
                request=names.request(request), keys=names.keys(keys), context=touch.context
            )
        case op.PrepareStore(request, keys, attempt) as offer:
            return PrepareStoreLine(
                request=names.request(request),
                keys=names.keys(keys),
                context=offer.context,
                attempt=attempt,
                stored=_stored_line(step.result, names),
            )
        case op.CompleteStore(request, keys, success, attempt) as done:
            return CompleteStoreLine(
                request=names.request(request),
                keys=names.keys(keys),
                context=done.context,
                success=bool(success),
                attempt=attempt,
            )
        case op.FinishRequest(request) as finish:
            return FinishRequestLine(request=names.request(request), context=finish.context)
        case _:
            return _plain_line(step, names)


def told_lines(
    told: Iterable[op.PolicyOperation] | None, names: Pseudonyms
) -> list[PolicyLine] | None:
    """What a policy was told, as lines; None where nobody listened."""
    if told is None:
        return None
    lines = (policy_line(Step(0, call), names, hints=False) for call in told)
    return [line for line in lines if line is not None]


def _plain_line(step: Step, names: Pseudonyms) -> ManagerCall | None:
    match step.operation:
        case op.TakeEvents():
            events = step.result.events if isinstance(step.result, Delivered) else None
            return TakeEventsLine(
                events=None if events is None else [_event_line(event, names) for event in events]
            )
        case op.GetStats():
            values = step.result.values.items() if isinstance(step.result, Reported) else None
            return GetStatsLine(
                values=None
                if values is None
                else {name: figure_line(value) for name, value in values}
            )
        case op.Reset():
            return ResetLine()
        case op.ResetFlushed():
            return ResetFlushedLine()
        case op.ScheduleEnd(new, preempted):
            return ScheduleEndLine(
                new=tuple(map(names.request, new)), preempted=tuple(map(names.request, preempted))
            )
        case _:
            return None


def _new_request_line(
    operation: op.NewRequest, result: Result, names: Pseudonyms, *, hints: Hints
) -> NewRequestLine:
    line = NewRequestLine(
        request=names.request(operation.request),
        context=operation.context,
        hints=hints_line(operation.hints, hints),
        hint_values=bool(hints),
    )
    # Others answer with enumerations of their own.
    policy: object = getattr(result, "policy", None)
    value: object = getattr(policy, "value", policy)
    line.policy = _LEVELS.get(value) if isinstance(value, str) else None
    return line


def _loaded_line(result: Result) -> LoadedLine | None:
    if not isinstance(result, Loaded):
        return None
    return LoadedLine(_listed(result.slots), result.ticket)


def _stored_line(result: Result, names: Pseudonyms) -> StoredLine | None:
    if not isinstance(result, Stored):
        return None
    return StoredLine(
        names.keys(result.keys),
        _listed(result.slots),
        tuple(names.keys(result.evicted)),
        result.ticket,
    )


def _event_line(event: OffloadingEvent, names: Pseudonyms) -> EventLine:
    # Others' events may come from enumerations of their own.
    medium: object = getattr(event.medium, "value", event.medium)
    locality: object = getattr(event.locality, "value", event.locality)
    ownership: object = event.ownership
    return EventLine(
        names.keys(event.keys),
        bool(event.removed),
        "CPU" if medium == Medium.CPU.value else "STORAGE",
        None if locality is None else "LOCAL" if locality == Locality.LOCAL.value else "REMOTE",
        None if ownership is None else readable(str(ownership)),
        bool(event.removal_expected),
    )


def _listed(slots: Iterable[int] | None) -> list[int] | None:
    return None if slots is None else list(slots)


def policy_line(step: Step, names: Pseudonyms, *, hints: Hints) -> PolicyLine | None:
    """The call of a step as a line; None for what is no call of a policy."""
    match step.operation:
        # The most frequent first.
        case op.Get(key):
            return GetLine(key=names.key(key), found=_found_line(step.result))
        case op.Insert(key, slot, request):
            return InsertLine(request=names.request(request), key=names.key(key), slot=slot)
        case op.MarkEvictable(key):
            return MarkEvictableLine(key=names.key(key))
        case op.MarkNonEvictable(key):
            return MarkNonEvictableLine(key=names.key(key))
        case op.SetRefCount(key, ref_cnt):
            return SetRefCountLine(key=names.key(key), ref_cnt=ref_cnt)
        case op.Remove(key):
            return RemoveLine(key=names.key(key))
        case op.TouchKeys(request, keys):
            return TouchKeysLine(request=names.request(request), keys=names.keys(keys))
        case op.StoreMiss(request, keys):
            return StoreMissLine(request=names.request(request), keys=names.keys(keys))
        case op.RequestAccess(request, keys):
            return RequestAccessLine(request=names.request(request), keys=names.keys(keys))
        case op.Evict(count, protected):
            return EvictLine(
                count=count,
                protected=names.key_set(protected),
                victims=_victim_lines(step.result, names),
            )
        case op.RequestFinished(request, groups, inserted, reused):
            return RequestFinishedLine(
                request=names.request(request),
                key_groups=[names.keys(group) for group in groups],
                insertion_only=names.key_set(inserted),
                reused=names.key_set(reused),
            )
        case op.HostEvent(name, values):
            write = partial(_argument_line, names=names, hints=hints)
            return HostEventLine(name=readable(name), arguments=list(map(write, values)) or None)
        case op.Clear():
            return ClearLine()
        case op.NewRequest(request, sent):
            return RequestSeenLine(
                request=names.request(request),
                hints=hints_line(sent, hints),
                hint_values=bool(hints),
            )
        case op.SetPositions(request, positions):
            return SetPositionsLine(
                request=names.request(request),
                positions=[(names.key(key), end) for key, end in positions],
            )
        case _:
            return None


def _argument_line(value: object, names: Pseudonyms, hints: Hints) -> ArgumentLine:
    # Whoever has extra hooks passes anything; keys and requests are told from it by their looks.
    if _is_key(value):
        return ArgumentLine(key=names.key(value))
    if (keys := _keys_in(value)) is not None:
        ordered = not isinstance(value, Set)
        return ArgumentLine(keys=names.keys(keys) if ordered else list(names.key_set(keys)))
    request: object = getattr(value, "req_id", None)
    if isinstance(request, str):
        return ArgumentLine(request=names.request(request))
    if hints is True:
        return ArgumentLine(value=value_line(value))
    return ArgumentLine(type=type_name(value))


def _is_key(value: object) -> TypeGuard[OffloadKey]:
    return isinstance(value, bytes) and len(value) >= MIN_KEY_BYTES


def _keys_in(value: object) -> list[OffloadKey] | None:
    """The keys that a value consists of; None if it has none, or other things too."""
    match value:
        case list() | tuple() | Set():
            elements = cast("Collection[object]", value)
        case _:
            return None
    keys = [each for each in elements if _is_key(each)]
    return keys if len(keys) == len(elements) else None


def _found_line(result: Result) -> FoundLine | None:
    if not isinstance(result, Found):
        return None
    return FoundLine(result.slot, result.own)


def _victim_lines(result: Result, names: Pseudonyms) -> list[VictimLine] | None:
    if not isinstance(result, Victims):
        return None
    return [VictimLine(names.key(victim.key), victim.slot, victim.own) for victim in result.victims]
