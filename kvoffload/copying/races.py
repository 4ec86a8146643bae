"""The race detector: two accesses to the same bytes, one of them a write, in no order.

It looks at operations in the order enqueued and runs none. Of each row it remembers only what a
later operation can race with: an access that comes before a write of the same bytes needs no
remembering, for what comes after the write comes after it too, and what does not races with the
write. So an operation is compared with few others however long the history is.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, TypeAlias

from attrs import define, frozen

from kvoffload.copying.accesses import Touch, ends_of
from kvoffload.copying.graph import Operation
from kvoffload.copying.places import RowBytes, Side

_Row: TypeAlias = tuple[Side, int, int]


class Duty(Enum):
    """Who had to put two operations in order."""

    WORKER = "worker"
    CALLER = "caller"


@frozen
class Race:
    """Two operations that touch the same bytes of `places`, one of them writing, in no order.

    `places` has one range a row, from the first to the last byte in common. The order was the
    worker's to make if the later operation is a transfer: it comes after what was enqueued before
    its submission (ORD-1 for blocks, ORD-3 for slots). What is enqueued after a submission is
    the caller's to order (ORD-4).
    """

    earlier: Operation
    later: Operation
    places: tuple[RowBytes, ...]
    earlier_writes: bool
    later_writes: bool

    @property
    def duty(self) -> Duty:
        """Whose the order was to make."""
        return Duty.WORKER if self.later.is_transfer else Duty.CALLER

    @property
    def clause(self) -> str:
        """The clause that is broken."""
        if self.duty is Duty.CALLER:
            return "ORD-4"
        return "ORD-1" if self.places[0].side is Side.GPU else "ORD-3"

    def __str__(self) -> str:
        others = len(self.places) - 1
        more = f", and {others} more rows" if others else ""
        return (
            f"{self.clause}: nothing orders {self.earlier} before {self.later}; the first "
            f"{_verb(self.earlier_writes)}, the second {_verb(self.later_writes)} "
            f"{self.places[0]}{more}; the order was the {self.duty.value}'s to make"
        )


def find_races(operations: Iterable[Operation]) -> list[Race]:
    """All races among the operations of a graph, in the order in which they came about."""
    detector = RaceDetector()
    for operation in operations:
        detector.see(operation)
    return detector.races


class _Access(NamedTuple):
    operation: Operation
    byte_set: int
    writes: bool


@define
class _Found:
    """A race whose places are being collected."""

    earlier_writes: bool
    later_writes: bool
    places: dict[_Row, int]


class RaceDetector:
    """Looks at operations one by one, and collects `races`."""

    def __init__(self) -> None:
        self.races: list[Race] = []
        self._latest: dict[_Row, list[_Access]] = {}

    def see(self, operation: Operation) -> list[Race]:
        """Take notice of the operation that was enqueued next; what it races with."""
        found: dict[tuple[Operation, Side], _Found] = {}
        for touch in operation.touches:
            self._compare(operation, touch, found)
        races = [
            Race(
                earlier,
                operation,
                tuple(RowBytes(*row, *ends_of(common)) for row, common in one.places.items()),
                one.earlier_writes,
                one.later_writes,
            )
            for (earlier, _), one in found.items()
        ]
        self.races += races
        return races

    def _compare(
        self, operation: Operation, touch: Touch, found: dict[tuple[Operation, Side], _Found]
    ) -> None:
        row = (touch.side, touch.tensor, touch.row)
        kept: list[_Access] = []
        for past in self._latest.get(row, ()):
            in_order = past.operation is operation or past.operation.is_before(operation)
            common = past.byte_set & touch.byte_set
            if common and not in_order and (past.writes or touch.writes):
                one = found.setdefault(
                    (past.operation, touch.side), _Found(past.writes, touch.writes, {})
                )
                one.earlier_writes |= past.writes
                one.later_writes |= touch.writes
                one.places[row] = one.places.get(row, 0) | common
            if in_order and (touch.writes or not past.writes):
                past = past._replace(byte_set=past.byte_set & ~touch.byte_set)
            if past.byte_set:
                kept.append(past)
        kept.append(_Access(operation, touch.byte_set, touch.writes))
        self._latest[row] = kept


CONTEXT = 6
"""Operations that a timeline shows before the one it is about."""


def explain(race: Race) -> str:
    """A race in words: what meets where, both timelines, and the edge that is missing."""
    first, second = race.earlier, race.later
    lines = [
        f"{race.clause}, the {race.duty.value}'s duty: nothing orders {first} before {second}",
        f"  {first.name!r} {_verb(race.earlier_writes)}, {second.name!r} "
        f"{_verb(race.later_writes)}:",
        *(f"    {place}" for place in race.places[:3]),
    ]
    if len(race.places) > 3:
        lines.append(f"    and {len(race.places) - 3} more rows")
    lines += ["", *_timelines(first, second), "", _remedy(race)]
    return "\n".join(lines)


def _verb(writes: bool) -> str:
    return "writes" if writes else "reads"


def _timelines(first: Operation, second: Operation) -> list[str]:
    """What the two streams held, in the order enqueued, each in a column of its own."""
    streams = [first.stream, second.stream]
    shown = {
        operation.number: operation
        for end in (first, second)
        for operation in end.stream.operations[max(0, end.position - CONTEXT) : end.position]
    }
    # What was recorded behind the first is what the second could have waited for.
    for operation in first.stream.operations[first.position : first.position + CONTEXT]:
        if operation.number < second.number:
            shown[operation.number] = operation
    texts = {
        number: operation.name + (" *" if operation in (first, second) else "")
        for number, operation in shown.items()
    }
    width = max(
        len(streams[0].name),
        *(len(texts[n]) for n, operation in shown.items() if operation.stream is streams[0]),
    )
    lines = [f"  {'':>4}  {streams[0].name:<{width}}  {streams[1].name}".rstrip()]
    for number in sorted(shown):
        left = texts[number] if shown[number].stream is streams[0] else ""
        right = "" if shown[number].stream is streams[0] else texts[number]
        lines.append(f"  {number:>4}  {left:<{width}}  {right}".rstrip())
    return lines


def _remedy(race: Race) -> str:
    first, second = race.earlier, race.later
    stream, other = first.stream.name, second.stream.name
    if race.duty is Duty.CALLER and first.is_transfer:
        what = (
            f"the caller should wait for the job, or for its result,\nbefore it enqueues "
            f"{second.name!r}"
        )
    else:
        event = _recorded_behind(first, second)
        known = "an event" if event is None else f"{event!r}, which was"
        what = (
            f"the {race.duty.value} should let stream {other!r}\nwait for {known} recorded in "
            f"stream {stream!r} behind {first.name!r}"
        )
    return f"nothing orders {first.name!r} before {second.name!r}; {what}"


def _recorded_behind(first: Operation, second: Operation) -> str | None:
    """The name of the event that was there to be waited for."""
    for operation in first.stream.operations[first.position :]:
        if operation.number > second.number:
            break
        if operation.event is not None and operation.recording is None:
            if operation.event.recording is operation:
                return operation.event.name
    return None
