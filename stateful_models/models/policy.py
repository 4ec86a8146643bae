"""What every policy model shares: which keys are resident, and in which state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import TypeAlias

from kvoffload.keys import OffloadKey
from stateful_models.operations import RequestId

Ends: TypeAlias = Mapping[OffloadKey, int]
"""The end token of each key of a request whose position is known."""


class State(Enum):
    """State of a resident chunk."""

    PENDING = auto()
    IDLE = auto()
    PINNED = auto()


def prefix_order(key_groups: Sequence[Sequence[OffloadKey]], ends: Ends) -> list[OffloadKey]:
    """The keys of a finished request, head first (LRU-1).

    By position over all groups if every key has one, where equals stay in group order; else
    group after group.
    """
    keys = [key for group in key_groups for key in group]
    if all(key in ends for key in keys):
        return sorted(keys, key=lambda key: ends[key])
    return keys


class PolicyModel(ABC):
    """What a policy must answer. A subclass keeps an order and chooses the victims by it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.states: dict[OffloadKey, State] = {}

    def idle(self, protected: Iterable[OffloadKey]) -> list[OffloadKey]:
        """The keys that may be evicted."""
        kept = set(protected)
        return [k for k, state in self.states.items() if state is State.IDLE and k not in kept]

    def mark_evictable(self, key: OffloadKey) -> None:
        """Its ref_cnt became 0."""
        self.states[key] = State.IDLE

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """Its ref_cnt left 0."""
        self.states[key] = State.PINNED

    def evict(self, count: int, protected: Iterable[OffloadKey]) -> list[OffloadKey] | None:
        """Choose and remove `count` idle keys, or change nothing and answer None (POL-2)."""
        candidates = self.idle(protected)
        if len(candidates) < count:
            return None
        victims = self.choose(count, candidates)
        for key in victims:
            del self.states[key]
        return victims

    def insert(self, key: OffloadKey, request: RequestId, ends: Ends) -> None:
        """A pending chunk of `request` comes in."""
        self.states[key] = State.PENDING
        self.admit(key, request, ends)

    def remove(self, key: OffloadKey) -> None:
        """A pending chunk goes: its store failed."""
        del self.states[key]
        self.forget(key)

    def clear(self) -> None:
        """Everything goes, and what was learnt with it (POL-6)."""
        self.states.clear()
        self.restart()

    @abstractmethod
    def choose(self, count: int, candidates: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Take `count` of `candidates` out of the order, first victim first."""

    @abstractmethod
    def admit(self, key: OffloadKey, request: RequestId, ends: Ends) -> None:
        """Put a new key into the order."""

    @abstractmethod
    def forget(self, key: OffloadKey) -> None:
        """Take a key out of the order."""

    @abstractmethod
    def restart(self) -> None:
        """Make the order that of a new policy."""

    @abstractmethod
    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """The keys were used."""

    @abstractmethod
    def miss(self, keys: Sequence[OffloadKey]) -> None:
        """The keys were offered and are not resident."""

    @abstractmethod
    def access(self, keys: Sequence[OffloadKey], request: RequestId, ends: Ends) -> None:
        """`request` saw the keys for the first time."""

    @abstractmethod
    def finish(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only: Iterable[OffloadKey],
        reused: Iterable[OffloadKey],
        ends: Ends,
    ) -> None:
        """A request that saw `key_groups` is over."""
