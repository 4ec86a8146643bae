"""The CUDA device: streams and events of torch, and copies by whichever path the table names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from attrs import define, evolve, field

from kvoffload.canonical.pages import CopyRun
from kvoffload.canonical.tiling import doubled_bytes
from kvoffload.copying.cuda import by_driver, by_kernel, by_torch
from kvoffload.copying.cuda.paths import DEFAULT_PATHS, CopyPath, PathTable
from kvoffload.copying.plans import CopyPlan, Memory, PagePlan
from kvoffload.errors import DeviceClosedError, DeviceError, MappingError

if TYPE_CHECKING:
    import torch


@define(eq=False)
class CudaEvent:
    """An event of torch, and what must live until it has come about (ORD-2)."""

    name: str
    event: torch.cuda.Event
    is_recorded: bool = False
    kept: list[object] = field(factory=list)
    error: Exception | None = None


@define(eq=False)
class CudaStream:
    """A stream of torch, and what its copies since the last recorded event need."""

    name: str
    stream: torch.cuda.Stream
    kept: list[object] = field(factory=list)
    error: Exception | None = None


class CudaDevice:
    """Copies between rows on a GPU and rows in host memory.

    `gpu[t]` and `host[t]` are the two sides of tensor t: shape (rows, bytes a row), uint8, the
    bytes of a row next to each other; the GPU's all on one device. `paths` decides how each page
    is copied. The kernel is only used where host memory is pinned, the driver's call only where
    cuda-bindings and the driver have it. Raises MappingError for other tensors and for rows of the
    same bytes, and DeviceError where there is no CUDA device.
    """

    def __init__(
        self,
        gpu: Sequence[torch.Tensor],
        host: Sequence[torch.Tensor],
        *,
        paths: PathTable = DEFAULT_PATHS,
    ) -> None:
        import torch

        if not torch.cuda.is_available():
            raise DeviceError("torch finds no CUDA device")
        for tensor, rows in enumerate(gpu):
            _require_rows(f"gpu[{tensor}]", rows, on_gpu=True)
        for tensor, rows in enumerate(host):
            _require_rows(f"host[{tensor}]", rows, on_gpu=False)
        _require_one_device(gpu)
        _require_apart("on the GPU", gpu)
        _require_apart("in host memory", host)
        self._gpu, self._host = list(gpu), list(host)
        self._shapes = [tuple(rows.shape) for rows in gpu], [tuple(rows.shape) for rows in host]
        # A worker without layers has nothing to copy, and answers all the same.
        self._device = gpu[0].device if gpu else torch.device("cuda")
        self._gpu_memory = [_memory(rows) for rows in gpu]
        self._host_memory = [_memory(rows) for rows in host]
        self._call = by_driver.batched_copy()
        self.paths: PathTable = paths
        self.available: frozenset[CopyPath] = self._find_paths()
        self._is_closed = False
        self._streams: list[CudaStream] = []

    def _find_paths(self) -> frozenset[CopyPath]:
        found = {CopyPath.TORCH}
        if self._call is not None:
            found.add(CopyPath.DRIVER)
        if by_kernel.is_available() and all(rows.is_pinned() for rows in self._host):
            found.add(CopyPath.KERNEL)
        return frozenset(found)

    @property
    def compute_stream(self) -> CudaStream:
        """The stream that is current in torch when asked."""
        import torch

        return CudaStream("compute", torch.cuda.current_stream(self._device))

    def new_stream(self, name: str) -> CudaStream:
        """Another stream."""
        import torch

        stream = CudaStream(name, torch.cuda.Stream(self._device))
        self._streams.append(stream)
        return stream

    def new_event(self, name: str) -> CudaEvent:
        """An event that has not been recorded."""
        import torch

        return CudaEvent(name, torch.cuda.Event(enable_timing=True))

    def record(self, event: CudaEvent, stream: CudaStream) -> None:
        """Let the event come about when all that is now in the stream is done."""
        self._require_open(stream)
        event.event.record(stream.stream)
        event.is_recorded = True
        event.kept, stream.kept = stream.kept, []
        event.error, stream.error = stream.error, None

    def wait(self, stream: CudaStream, event: CudaEvent) -> None:
        """Let what is enqueued from now on wait for the last recording of the event."""
        self._require_open(stream)
        if event.is_recorded:
            stream.stream.wait_event(event.event)

    def copy(self, stream: CudaStream, plan: CopyPlan, name: str) -> None:
        """Enqueue all copies of a plan.

        Raises DeviceError for what cannot be enqueued, BlockOutOfRangeError for what would leave
        the memory: two of the paths are told addresses only.
        """
        import torch

        self._require_open(stream)
        plan.require_inside(*self._shapes)
        by_path: dict[CopyPath, list[PagePlan]] = {}
        for page in plan.pages:
            path = self.paths.choose(plan.direction, page, self.available)
            by_path.setdefault(path, []).append(page)
        with torch.cuda.stream(stream.stream):
            for page in by_path.get(CopyPath.TORCH, ()):
                by_torch.copy_page(page, plan.direction, self._gpu, self._host)
            for page in by_path.get(CopyPath.KERNEL, ()):
                stream.kept += by_kernel.copy_page(
                    page, plan.direction, self._gpu_memory, self._host_memory, self._device
                )
        at_once = by_path.get(CopyPath.DRIVER)
        if at_once and self._call is not None:
            by_driver.copy_pages(
                evolve(plan, pages=tuple(at_once)),
                self._gpu_memory,
                self._host_memory,
                stream.stream.cuda_stream,
                self._call,
            )

    def is_done(self, event: CudaEvent) -> bool:
        """Whether it has come about since it was last recorded.

        Where the GPU has failed nothing runs any more: then it has, with that as its error.
        """
        try:
            if not event.event.query():
                return False
        except RuntimeError as error:
            event.error = DeviceError(f"{event.name}: {error}")
        event.kept.clear()
        return True

    def synchronize(self, event: CudaEvent) -> None:
        """Return when it has come about, or never will, as `is_done` says."""
        try:
            event.event.synchronize()
        except RuntimeError as error:
            event.error = DeviceError(f"{event.name}: {error}")

    def error(self, event: CudaEvent) -> Exception | None:
        """What went wrong in the stream before the event came about."""
        return event.error

    def seconds_between(self, start: CudaEvent, end: CudaEvent) -> float | None:
        """From one event to another, by the clock of the GPU."""
        milliseconds: float = start.event.elapsed_time(end.event)
        return milliseconds / 1e3

    def close(self) -> None:
        """Finish all that is enqueued and let go of all memory. Twice is once."""
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as stack:
            # Where one of them raises, the others are finished all the same.
            stack.callback(self._gpu.clear)
            stack.callback(self._host.clear)
            for stream in self._streams:
                stack.callback(stream.kept.clear)
                stack.callback(stream.stream.synchronize)

    def _require_open(self, stream: CudaStream) -> None:
        if self._is_closed:
            raise DeviceClosedError(f"stream {stream.name!r}: the device is closed")


def _require_one_device(gpu: Sequence[torch.Tensor]) -> None:
    devices = sorted({str(rows.device) for rows in gpu})
    if len(devices) > 1:
        raise MappingError(f"tensors on several GPUs: {', '.join(devices)}; wanted is one")


def _require_apart(side: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise MappingError for rows of the same bytes: their numbers do not tell that they meet."""
    strips = [
        CopyRun(rows.data_ptr(), 0, rows.shape[1], len(rows), rows.stride(0), rows.shape[1])
        for rows in tensors
        if rows.numel()
    ]
    doubled = doubled_bytes(strips, local=True)
    if doubled is not None:
        raise MappingError(
            f"two tensors {side} have bytes in common, at {doubled[0]:#x} and {doubled[1]:#x}"
        )


def _memory(rows: torch.Tensor) -> Memory:
    return Memory(rows.data_ptr(), rows.stride(0))


def _require_rows(name: str, rows: torch.Tensor, *, on_gpu: bool) -> None:
    import torch

    fits = rows.dtype is torch.uint8 and rows.ndim == 2 and rows.stride(1) == 1
    fits = fits and (len(rows) < 2 or rows.stride(0) >= rows.shape[1])
    if not fits or rows.is_cuda is not on_gpu:
        raise MappingError(
            f"{name}: shape {tuple(rows.shape)}, {rows.dtype}, strides {rows.stride()}, on "
            f"{rows.device}; wanted are rows of uint8 next to each other "
            f"{'on a GPU' if on_gpu else 'in host memory'}"
        )
