"""Ever new values of the hints and events that a driver shows: other sessions, other users.

What is varied is text, for nobody knows which text is an id, and numbers that lie as far apart as
those of ids and moments do. Whether a client may really send ever new ones the driver tells: if
the strategy itself gives hardly one value twice, it is `free`. Of a name of which it has a few
values only (roles, priorities, `s1` and `s2`) it may mean just these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from stateful_models.operations import HostEvent

T = TypeVar("T")

Hints: TypeAlias = "Mapping[str, object] | None"

FEW: Final = 12
"""So many values may be all there are."""
MANY: Final = 50
"""And so many in four times as many are not; Hypothesis likes to draw the same again."""
APART: Final = 1_000_000
"""Numbers that lie as far apart are no ranks, sizes or shares."""
MAX_ENDINGS: Final = 6
"""Of the ways in which the last request of a session may look so many are tried."""
_APART_FROM_ALL: Final = 7_000_000_000


class FreshValues:
    """Makes hints and events like those of a driver with values that were never there.

    `hints` and `events` are examples, `more` draws that many examples of hints. `names` are what
    is varied; of those in `free` the driver itself gives ever new values.
    """

    def __init__(
        self,
        hints: Sequence[Hints],
        events: Sequence[HostEvent],
        more: Callable[[int], Sequence[Hints]] = lambda count: (),
    ) -> None:
        self._events = events
        values = self._known = _values(hints)
        self.free: set[str] = {
            name for name, known in values.items() if len(set(known)) >= FEW and _apart(known)
        }
        if self.free:
            many = _values(more(4 * MANY))
            self.free = {name for name in self.free if _is_free(many.get(name, ()))}
        texts = {name for name, known in values.items() if any(isinstance(v, str) for v in known)}
        self.names: tuple[str, ...] = tuple(name for name in values if name in texts | self.free)
        self._places = _places(events)
        # Each as often as can be, for what is kept of a few only shows late.
        most = max((self._number(one) for one in hints), default=0)
        self.bases: list[Hints] = [one for one in hints if most and self._number(one) == most]
        self.bases = self.bases or [None]
        self.endings: list[Mapping[str, object]] = self._endings()

    @property
    def varies(self) -> bool:
        """Whether there is anything to vary."""
        return bool(self.names or self._places)

    @property
    def all_free(self) -> bool:
        """Whether the driver itself gives ever new values of all that is varied."""
        return self.are_free(self.names)

    def are_free(self, names: Collection[str]) -> bool:
        """Whether it does of these names; of none of them, if it does of the values of events."""
        return self.free >= set(names) and (bool(names) or self.events_free)

    @property
    def events_free(self) -> bool:
        """Whether the driver itself gives events ever new values."""
        return all(len(known) >= FEW and _apart(known) for known in self._places.values())

    def hints(self, number: int) -> Hints:
        """Hints of the n-th session, or user, or whatever the names tell apart."""
        base = self.bases[number % len(self.bases)]
        if base is None:
            return None
        return {
            name: fresh(value, number) if name in self.names else value
            for name, value in base.items()
        }

    def last_hints(self, number: int, ending: Mapping[str, object]) -> Hints:
        """Those of its last request, which ends like this."""
        own = self.hints(number)
        if own is None:
            return None
        return {**{name: own[name] for name in self.names if name in own}, **ending}

    @property
    def told_by_events(self) -> tuple[str, ...]:
        """The names of the events that say of which one they are."""
        return tuple(dict.fromkeys(name for name, _ in self._places))

    def events(self, number: int, *, telling: bool = True) -> Iterator[HostEvent]:
        """Every event that there is, with the values of the n-th; if not `telling` only those
        that say nothing of any one, as a tick."""
        base = self.bases[number % len(self.bases)] or {}
        for event in {(one.name, len(one.values)): one for one in self._events}.values():
            if not telling and event.name in self.told_by_events:
                continue
            named = [
                {
                    place: fresh(base.get(name, known), number)
                    for place, known in enumerate(event.values)
                    if (event.name, place) in self._places
                }
                for name in self._told_by(event) or [""]
            ]
            for values in named:
                given = (values.get(place, known) for place, known in enumerate(event.values))
                yield HostEvent(event.name, tuple(given))

    def _told_by(self, event: HostEvent) -> list[str]:
        """The names of the hints whose values an event has too; where none has any in common, those
        that are free, for of these two examples hardly ever are alike."""
        told: set[str | float] = set()
        for place in range(len(event.values)):
            told.update(self._places.get((event.name, place), ()))
        same = [name for name in self.names if told.intersection(self._known[name])]
        return same or [name for name in self.names if name in self.free]

    def of(self, number: int) -> dict[str, object]:
        """The values of the n-th that are new, by name."""
        own = self.hints(number) or {}
        return {name: own[name] for name in self.names if name in own}

    @property
    def unended(self) -> list[Mapping[str, object]]:
        """What the last request of one that does not end may say beside: nothing, or what some
        ending says that ends nothing."""
        return [{}, *(ending for ending in self.endings if ending)]

    def _number(self, hints: Hints) -> int:
        """How many of the names are in it."""
        return sum(name in self.names for name in hints or ())

    def _endings(self) -> list[Mapping[str, object]]:
        endings: list[Mapping[str, object]] = []
        for base in self.bases:
            rest = {n: value for n, value in (base or {}).items() if n not in self.names}
            if rest not in endings:
                endings.append(rest)
        return endings[:MAX_ENDINGS]


def fresh(value: object, number: int) -> object:
    """A value like this one that belongs to the n-th."""
    if isinstance(value, str):
        # Who reads a number out of it shall be able to.
        return str(_APART_FROM_ALL + number) if value.isdigit() else f"{value}-{number}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _APART_FROM_ALL + number
    return value


def _values(hints: Sequence[Hints]) -> dict[str, list[str | float]]:
    """The texts and numbers of each name."""
    values: dict[str, list[str | float]] = {}
    for one in hints:
        for name, value in (one or {}).items():
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                values.setdefault(name, []).append(value)
    return values


def _places(events: Sequence[HostEvent]) -> dict[tuple[str, int], list[str | float]]:
    """The values of each place of an event that has texts, or numbers like ids, in it."""
    places: dict[tuple[str, int], list[str | float]] = {}
    for event in events:
        for place, value in enumerate(event.values):
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                places.setdefault((event.name, place), []).append(value)
    return {
        where: known
        for where, known in places.items()
        if any(isinstance(v, str) for v in known) or (len(set(known)) >= FEW and _apart(known))
    }


def _is_free(values: Sequence[str | float]) -> bool:
    """Whether so many values, drawn at random, say that there is no end of them."""
    return len(set(values)) >= MANY and _apart(values)


def _apart(values: Sequence[str | float]) -> bool:
    """Whether numbers, in digits or not, lie as far apart as those of ids do; texts do."""
    numbers = [float(v) for v in values if not isinstance(v, str) or v.isdigit()]
    return len(numbers) < len(values) or max(numbers) - min(numbers) >= APART
