"""Operations: one call of a host as a value.

The same values drive a machine, an enumeration, a recorded log and a monitor. An operation
names requests by id and chunks by key, so that it means the same to any subject; whatever is a
subject's own (contexts, chunk objects, tickets) stays with the driver that performs it.

An *attempt* is one `prepare_load` or `prepare_store`, under a number that the host chose. Its
completion names the same number; the driver knows which ticket the subject gave for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, TypeAlias

from attrs import field, frozen

from kvoffload.keys import OffloadKey
from kvoffload.tiers import TierFilter

RequestId: TypeAlias = str
Attempt: TypeAlias = int

NEVER_MADE: Attempt = -1
"""An attempt that no host ever made: its completion carries a ticket that nobody gave out."""

_HEX_SHOWN = 12
_GROUP_BYTES = 4


def key_text(key: OffloadKey) -> str:
    """A key as a reader wants it: its hash, as text where it is text, then `/group`."""
    if not isinstance(key, bytes) or len(key) <= _GROUP_BYTES:
        return repr(key)
    block_hash, group = key[:-_GROUP_BYTES], int.from_bytes(key[-_GROUP_BYTES:], "big")
    if block_hash.isascii() and block_hash.decode("ascii").isprintable():
        name = block_hash.decode("ascii")
    else:
        name = block_hash.hex().lstrip("0")[-_HEX_SHOWN:] or "0"
    return f"{name}/{group}"


def keys_text(keys: Iterable[OffloadKey], limit: int = 8) -> str:
    """Keys in brackets, with a count of those that are not shown."""
    names = [key_text(key) for key in keys]
    rest = f" ... {len(names) - limit} more" if len(names) > limit else ""
    return f"[{' '.join(names[:limit])}{rest}]"


@frozen
class Operation:
    """One call. `str()` gives it as a line of a program."""

    verb: ClassVar[str] = "operation"

    def arguments(self) -> Iterable[str]:
        """The arguments as text, in order."""
        return ()

    def __str__(self) -> str:
        return f"{self.verb}({', '.join(self.arguments())})"


@frozen
class ManagerOperation(Operation):
    """A call of a scheduler to its offloading manager."""


@frozen
class PolicyOperation(Operation):
    """A call of a manager to its cache policy."""


@frozen
class OfRequest(ManagerOperation):
    """A call of one request."""

    request: RequestId
    # Which of a host's contexts it is, for hosts that have several under one id.
    context: int | None = field(default=None, kw_only=True)

    def arguments(self) -> Iterable[str]:
        return (self.request,)


@frozen
class OfKeys(OfRequest):
    """A call of a request about several keys."""

    keys: tuple[OffloadKey, ...]

    def arguments(self) -> Iterable[str]:
        return (self.request, keys_text(self.keys))


def _attempt_text(attempt: Attempt | None) -> tuple[str, ...]:
    return () if attempt is None else (f"attempt={attempt}",)


@frozen
class NewRequest(OfRequest):
    """`on_new_request`. `hints` are the client's parameters, which nobody has checked.

    `load_tier_filter`: from which tiers the request wants to load (TIER-3).
    """

    verb: ClassVar[str] = "on_new_request"
    hints: Mapping[str, object] | None = None
    load_tier_filter: TierFilter = field(default=TierFilter.ALL, kw_only=True)

    def arguments(self) -> Iterable[str]:
        return (self.request,) if self.hints is None else (self.request, repr(self.hints))


@frozen
class SetPositions(OfRequest):
    """The host says at which token of its prompt each key of a request ends."""

    verb: ClassVar[str] = "set_offload_key_position"
    positions: tuple[tuple[OffloadKey, int], ...]

    def arguments(self) -> Iterable[str]:
        places = " ".join(f"{key_text(key)}:{end}" for key, end in self.positions)
        return (self.request, f"{{{places}}}")


@frozen
class Lookup(OfRequest):
    """`lookup` of one key."""

    verb: ClassVar[str] = "lookup"
    key: OffloadKey

    def arguments(self) -> Iterable[str]:
        return (self.request, key_text(self.key))


@frozen
class PrepareLoad(OfKeys):
    """`prepare_load`, later completed under the name `attempt`.

    An `internal` one, for a transfer of the host's own, is no access by the request (LOAD-5).
    """

    verb: ClassVar[str] = "prepare_load"
    attempt: Attempt | None = None
    internal: bool = field(default=False, kw_only=True)

    def arguments(self) -> Iterable[str]:
        access = ("record_access=False",) if self.internal else ()
        return (self.request, keys_text(self.keys), *access, *_attempt_text(self.attempt))


@frozen
class CompleteLoad(OfKeys):
    """`complete_load`: of the attempt named, or of the present if none is."""

    verb: ClassVar[str] = "complete_load"
    attempt: Attempt | None = None

    def arguments(self) -> Iterable[str]:
        return (self.request, keys_text(self.keys), *_attempt_text(self.attempt))


@frozen
class Touch(OfKeys):
    """`touch`."""

    verb: ClassVar[str] = "touch"


@frozen
class PrepareStore(OfKeys):
    """`prepare_store`: an offer, later completed under the name `attempt`."""

    verb: ClassVar[str] = "prepare_store"
    attempt: Attempt | None = None

    def arguments(self) -> Iterable[str]:
        return (self.request, keys_text(self.keys), *_attempt_text(self.attempt))


@frozen
class CompleteStore(OfKeys):
    """`complete_store`: of the attempt named, or of the present if none is."""

    verb: ClassVar[str] = "complete_store"
    success: bool = True
    attempt: Attempt | None = None

    def arguments(self) -> Iterable[str]:
        outcome = () if self.success else ("success=False",)
        return (self.request, keys_text(self.keys), *outcome, *_attempt_text(self.attempt))


@frozen
class FinishRequest(OfRequest):
    """`on_request_finished`."""

    verb: ClassVar[str] = "on_request_finished"


@frozen
class Outstanding(OfRequest):
    """`outstanding`: the host asks what a request still holds, to release it (PIN-2)."""

    verb: ClassVar[str] = "outstanding"


@frozen
class TakeEvents(ManagerOperation):
    """`take_events`, read to its end: a full drain."""

    verb: ClassVar[str] = "take_events"


@frozen
class TakeFirstEvent(ManagerOperation):
    """`take_events`, of which the host reads one event and drops the rest (EVT-3)."""

    verb: ClassVar[str] = "take_events"

    def arguments(self) -> Iterable[str]:
        return ("only the first is read",)


@frozen
class GetStats(ManagerOperation):
    """`get_stats`."""

    verb: ClassVar[str] = "get_stats"


@frozen
class Reset(ManagerOperation):
    """`reset_cache`."""

    verb: ClassVar[str] = "reset_cache"


@frozen
class ResetFlushed(ManagerOperation):
    """`on_reset_flushed`: every transfer from before the reset has been reported."""

    verb: ClassVar[str] = "on_reset_flushed"


@frozen
class ScheduleEnd(ManagerOperation):
    """`on_schedule_end`."""

    verb: ClassVar[str] = "on_schedule_end"
    new: tuple[RequestId, ...] = ()
    preempted: tuple[RequestId, ...] = ()

    def arguments(self) -> Iterable[str]:
        return (f"new={list(self.new)}", f"preempted={list(self.preempted)}")


@frozen
class AdvanceClock(Operation):
    """Time passes. No call at all to a subject without a clock."""

    verb: ClassVar[str] = "advance_clock"
    seconds: float

    def arguments(self) -> Iterable[str]:
        return (f"{self.seconds:g}",)


@frozen
class HostEvent(Operation):
    """An extra hook that a particular host calls by `name`, on subjects that have it."""

    verb: ClassVar[str] = "host_event"
    name: str
    values: tuple[object, ...] = ()

    def arguments(self) -> Iterable[str]:
        return (self.name, *map(repr, self.values))


@frozen
class _OfKey(PolicyOperation):
    key: OffloadKey

    def arguments(self) -> Iterable[str]:
        return (key_text(self.key),)


@frozen
class _OfRequestKeys(PolicyOperation):
    request: RequestId
    keys: tuple[OffloadKey, ...]

    def arguments(self) -> Iterable[str]:
        return (self.request, keys_text(self.keys))


@frozen
class Get(_OfKey):
    """`get`, for a look-up by `request` where it is one."""

    verb: ClassVar[str] = "get"
    request: RequestId | None = None


@frozen
class Insert(_OfKey):
    """`insert` of a pending chunk at `slot` by a request."""

    verb: ClassVar[str] = "insert"
    slot: int
    request: RequestId

    def arguments(self) -> Iterable[str]:
        return (self.request, key_text(self.key), f"slot {self.slot}")


@frozen
class Remove(_OfKey):
    """`remove` of a chunk whose store failed."""

    verb: ClassVar[str] = "remove"


@frozen
class TouchKeys(_OfRequestKeys):
    """`touch`."""

    verb: ClassVar[str] = "touch"


@frozen
class Evict(PolicyOperation):
    """`evict` of exactly `count` chunks, none of them `protected`, for a store by `request`."""

    verb: ClassVar[str] = "evict"
    count: int
    protected: frozenset[OffloadKey] = frozenset()
    request: RequestId | None = None

    def arguments(self) -> Iterable[str]:
        return (str(self.count), f"protected={keys_text(sorted(self.protected))}")


@frozen
class BeforeStore(_OfRequestKeys):
    """The host is about to offer keys; no call at all to a policy without extra hooks."""

    verb: ClassVar[str] = "before_store"


@frozen
class StoreMiss(_OfRequestKeys):
    """`on_store_miss`."""

    verb: ClassVar[str] = "on_store_miss"


@frozen
class RequestAccess(_OfRequestKeys):
    """`on_request_access`."""

    verb: ClassVar[str] = "on_request_access"


@frozen
class RequestFinished(PolicyOperation):
    """`on_request_finished` with what the request saw, group by group."""

    verb: ClassVar[str] = "on_request_finished"
    request: RequestId
    key_groups: tuple[tuple[OffloadKey, ...], ...]
    insertion_only: frozenset[OffloadKey]
    reused: frozenset[OffloadKey]

    def arguments(self) -> Iterable[str]:
        return (
            self.request,
            " ".join(map(keys_text, self.key_groups)) or "[]",
            f"inserted={keys_text(sorted(self.insertion_only))}",
            f"reused={keys_text(sorted(self.reused))}",
        )


@frozen
class MarkEvictable(_OfKey):
    """The host sets a chunk's ref_cnt to 0, from -1 or 1, and calls `mark_evictable`."""

    verb: ClassVar[str] = "mark_evictable"


@frozen
class MarkNonEvictable(_OfKey):
    """The host sets a chunk's ref_cnt from 0 to 1 and calls `mark_non_evictable`."""

    verb: ClassVar[str] = "mark_non_evictable"


@frozen
class SetRefCount(_OfKey):
    """The host sets a pinned chunk's ref_cnt to another positive number; no hook is called."""

    verb: ClassVar[str] = "set_ref_cnt"
    ref_cnt: int

    def arguments(self) -> Iterable[str]:
        return (key_text(self.key), str(self.ref_cnt))


@frozen
class Clear(PolicyOperation):
    """`clear`."""

    verb: ClassVar[str] = "clear"
