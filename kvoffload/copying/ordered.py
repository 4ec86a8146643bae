"""The ordered device: real bytes, and nothing happens but when it is told to.

Streams are queues, events are edges, copies and kernels are deferred. Who goes next among those
that the edges allow is for others to say, so any order that a real device could come upon can be
tried; and a race is reported as soon as it is enqueued, whatever the order tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from attrs import define

from kvoffload.copying.accesses import Touch, declared, ends_of, touches_of
from kvoffload.copying.actions import Action, Chooser, Pending
from kvoffload.copying.findings import Finding, RowsChanged, StrayAccess
from kvoffload.copying.graph import CopyGraph, Event, Operation, Stream, Work
from kvoffload.copying.host import copy_rows, require_memory
from kvoffload.copying.places import RowBytes, Side
from kvoffload.copying.plans import CopyPlan
from kvoffload.copying.races import Race, RaceDetector
from kvoffload.errors import DeviceClosedError, InvalidValueError, StreamDeadlockError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

PATIENCE: Final = 32
"""Questions in a row after which a device that only answers no moves on, as a real one does."""


@define(eq=False)
class OrderedEvent(Event):
    """`at` and `error` are those of the last recording that has come about."""

    at: float | None = None
    error: Exception | None = None


class OrderedDevice:
    """A CopyDevice over rows of arrays whose work is done action by action.

    `gpu[t]` and `host[t]` are the two sides of tensor t: arrays of uint8, shape (rows, bytes a
    row), as a HostDevice takes them. `ready()` lists what can go on, `run` lets one do so.
    `synchronize` and `close` run what they need, and before it whatever `chooser` picks. With
    `in_pieces` a copy goes run by run and row by row, in any order, so that copies interleave as
    those of real devices do.

    `graph` is all that was enqueued and its order, `findings` what was found wrong with it, in the
    order found: races, reuse (ORD-2), accesses outside of the memory there is (COPY-3).
    """

    def __init__(
        self,
        gpu: Sequence[Bytes],
        host: Sequence[Bytes],
        *,
        chooser: Chooser | None = None,
        in_pieces: bool = True,
    ) -> None:
        # Rows are known by number: were they the same bytes, a race of theirs would not be seen.
        require_memory(gpu, host)
        self.graph: CopyGraph = CopyGraph()
        self.chooser: Chooser | None = chooser
        self.in_pieces: bool = in_pieces
        self._memory = {Side.GPU: list(gpu), Side.HOST: list(host)}
        self._detector = RaceDetector()
        self.findings: list[Finding] = []
        self._pending: dict[int, Pending] = {}
        # How many operations of each stream are over, by its number.
        self._num_over: list[int] = []
        self._errors: dict[int, Exception] = {}
        self._held: set[int] = set()
        self._faults: list[Exception] = []
        self._refusals: list[Exception] = []
        self._clock = 0
        self._questions = 0
        self._num_reuses = 0
        self._is_closed = False
        self._compute = self.new_stream("compute")

    @property
    def compute_stream(self) -> Stream:
        return self._compute

    @property
    def races(self) -> list[Race]:
        """Those of the findings that are races."""
        return self._detector.races

    def new_stream(self, name: str) -> Stream:
        """Another stream, or the one that was handed back last."""
        stream = self.graph.new_stream(name)
        if stream.number == len(self._num_over):
            self._num_over.append(0)
        self._note_reuses()
        return stream

    def hand_back(self, stream: Stream) -> None:
        """Leave a stream to whoever asks for one next, as pools of streams do.

        Raises InvalidValueError for one that was handed back already, and the compute stream.
        """
        if stream is self._compute:
            raise InvalidValueError("stream", stream.name, "a stream of the worker's")
        self.graph.hand_back(stream)

    def new_event(self, name: str) -> OrderedEvent:
        """An event that has not been recorded."""
        return OrderedEvent(name)

    def record(self, event: OrderedEvent, stream: Stream) -> None:
        """Let the event come about when all that is now in the stream is done."""
        self._require_open(stream)
        self.graph.record(event, stream)
        reuses = self.graph.event_reuses
        if reuses and reuses[-1].later is event.recording:
            self.findings.append(reuses[-1])
        self._note_reuses()

    def wait(self, stream: Stream, event: OrderedEvent) -> None:
        """Let what is enqueued from now on wait for the last recording, if there is one."""
        self._require_open(stream)
        self.graph.wait(stream, event)
        self._note_reuses()

    def copy(self, stream: Stream, plan: CopyPlan, name: str) -> None:
        """Enqueue all copies of a plan."""
        self._require_open(stream)
        if self._refusals:
            raise self._refusals.pop()
        operation = self._enqueue(stream, Work.COPY, name, touches_of(plan))
        fault = self._faults.pop() if self._faults else None
        self._pending[operation.number] = Pending.of_plan(
            plan, self._copy, in_pieces=self.in_pieces, fault=fault
        )

    def launch(
        self,
        stream: Stream,
        kernel: Callable[[], None],
        *,
        reads: Iterable[RowBytes] = (),
        writes: Iterable[RowBytes] = (),
        name: str = "kernel",
    ) -> Operation:
        """Enqueue a kernel of the engine's, and say what it touches."""
        self._require_open(stream)
        touches = declared(map(self._sized, reads), map(self._sized, writes))
        operation = self._enqueue(stream, Work.KERNEL, name, touches)
        self._pending[operation.number] = Pending.of_kernel(kernel)
        return operation

    def is_done(self, event: OrderedEvent) -> bool:
        """Whether it has come about since it was last recorded; if so, the host knows it now.

        Who asks again and again is not answered no for ever: the device then runs an action.
        """
        if event.recording is None:
            return True
        if not self.is_over(event.recording):
            self._questions += 1
            if self._questions <= PATIENCE:
                return False
            self._advance(event.recording)
            if not self.is_over(event.recording):
                return False
        self._questions = 0
        self.graph.host_learns(event.recording)
        return True

    def synchronize(self, event: OrderedEvent) -> None:
        """Run what the event needs, and before it whatever the chooser picks.

        Raises StreamDeadlockError where what it needs cannot go on.
        """
        if event.recording is None:
            return
        while not self.is_over(event.recording):
            self._advance(event.recording)
        self.graph.host_learns(event.recording)

    def error(self, event: OrderedEvent) -> Exception | None:
        """What went wrong in the stream before the event came about."""
        return event.error

    def seconds_between(self, start: OrderedEvent, end: OrderedEvent) -> float | None:
        """From one event to another, counting each action as a second."""
        return None if start.at is None or end.at is None else end.at - start.at

    def run_all(self) -> None:
        """Run all that is enqueued; the host does not know."""
        while any(self._ahead()):
            self._advance(None)

    def close(self) -> None:
        """Run all that is enqueued, and take no more. Twice is once."""
        self.run_all()
        self.graph.host_learns_all()
        self._is_closed = True

    def ready(self) -> list[Action]:
        """What can go on now, stream by stream, the pieces of a copy one by one."""
        found: list[Action] = []
        for operation in self._ahead():
            if operation.stream.number in self._held or not self._may_pass(operation):
                continue
            pending = self._pending.get(operation.number)
            if pending is None or not pending.left:
                found.append(Action(operation))
                continue
            found += [Action(operation, piece, len(pending.pieces)) for piece in pending.left]
        return found

    def run(self, action: Action) -> None:
        """Let one of the actions that are ready go on. Raises InvalidValueError for another."""
        if not self._is_ready(action):
            raise InvalidValueError("action", str(action), "one that is ready")
        self._clock += 1
        self._questions = 0
        operation = action.operation
        if isinstance(operation.event, OrderedEvent):
            self._come_about(operation, operation.event)
        pending = self._pending.get(operation.number)
        if pending is not None:
            if pending.has_changed():
                self.findings.append(RowsChanged(operation))
            try:
                pending.run(action.piece)
            except Exception as error:
                self._errors[operation.stream.number] = error
            if pending.left:
                return
            del self._pending[operation.number]
        self._num_over[operation.stream.number] += 1

    def is_over(self, operation: Operation) -> bool:
        """Whether it has run."""
        return self._num_over[operation.stream.number] >= operation.position

    def has_begun(self, operation: Operation) -> bool:
        """Whether some pieces of a copy have run, and others have not."""
        pending = self._pending.get(operation.number)
        return pending is not None and len(pending.left) < len(pending.pieces)

    def hold(self, stream: Stream) -> None:
        """Let nothing of this stream run, as if its kernel took very long, until `release`."""
        self._held.add(stream.number)

    def release(self, stream: Stream) -> None:
        """Let a stream that was held go on."""
        self._held.discard(stream.number)

    def refuse_next_copy(self, error: Exception) -> None:
        """Let the next `copy` raise."""
        self._refusals.append(error)

    def break_next_copy(self, error: Exception) -> None:
        """Let the next copy go wrong when it runs: its first piece in turn raises."""
        self._faults.append(error)

    def disarm(self) -> bool:
        """Let no further copy be refused or go wrong; whether what was asked for has happened."""
        is_spent = not self._refusals and not self._faults
        self._refusals.clear()
        self._faults.clear()
        return is_spent

    def _require_open(self, stream: Stream) -> None:
        if self._is_closed:
            raise DeviceClosedError(f"stream {stream.name!r}: the device is closed")

    def _enqueue(
        self, stream: Stream, work: Work, name: str, touches: Iterable[Touch]
    ) -> Operation:
        operation = self.graph.enqueue(stream, work, name, touches)
        for touch in operation.touches:
            self._look_for_stray(operation, touch)
        self.findings += self._detector.see(operation)
        self._note_reuses()
        return operation

    def _note_reuses(self) -> None:
        """Streams used again too early, as far as they are no findings yet."""
        self.findings += self.graph.stream_reuses[self._num_reuses :]
        self._num_reuses = len(self.graph.stream_reuses)

    def _look_for_stray(self, operation: Operation, touch: Touch) -> None:
        start, stop = ends_of(touch.byte_set)
        place = RowBytes(touch.side, touch.tensor, touch.row, start, stop)
        arrays = self._memory[touch.side]
        if not 0 <= touch.tensor < len(arrays):
            self.findings.append(StrayAccess(operation, place, f"{len(arrays)} tensors"))
            return
        rows, size = arrays[touch.tensor].shape
        if not 0 <= touch.row < rows or stop is None or stop > size:
            self.findings.append(StrayAccess(operation, place, f"{rows} rows of {size} bytes"))

    def _sized(self, place: RowBytes) -> RowBytes:
        arrays = self._memory[place.side]
        if place.stop is not None or not 0 <= place.tensor < len(arrays):
            return place
        return place._replace(stop=arrays[place.tensor].shape[1])

    def _copy(self, plan: CopyPlan) -> None:
        copy_rows(plan, self._memory[Side.GPU], self._memory[Side.HOST])

    def _advance(self, wanted: Operation | None) -> None:
        """Run one action: the chooser's, or the first that `wanted` needs; any for None."""
        ready = self.ready()
        picked = self.chooser(ready) if self.chooser and ready else None
        if picked is None:
            needed = [
                action for action in ready if wanted is None or action.operation.is_in(wanted.clock)
            ]
            if not needed:
                raise StreamDeadlockError(self._who_waits(wanted))
            picked = min(needed, key=lambda action: (action.operation.number, action.piece))
        self.run(picked)

    def _ahead(self) -> Iterator[Operation]:
        """The first operation of each stream that is not over; waits that are over are passed."""
        for stream in self.graph.streams:
            while (at := self._num_over[stream.number]) < len(stream.operations):
                operation = stream.operations[at]
                if operation.work is not Work.WAIT or not self._may_pass(operation):
                    yield operation
                    break
                self._num_over[stream.number] += 1

    def _is_ready(self, action: Action) -> bool:
        operation = action.operation
        stream = operation.stream
        if stream.number in self._held or not self._may_pass(operation):
            return False
        if not any(ahead is operation for ahead in self._ahead()):
            return False
        pending = self._pending.get(operation.number)
        return pending is None or not pending.left or action.piece in pending.left

    def _may_pass(self, operation: Operation) -> bool:
        return operation.recording is None or self.is_over(operation.recording)

    def _come_about(self, operation: Operation, event: OrderedEvent) -> None:
        error = self._errors.pop(operation.stream.number, None)
        event.at, event.error = float(self._clock), error

    def _who_waits(self, wanted: Operation | None) -> str:
        lines = [f"nothing that {wanted or 'is pending'} needs can go on:"]
        for operation in self._ahead():
            stream, recording = operation.stream, operation.recording
            if stream.number in self._held:
                lines.append(f"  stream {stream.name!r} is held before {operation.name!r}")
            elif recording is not None:
                before = recording.position - 1 - self._num_over[recording.stream.number]
                lines.append(
                    f"  stream {stream.name!r} stands at {operation.name!r}, recorded in stream "
                    f"{recording.stream.name!r} behind {before} operations that are not over"
                )
            else:
                lines.append(f"  stream {stream.name!r} could go on with {operation.name!r}")
        return "\n".join(lines)
