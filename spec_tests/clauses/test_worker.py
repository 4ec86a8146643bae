"""COPY-4, ORD-1 to ORD-3: jobs on the host device, with kernels and copies that take their time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from kvoffload import (
    CopyRun,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    InvalidValueError,
    LoadStoreSpec,
    MappingError,
    TransferResult,
)
from kvoffload.copying.host import HostDevice, HostStream
from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
from kvoffload.copying.plans import CopyPlan
from kvoffload.copying.worker import CopyWorker
from kvoffload.errors import DeviceClosedError, PartialChunkError, TransferCountError

Bytes = NDArray[np.uint8]
PAGE = 8
LAYOUT = CopyLayout(
    gpu=[Rows(6, PAGE)],
    host=[Rows(6, PAGE)],
    groups=((PageRuns(0, (CopyRun(0, 0, PAGE, 1, PAGE, PAGE),)),),),
)
PATIENCE_S = 20.0
"""Nobody waits that long in a test that passes."""


class Gate:
    """Something that does not go on before it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()

    @property
    def is_holding(self) -> bool:
        return self.reached.is_set() and not self._open.is_set()

    def pass_through(self) -> None:
        self.reached.set()
        assert self._open.wait(PATIENCE_S), "nobody opened the gate"

    def open(self) -> None:
        self._open.set()


class GatedDevice(HostDevice):
    """Copies of the named transfers wait at a gate, or fail: at once, or when it is their turn."""

    gates: dict[str, Gate]
    broken: set[str]
    refused: set[str]

    def __init__(self, gpu: list[Bytes], host: list[Bytes]) -> None:
        super().__init__(gpu, host, num_threads=5)
        self.gates = {}
        self.broken = set()
        self.refused = set()

    @override
    def copy(self, stream: HostStream, plan: CopyPlan, name: str) -> None:
        if name in self.refused:
            raise OSError(f"{name} cannot be enqueued")
        if name in self.gates:
            self.launch(stream, self.gates[name].pass_through)
        if name in self.broken:
            self.launch(stream, _fail)
        super().copy(stream, plan, name)

    def gate(self, name: str) -> Gate:
        return self.gates.setdefault(name, Gate())

    def settle(self) -> None:
        """Return when every stream is empty, waits for an event, or is busy at a gate."""

        def is_settled() -> bool:
            busy = sum(stream.busy for stream in self._streams)
            return self._next() is None and busy == self.at_gates

        with self._changed:
            assert self._changed.wait_for(is_settled, PATIENCE_S)

    @property
    def is_ended(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def at_gates(self) -> int:
        return sum(gate.is_holding for gate in self.gates.values())


def _fail() -> None:
    raise OSError("the copy failed")


class Stand:
    """A worker over six blocks and six slots, each filled with its own number."""

    def __init__(self) -> None:
        self.gpu = np.repeat(np.arange(6, dtype=np.uint8), PAGE).reshape(6, PAGE)
        self.host = np.repeat(np.arange(100, 106, dtype=np.uint8), PAGE).reshape(6, PAGE)
        self.device = GatedDevice([self.gpu], [self.host])
        self.worker = CopyWorker(LAYOUT, self.device)

    def store(self, job: int, block: int, slot: int) -> None:
        assert self.worker.submit_store(job, blocks(block), slots(slot))

    def load(self, job: int, slot: int, block: int, *, expedited: bool = False) -> None:
        assert self.worker.submit_load(job, slots(slot), blocks(block), expedited=expedited)

    def compute(self, kernel: Callable[[], None]) -> None:
        self.device.launch(self.device.compute_stream, kernel)

    def finish(self, *jobs: int) -> dict[int, TransferResult]:
        self.worker.wait(set(jobs))
        return {result.job_id: result for result in self.worker.get_finished()}


@contextmanager
def standing() -> Generator[Stand, None, None]:
    """A stand that is shut down in the end, whatever happened; all gates are open then."""
    stand = Stand()
    try:
        yield stand
    finally:
        for gate in stand.device.gates.values():
            gate.open()
        stand.worker.shutdown()


def blocks(*ids: int) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(ids, None, [0])


def slots(*ids: int) -> CPULoadStoreSpec:
    return CPULoadStoreSpec(ids)


@pytest.mark.clause("COPY-4")
def test_jobs_are_reported_once_with_bytes_and_seconds() -> None:
    with standing() as stand:
        stand.store(1, block=2, slot=3)
        stand.load(2, slot=4, block=5)
        results = stand.finish(1, 2)
        assert {job: result.success for job, result in results.items()} == {1: True, 2: True}
        for result in results.values():
            assert result.transfer_size == PAGE
            assert result.transfer_time is not None
            assert result.transfer_time >= 0
        assert stand.worker.get_finished() == []
        assert stand.host[3].tolist() == [2] * PAGE
        assert stand.gpu[5].tolist() == [104] * PAGE


@pytest.mark.clause("COPY-4")
def test_a_lane_finishes_in_order_and_waits_for_no_other() -> None:
    with standing() as stand:
        gate = stand.device.gate("load of job 1")
        stand.load(1, slot=0, block=0)
        stand.load(2, slot=1, block=1)
        stand.store(3, block=2, slot=2)
        stand.load(4, slot=3, block=3, expedited=True)
        assert set(stand.finish(3, 4)) == {3, 4}
        assert gate.reached.wait(PATIENCE_S)
        stand.device.settle()
        assert stand.worker.get_finished() == []
        gate.open()
        assert list(stand.finish(2)) == [1, 2]


@pytest.mark.clause("COPY-4")
def test_waiting_for_what_nobody_knows_returns() -> None:
    with standing() as stand:
        gate = stand.device.gate("store of job 1")
        stand.store(1, block=0, slot=0)
        stand.worker.wait(set())
        stand.worker.wait({7})
        assert stand.worker.get_finished() == []
        gate.open()


@pytest.mark.clause("COPY-4")
@pytest.mark.parametrize("fails", ["broken", "refused"])
def test_a_copy_that_fails_is_reported_and_the_worker_goes_on(fails: str) -> None:
    with standing() as stand:
        failing: set[str] = getattr(stand.device, fails)
        failing.add("load of job 1")
        stand.load(1, slot=0, block=0)
        stand.load(2, slot=1, block=1)
        results = stand.finish(1, 2)
        assert (results[1].success, results[1].transfer_size) == (False, None)
        assert results[2].success
        assert stand.gpu[1].tolist() == [101] * PAGE
        failing.clear()
        stand.load(1, slot=2, block=2)
        assert stand.finish(1)[1].success


@pytest.mark.clause("COPY-4")
def test_what_does_not_fit_is_refused_before_anything_is_copied() -> None:
    with standing() as stand:
        with pytest.raises(TransferCountError):
            stand.worker.submit_store(1, blocks(0, 1), slots(0))
        with pytest.raises(InvalidValueError, match="dst_spec"):
            stand.worker.submit_store(1, blocks(0), blocks(0))
        with pytest.raises(InvalidValueError, match="src_spec"):
            stand.worker.submit_load(1, LoadStoreSpec(), blocks(0))
        gate = stand.device.gate("store of job 1")
        stand.store(1, block=0, slot=0)
        with pytest.raises(InvalidValueError, match="job_id"):
            stand.worker.submit_load(1, slots(1), blocks(1))
        gate.open()
        assert list(stand.finish(1)) == [1]
        assert stand.gpu[1].tolist() == [1] * PAGE


@pytest.mark.clause("COPY-4")
def test_shutdown_finishes_what_was_taken_and_twice_is_once() -> None:
    with standing() as stand:
        gate = stand.device.gate("store of job 1")
        stand.store(1, block=3, slot=0)
        stand.load(2, slot=5, block=0)
        opener = threading.Timer(0.05, gate.open)
        opener.start()
        stand.worker.shutdown()
        opener.join()
        assert stand.host[0].tolist() == [3] * PAGE
        stand.worker.shutdown()
        assert stand.device.is_ended
        assert {result.job_id for result in stand.worker.get_finished()} == {1, 2}
        assert not stand.worker.submit_store(4, blocks(0), slots(0))
        assert not stand.worker.submit_load(4, slots(0), blocks(0))
        with pytest.raises(DeviceClosedError):
            stand.compute(_fail)


@pytest.mark.clause("ORD-1")
def test_a_store_reads_what_kernels_before_it_wrote() -> None:
    with standing() as stand:
        gate = stand.device.gate("kernel")

        def kernel() -> None:
            gate.pass_through()
            stand.gpu[2] = 77

        stand.compute(kernel)
        stand.store(1, block=2, slot=3)
        assert gate.reached.wait(PATIENCE_S)
        stand.device.settle()
        assert stand.worker.get_finished() == []
        gate.open()
        stand.finish(1)
        assert stand.host[3].tolist() == [77] * PAGE


@pytest.mark.clause("ORD-1")
@pytest.mark.parametrize("expedited", [False, True])
def test_a_load_overwrites_only_what_kernels_before_it_are_done_with(expedited: bool) -> None:
    with standing() as stand:
        gate, seen = stand.device.gate("kernel"), list[int]()

        def kernel() -> None:
            gate.pass_through()
            seen.extend(stand.gpu[2].tolist())
            stand.gpu[2] = 0

        stand.compute(kernel)
        stand.load(1, slot=3, block=2, expedited=expedited)
        assert gate.reached.wait(PATIENCE_S)
        stand.device.settle()
        assert stand.worker.get_finished() == []
        gate.open()
        stand.finish(1)
        assert seen == [2] * PAGE
        assert stand.gpu[2].tolist() == [103] * PAGE


@pytest.mark.clause("ORD-1")
def test_a_store_reads_what_a_load_before_it_brought() -> None:
    with standing() as stand:
        for job, expedited in ((1, False), (3, True)):
            name = f"{'expedited ' if expedited else ''}load of job {job}"
            gate = stand.device.gate(name)
            stand.load(job, slot=job, block=2, expedited=expedited)
            stand.store(job + 1, block=2, slot=5)
            assert gate.reached.wait(PATIENCE_S)
            stand.device.settle()
            assert stand.worker.get_finished() == []
            gate.open()
            stand.finish(job, job + 1)
            assert stand.host[5].tolist() == [100 + job] * PAGE


@pytest.mark.clause("ORD-1")
def test_a_load_overwrites_a_block_after_a_store_has_read_it() -> None:
    with standing() as stand:
        gate = stand.device.gate("store of job 1")
        stand.store(1, block=2, slot=3)
        stand.load(2, slot=4, block=2)
        assert gate.reached.wait(PATIENCE_S)
        stand.device.settle()
        assert stand.worker.get_finished() == []
        gate.open()
        stand.finish(1, 2)
        assert stand.host[3].tolist() == [2] * PAGE
        assert stand.gpu[2].tolist() == [104] * PAGE


@pytest.mark.clause("ORD-1")
def test_loads_of_two_lanes_into_one_block_keep_their_order() -> None:
    with standing() as stand:
        gate = stand.device.gate("load of job 1")
        stand.load(1, slot=3, block=2)
        stand.load(2, slot=4, block=2, expedited=True)
        assert gate.reached.wait(PATIENCE_S)
        stand.device.settle()
        assert stand.worker.get_finished() == []
        gate.open()
        stand.finish(1, 2)
        assert stand.gpu[2].tolist() == [104] * PAGE


@pytest.mark.clause("ORD-3")
def test_a_load_reads_a_slot_after_the_store_before_it() -> None:
    with standing() as stand:
        gate = stand.device.gate("store of job 1")
        stand.store(1, block=1, slot=3)
        stand.load(2, slot=3, block=5)
        assert gate.reached.wait(PATIENCE_S)
        stand.device.settle()
        assert stand.worker.get_finished() == []
        gate.open()
        stand.finish(1, 2)
        assert stand.gpu[5].tolist() == [1] * PAGE


@pytest.mark.clause("ORD-3")
def test_a_store_overwrites_a_slot_after_all_loads_before_it() -> None:
    """Whatever was reset in between: the ledger knows slots, not keys."""
    with standing() as stand:
        first = stand.device.gate("load of job 1")
        second = stand.device.gate("expedited load of job 2")
        stand.load(1, slot=3, block=2)
        stand.load(2, slot=3, block=5, expedited=True)
        stand.store(3, block=0, slot=3)
        assert first.reached.wait(PATIENCE_S)
        assert second.reached.wait(PATIENCE_S)
        first.open()
        stand.worker.wait({1})
        stand.device.settle()
        assert [result.job_id for result in stand.worker.get_finished()] == [1]
        second.open()
        stand.finish(2, 3)
        assert stand.gpu[2].tolist() == stand.gpu[5].tolist() == [103] * PAGE
        assert stand.host[3].tolist() == [0] * PAGE


@pytest.mark.clause("ORD-2")
def test_events_are_used_again_only_after_their_job_was_reported() -> None:
    with standing() as stand:
        made: list[str] = []
        new_event = stand.device.new_event

        def counting(name: str) -> object:
            made.append(name)
            return new_event(name)

        stand.device.new_event = counting  # type: ignore[method-assign,assignment]  # a spy
        gate = stand.device.gate("store of job 1")
        stand.store(1, block=0, slot=0)
        stand.store(2, block=1, slot=1)
        assert len(made) == 6
        gate.open()
        stand.worker.wait({1, 2})
        stand.store(3, block=2, slot=2)
        assert len(made) == 9, "done, but nobody was told"
        stand.finish(1, 2, 3)
        stand.store(4, block=3, slot=3)
        stand.store(5, block=3, slot=4)
        stand.store(6, block=3, slot=5)
        assert len(made) == 9
        assert set(stand.finish(4, 5, 6)) == {4, 5, 6}


@pytest.mark.clause("COPY-6")
def test_part_of_a_chunk_is_stored_only_where_the_rest_holds_nothing() -> None:
    layout = CopyLayout(gpu=LAYOUT.gpu, host=LAYOUT.host, groups=LAYOUT.groups, blocks_per_chunk=2)
    gpu = np.arange(6 * PAGE, dtype=np.uint8).reshape(6, PAGE)
    host = np.zeros((6, PAGE), dtype=np.uint8)
    worker = CopyWorker(layout, HostDevice([gpu], [host]))
    with pytest.raises(PartialChunkError):
        worker.submit_store(1, blocks(4), slots(2))
    assert worker.submit_store(1, blocks(4), slots(2), null_blocks={0: [1]})
    worker.shutdown()
    assert host[4].tolist() == gpu[4].tolist()
    assert not host[5].any()


@pytest.mark.clause("COPY-3")
def test_the_host_device_takes_rows_of_bytes() -> None:
    good = np.zeros((2, 3), dtype=np.uint8)
    for bad in (good.astype(np.int8), good.T, good[0], [[1, 2]]):
        with pytest.raises(MappingError, match=r"gpu\[0\]: (shape|list)"):
            HostDevice([bad], [good])  # type: ignore[list-item]  # what is refused
    with pytest.raises(InvalidValueError, match="num_threads"):
        HostDevice([good], [good], num_threads=0)
