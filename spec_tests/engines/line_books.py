"""Damage to the books of the policies whose chunks stand in lines, which `check` must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kvoffload import (
    CachePolicyFactory,
    ChunkStatus,
    InvariantError,
    OffloadKey,
    ReqContext,
    make_offload_key,
)
from kvoffload.policies.ghosts import GhostList
from kvoffload.policies.lines import Entry, Line, LinePolicy
from kvoffload.policies.segments import Segments
from kvoffload.policies.sketch import FrequencySketch

KEYS: Final = tuple(make_offload_key(b"k%d" % number, 0) for number in range(8))
FIRST, SECOND, *_, LAST = KEYS


class Books:
    """A policy whose cache is full; the oldest chunk is pinned, and perhaps parked."""

    def __init__(self, name: str, *, parked: bool = False) -> None:
        policy = CachePolicyFactory.get_cache_policy_cls(name)(cache_capacity=len(KEYS))
        if not isinstance(policy, LinePolicy):
            raise AssertionError(f"{name} is {policy!r}")
        context = ReqContext("r")
        chunks = {key: ChunkStatus(slot) for slot, key in enumerate(KEYS)}
        for key, chunk in chunks.items():
            policy.insert(key, chunk, context)
            chunk.ref_cnt = 0
            policy.mark_evictable(key)
        policy.touch([SECOND], context)
        if parked:
            chunks[FIRST].ref_cnt = 1
            if policy.evict(len(KEYS), set()) is not None:
                raise AssertionError("a pinned chunk went")
        self.policy: LinePolicy = policy

    def entry(self, key: OffloadKey) -> Entry:
        """The entry of a key."""
        entries: dict[OffloadKey, Entry] = vars(self.policy)["_entries"]
        return entries[key]

    def reorder(self) -> None:
        """Change the order of residents, where that tells something."""
        entries: dict[OffloadKey, Entry] = vars(self.policy)["_entries"]
        entries[FIRST] = entries.pop(FIRST)

    @property
    def hand(self) -> Entry:
        """That of SIEVE."""
        hand: Entry = vars(self.policy)["_hand"]
        return hand

    @property
    def queue(self) -> Line:
        """That of SIEVE."""
        queue: Line = vars(self.policy)["_queue"]
        return queue

    @property
    def ghosts(self) -> GhostList:
        """Those of S3-FIFO."""
        ghosts: GhostList = vars(self.policy)["_ghosts"]
        return ghosts

    @property
    def segments(self) -> Segments:
        """Those of segmented LRU."""
        segments: Segments = vars(self.policy)["_segments"]
        return segments

    @property
    def sketch(self) -> FrequencySketch:
        """That of W-TinyLFU."""
        sketch: FrequencySketch = vars(self.policy)["_sketch"]
        return sketch


def unlink(entry: Entry) -> None:
    """Take an entry out from between its neighbours, and tell nobody."""
    entry.older.newer, entry.newer.older = entry.newer, entry.older


class Damage(NamedTuple):
    """What is done to whose books, and what `check` says then."""

    name: str
    says: str
    harm: Callable[[Books], None]
    parked: bool = False


def _set_number(number: int) -> Callable[[Books], None]:
    def harm(books: Books) -> None:
        books.entry(FIRST).number = number

    return harm


def _set_uses(uses: int) -> Callable[[Books], None]:
    def harm(books: Books) -> None:
        books.entry(FIRST).uses = uses

    return harm


def _cut_back(books: Books) -> None:
    entry = books.entry(FIRST)
    entry.newer.older = entry.older


def _unlink_first(books: Books) -> None:
    unlink(books.entry(FIRST))


def _other_line(books: Books) -> None:
    books.entry(FIRST).line = Line()


def _link_parked(books: Books) -> None:
    parked = books.entry(FIRST)
    parked.older = parked.newer = parked


def _size(books: Books) -> None:
    vars(books.queue)["_size"] += 1


def _hand_over_all(books: Books) -> None:
    books.queue.place_marker(books.hand, books.entry(LAST))


def _no_hand(books: Books) -> None:
    unlink(books.hand)


def _two_hands(books: Books) -> None:
    books.queue.place_marker(Entry(books.hand.key, books.hand.chunk), None)
    unlink(books.hand)


def _ghost_that_is_there(books: Books) -> None:
    books.ghosts.extend([FIRST], len(KEYS))


def _ghosts_too_many(books: Books) -> None:
    books.ghosts.extend([make_offload_key(b"g%d" % n, 0) for n in range(8)], 8)


def _ghost_of_nobody(books: Books) -> None:
    books.ghosts.keys.add(make_offload_key(b"g", 0))


def _counter(books: Books) -> None:
    vars(books.sketch)["_rows"][2][0] = 16


def _counted(number: int) -> Callable[[Books], None]:
    def harm(books: Books) -> None:
        vars(books.sketch)["_counted"] = number

    return harm


def _lost(books: Books) -> None:
    del vars(books.policy)["_entries"][FIRST]


def _main_size(books: Books) -> None:
    vars(books.policy)["_main_size"] -= 1


def _protected_size(books: Books) -> None:
    books.segments.protected_size = 0


def _main_protected_size(books: Books) -> None:
    main: Segments = vars(books.policy)["_main"]
    main.protected_size = 0


DAMAGE: Final[dict[str, Damage]] = {
    "a place of another": Damage("slru", "line of", _set_number(3)),
    "a place before its neighbour": Damage("sieve", "line of", _set_number(7)),
    "a place of its neighbour": Damage("sieve", "line of", _set_number(2)),
    "a neighbour lost": Damage("s3fifo", "line of", _unlink_first),
    "a way back lost": Damage("s3fifo", "line of", _cut_back),
    "another line": Damage("sieve", "line of", _other_line),
    "a parked one that is linked": Damage("sieve", "line of", _link_parked, True),
    "a length too much": Damage("sieve", "line of", _size),
    "a resident lost": Damage("wtinylfu", "resident", _lost),
    "a bit that is two": Damage("sieve", "SIEVE: hand at", _set_uses(2)),
    "a bit that is less than none": Damage("sieve", "SIEVE: hand at", _set_uses(-1)),
    "a hand over all": Damage("sieve", "SIEVE: hand at", _hand_over_all),
    "no hand": Damage("sieve", "SIEVE: hand at", _no_hand),
    "another hand": Damage("sieve", "SIEVE: hand at", _two_hands),
    "residents out of order": Damage("sieve", "SIEVE: hand at", Books.reorder),
    "a use too much": Damage("s3fifo", "S3-FIFO: ghosts", _set_uses(4)),
    "a use too few": Damage("s3fifo", "S3-FIFO: ghosts", _set_uses(-1)),
    "a ghost that is there": Damage("s3fifo", "S3-FIFO: ghosts", _ghost_that_is_there),
    "too many ghosts": Damage("s3fifo", "S3-FIFO: ghosts", _ghosts_too_many),
    "a ghost of nobody": Damage("s3fifo", "ghosts", _ghost_of_nobody),
    "a fifth bit": Damage("wtinylfu", "a counter at 16", _counter),
    "an overdue halving": Damage("wtinylfu", "80 uses of", _counted(80)),
    "less than no use": Damage("wtinylfu", "-1 uses of", _counted(-1)),
    "a main part too long": Damage("wtinylfu", "main part", _main_size),
    "a segment too long": Damage("slru", "protected segment", _protected_size),
    "a segment of the main part too long": Damage(
        "wtinylfu", "protected segment", _main_protected_size
    ),
}
"""Each makes the books contradict themselves in one way."""


def try_damage_of(damage: Damage) -> str:
    """What `check` says of it. Raises AssertionError if it says nothing."""
    books = Books(damage.name, parked=damage.parked)
    books.policy.check()
    damage.harm(books)
    try:
        books.policy.check()
    except InvariantError as told:
        return str(told)
    raise AssertionError(f"{damage.name}: nothing is said of {damage}")


def try_line_books() -> None:
    """All of them. Raises AssertionError."""
    for what, damage in DAMAGE.items():
        said = try_damage_of(damage)
        if damage.says not in said:
            raise AssertionError(f"{what}: {said}")
