"""The small world of a machine: eight keys in two groups, three requests at a time.

Small, so that calls meet: with eight keys for at most six slots nearly every offer evicts, and
the requests differ in what the host knows of their keys' positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen
from hypothesis import strategies as st

from kvoffload import OffloadKey, make_offload_key
from stateful_models.operations import RequestId

KEYS: Final[tuple[OffloadKey, ...]] = (
    *(make_offload_key(name, 0) for name in (b"a", b"b", b"c", b"d", b"e")),
    *(make_offload_key(name, 1) for name in (b"a", b"b", b"c")),
)

HINTS: Final[tuple[Mapping[str, object] | None, ...]] = (
    None,
    None,
    {},
    {"session_id": None, "priority": "high", "expected_gap": float("nan")},
    {"session_id": ["not", "hashable"], "priority": -(2**70), "last_turn": {}},
)
"""What clients send, wrong values included: nobody checks them before a policy sees them."""

some_keys: st.SearchStrategy[list[OffloadKey]] = st.lists(st.sampled_from(KEYS), max_size=5)
"""Keys in any order, with repetitions."""

request_slots: st.SearchStrategy[int] = st.integers(0, 2)
"""Which of the three live requests."""

masks: st.SearchStrategy[int] = st.sampled_from(range(2 ** len(KEYS)))
"""A subset of at most eight things, by its bits; sampled, since small integers come too often."""


def masked(things: Sequence[OffloadKey], mask: int) -> tuple[OffloadKey, ...]:
    """The things whose bit is set in `mask`."""
    return tuple(thing for n, thing in enumerate(things) if mask >> n & 1)


class Requests:
    """Three requests at a time; one that is replaced leaves its place to another id.

    The first knows no positions, the second those of all keys, the third those of some.
    """

    def __init__(self) -> None:
        self._numbers = [0, 0, 0]

    def __getitem__(self, slot: int) -> RequestId:
        return f"r{slot}.{self._numbers[slot]}"

    def replace(self, slot: int) -> RequestId:
        """Another request in this place."""
        self._numbers[slot] += 1
        return self[slot]

    @staticmethod
    def positions(slot: int) -> tuple[tuple[OffloadKey, int], ...]:
        """Where the keys of a request in this place end, as far as the host knows."""
        every = tuple((key, 16 * (1 + n % 5)) for n, key in enumerate(KEYS))
        return ((), every, every[::2])[slot]


@frozen
class ManagerConfig:
    """How a manager is built."""

    num_chunks: int
    store_threshold: int
    enable_events: bool
    max_tracker_size: int


configs: st.SearchStrategy[ManagerConfig] = st.builds(
    ManagerConfig,
    num_chunks=st.sampled_from((3, 4, 5, 6, 2, 1, 0)),
    store_threshold=st.sampled_from((1, 2, 0, 3)),
    enable_events=st.booleans(),
    max_tracker_size=st.sampled_from((64, 3, 1)),
)
"""Small caches, and every switch."""
