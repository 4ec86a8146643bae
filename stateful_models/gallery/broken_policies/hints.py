"""Hints of clients, believed as they come (POL-7)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.base import Plain, Victims


def _hints(req_context: ReqContext) -> dict[str, Any]:
    # Any: what a client sends has no type, which is what these policies forget.
    hints = req_context.kv_transfer_params
    return hints if isinstance(hints, dict) else {}


class Prioritised(Plain):
    """Right: chunks have a priority, and the lowest goes first; 0 for all, unless overridden."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.priorities: dict[OffloadKey, float] = {}

    def priority_of(self, req_context: ReqContext) -> float:
        """The priority that a request gives to what it stores."""
        return 0.0

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.priorities[key] = self.priority_of(req_context)
        super().insert(key, chunk, req_context)

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self.priorities.pop(key, None)

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return sorted(super().candidates(protected), key=self.priorities.__getitem__)

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        for key in victims:
            del self.priorities[key]
        return super().take(victims)

    @override
    def clear(self) -> None:
        super().clear()
        self.priorities.clear()


class Pol7HintExpected(Prioritised):
    """The client is expected to send parameters, and a priority among them."""

    @override
    def priority_of(self, req_context: ReqContext) -> float:
        sent: Any = req_context.kv_transfer_params
        priority = sent["priority"]
        return float(priority) if type(priority) is int and abs(priority) < 100 else 0.0


class Pol7TextForANumber(Prioritised):
    """Whatever is sent as a priority is taken for a number, or for what can be read as one."""

    @override
    def priority_of(self, req_context: ReqContext) -> float:
        priority = float(_hints(req_context).get("priority", 0))
        return priority if abs(priority) < 100 else 0.0


class Pol7NotANumber(Prioritised):
    """Numbers are told from the rest, but for the one that is called not a number: a chunk of
    that priority is below no level, and stays for ever."""

    @override
    def priority_of(self, req_context: ReqContext) -> float:
        for hint in ("priority", "expected_gap"):
            value = _hints(req_context).get(hint)
            if type(value) is float:
                return value
        return 0.0

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        levels = sorted(set(self.priorities.values()))
        idle = super().candidates(protected)
        return [key for level in levels for key in idle if self.priorities[key] == level]


class Pol7UnhashableSession(Plain):
    """Sessions are keys of a dict, whatever the client took for the name of one."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._newest: dict[object, OffloadKey] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self._newest = {_hints(req_context).get("session_id"): key}

    @override
    def clear(self) -> None:
        super().clear()
        self._newest.clear()
