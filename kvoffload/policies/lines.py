"""Lines of chunks, and policies whose chunks stand in them.

A line is an order in which chunks can be looked at from any place on, not only from the oldest on,
and from which they can go over to another line. A chunk that is met while it is pinned is parked
with its number, so that no later look meets it; idle again, it rejoins the line at its old place
when a look comes by. So what a pin or its end does to the order is nothing at all (POL-9), and
looking costs what was put in (POL-8).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import pairwise
from typing import ClassVar, Final, TypeAlias

from typing_extensions import override

from kvoffload.errors import InvalidValueError, InvariantError
from kvoffload.keys import OffloadKey
from kvoffload.policies.base import CachePolicy, ChunkStatus, order_request_keys
from kvoffload.policies.parking import NO_KEY, Parking
from kvoffload.requests import ReqContext

Victims: TypeAlias = list[tuple[OffloadKey, ChunkStatus]]


class Entry:
    """A chunk in a line, linked or parked. `number` is its place, `uses` the policy's own."""

    __slots__ = ("chunk", "key", "line", "newer", "number", "older", "uses")

    def __init__(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        self.key: OffloadKey = key
        self.chunk: ChunkStatus = chunk
        self.number: int = 0
        self.uses: int = 0
        self.line: Line = NO_LINE
        self.older: Entry = NOWHERE
        self.newer: Entry = NOWHERE


# As in `parking`: linked to itself, every victim would be left to the garbage collector.
NOWHERE: Final = Entry.__new__(Entry)


class Line:
    """Entries by number, oldest first. All are linked, but for those that are parked."""

    def __init__(self) -> None:
        # The ends meet in a head: head.newer is the oldest entry, head.older the newest.
        self._head = head = Entry(NO_KEY, ChunkStatus(-1))
        head.older = head.newer = head
        self._parking: Parking[Entry] = Parking()
        self._last_number = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def has_parked(self) -> bool:
        """Whether any entry is parked."""
        return bool(self._parking)

    def append(self, entry: Entry) -> None:
        """An entry becomes the newest, wherever it was before. If it is parked it stays so."""
        parked = False
        if entry.line is not NO_LINE:
            parked = entry.older is NOWHERE
            entry.line.remove(entry)
        entry.line = self
        self._size += 1
        self._last_number += 1
        entry.number = self._last_number
        if parked:
            self._parking.park(entry, (entry.number, 0, NO_KEY))
        else:
            link(entry, self._head.older)

    def remove(self, entry: Entry) -> None:
        """Take an entry out of this line, parked or not."""
        if entry.older is NOWHERE:
            self._parking.remove(entry)
        else:
            unlink(entry)
        entry.line = NO_LINE
        self._size -= 1

    def release(self, entry: Entry) -> None:
        """The chunk became idle: if it is parked, it can rejoin the line."""
        self._parking.release(entry)

    def oldest(self) -> Entry:
        """The entry with the lowest number, parked or not. The line is not empty."""
        first, parked = self._head.newer, self._parking.first()
        if parked is not None and (first is self._head or parked.number < first.number):
            return parked
        return first

    def candidates(
        self, protected: Set[OffloadKey], after: Entry | None = None, until: Entry | None = None
    ) -> Iterator[Entry]:
        """Idle, unprotected entries from `after` on, or the oldest, up to `until`, or the newest.

        Those that are pinned are parked on the way, and those that were and are idle rejoin. No
        entry may be put in or taken out meanwhile.
        """
        head = self._head
        older = head if after is None else after
        end = head if until is None else until
        parking = self._parking
        while True:
            entry = older.newer
            if parking.num_returned:
                limit = None if entry is head else (entry.number, 0, NO_KEY)
                behind = older
                for returned in parking.take_between((older.number + 1, 0, NO_KEY), limit):
                    link(returned, behind)
                    behind = returned
                entry = older.newer
            if entry is end:
                return
            # The protected are met at every call, so they are told by one look at their key.
            if entry.key in protected:
                older = entry
            elif entry.chunk.ref_cnt == 0:
                yield entry
                older = entry
            else:
                unlink(entry)
                parking.park_pinned(entry, (entry.number, 0, NO_KEY))

    def place_marker(self, marker: Entry, behind: Entry | None) -> None:
        """Put a marker, which is no member, right behind an entry, or before the oldest."""
        if marker.older is not NOWHERE:
            unlink(marker)
        older = self._head if behind is None else behind
        marker.number = older.number
        link(marker, older)

    def clear(self) -> None:
        """Take everything out. Neighbours hold each other, so they are parted here and now."""
        head = self._head
        entry = head.newer
        while entry is not head:
            following = entry.newer
            entry.older = entry.newer = NOWHERE
            entry = following
        head.older = head.newer = head
        self._parking.clear()
        self._last_number = self._size = 0

    def __iter__(self) -> Iterator[Entry]:
        """The linked entries, oldest first; markers too."""
        entry = self._head.newer
        while entry is not self._head:
            yield entry
            entry = entry.newer

    def members(self) -> list[Entry]:
        """All entries, oldest first."""
        held = [entry for entry in self if entry.key is not NO_KEY]
        return sorted([*held, *self._parking], key=lambda entry: entry.number)

    def check(self) -> None:
        """Raise InvariantError unless every entry is linked or parked, once, in order."""
        self._parking.check()
        linked, members = list(self), self.members()
        if (
            any(entry.newer.older is not entry for entry in (self._head, *linked))
            or any(one.number > other.number for one, other in pairwise(linked))
            or any(one.number >= other.number for one, other in pairwise(members))
            or any(entry.line is not self for entry in members)
            or any(entry.older is not NOWHERE for entry in self._parking)
            or len(members) != self._size
        ):
            raise InvariantError(
                f"line of {self._size}: linked {[(e.number, e.key) for e in linked]}, "
                f"parked {[(e.number, e.key) for e in self._parking]}"
            )


NO_LINE: Final = Line.__new__(Line)
"""Where an entry is that is in no line."""


def link(entry: Entry, older: Entry) -> None:
    """Put an entry that is not linked right behind another."""
    newer = older.newer
    older.newer = newer.older = entry
    entry.older = older
    entry.newer = newer


def unlink(entry: Entry) -> None:
    """Take an entry out from between its neighbours."""
    older, newer = entry.older, entry.newer
    older.newer = newer
    newer.older = older
    entry.older = entry.newer = NOWHERE


class LinePolicy(CachePolicy):
    """What policies share whose chunks stand in lines. A subclass says in which, and who goes.

    **What a use is.** Requests are what uses keys, not transfers: at its end a request has used
    the keys that it reused, head of the prefix first, and those that it only inserted it has not
    (FIN-1). A `touch` is a use of its keys as well. What is pending has been read by nobody yet,
    so that it cannot be used; a pin is no use and no age, but a chunk that is pinned, pending or
    protected cannot go: whoever looks for a victim steps over it, and it keeps its place.

    **`tail_first`.** A prefix without its head is worth nothing. Where this is set a request is
    applied from its tail on, and what it only inserted counts from its end: each of these keys
    moves to the newest end of the line that it is in. So within each line the tail goes first.
    """

    tail_first: ClassVar[bool] = False

    def __init__(self, cache_capacity: int, lines: Sequence[Line]) -> None:
        super().__init__(cache_capacity)
        self._entries: dict[OffloadKey, Entry] = {}
        self._lines: tuple[Line, ...] = tuple(lines)

    @abstractmethod
    def _admit(self, entry: Entry) -> None:
        """A new entry comes in: put it into its line."""

    @abstractmethod
    def _use(self, entry: Entry) -> None:
        """An entry that is not pending was used."""

    def _renew(self, entry: Entry) -> None:
        """An entry was only inserted, by a request that now ends: see `tail_first`."""
        entry.line.append(entry)

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.chunk

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        if key in self._entries:
            raise InvalidValueError("key", key, "a key that is not resident")
        self._entries[key] = entry = Entry(key, chunk)
        self._admit(entry)

    @override
    def remove(self, key: OffloadKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            entry.line.remove(entry)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = list(keys)
        for key in reversed(keys) if self.tail_first else keys:
            self._use_key(key)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        # A key that is not resident is in no line.
        return None

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        keys = order_request_keys(key_groups, req_context)
        if not self.tail_first:
            for key in keys:
                if key in reused_keys:
                    self._use_key(key)
            return
        entries = self._entries
        for key in reversed(keys):
            if key in reused_keys:
                self._use_key(key)
            elif key in insertion_only_keys and key in entries:
                self._renew(entries[key])

    @override
    def mark_all_evictable(self, keys: Sequence[OffloadKey]) -> None:
        if any(line.has_parked for line in self._lines):
            super().mark_all_evictable(keys)

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            entry.line.release(entry)

    @override
    def clear(self) -> None:
        self._entries.clear()
        for line in self._lines:
            line.clear()

    def check(self) -> None:
        """Raise InvariantError unless every resident key is in one line, once, in order."""
        for line in self._lines:
            line.check()
        members = [entry for line in self._lines for entry in line.members()]
        if len(members) != len(self._entries) or any(
            self._entries.get(entry.key) is not entry for entry in members
        ):
            raise InvariantError(
                f"{type(self).__name__}: {list(self._entries)} resident, "
                f"{[entry.key for entry in members]} in line"
            )

    def _use_key(self, key: OffloadKey) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.chunk.ref_cnt >= 0:
            self._use(entry)

    def _depart(self, victims: Iterable[Entry]) -> Victims:
        """Take entries out for good: the answer of `evict`."""
        answer: Victims = []
        for entry in victims:
            entry.line.remove(entry)
            del self._entries[entry.key]
            answer.append((entry.key, entry.chunk))
        return answer
