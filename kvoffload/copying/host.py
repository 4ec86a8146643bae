"""The host device: both sides in CPU memory, copied by threads of this process.

It is the reference for all others, runs everywhere, and serves where there is no GPU.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from attrs import define, field

from kvoffload.copying.plans import CopyPlan, Direction
from kvoffload.errors import DeviceClosedError, DeviceError, MappingError
from kvoffload.validation import require_int

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvoffload.canonical.pages import CopyRun

    Bytes = NDArray[np.uint8]

SMALL_BYTES: Final = 2048
"""Up to here a block's part of a run is copied faster with all others than by itself."""


@define(eq=False)
class HostEvent:
    """Comes about when the stream that it was recorded in has got there."""

    name: str
    # Recordings that have not come about yet, and that have: one may be recorded again.
    recorded: int = 0
    reached: int = 0
    at: float | None = None
    error: Exception | None = None


@define(eq=False)
class HostStream:
    """Tasks in order; `busy` while a thread is at one of them."""

    name: str
    tasks: deque[_Task] = field(factory=deque)
    busy: bool = False
    # Of the tasks since the last recorded event.
    error: Exception | None = None


@define(eq=False)
class _Task:
    """Something to do, when what it waits for has come about."""

    run: Callable[[], None]
    waits_for: HostEvent | None = None
    recording: int = 0

    @property
    def is_ready(self) -> bool:
        return self.waits_for is None or self.waits_for.reached >= self.recording


class HostDevice:
    """Copies between rows of arrays, on `num_threads` threads of its own.

    `gpu[t]` and `host[t]` are the two sides of tensor t: arrays of uint8, shape (rows, bytes a
    row), the bytes of a row next to each other. Raises MappingError for others, for those that
    cannot be written, and for rows of the same bytes. A process that was forked from the one that
    made it has none of its threads: nothing is enqueued or waited for there.
    """

    def __init__(
        self, gpu: Sequence[Bytes], host: Sequence[Bytes], *, num_threads: int = 1
    ) -> None:
        require_int("num_threads", num_threads, 1)
        require_memory(gpu, host)
        self._gpu = list(gpu)
        self._host = list(host)
        self._shapes = [array.shape for array in gpu], [array.shape for array in host]
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._streams: list[HostStream] = []
        self._closing = False
        self._compute = self.new_stream("compute")
        self._threads = [
            threading.Thread(target=self._work, name=f"kvoffload-copy-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def compute_stream(self) -> HostStream:
        return self._compute

    def new_stream(self, name: str) -> HostStream:
        """Another stream. It lives as long as the device."""
        stream = HostStream(name)
        with self._changed:
            self._streams.append(stream)
        return stream

    def new_event(self, name: str) -> HostEvent:
        """An event that has not been recorded."""
        return HostEvent(name)

    def record(self, event: HostEvent, stream: HostStream) -> None:
        """Let the event come about when all that is now in the stream is done."""
        with self._changed:
            event.recorded += 1
            recording = event.recorded

            def reach() -> None:
                event.at = time.perf_counter()
                event.error, stream.error = stream.error, None
                event.reached = recording

            self._enqueue(stream, _Task(reach))

    def wait(self, stream: HostStream, event: HostEvent) -> None:
        """Let what is enqueued from now on wait for the last recording of the event."""
        with self._changed:
            self._enqueue(stream, _Task(_nothing, event, event.recorded))

    def copy(self, stream: HostStream, plan: CopyPlan, name: str) -> None:
        """Enqueue all copies of a plan. Raises BlockOutOfRangeError if it leaves the memory."""
        plan.require_inside(*self._shapes)

        def run() -> None:
            try:
                copy_rows(plan, self._gpu, self._host)
            except Exception as error:
                stream.error = error

        with self._changed:
            self._enqueue(stream, _Task(run))

    def launch(self, stream: HostStream, kernel: Callable[[], None]) -> None:
        """Enqueue any other work, as an engine does kernels that read and write blocks."""
        with self._changed:
            self._enqueue(stream, _Task(kernel))

    def is_done(self, event: HostEvent) -> bool:
        """Whether it has come about since it was last recorded."""
        return event.reached >= event.recorded

    def synchronize(self, event: HostEvent) -> None:
        """Return when it has come about. Raises DeviceClosedError where it never will."""
        if self._is_inherited:
            raise DeviceClosedError(f"event {event.name!r}: its threads are another process's")
        with self._changed:
            self._changed.wait_for(lambda: self.is_done(event))

    def error(self, event: HostEvent) -> Exception | None:
        """What went wrong in the stream before the event came about."""
        return event.error

    def seconds_between(self, start: HostEvent, end: HostEvent) -> float | None:
        """From one event to another; None where one has not come about."""
        return None if start.at is None or end.at is None else end.at - start.at

    def close(self) -> None:
        """Finish all that is enqueued and end the threads. Twice is once."""
        if not self._is_inherited:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            for thread in self._threads:
                thread.join()
        self._gpu.clear()
        self._host.clear()

    @property
    def _is_inherited(self) -> bool:
        """Whether this process was forked from the one with the threads; locks may be held."""
        return os.getpid() != self._process

    def _enqueue(self, stream: HostStream, task: _Task) -> None:
        if self._closing:
            raise DeviceClosedError(f"stream {stream.name!r}: the device is closed")
        stream.tasks.append(task)
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() is not None or self._is_over())
                stream = self._next()
                if stream is None:
                    return
                stream.busy = True
                task = stream.tasks.popleft()
            try:
                task.run()
            except Exception as error:
                stream.error = error
            except BaseException as error:
                # Whatever a kernel meant by it, the threads are for others, too.
                stream.error = DeviceError(f"stream {stream.name!r}: ended by {error!r}")
            with self._changed:
                stream.busy = False
                self._changed.notify_all()

    def _next(self) -> HostStream | None:
        for stream in self._streams:
            if stream.tasks and not stream.busy and stream.tasks[0].is_ready:
                return stream
        return None

    def _is_over(self) -> bool:
        return self._closing and not any(stream.tasks or stream.busy for stream in self._streams)


def _nothing() -> None:
    """Waiting is all that there is to do."""


def require_memory(gpu: Sequence[Bytes], host: Sequence[Bytes]) -> None:
    """Raise MappingError unless these are rows of bytes, of which no two are the same bytes."""
    import numpy as np

    arrays = [
        (f"{side}[{tensor}]", array)
        for side, those in (("gpu", gpu), ("host", host))
        for tensor, array in enumerate(those)
    ]
    for name, array in arrays:
        _require_rows(name, array)
    # In order of addresses, only neighbours can meet, and what lies between them.
    ends: list[tuple[int, str, Bytes]] = []
    for name, array in sorted(arrays, key=lambda one: _extent(one[1])[0]):
        start, end = _extent(array)
        ends = [other for other in ends if other[0] > start]
        for _, other, there in ends:
            if np.shares_memory(array, there):
                raise MappingError(f"{other} and {name} have bytes in common")
        ends.append((end, name, array))


def _extent(array: Bytes) -> tuple[int, int]:
    """Addresses from the first to behind the last byte."""
    if not array.size:
        return 0, 0
    (first, _), reach = array.__array_interface__["data"], (len(array) - 1) * array.strides[0]
    return first + min(reach, 0), first + max(reach, 0) + array.shape[1]


def _require_rows(name: str, array: Bytes) -> None:
    import numpy as np

    if not isinstance(array, np.ndarray):
        raise MappingError(f"{name}: {type(array).__name__}; wanted are arrays of numpy")
    if array.dtype.name != "uint8" or array.ndim != 2 or array.strides[1] != 1:
        raise MappingError(
            f"{name}: shape {array.shape}, {array.dtype}, {array.strides} bytes between "
            "neighbours; wanted are rows of uint8 next to each other"
        )
    if not array.flags.writeable:
        raise MappingError(f"{name}: an array that cannot be written")
    if len(array) > 1 and abs(array.strides[0]) < array.shape[1]:
        raise MappingError(
            f"{name}: rows of {array.shape[1]} bytes, of which one begins every {array.strides[0]}"
        )


def copy_rows(plan: CopyPlan, gpu: Sequence[Bytes], host: Sequence[Bytes]) -> None:
    """Carry out a plan on arrays: run by run, block by block, its fragments at once."""
    is_store = plan.direction is Direction.STORE
    for page in plan.pages:
        for run in page.runs:
            near = _fragments(gpu[page.tensor], run, run.local_offset, run.local_stride)
            far = _fragments(host[page.tensor], run, run.canonical_offset, run.canonical_stride)
            if is_store:
                source, target = near, far
                source_rows, target_rows = page.gpu_rows, page.host_rows
            else:
                source, target = far, near
                source_rows, target_rows = page.host_rows, page.gpu_rows
            if run.fragment_size * run.num_fragments <= SMALL_BYTES:
                target[target_rows] = source[source_rows]
                continue
            for here, there in zip(source_rows.tolist(), target_rows.tolist(), strict=True):
                target[there] = source[here]


def _fragments(rows: Bytes, run: CopyRun, offset: int, stride: int) -> Bytes:
    """All fragments of a run in all rows, as a view: rows x fragments x bytes.

    One fragment has no axis of its own, which makes its copies faster.
    """
    from numpy.lib.stride_tricks import as_strided

    end = offset + (run.num_fragments - 1) * stride + run.fragment_size
    if end > rows.shape[1]:
        # A view would reach into what lies behind.
        raise MappingError(f"{run} ends {end} bytes into a row of {rows.shape[1]}")
    if run.num_fragments == 1:
        return rows[:, offset : offset + run.fragment_size]
    return as_strided(
        rows[:, offset:],
        shape=(len(rows), run.num_fragments, run.fragment_size),
        strides=(rows.strides[0], stride, 1),
    )
