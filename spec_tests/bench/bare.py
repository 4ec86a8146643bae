"""The floor: an OrderedDict with the calls of a manager and none of its promises.

Every call does what its answer needs and checks nothing: no invalid key, no double completion, no
reset, ticket, event or figure, no repeated key in an offer. What a manager in Python can reach is
measured against it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from kvoffload import OffloadKey


class Answer(Enum):
    """Of a look-up."""

    MISS = auto()
    HIT = auto()
    PENDING = auto()


MISS, HIT, PENDING = Answer.MISS, Answer.HIT, Answer.PENDING


class BareChunk:
    """A slot, and how many read it; -1 while it is being written."""

    __slots__ = ("readers", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.readers = -1


class BareContext:
    """A request: its keys' positions, and what it has seen, loaded and stored."""

    __slots__ = ("positions", "reused", "seen", "stored")

    def __init__(self, request_id: str) -> None:
        self.positions: dict[OffloadKey, int] = {}
        self.seen: dict[OffloadKey, None] = {}
        self.reused: set[OffloadKey] = set()
        self.stored: set[OffloadKey] = set()

    def set_offload_key_position(self, key: OffloadKey, end_token: int) -> None:
        self.positions[key] = end_token


class BareOutput:
    """What to store, where, and what had to go."""

    __slots__ = ("evicted_keys", "keys_to_store", "slots")

    def __init__(
        self, stored: list[OffloadKey], slots: NDArray[np.int32], evicted: list[OffloadKey]
    ) -> None:
        self.keys_to_store = stored
        self.slots = slots
        self.evicted_keys = evicted


class BareManager:
    """Least recently used goes first: the front of an OrderedDict."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._fresh = 0
        self._freed: list[int] = []
        self._chunks: OrderedDict[OffloadKey, BareChunk] = OrderedDict()
        self._find = self._chunks.get
        self._idle = 0

    def on_new_request(self, context: BareContext) -> None:
        return None

    def lookup(self, key: OffloadKey, context: BareContext) -> Answer:
        chunk = self._find(key)
        if chunk is None:
            return MISS
        return HIT if chunk.readers >= 0 else PENDING

    def prepare_load(self, keys: Sequence[OffloadKey], context: BareContext) -> NDArray[np.int32]:
        found = self._chunks
        slots: list[int] = []
        for key in keys:
            chunk = found[key]
            if chunk.readers == 0:
                self._idle -= 1
            chunk.readers += 1
            slots.append(chunk.slot)
        context.seen.update(dict.fromkeys(keys))
        context.reused.update(keys)
        return np.array(slots, dtype=np.int32)

    def complete_load(self, keys: Sequence[OffloadKey], context: BareContext) -> None:
        found = self._chunks
        for key in keys:
            chunk = found[key]
            chunk.readers -= 1
            if chunk.readers == 0:
                self._idle += 1

    def touch(self, keys: Sequence[OffloadKey], context: BareContext) -> None:
        found = self._chunks
        refresh = found.move_to_end
        # The tail of a prompt is worth less than its head, so it ends up nearer the front.
        for key in reversed(keys):
            if key in found:
                refresh(key)

    def prepare_store(self, keys: Sequence[OffloadKey], context: BareContext) -> BareOutput | None:
        found = self._chunks
        new = [key for key in keys if key not in found]
        context.seen.update(dict.fromkeys(keys))
        evicted: list[OffloadKey] = []
        needed = len(new) - len(self._freed) - self._capacity + self._fresh
        if needed > 0:
            if needed > self._idle:
                return None
            offered = set(keys)
            for key, chunk in found.items():
                if chunk.readers == 0 and key not in offered:
                    evicted.append(key)
                    if len(evicted) == needed:
                        break
            self._freed.extend([found.pop(key).slot for key in evicted])
            self._idle -= needed
        slots: list[int] = []
        for key in reversed(new):
            if self._fresh < self._capacity:
                slot = self._fresh
                self._fresh += 1
            else:
                slot = self._freed.pop()
            found[key] = BareChunk(slot)
            slots.append(slot)
        slots.reverse()
        context.stored.update(new)
        return BareOutput(new, np.array(slots, dtype=np.int32), evicted)

    def complete_store(self, keys: Sequence[OffloadKey], context: BareContext) -> None:
        found = self._chunks
        for key in keys:
            found[key].readers = 0
        self._idle += len(keys)

    def on_request_finished(self, context: BareContext) -> None:
        ends = context.positions
        seen = list(context.seen)
        if all(key in ends for key in seen):
            seen.sort(key=ends.__getitem__)
        self.touch(seen, context)
