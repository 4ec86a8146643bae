"""Damage to the books of a manager, one entry at a time, which `check` must notice (SLOT-1).

The books are redundant: what is pinned, pending, free and in flight is written down twice, and
so is where a policy keeps a key. So an entry that is missing, doubled or off by one in any of
them contradicts another. Everything that hangs on a manager is walked and damaged; the table
says of what damage must show.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias, cast

from kvoffload import CPUOffloadingManager, InvariantError, make_offload_key
from kvoffload.cpu.request_access import RequestAccess
from kvoffload.policies.ghosts import GhostList
from kvoffload.policies.parking import NOWHERE, Node

Undo: TypeAlias = Callable[[], object]
Tally: TypeAlias = dict[str, Counter[bool]]
PACKAGES: Final = ("kvoffload.cpu.", "kvoffload.policies.", "kvoffload.requests")
PER_CLASS: Final = 4
FAR: Final = 1_000.0
TIMES: Final = 5
"""How often a manager is damaged."""
GUARDED: Final = frozenset(
    {
        "ARCCachePolicy._target",
        "ChunkQueue.parked",
        "EventLog._backlog",
        "EventLog._backlog_keys",
        "GhostList._num_stale",
        "GhostList._order",
        "GhostList._stale",
        "GhostList.keys",
        "LRUCachePolicy._nodes",
        "OpenTransfers._by_request",
        "OpenTransfers._by_ticket",
        "Parking._returned",
        "Parking._returned_nodes",
        "ResidencyIndex.num_idle",
        "ResidencyIndex.num_pending",
        "SlotPool._freed",
        "SlotPool._fresh",
        "Transfer._remaining",
    }
)
"""Books of which any damage shows at once."""
SOMETIMES: Final = frozenset(
    {
        "ARCCachePolicy.cache_capacity one less",
        "ChunkStatus.chunk_id one less",
        "ChunkStatus.chunk_id one more",
        "ChunkStatus.ref_cnt one less",
        "ChunkStatus.ref_cnt one more",
        "Node.end one less",
        "Node.end one more",
        "Node.older itself, linked",
        "Node.older itself, parked",
        "OpenTransfers._next_ticket one less",
        "Parking._places first lost",
        "Parking._places last lost",
        "RequestAccess.inserted stranger",
        "RequestAccess.missed stranger",
        "RequestAccess.reused stranger",
        "RequestAccess.seen first lost",
        "ResidencyIndex._chunks first lost",
        "ResidencyIndex._chunks under another key",
        "ReuseTracker.capacity one less",
        "SlotPool.capacity one less",
        "Transfer.keys first lost",
        "Transfer.keys last doubled",
    }
)
"""Damage that shows where it matters: there is none to a full tracker with room to spare."""
STRANGER: Final = make_offload_key(b"stranger", 0)


class Book(NamedTuple):
    """An attribute of an object that hangs on a manager."""

    owner: object
    attribute: str
    value: object

    @property
    def name(self) -> str:
        return f"{type(self.owner).__name__}.{self.attribute}"


def books(root: object) -> Iterator[Book]:
    """Every attribute of every object of ours that `root` holds; of each class only a few."""
    waiting: deque[object] = deque([root])
    known = {id(root)}
    met: Counter[type] = Counter()
    while waiting:
        one = waiting.popleft()
        children: Iterable[object] = ()
        if isinstance(one, dict):
            table: dict[object, object] = one
            children = [*table.keys(), *table.values()]
        elif isinstance(one, list | tuple | set | deque):
            # Of what, isinstance does not say.
            children = list(cast("Collection[object]", one))
        elif type(one).__module__.startswith(PACKAGES):
            met[type(one)] += 1
            if met[type(one)] > PER_CLASS and type(one) is not GhostList:
                continue
            shown = [Book(one, name, getattr(one, name)) for name in _attributes(one)]
            yield from shown
            children = [book.value for book in shown]
        for child in children:
            if id(child) not in known and not isinstance(child, int | float | str | bytes):
                known.add(id(child))
                waiting.append(child)


def _attributes(one: object) -> list[str]:
    slots = [
        name
        for cls in type(one).__mro__
        for name in getattr(cls, "__slots__", ())
        if not name.startswith("__")
    ]
    # A slot may be empty.
    return sorted(name for name in {*slots, *getattr(one, "__dict__", {})} if hasattr(one, name))


def damages(book: Book) -> Iterator[tuple[str, Callable[[], Undo]]]:
    """Ways to damage a book, each by name; done, it answers how to undo it."""
    owner, attribute, value = book

    def put(other: object) -> Undo:
        setattr(owner, attribute, other)
        return lambda: setattr(owner, attribute, value)

    if type(value) is float:
        yield "far more", lambda: put(value + FAR)
        yield "far less", lambda: put(value - FAR)
    elif isinstance(owner, Node) and attribute == "older":
        place = "parked" if value is NOWHERE else "linked"
        yield f"itself, {place}", lambda: put(owner)
    elif type(value) is int:
        yield "one more", lambda: put(value + 1)
        yield "one less", lambda: put(value - 1)
    elif isinstance(value, dict):
        table: dict[Any, Any] = value
        kept = list(table.items())

        def restore_table() -> None:
            table.clear()
            # Not by `update`, which adds in a Counter.
            for key, entry in kept:
                table[key] = entry

        def lose(place: int) -> Undo:
            del table[kept[place][0]]
            return restore_table

        def move() -> Undo:
            table[STRANGER] = table.pop(kept[0][0])
            return restore_table

        def add_nothing() -> Undo:
            table[STRANGER] = {}
            return restore_table

        if kept and isinstance(kept[0][1], dict):
            yield "nothing for a stranger", add_nothing
        if kept:
            yield "first lost", lambda: lose(0)
            yield "last lost", lambda: lose(-1)
            if isinstance(kept[0][0], bytes):
                yield "under another key", move
    elif isinstance(value, list | deque):
        row: list[Any] | deque[Any] = value
        entries = list(row)

        def restore_row() -> None:
            row.clear()
            row.extend(entries)

        def change(other: list[Any]) -> Undo:
            row.clear()
            row.extend(other)
            return restore_row

        if entries:
            yield "first lost", lambda: change(entries[1:])
            yield "last lost", lambda: change(entries[:-1])
            yield "last doubled", lambda: change([*entries, entries[-1]])
    elif isinstance(value, set):
        crowd: set[Any] = value
        members = set(crowd)

        def restore_crowd() -> None:
            crowd.clear()
            crowd.update(members)

        def lose_one() -> Undo:
            crowd.remove(min(members))
            return restore_crowd

        def gain() -> Undo:
            crowd.add(STRANGER)
            return restore_crowd

        if members:
            yield "one lost", lose_one
        yield "stranger", gain


def noticed(manager: CPUOffloadingManager) -> Iterator[tuple[str, bool]]:
    """Each damage by name, and whether `check` noticed it. Afterwards all is as before."""
    every = list(books(manager))
    for record in {id(book.owner): book.owner for book in every}.values():
        if isinstance(record, RequestAccess):
            record.check()
    for book in every:
        for name, do in damages(book):
            undo = do()
            try:
                manager.check()
                if isinstance(book.owner, RequestAccess):
                    # The manager looks into the records of requests that call, no others.
                    book.owner.check()
            except InvariantError:
                yield f"{book.name} {name}", True
            except Exception:
                # Books that cannot even be read are noticed too.
                yield f"{book.name} {name}", True
            else:
                yield f"{book.name} {name}", False
            finally:
                undo()
    manager.check()


def tally(manager: CPUOffloadingManager, play: Callable[[], None], times: int) -> Tally:
    """Play and damage by turns: how often each damage was noticed, and how often not."""
    counts: Tally = {}
    for _ in range(times):
        play()
        for name, was in noticed(manager):
            counts.setdefault(name, Counter())[was] += 1
    return counts


def try_damage(managers: Iterable[tuple[CPUOffloadingManager, Callable[[], None]]]) -> None:
    """Damage managers that are being played with. Raises AssertionError for damage unnoticed."""
    counts: Tally = {}
    for manager, play in managers:
        for name, counted in tally(manager, play, TIMES).items():
            counts.setdefault(name, Counter()).update(counted)
    for name, counted in counts.items():
        book, _, how = name.partition(" ")
        if counted[False] and book in GUARDED:
            raise AssertionError(f"{book}, {how}: unnoticed {counted[False]} times")
    done = {name.partition(" ")[0] for name in counts}
    seen = {name for name, counted in counts.items() if counted[True]}
    if missing := sorted((GUARDED - done) | (SOMETIMES - seen)):
        raise AssertionError(f"never damaged, or never noticed: {missing}")
