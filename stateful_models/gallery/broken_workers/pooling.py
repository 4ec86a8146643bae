"""A stream for every transfer, of those that were handed back: in time, or too early (ORD-2)."""

from __future__ import annotations

from typing_extensions import override

from kvoffload.copying.graph import Stream
from kvoffload.copying.ordered import OrderedDevice, OrderedEvent
from kvoffload.copying.plans import CopyPlan
from stateful_models.gallery.broken_workers.base import Tap


class StreamOfEachTransfer(Tap):
    """Streams of lanes are names only: each transfer has its own, behind the last of its lane.

    It is handed back when the host was told that the transfer is over.
    """

    def __init__(self, device: OrderedDevice) -> None:
        super().__init__(device)
        self._now: dict[str, Stream] = {}
        self._last: dict[str, OrderedEvent] = {}
        # What its worker takes for the streams of its lanes, and never enqueues into.
        self._names: list[Stream] = []
        self._running: list[tuple[OrderedEvent, Stream]] = []

    @override
    def new_stream(self, name: str) -> Stream:
        stream = Stream(name, -1 - len(self._names))
        self._names.append(stream)
        return stream

    @override
    def wait(self, stream: Stream, event: OrderedEvent) -> None:
        if self.is_of_compute(event):
            # This is how a transfer begins.
            self._now[stream.name] = self.device.new_stream(stream.name)
            if stream.name in self._last:
                super().wait(self._now[stream.name], self._last[stream.name])
        super().wait(self._now[stream.name], event)

    @override
    def record(self, event: OrderedEvent, stream: Stream) -> None:
        if stream is self.compute_stream:
            super().record(event, stream)
            return
        now = self._now[stream.name]
        super().record(event, now)
        if now.operations[-2].is_transfer:
            # This is how it ends.
            self._last[stream.name] = event
            self._running.append((event, now))
            self.submitted(now)

    @override
    def copy(self, stream: Stream, plan: CopyPlan, name: str) -> None:
        super().copy(self._now[stream.name], plan, name)

    @override
    def is_done(self, event: OrderedEvent) -> bool:
        is_done = super().is_done(event)
        if is_done:
            self._told(event)
        return is_done

    @override
    def synchronize(self, event: OrderedEvent) -> None:
        super().synchronize(event)
        self._told(event)

    def _told(self, event: OrderedEvent) -> None:
        for one, stream in [one for one in self._running if one[0] is event]:
            self._running.remove((one, stream))
            self.over(stream)

    def submitted(self, stream: Stream) -> None:
        """A transfer stands in its stream, whole."""

    def over(self, stream: Stream) -> None:
        """The host knows that it is over."""
        self.device.hand_back(stream)


class StreamsFreeAtOnce(StreamOfEachTransfer):
    """Hands a stream back when the transfer has been enqueued."""

    @override
    def submitted(self, stream: Stream) -> None:
        self.device.hand_back(stream)

    @override
    def over(self, stream: Stream) -> None:
        """It was handed back long ago."""
