"""Copies of the host device beside one plain copy by torch of as many bytes, and planning them.

Block ids are shuffled, so that no two neighbours go to neighbours; one thread on either side.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from statistics import median
from typing import Final, NamedTuple, Protocol

import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from typing_extensions import override

from kvoffload import (
    AttentionLayer,
    CanonicalPageMapping,
    CopyRun,
    CPULoadStoreSpec,
    Encoding,
    GPULoadStoreSpec,
    KVParallelConfig,
    derive_mapping,
)
from kvoffload.copying.host import HostDevice, HostEvent, HostStream
from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
from kvoffload.copying.plans import CopyPlan, Memory
from kvoffload.copying.worker import CopyWorker
from spec_tests.bench.jobs import CopyJob, CopyResult, PlanJob, PlanResult

MEDIANS: Final = 9
TOTAL_BYTES: Final = 128 << 20
PLAN_BLOCKS: Final = 4096
PLAN_LAYERS: Final = 64
KIB: Final = 1024

Bytes = NDArray[np.uint8]


@frozen
class CopyWorkload:
    """Pages of one tensor, `page_size_bytes` each, copied by `runs` into larger or equal ones."""

    page_size_bytes: int
    host_page_size_bytes: int
    runs: tuple[CopyRun, ...]


def direct(page_size_bytes: int) -> CopyWorkload:
    """Whole pages."""
    run = CopyRun(0, 0, page_size_bytes, 1, page_size_bytes, page_size_bytes)
    return CopyWorkload(page_size_bytes, page_size_bytes, (run,))


def canonical(total_kv_heads: int) -> CopyWorkload:
    """The page of a worker at tp 2: token-major, 16 tokens, fp16, head size 128."""
    mapping = mapping_at_tp2(total_kv_heads)
    return CopyWorkload(
        mapping.local_page_size_bytes, mapping.canonical_page_size_bytes, mapping.runs
    )


def mapping_at_tp2(total_kv_heads: int) -> CanonicalPageMapping:
    """Of rank 0."""
    layer = AttentionLayer(
        total_kv_heads=total_kv_heads,
        head_size=128,
        element_size_bytes=2,
        encoding=Encoding.PACKED_NHD,
    )
    return derive_mapping(layer, KVParallelConfig(block_size=16, tp_size=2))


COPIES: Final = {
    "direct, pages of 16 KiB": direct(16 * KIB),
    "direct, pages of 64 KiB": direct(64 * KIB),
    "direct, pages of 256 KiB": direct(256 * KIB),
    "direct, pages of 1 MiB": direct(1024 * KIB),
    "canonical, tp 2, 8 local heads": canonical(16),
    "canonical, tp 2, 1 local head": canonical(2),
}


class PlainTensor(Protocol):
    """What of a tensor of torch is used; torch itself is a download that types can do without."""

    def copy_(self, source: PlainTensor) -> object:
        """Copy all bytes of another one."""
        ...


def plain_copy(array: Bytes) -> Callable[[], object]:
    """One copy of all bytes by torch, on one thread."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    source: PlainTensor = torch.from_numpy(array)
    target: PlainTensor = torch.from_numpy(np.zeros_like(array))
    return lambda: target.copy_(source)


class _Stand(NamedTuple):
    """A worker on the host device, and specs of all its blocks in two shuffled orders."""

    worker: CopyWorker[HostStream, HostEvent]
    blocks: GPULoadStoreSpec
    slots: CPULoadStoreSpec
    gpu: Bytes


def _stand(workload: CopyWorkload) -> _Stand:
    number = TOTAL_BYTES // workload.page_size_bytes
    shuffle = np.random.default_rng(20261130)
    gpu = shuffle.integers(0, 256, (number, workload.page_size_bytes), dtype=np.uint8)
    host = np.zeros((number, workload.host_page_size_bytes), dtype=np.uint8)
    layout = CopyLayout(
        gpu=[Rows(number, workload.page_size_bytes)],
        host=[Rows(number, workload.host_page_size_bytes)],
        groups=((PageRuns(0, workload.runs),),),
    )
    return _Stand(
        CopyWorker(layout, HostDevice([gpu], [host])),
        GPULoadStoreSpec(shuffle.permutation(number).astype(np.int32), None, [0]),
        CPULoadStoreSpec(shuffle.permutation(number).astype(np.int32)),
        gpu,
    )


def measure_copies(job: CopyJob) -> CopyResult:
    """A plain copy, a store and a load in turns; medians of each. Submission included."""
    stand = _stand(COPIES[job.workload])

    def store() -> None:
        stand.worker.submit_store(1, stand.blocks, stand.slots)
        _finish(stand.worker)

    def load() -> None:
        stand.worker.submit_load(1, stand.slots, stand.blocks)
        _finish(stand.worker)

    plain, stored, loaded = _in_turns([plain_copy(stand.gpu), store, load])
    stand.worker.shutdown()
    return CopyResult(plain=plain, store=stored, load=loaded, num_bytes=stand.gpu.size)


def _finish(worker: CopyWorker[HostStream, HostEvent]) -> None:
    worker.wait({1})
    (result,) = worker.get_finished()
    if not result.success:
        raise RuntimeError("a copy of the benchmark failed")


def _in_turns(
    calls: Sequence[Callable[[], object]], afterwards: Callable[[], object] | None = None
) -> list[float]:
    """Median seconds of each, one after another in every round; the first round is no measure.

    What is done `afterwards` is not measured.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(MEDIANS + 1):
        for index, call in enumerate(calls):
            before = time.perf_counter()
            call()
            if number:
                seconds[index].append(time.perf_counter() - before)
            if afterwards is not None:
                afterwards()
    return [median(one) for one in seconds]


class ParkedDevice(HostDevice):
    """A host device that takes transfers, and carries none out: its compute stream never ends.

    Of each it works out every address, as a device has to that copies by addresses.
    """

    def __init__(self, gpu: Sequence[Bytes], host: Sequence[Bytes]) -> None:
        super().__init__(gpu, host)
        self.gpu_memory = [memory_of(array) for array in gpu]
        self.host_memory = [memory_of(array) for array in host]
        self._parked = threading.Event()
        self.num_accepted = 0
        self.launch(self.compute_stream, self._park)

    def _park(self) -> None:
        self._parked.wait()

    @override
    def copy(self, stream: HostStream, plan: CopyPlan, name: str) -> None:
        pieces = plan.written_out(self.gpu_memory, self.host_memory)
        super().copy(stream, plan, name)
        self.num_accepted = len(pieces.size)

    def copy_list(self, stream: HostStream, pieces: Sequence[tuple[int, int, int]]) -> None:
        """Enqueue a list of (source, target, size), as `copy` does a plan."""

        def run() -> None:
            for source, target, size in pieces:
                ctypes.memmove(target, source, size)

        self.launch(stream, run)
        self.num_accepted = len(pieces)

    def forget(self) -> None:
        """Drop all that was taken."""
        for stream in self._streams:
            stream.tasks.clear()

    @override
    def close(self) -> None:
        self.forget()
        self._parked.set()
        super().close()


def memory_of(array: Bytes) -> Memory:
    """Where the rows of an array are."""
    return Memory(array.ctypes.data, array.strides[0])


def submit_list(
    device: ParkedDevice, stream: HostStream, pieces: Sequence[tuple[int, int, int]]
) -> None:
    """What a worker does with a plan: behind the kernels, between two events."""
    submitted, started, ended = (device.new_event(name) for name in ("submitted", "start", "end"))
    device.record(submitted, device.compute_stream)
    device.wait(stream, submitted)
    device.record(started, stream)
    device.copy_list(stream, pieces)
    device.record(ended, stream)


def measure_plan(job: PlanJob) -> PlanResult:
    """A canonical transfer of many blocks and layers: from its specs until a device has taken it.

    Ours goes through a worker, with all of its checks; addresses are written out on the way. Beside
    it the same through a list of fragments, each worked out by itself and none of them checked.
    """
    workload = canonical(job.total_kv_heads)
    gpu_rows = Rows(PLAN_BLOCKS, workload.page_size_bytes)
    host_rows = Rows(PLAN_BLOCKS, workload.host_page_size_bytes)
    layout = CopyLayout(
        gpu=[gpu_rows] * PLAN_LAYERS,
        host=[host_rows] * PLAN_LAYERS,
        groups=(tuple(PageRuns(tensor, workload.runs) for tensor in range(PLAN_LAYERS)),),
    )
    shuffle = np.random.default_rng(20261130)
    blocks = GPULoadStoreSpec(shuffle.permutation(PLAN_BLOCKS).astype(np.int32), None, [0])
    slots = CPULoadStoreSpec(shuffle.permutation(PLAN_BLOCKS).astype(np.int32))
    # Gigabytes, of which no byte is touched: the system gives memory when it is first used.
    gpu, host = (
        [np.zeros((rows.num_rows, rows.row_size_bytes), dtype=np.uint8) for rows in side]
        for side in (layout.gpu, layout.host)
    )
    device = ParkedDevice(gpu, host)
    worker = CopyWorker(layout, device)
    stream = device.new_stream("list")
    jobs = count(1)

    def ours() -> None:
        device.num_accepted = 0
        if not worker.submit_store(next(jobs), blocks, slots):
            raise RuntimeError("a store of the benchmark was not taken")

    def by_fragment() -> None:
        pieces = fragment_list(layout, blocks, slots, device.gpu_memory, device.host_memory)
        submit_list(device, stream, pieces)

    seconds = _in_turns([ours, by_fragment], afterwards=device.forget)
    ours()
    num_fragments = device.num_accepted
    worker.shutdown()
    return PlanResult(plan=seconds[0], by_fragment=seconds[1], num_fragments=num_fragments)


def fragment_list(
    layout: CopyLayout,
    blocks: GPULoadStoreSpec,
    slots: CPULoadStoreSpec,
    gpu: Sequence[Memory],
    host: Sequence[Memory],
) -> list[tuple[int, int, int]]:
    """Every piece as (source, target, size), one by one: the way that needs no plan."""
    pieces: list[tuple[int, int, int]] = []
    pairs = list(zip(blocks.block_ids.tolist(), slots.block_ids.tolist(), strict=True))
    for page in layout.groups[0]:
        near, far = gpu[page.tensor], host[page.tensor]
        for run in page.runs:
            for block, slot in pairs:
                source = near.address + block * near.row_step + run.local_offset
                target = far.address + slot * far.row_step + run.canonical_offset
                for i in range(run.num_fragments):
                    pieces.append(
                        (
                            source + i * run.local_stride,
                            target + i * run.canonical_stride,
                            run.fragment_size,
                        )
                    )
    return pieces
