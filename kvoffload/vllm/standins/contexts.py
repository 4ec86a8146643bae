"""The request contexts of each version, with the fields that it had, in its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from kvoffload.keys import OffloadKey
from kvoffload.tiers import TierFilter

T = TypeVar("T")


class KvHintAction(msgspec.Struct, frozen=True):
    """One hint of an orchestrator; what `payload` holds depends on the type."""

    action_id: str
    action_type: str
    action_version: str
    payload: dict[str, object]


class KvHintsEnvelope(msgspec.Struct, frozen=True):
    """The hints that came with a request."""

    protocol_version: str
    message_id: str
    actions: list[KvHintAction]


@dataclass
class ReqContext020:
    """0.20 and 0.21: what the client sent, and no name of the request."""

    kv_transfer_params: dict[str, object] | None = None


@dataclass
class ReqContext022:
    """0.22 to 0.26."""

    req_id: str
    kv_transfer_params: dict[str, object] | None = None


class _Keeping:
    """Contexts in which managers and policies keep one value of each type."""

    _state: dict[type, object]

    def set_state(self, val: object) -> None:
        """Keep a value in place of the last one of its type."""
        self._state[type(val)] = val

    def get_state(self, cls: type[T]) -> T | None:
        """The value of this type, None if none is kept."""
        value = self._state.get(cls)
        return value if isinstance(value, cls) else None


@dataclass
class ReqContext027(_Keeping):
    """0.27 to 0.30."""

    req_id: str
    kv_transfer_params: dict[str, object] | None = None
    load_tier_filter: TierFilter = TierFilter.ALL
    _state: dict[type, object] = field(default_factory=dict, repr=False, init=False)


@dataclass
class ReqContext031(_Keeping):
    """0.31 and since."""

    req_id: str
    kv_transfer_params: dict[str, object] | None = None
    kv_hints: KvHintsEnvelope | None = None
    load_tier_filter: TierFilter = TierFilter.ALL
    _state: dict[type, object] = field(default_factory=dict, repr=False, init=False)
    _offload_key_positions: dict[OffloadKey, int] = field(
        default_factory=dict, repr=False, init=False
    )

    def set_offload_key_position(self, key: OffloadKey, end_token: int) -> None:
        """Say at which token of the request a key ends."""
        self._offload_key_positions[key] = end_token

    def get_offload_key_position(self, key: OffloadKey) -> int | None:
        """The token at which a key ends, None if nobody said."""
        return self._offload_key_positions.get(key)


CONTEXTS: Mapping[tuple[str, ...], type] = {
    ("kv_transfer_params",): ReqContext020,
    ("req_id", "kv_transfer_params"): ReqContext022,
    ("req_id", "kv_transfer_params", "load_tier_filter"): ReqContext027,
    ("req_id", "kv_transfer_params", "kv_hints", "load_tier_filter"): ReqContext031,
}
"""The class of contexts with these parameters."""


class Positioned(Protocol):
    """A context that knows where keys end, and keeps state."""

    def get_offload_key_position(self, key: OffloadKey) -> int | None:
        """The token at which a key ends."""

    def set_state(self, val: object) -> None:
        """Keep a value."""

    def get_state(self, cls: type[T]) -> T | None:
        """The value of this type."""


def order_request_keys(
    key_groups: Sequence[Sequence[OffloadKey]], req_context: Positioned
) -> list[OffloadKey]:
    """The keys of all groups, head to tail if all their ends are known, else group by group."""
    keys = [key for group in key_groups for key in group]
    ends: dict[OffloadKey, int] = {}
    for key in keys:
        end = req_context.get_offload_key_position(key)
        if end is None:
            return keys
        ends[key] = end
    return sorted(keys, key=ends.__getitem__)
