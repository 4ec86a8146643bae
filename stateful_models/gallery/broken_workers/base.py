"""What exhibits among workers are made with: the reference, and a device to tamper with."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from typing_extensions import override

from kvoffload.copying.device import CopyDevice
from kvoffload.copying.graph import Stream
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ordered import OrderedDevice, OrderedEvent
from kvoffload.copying.plans import CopyPlan
from kvoffload.copying.worker import CopyWorker
from stateful_models.workers.subject import CopyingWorker, MakeWorker


@frozen
class BrokenWorker:
    """An exhibit: the clause that it breaks, and how.

    `also` are clauses that the same mistake breaks. With `careless_caller` it is the caller who is
    wrong, and the worker is the reference.
    """

    clause: str
    mistake: str
    make: MakeWorker
    bug_rows: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    careless_caller: bool = False


@frozen
class LegalWorker:
    """An oddity that nobody may be convicted of."""

    oddity: str
    make: MakeWorker


class Tap(CopyDevice[Stream, OrderedEvent]):
    """Hands all calls on; subclasses tamper with some."""

    def __init__(self, device: OrderedDevice) -> None:
        self.device = device

    @property
    @override
    def compute_stream(self) -> Stream:
        return self.device.compute_stream

    @override
    def new_stream(self, name: str) -> Stream:
        return self.device.new_stream(name)

    @override
    def new_event(self, name: str) -> OrderedEvent:
        return self.device.new_event(name)

    @override
    def record(self, event: OrderedEvent, stream: Stream) -> None:
        self.device.record(event, stream)

    @override
    def wait(self, stream: Stream, event: OrderedEvent) -> None:
        self.device.wait(stream, event)

    @override
    def copy(self, stream: Stream, plan: CopyPlan, name: str) -> None:
        self.device.copy(stream, plan, name)

    @override
    def is_done(self, event: OrderedEvent) -> bool:
        return self.device.is_done(event)

    @override
    def synchronize(self, event: OrderedEvent) -> None:
        self.device.synchronize(event)

    @override
    def error(self, event: OrderedEvent) -> Exception | None:
        return self.device.error(event)

    @override
    def seconds_between(self, start: OrderedEvent, end: OrderedEvent) -> float | None:
        return self.device.seconds_between(start, end)

    @override
    def close(self) -> None:
        self.device.close()

    def is_of_compute(self, event: OrderedEvent) -> bool:
        """Whether the event was last recorded behind kernels."""
        return event.recording is not None and event.recording.stream is self.compute_stream


def on(tap: Callable[[OrderedDevice], Tap]) -> MakeWorker:
    """The reference on a device that is tampered with."""

    def make(layout: CopyLayout, device: OrderedDevice) -> CopyingWorker:
        return CopyWorker(layout, tap(device))

    return make


def planning(change: Callable[[CopyPlan, OrderedDevice], CopyPlan]) -> MakeWorker:
    """The reference with plans that are changed on their way to the device."""

    class Changed(Tap):
        @override
        def copy(self, stream: Stream, plan: CopyPlan, name: str) -> None:
            super().copy(stream, change(plan, self.device), name)

    return on(Changed)
