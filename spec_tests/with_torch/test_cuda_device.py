"""What the CUDA device asks of torch, without a GPU: streams, events, and what must live (ORD-2).

Streams and events are stand-ins that record; tensors are those of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch
from attrs import define, field

from kvoffload import CopyRun, CPULoadStoreSpec, GPULoadStoreSpec, MappingError
from kvoffload.copying.cuda import by_kernel
from kvoffload.copying.cuda import device as cuda_device
from kvoffload.copying.cuda.device import CudaDevice, CudaEvent, CudaStream
from kvoffload.copying.cuda.paths import CopyPath, PathTable
from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
from kvoffload.copying.plans import CopyPlan, Direction, PagePlan, plan_store
from kvoffload.copying.worker import CopyWorker
from kvoffload.errors import BlockOutOfRangeError, DeviceClosedError, DeviceError

PAGE = 16
RUN = CopyRun(0, 0, PAGE, 1, PAGE, PAGE)
LAYOUT = CopyLayout([Rows(4, PAGE)], [Rows(4, PAGE)], ((PageRuns(0, (RUN,)),),))
BLOCK, SLOT = GPULoadStoreSpec([1], None, [0]), CPULoadStoreSpec([2])


@define(eq=False)
class Stream:
    """Notes what is done with it; `is_broken` as after an illegal access."""

    done: list[str]
    name: str = "compute"
    is_broken: bool = False

    cuda_stream: int = 77

    def wait_event(self, event: Event) -> None:
        self.done.append(f"{self.name} waits for event {event.number}")

    def synchronize(self) -> None:
        self.done.append(f"{self.name} is synchronized")
        if self.is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


@define(eq=False)
class Event:
    """Comes about when the test says so."""

    done: list[str]
    number: int
    is_over: bool = False
    is_broken: bool = False

    def record(self, stream: Stream) -> None:
        self.is_over = False
        self.done.append(f"event {self.number} in {stream.name}")

    def query(self) -> bool:
        if self.is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.is_over

    def synchronize(self) -> None:
        self.query()
        self.is_over = True

    def elapsed_time(self, end: Event) -> float:
        return 2.0


@define(eq=False)
class FakeCuda:
    """What stands in for `torch.cuda`."""

    done: list[str] = field(factory=list)
    streams: list[Stream] = field(factory=list)
    events: list[Event] = field(factory=list)

    def make_stream(self, device: object) -> Stream:
        stream = Stream(self.done, f"stream {len(self.streams)}")
        self.streams.append(stream)
        return stream

    def make_event(self, *, enable_timing: bool) -> Event:
        event = Event(self.done, len(self.events))
        self.events.append(event)
        return event

    def current(self, device: object) -> Stream:
        return Stream(self.done)

    def use(self, stream: Stream) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", fake.make_stream)
    monkeypatch.setattr(torch.cuda, "Event", fake.make_event)
    monkeypatch.setattr(torch.cuda, "current_stream", fake.current)
    monkeypatch.setattr(torch.cuda, "stream", fake.use)
    checked: Callable[..., None] = getattr(cuda_device, "_require_rows")  # noqa: B009

    def require(name: str, rows: torch.Tensor, *, on_gpu: bool) -> None:
        checked(name, rows, on_gpu=False)

    monkeypatch.setattr(cuda_device, "_require_rows", require)
    return fake


def rows(number: int = 4, size: int = PAGE) -> torch.Tensor:
    return torch.arange(number * size, dtype=torch.int32).to(torch.uint8).reshape(number, size)


def make(path: CopyPath = CopyPath.TORCH) -> CudaDevice:
    return CudaDevice([rows()], [torch.zeros_like(rows())], paths=PathTable.only(path))


@pytest.mark.clause("ORD-1")
def test_a_transfer_stands_between_what_it_waits_for_and_its_end(fake: FakeCuda) -> None:
    worker = CopyWorker(LAYOUT, make())
    assert worker.submit_store(1, BLOCK, SLOT)
    assert worker.submit_load(2, SLOT, GPULoadStoreSpec([3], None, [0]))
    store, load = "stream 0", "stream 1"
    assert fake.done == [
        "event 0 in compute",
        f"{store} waits for event 0",
        f"event 1 in {store}",
        f"event 2 in {store}",
        "event 3 in compute",
        f"{load} waits for event 3",
        f"{load} waits for event 2",
        f"event 4 in {load}",
        f"event 5 in {load}",
    ]
    assert worker.get_finished() == []
    fake.events[2].is_over = True
    (result,) = worker.get_finished()
    assert (result.job_id, result.success, result.transfer_time) == (1, True, 2e-3)


@pytest.mark.clause("ORD-2")
def test_descriptors_live_until_the_event_behind_them_has_come_about(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors = [torch.zeros(1), torch.zeros(1)]

    def copy_page(*_: object) -> list[torch.Tensor]:
        return descriptors

    monkeypatch.setattr(by_kernel, "copy_page", copy_page)
    device = make(CopyPath.KERNEL)
    device.available = frozenset(CopyPath)
    stream, ended = device.new_stream("store"), device.new_event("ended")
    device.copy(stream, plan_store(LAYOUT, BLOCK, SLOT), "store")
    assert stream.kept == descriptors
    device.record(ended, stream)
    assert (stream.kept, ended.kept) == ([], descriptors)
    assert not device.is_done(ended)
    assert ended.kept == descriptors
    fake.events[0].is_over = True
    assert device.is_done(ended)
    assert ended.kept == []


@pytest.mark.clause("ORD-2")
def test_descriptors_of_a_copy_that_broke_off_live_as_long(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two pages the second cannot be enqueued; the first is on its way."""
    descriptor = torch.zeros(1)
    answers: list[list[torch.Tensor] | None] = [None, [descriptor]]

    def copy_page(*_: object) -> list[torch.Tensor]:
        answer = answers.pop()
        if answer is None:
            raise DeviceError("no room for descriptors")
        return answer

    monkeypatch.setattr(by_kernel, "copy_page", copy_page)
    layout = CopyLayout(
        [Rows(4, PAGE)] * 2, [Rows(4, PAGE)] * 2, ((PageRuns(0, (RUN,)), PageRuns(1, (RUN,))),)
    )
    host = [torch.zeros_like(rows()), torch.zeros_like(rows())]
    device = CudaDevice([rows(), rows()], host, paths=PathTable.only(CopyPath.KERNEL))
    device.available = frozenset(CopyPath)
    worker = CopyWorker(layout, device)
    kept: list[list[object]] = []
    record = device.record

    def spy(event: CudaEvent, stream: CudaStream) -> None:
        record(event, stream)
        kept.append(list(event.kept))

    device.record = spy  # type: ignore[method-assign]  # a spy
    assert worker.submit_store(1, BLOCK, SLOT)
    assert kept == [[], [], [descriptor]]
    fake.events[2].is_over = True
    assert [result.success for result in worker.get_finished()] == [False]


@pytest.mark.clause("COPY-4")
def test_a_gpu_that_has_failed_fails_its_jobs(fake: FakeCuda) -> None:
    worker = CopyWorker(LAYOUT, make())
    for job in (1, 2):
        assert worker.submit_store(job, BLOCK, SLOT)
    for event in fake.events:
        event.is_broken = True
    worker.wait({1})
    assert [(one.job_id, one.success) for one in worker.get_finished()] == [(1, False), (2, False)]
    fake.streams[0].is_broken = True
    with pytest.raises(RuntimeError, match="illegal memory access"):
        worker.shutdown()
    assert [line for line in fake.done if "synchronized" in line] == [
        f"stream {number} is synchronized" for number in (2, 1, 0)
    ]
    worker.shutdown()


@pytest.mark.clause("COPY-3")
def test_what_would_leave_the_memory_is_not_enqueued(fake: FakeCuda) -> None:
    called: list[int] = []

    def call(targets: list[int], sources: list[int], sizes: list[int], stream: int) -> None:
        called.append(1)

    device = make(CopyPath.DRIVER)
    device.available = frozenset(CopyPath)
    device._call = call  # pyright: ignore[reportPrivateUsage]  # a stand-in
    stream = device.new_stream("store")
    for row in (4, -1):
        wrong = CopyPlan(Direction.STORE, (PagePlan(0, np.array([row]), np.array([0]), (RUN,)),))
        with pytest.raises(BlockOutOfRangeError):
            device.copy(stream, wrong, "store")
    assert called == []
    device.copy(stream, plan_store(LAYOUT, BLOCK, SLOT), "store")
    assert called == [1]


@pytest.mark.clause("COPY-3")
def test_memory_that_cannot_be_meant_is_refused(fake: FakeCuda) -> None:
    both = rows()
    for gpu, host in (([both, both[1:]], [rows(), rows()]), ([rows()], [both[:, 2:], both[:, :4]])):
        with pytest.raises(MappingError, match="have bytes in common"):
            CudaDevice(gpu, host)
    CudaDevice([both[:, :8], both[:, 8:]], [rows(), rows()]).close()
    with pytest.raises(MappingError, match="wanted are rows of uint8"):
        CudaDevice([rows(1).expand(4, PAGE)], [rows()])
    meta = torch.zeros(4, PAGE, dtype=torch.uint8, device="meta")
    with pytest.raises(MappingError, match="tensors on several GPUs: cpu, meta"):
        CudaDevice([both, meta], [rows(), rows()])


@pytest.mark.clause("COPY-4")
def test_a_worker_without_layers_answers_all_the_same(fake: FakeCuda) -> None:
    worker = CopyWorker(CopyLayout([], [], ((),)), CudaDevice([], []))
    assert worker.submit_store(1, BLOCK, SLOT)
    worker.wait({1})
    assert [result.transfer_size for result in worker.get_finished()] == [0]
    worker.shutdown()


@pytest.mark.clause("COPY-4")
def test_a_closed_device_takes_nothing(fake: FakeCuda) -> None:
    device = make()
    stream, event = device.new_stream("store"), device.new_event("ended")
    device.close()
    device.close()
    calls: list[Callable[[], None]] = [
        lambda: device.record(event, stream),
        lambda: device.wait(stream, event),
        lambda: device.copy(stream, plan_store(LAYOUT, BLOCK, SLOT), "store"),
    ]
    for call in calls:
        with pytest.raises(DeviceClosedError):
            call()
    assert fake.done == ["stream 0 is synchronized"]


def test_every_grid_is_one_that_a_gpu_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments of 64 MiB at odd addresses have more pieces than a second dimension holds."""
    triton_kernel = pytest.importorskip("kvoffload.copying.cuda.triton_kernel")
    grids: list[int] = []

    def copy_fragments(*_: object, grid: int, **__: object) -> None:
        grids.append(grid)

    monkeypatch.setattr(triton_kernel, "copy_fragments", copy_fragments)
    from kvoffload.copying.plans import Memory

    page = PagePlan(0, np.array([0, 1]), np.array([1, 0]), (CopyRun(1, 0, 64 << 20, 1, 1, 1),))
    memory = [Memory(1 << 40, 1 << 28)]
    by_kernel.copy_page(page, Direction.LOAD, memory, memory, torch.device("cpu"))
    assert grids == [2 * 65_536]
