"""Clauses about more than a policy that no invariant here can judge, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_OF_VALUES = "speaks of values, not of sequences of calls: tests of the values judge it"
_OF_WORKERS = "speaks of bytes that move, which no call of a manager shows"

UNJUDGED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "KEY-1": _OF_VALUES,
        "TIER-1": _OF_VALUES,
        "TIER-2": _OF_VALUES,
        "REQ-1": _OF_VALUES,
        "REQ-2": _OF_VALUES,
        "SPECS-1": _OF_VALUES,
        "SPECS-2": "speaks of how a manager and a worker are built, before the first call",
        "SPECS-4": "speaks of how many chunks fit, which is settled before the first call",
        "EVT-6": "speaks of managers that are made of others: the books here are of one tier",
        "GEN-3": "speaks of what a worker has under way when a reset comes",
        **{f"COPY-{n}": _OF_WORKERS for n in range(1, 7)},
        **{f"ORD-{n}": _OF_WORKERS for n in range(1, 5)},
    }
)
"""Why nothing here judges these clauses."""
