"""What carries out copies: streams of work in order, and events between streams."""

from __future__ import annotations

from typing import Protocol, TypeVar

from kvoffload.copying.plans import CopyPlan

StreamT = TypeVar("StreamT")
EventT = TypeVar("EventT")


class CopyDevice(Protocol[StreamT, EventT]):
    """Streams, events, and copies between the two sides of a `CopyLayout`.

    Work of one stream is done in the order enqueued; between streams nothing is in order but what
    an event puts in order. Every call returns at once but `synchronize` and `close`.
    """

    @property
    def compute_stream(self) -> StreamT:
        """Where the engine enqueues the kernels that read and write GPU blocks."""
        ...

    def new_stream(self, name: str) -> StreamT:
        """Another stream; `name` is for reports."""
        ...

    def new_event(self, name: str) -> EventT:
        """An event that has not been recorded; `name` is for reports."""
        ...

    def record(self, event: EventT, stream: StreamT) -> None:
        """Let the event come about when all that is now in the stream is done."""
        ...

    def wait(self, stream: StreamT, event: EventT) -> None:
        """Let what is enqueued from now on wait for what was last recorded of the event."""
        ...

    def copy(self, stream: StreamT, plan: CopyPlan, name: str) -> None:
        """Enqueue all copies of a plan; `name` is for reports.

        What goes wrong before returns as an exception, what goes wrong later is the `error` of
        the next event that is recorded in the stream.
        """
        ...

    def is_done(self, event: EventT) -> bool:
        """Whether it has come about since it was last recorded."""
        ...

    def synchronize(self, event: EventT) -> None:
        """Return when it has come about."""
        ...

    def error(self, event: EventT) -> Exception | None:
        """What went wrong in the stream before an event that has come about."""
        ...

    def seconds_between(self, start: EventT, end: EventT) -> float | None:
        """From one event to another, both over; None where the device does not tell."""
        ...

    def close(self) -> None:
        """Finish all that is enqueued and release threads and memory. Twice is once."""
        ...
