"""Events not delivered yet, and what those delivered have made consumers believe (EVT-1..5)."""

from __future__ import annotations

from collections.abc import Sequence

from kvoffload.errors import InvariantError
from kvoffload.events import OffloadingEvent
from kvoffload.keys import OffloadKey
from kvoffload.tiers import Medium

BACKLOG_PER_SLOT = 4
BACKLOG_FLOOR = 1024


class EventLog:
    """Collects what happens to ready chunks; `take` hands it over.

    If nobody takes, the backlog is folded when its keys exceed BACKLOG_PER_SLOT for each slot:
    a store and the later removal of the same key cancel, neither having been seen. What is left
    is bounded by the capacity: at most a removal of each believed key and a store of each
    resident one.
    """

    def __init__(self, medium: Medium, capacity: int) -> None:
        self._medium = medium
        self._backlog: list[OffloadingEvent] = []
        self._backlog_keys = 0
        self._backlog_limit = BACKLOG_PER_SLOT * capacity + BACKLOG_FLOOR
        # Insertion order is the order of announcement.
        self._believed: dict[OffloadKey, None] = {}

    def stored(self, keys: Sequence[OffloadKey]) -> None:
        """The keys became ready."""
        self._append(keys, removed=False)

    def removed(self, keys: Sequence[OffloadKey]) -> None:
        """The keys, ready until now, are gone."""
        self._append(keys, removed=True)

    def take(self) -> list[OffloadingEvent]:
        """Everything since the last call, in the order in which it happened (EVT-3)."""
        events = self._backlog
        self._backlog = []
        self._backlog_keys = 0
        for event in events:
            if event.removed:
                for key in event.keys:
                    self._believed.pop(key, None)
            else:
                self._believed.update(dict.fromkeys(event.keys))
        return events

    def reset(self) -> None:
        """Everything is gone: drop the backlog, and take back what was announced (EVT-5)."""
        self._backlog = []
        self._backlog_keys = 0
        self.removed(list(self._believed))

    def _append(self, keys: Sequence[OffloadKey], *, removed: bool) -> None:
        if keys:
            self._backlog.append(OffloadingEvent(list(keys), self._medium, removed))
            self._backlog_keys += len(keys)
            if self._backlog_keys > self._backlog_limit:
                self._fold()

    def _fold(self) -> None:
        """Cancel each store in the backlog that a later removal undoes (EVT-4)."""
        kept: list[dict[OffloadKey, None]] = []
        store_of: dict[OffloadKey, dict[OffloadKey, None]] = {}
        for event in self._backlog:
            keys = dict.fromkeys(event.keys)
            if event.removed:
                for key in event.keys:
                    store = store_of.pop(key, None)
                    if store is not None:
                        del store[key], keys[key]
            else:
                store_of.update(dict.fromkeys(keys, keys))
            kept.append(keys)
        self._backlog = [
            OffloadingEvent(list(keys), event.medium, event.removed)
            for event, keys in zip(self._backlog, kept, strict=True)
            if keys
        ]
        self._backlog_keys = sum(map(len, kept))

    def check(self) -> None:
        """Raise InvariantError if an event is empty or the keys are miscounted."""
        if (
            any(not event.keys for event in self._backlog)
            or sum(len(event.keys) for event in self._backlog) != self._backlog_keys
            or self._backlog_keys > self._backlog_limit
        ):
            raise InvariantError(f"event log: {self._backlog_keys} keys in {self._backlog}")
