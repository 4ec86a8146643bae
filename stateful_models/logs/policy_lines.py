"""The calls of a policy as lines of a log: how each is written, and how it is read again."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec
from typing_extensions import override

from kvoffload.replay.hints import HintOfType, value_of
from stateful_models import operations as op
from stateful_models.logs.lines import Line, hints_of
from stateful_models.logs.pseudonyms import key_of, keys_of
from stateful_models.steps import Found, Result, Victim, Victims


class FoundLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What `get` found; `own` if it is the chunk that was inserted."""

    slot: int
    own: bool = True


class VictimLine(NamedTuple):
    """One victim; `own` if its chunk is the one that was inserted."""

    key: str
    slot: int
    own: bool


class RequestSeenLine(Line, tag="on_new_request"):
    """A request was seen for the first time."""

    request: str
    hints: dict[str, object] | None = None
    hint_values: bool = False

    @override
    def operation(self) -> op.NewRequest:
        return op.NewRequest(self.request, hints_of(self.hints, values=self.hint_values))


class SetPositionsLine(Line, tag="set_offload_key_position"):
    """Where keys of a request end, told with its access to them."""

    request: str
    positions: list[tuple[str, int]]

    @override
    def operation(self) -> op.SetPositions:
        places = tuple((key_of(key), end) for key, end in self.positions)
        return op.SetPositions(self.request, places)


class GetLine(Line, tag="get"):
    """`get`."""

    key: str
    found: FoundLine | None = None

    @override
    def operation(self) -> op.Get:
        return op.Get(key_of(self.key))

    @override
    def result(self) -> Result:
        return None if self.found is None else Found(self.found.slot, self.found.own)


class InsertLine(Line, tag="insert"):
    """`insert`."""

    request: str
    key: str
    slot: int

    @override
    def operation(self) -> op.Insert:
        return op.Insert(key_of(self.key), self.slot, self.request)


class RemoveLine(Line, tag="remove"):
    """`remove`."""

    key: str

    @override
    def operation(self) -> op.Remove:
        return op.Remove(key_of(self.key))


class _OfKeysLine(Line):
    request: str
    keys: list[str]


class TouchKeysLine(_OfKeysLine, tag="touch"):
    """`touch`."""

    @override
    def operation(self) -> op.TouchKeys:
        return op.TouchKeys(self.request, keys_of(self.keys))


class StoreMissLine(_OfKeysLine, tag="on_store_miss"):
    """`on_store_miss`."""

    @override
    def operation(self) -> op.StoreMiss:
        return op.StoreMiss(self.request, keys_of(self.keys))


class RequestAccessLine(_OfKeysLine, tag="on_request_access"):
    """`on_request_access`."""

    @override
    def operation(self) -> op.RequestAccess:
        return op.RequestAccess(self.request, keys_of(self.keys))


class EvictLine(Line, tag="evict"):
    """`evict`; without `victims` it was refused."""

    count: int
    protected: tuple[str, ...] = ()
    victims: list[VictimLine] | None = None

    @override
    def operation(self) -> op.Evict:
        return op.Evict(self.count, frozenset(keys_of(self.protected)))

    @override
    def result(self) -> Result:
        if self.victims is None:
            return None
        return Victims(tuple(Victim(key_of(key), slot, own) for key, slot, own in self.victims))


class RequestFinishedLine(Line, tag="on_request_finished"):
    """`on_request_finished`."""

    request: str
    key_groups: list[list[str]]
    insertion_only: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()

    @override
    def operation(self) -> op.RequestFinished:
        return op.RequestFinished(
            self.request,
            tuple(map(keys_of, self.key_groups)),
            frozenset(keys_of(self.insertion_only)),
            frozenset(keys_of(self.reused)),
        )


class MarkEvictableLine(Line, tag="mark_evictable"):
    """`mark_evictable`."""

    key: str

    @override
    def operation(self) -> op.MarkEvictable:
        return op.MarkEvictable(key_of(self.key))


class MarkNonEvictableLine(Line, tag="mark_non_evictable"):
    """`mark_non_evictable`."""

    key: str

    @override
    def operation(self) -> op.MarkNonEvictable:
        return op.MarkNonEvictable(key_of(self.key))


class SetRefCountLine(Line, tag="set_ref_cnt"):
    """A count of pins that the host changed without a mark."""

    key: str
    ref_cnt: int

    @override
    def operation(self) -> op.SetRefCount:
        return op.SetRefCount(key_of(self.key), self.ref_cnt)


class ArgumentLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An argument of an extra hook: a key, several, a request, its `value`, or its type alone."""

    key: str | None = None
    keys: list[str] | None = None
    request: str | None = None
    value: object = msgspec.UNSET
    type: str = ""

    def argument(self) -> object:
        """What stands for it. Raises ValueError for what is no key."""
        if self.key is not None:
            return key_of(self.key)
        if self.keys is not None:
            return keys_of(self.keys)
        if self.request is not None:
            return self.request
        return HintOfType(self.type) if self.value is msgspec.UNSET else value_of(self.value)


class HostEventLine(Line, tag="host_event"):
    """An extra hook that the host called, or an attribute that it read: then without arguments."""

    name: str
    arguments: list[ArgumentLine] | None = None

    @override
    def operation(self) -> op.HostEvent:
        return op.HostEvent(self.name, tuple(line.argument() for line in self.arguments or ()))


class ClearLine(Line, tag="clear"):
    """`clear`."""

    @override
    def operation(self) -> op.Clear:
        return op.Clear()


PolicyLine: TypeAlias = (
    RequestSeenLine
    | SetPositionsLine
    | GetLine
    | InsertLine
    | RemoveLine
    | TouchKeysLine
    | StoreMissLine
    | RequestAccessLine
    | EvictLine
    | RequestFinishedLine
    | MarkEvictableLine
    | MarkNonEvictableLine
    | SetRefCountLine
    | HostEventLine
    | ClearLine
)
