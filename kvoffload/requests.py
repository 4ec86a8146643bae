"""Requests: what a manager and a policy are told of the request behind a call (REQ-1..3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

from attrs import define, field, frozen

from kvoffload.keys import MIN_KEY_BYTES, OffloadKey, check_key, values_at
from kvoffload.tiers import TierFilter
from kvoffload.validation import instance, optional_instance, require_each, require_int

T = TypeVar("T")


@define(eq=False)
class ReqContext:
    """One request, as long as it lives (REQ-1).

    `kv_transfer_params` is what the client sent, unchecked: a policy that reads it must expect
    anything. Beside these facts the context carries two things that the parts working for the
    request share: typed state, one value a type, and the position of its keys. Contexts compare
    by identity.
    """

    req_id: str = field(validator=instance(str))
    kv_transfer_params: dict[str, object] | None = field(
        default=None, validator=optional_instance(dict)
    )
    load_tier_filter: TierFilter = field(default=TierFilter.ALL, validator=instance(TierFilter))
    # Keyed by the value's own type, so Any is narrowed again by get_state.
    _state: dict[type, Any] = field(factory=dict, init=False, repr=False)
    _positions: dict[OffloadKey, int] = field(factory=dict, init=False, repr=False)

    def set_state(self, val: object) -> None:
        """Keep `val` for the request, replacing an earlier value of the same type."""
        self._state[type(val)] = val

    def get_state(self, cls: type[T]) -> T | None:
        """The value of type `cls` kept for the request, or None."""
        return self._state.get(cls)

    def set_offload_key_position(self, key: OffloadKey, end_token: int) -> None:
        """Say that the tokens of `key` end at `end_token` of the prompt (REQ-2).

        Raises InvalidKeyError or InvalidValueError.
        """
        if type(key) is not bytes or len(key) < MIN_KEY_BYTES:
            check_key(key)
        if type(end_token) is not int or end_token < 0:
            require_int("end_token", end_token, 0)
        self._positions[key] = end_token

    def get_offload_key_position(self, key: OffloadKey) -> int | None:
        """The end token of `key`, None when unknown (REQ-2)."""
        return self._positions.get(key)

    @property
    def offload_key_positions(self) -> Mapping[OffloadKey, int]:
        """The end tokens of all keys that have one, as they are said by now; to be read only."""
        return MappingProxyType(self._positions)

    def get_offload_key_positions(self, keys: Iterable[OffloadKey]) -> list[int] | None:
        """The end tokens of all keys, None unless every one is known."""
        try:
            return values_at(self._positions, list(keys))
        except KeyError:
            return None


class PerRequest(Generic[T]):
    """What its owner keeps for each request, as long as the request's context lives.

    Not in the context: there it would outlive the owner and its generations, and two owners of
    one class would take each other's. A context is told by its identity.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[ref[ReqContext], T]] = {}

    def get(self, req_context: ReqContext) -> T | None:
        """What is kept for the request, None if nothing is."""
        kept = self._kept.get(id(req_context))
        return None if kept is None else kept[1]

    def set(self, req_context: ReqContext, value: T) -> None:
        """Keep `value` for the request."""
        key = id(req_context)
        # The reference calls `pop` when the context goes, before anybody can get its id.
        self._kept[key] = ref(req_context, partial(self._kept.pop, key)), value

    def values(self) -> list[T]:
        """What is kept, for all requests."""
        return [value for _, value in self._kept.values()]

    def clear(self) -> None:
        """Keep nothing any more."""
        self._kept.clear()


class OffloadPolicy(Enum):
    """How much of a request is offered for storing."""

    BLOCK_LEVEL = "block_level"
    """Newly computed blocks as they arrive; what was loaded is not offered again."""
    REQUEST_LEVEL = "request_level"
    """All blocks of the request, prefix hits too: for tiers that need the whole."""
    CHUNK_LEVEL = BLOCK_LEVEL
    """The name of BLOCK_LEVEL in vLLM 0.33."""


@frozen
class RequestOffloadingContext:
    """Answer to `on_new_request` (REQ-3)."""

    policy: OffloadPolicy = field(
        default=OffloadPolicy.BLOCK_LEVEL, validator=instance(OffloadPolicy)
    )


class _ScheduleEndFields(NamedTuple):
    new_req_ids: Collection[str]
    preempted_req_ids: Collection[str]


class ScheduleEndContext(_ScheduleEndFields):
    """What happened in the scheduler step that ends (SPECS-3).

    `new_req_ids` were scheduled for the first time, `preempted_req_ids` were preempted. A named
    tuple, so callers may unpack it. Raises InvalidValueError for a text or other elements.
    """

    __slots__ = ()

    def __new__(
        cls, new_req_ids: Collection[str], preempted_req_ids: Collection[str]
    ) -> ScheduleEndContext:
        for name, value in (("new_req_ids", new_req_ids), ("preempted_req_ids", preempted_req_ids)):
            require_each(name, value, str)
        return super().__new__(cls, new_req_ids, preempted_req_ids)
