"""What was enqueued where, and what comes before what: streams, events, and what the host knew.

Nothing runs here. An operation comes after another

- of the same stream that was enqueued before it,
- of another stream, if an event that was recorded behind the other was waited for before it,
- that the host knew to be over when it enqueued it,

and after all that these come after. Each operation carries how far into every stream that reaches,
a vector clock, so that the question is answered by one comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from attrs import define, field, frozen

from kvoffload.copying.accesses import Touch
from kvoffload.errors import InvalidValueError


class Work(Enum):
    """Kinds of operations."""

    COPY = "copy"
    KERNEL = "kernel"
    RECORD = "record"
    WAIT = "wait"


@define(eq=False)
class Stream:
    """Operations in order; `number` counts the streams of a graph from 0."""

    name: str
    number: int
    operations: list[Operation] = field(factory=list, repr=False)

    @property
    def clock(self) -> tuple[int, ...]:
        """How far into each stream everything comes before what is enqueued next."""
        return self.operations[-1].clock if self.operations else ()


@define(eq=False)
class Event:
    """`recording` is the latest, None before the first."""

    name: str
    recording: Operation | None = field(default=None, repr=False)


@define(eq=False)
class Operation:
    """One thing enqueued, number `number` of all and `position` of its stream, both from 1.

    `clock[s]` operations of stream s are it or come before it. A record operation has the event
    that it records, a wait the event, and the recording of it that it waits for: that of the
    moment in which it was enqueued, None if there was none, and then it waits for nothing.
    """

    number: int
    work: Work
    name: str
    stream: Stream
    position: int
    clock: tuple[int, ...]
    touches: tuple[Touch, ...] = field(default=(), repr=False)
    event: Event | None = None
    recording: Operation | None = field(default=None, repr=False)

    @property
    def is_transfer(self) -> bool:
        """Whether it is a worker's; what is neither that nor for order is the caller's kernel."""
        return self.work is Work.COPY

    def is_before(self, other: Operation) -> bool:
        """Whether it is over when the other begins, whatever the order of execution."""
        return self is not other and self.is_in(other.clock)

    def is_in(self, clock: tuple[int, ...]) -> bool:
        """Whether a clock reaches as far as this."""
        return self.stream.number < len(clock) and clock[self.stream.number] >= self.position

    def __str__(self) -> str:
        return f"{self.name!r} (stream {self.stream.name!r})"


@frozen
class EventReuse:
    """An event recorded again before the host knew that its last recording is over (ORD-2)."""

    event: Event
    earlier: Operation
    later: Operation

    clause: str = "ORD-2"

    def __str__(self) -> str:
        return (
            f"ORD-2: {self.event.name!r} was recorded again in stream {self.later.stream.name!r}, "
            f"and nothing told the host that its last recording in stream "
            f"{self.earlier.stream.name!r} is over: whoever asks for it is told of the wrong one"
        )


@frozen
class StreamReuse:
    """A stream that was handed back is used again too early (ORD-2).

    It was taken again as `taken_as` before the host knew that `operation`, the last one in it, is
    over; or, for None, whoever had handed it back has enqueued `operation` all the same.
    """

    operation: Operation
    taken_as: str | None

    clause: str = "ORD-2"

    def __str__(self) -> str:
        if self.taken_as is None:
            return (
                f"ORD-2: {self.operation} was enqueued after its stream had been handed back, "
                "which is anybody's by then"
            )
        return (
            f"ORD-2: stream {self.operation.stream.name!r} was handed back and is taken again as "
            f"{self.taken_as!r}, and nothing told the host that {self.operation.name!r} in it is "
            "over: whoever has it now queues behind that, and is told of its errors"
        )


class CopyGraph:
    """All operations in the order enqueued, and the order that they are bound to."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.operations: list[Operation] = []
        self.event_reuses: list[EventReuse] = []
        self.stream_reuses: list[StreamReuse] = []
        self._handed_back: list[Stream] = []
        self._host: tuple[int, ...] = ()

    def new_stream(self, name: str) -> Stream:
        """Another stream, or the one that was handed back last; that keeps its first name."""
        if self._handed_back:
            stream = self._handed_back.pop()
            last = stream.operations[-1] if stream.operations else None
            if last is not None and not self.is_known(last):
                self.stream_reuses.append(StreamReuse(last, name))
            return stream
        stream = Stream(name, len(self.streams))
        self.streams.append(stream)
        return stream

    def hand_back(self, stream: Stream) -> None:
        """Leave a stream to whoever asks for one next.

        Raises InvalidValueError for one that was handed back already.
        """
        if any(one is stream for one in self._handed_back):
            raise InvalidValueError("stream", stream.name, "one that has not been handed back")
        self._handed_back.append(stream)

    def enqueue(
        self, stream: Stream, work: Work, name: str, touches: Iterable[Touch] = ()
    ) -> Operation:
        """A copy or a kernel, at the end of a stream."""
        return self._append(stream, work, name, tuple(touches))

    def record(self, event: Event, stream: Stream) -> Operation:
        """Record an event behind all that is in the stream."""
        earlier = event.recording
        operation = self._append(stream, Work.RECORD, f"record {event.name}", event=event)
        if earlier is not None and not self.is_known(earlier):
            self.event_reuses.append(EventReuse(event, earlier, operation))
        event.recording = operation
        return operation

    def wait(self, stream: Stream, event: Event) -> Operation:
        """Let what is enqueued from now on come after the latest recording of an event."""
        recording = event.recording
        name = f"wait for {event.name}" + ("" if recording else ", never recorded: for nothing")
        return self._append(stream, Work.WAIT, name, event=event, recording=recording)

    def host_learns(self, operation: Operation) -> None:
        """From now on the host knows that the operation is over, and all before it."""
        self._host = _latest(self._host, operation.clock)

    def host_learns_all(self) -> None:
        """The same of all that there is."""
        for stream in self.streams:
            self._host = _latest(self._host, stream.clock)

    def is_known(self, operation: Operation) -> bool:
        """Whether the host knows that it is over."""
        return operation.is_in(self._host)

    def _append(
        self,
        stream: Stream,
        work: Work,
        name: str,
        touches: tuple[Touch, ...] = (),
        *,
        event: Event | None = None,
        recording: Operation | None = None,
    ) -> Operation:
        clock = _latest(stream.clock, self._host)
        if recording is not None:
            clock = _latest(clock, recording.clock)
        position = len(stream.operations) + 1
        own = (*(0 for _ in range(stream.number)), position)
        operation = Operation(
            number=len(self.operations) + 1,
            work=work,
            name=name,
            stream=stream,
            position=position,
            clock=_latest(clock, own),
            touches=touches,
            event=event,
            recording=recording,
        )
        stream.operations.append(operation)
        self.operations.append(operation)
        if any(one is stream for one in self._handed_back):
            self.stream_reuses.append(StreamReuse(operation, None))
        return operation


def _latest(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The later of both in each stream; what is missing is 0."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return (*map(max, longer, shorter), *longer[len(shorter) :])
