"""COPY-3, COPY-4: a worker under bad treatment: by its caller, its device, threads and forks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import numpy as np
import pytest
from attrs import frozen
from typing_extensions import override

from kvoffload import CopyRun, GPULoadStoreSpec, InvalidValueError, MappingError
from kvoffload.copying.graph import Stream
from kvoffload.copying.host import HostDevice, HostEvent, HostStream
from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
from kvoffload.copying.memory import PrivateMemory
from kvoffload.copying.ordered import OrderedDevice, OrderedEvent
from kvoffload.copying.plans import CopyPlan, Direction, PagePlan
from kvoffload.copying.worker import CopyWorker
from kvoffload.cpu.worker import CPUOffloadingWorker
from kvoffload.errors import (
    BlockOutOfRangeError,
    DeviceClosedError,
    DeviceError,
    MemoryClosedError,
)
from spec_tests.clauses.test_worker import (
    LAYOUT,
    PAGE,
    PATIENCE_S,
    Bytes,
    Gate,
    Stand,
    blocks,
    slots,
    standing,
)


@pytest.mark.clause("COPY-3")
def test_rows_that_overlap_or_cannot_be_written_are_refused() -> None:
    good = np.zeros((2, 4), dtype=np.uint8)
    frozen = good.copy()
    frozen.setflags(write=False)
    dense = np.lib.stride_tricks.as_strided(np.zeros(8, dtype=np.uint8), (2, 4), (2, 1))
    with pytest.raises(MappingError, match="cannot be written"):
        HostDevice([frozen], [good])
    with pytest.raises(MappingError, match="rows of 4 bytes, of which one begins every 2"):
        HostDevice([good], [dense])
    for gpu, host in (([good], [good]), ([good, good[1:]], [frozen.copy(), frozen.copy()])):
        with pytest.raises(MappingError, match="have bytes in common"):
            HostDevice(gpu, host)
    # Side by side in one array, in any order, and none at all.
    wide = np.zeros((2, 8), dtype=np.uint8)
    HostDevice([wide[:, 4:], wide[:0]], [wide[:, :4][::-1], wide[:0]]).close()


@pytest.mark.clause("COPY-3")
@pytest.mark.parametrize("fragments", [1, 2])
def test_memory_that_is_less_than_its_layout_is_left_alone(fragments: int) -> None:
    """The layout says six rows of eight bytes, and the last is missing, or the last bytes."""
    size = PAGE // fragments
    runs = (CopyRun(0, 0, size, fragments, size, size),)
    layout = CopyLayout(gpu=LAYOUT.gpu, host=LAYOUT.host, groups=((PageRuns(0, runs),),))
    for shape in ((5, PAGE), (6, PAGE - 1)):
        behind = np.zeros((8, PAGE), dtype=np.uint8)
        gpu = np.full((6, PAGE), 9, dtype=np.uint8)
        worker = CopyWorker(layout, HostDevice([gpu], [behind[: shape[0], : shape[1]]]))
        assert worker.submit_store(1, blocks(0, 1), slots(0, 5))
        worker.wait({1})
        (result,) = worker.get_finished()
        assert not result.success
        assert not behind.any()
        worker.shutdown()


@pytest.mark.clause("COPY-4")
def test_specs_of_the_wrong_side_are_refused_by_name() -> None:
    with standing() as stand:
        for bad in (slots(0), None, 3):
            with pytest.raises(InvalidValueError, match="src_spec must be a spec of blocks"):
                stand.worker.submit_store(1, bad, slots(0))  # type: ignore[arg-type]  # refused
            with pytest.raises(InvalidValueError, match="dst_spec must be a spec of blocks"):
                stand.worker.submit_load(1, slots(0), bad)  # type: ignore[arg-type]  # refused
        assert stand.worker.get_finished() == []


@pytest.mark.clause("COPY-3")
def test_tensors_of_different_lengths_and_groups_without_layers() -> None:
    """Slot 7 is there for group 1 alone; group 2 has no layer here, whatever its blocks."""
    page = PageRuns(0, (CopyRun(0, 0, PAGE, 1, PAGE, PAGE),))
    other = PageRuns(1, page.runs)
    layout = CopyLayout(
        gpu=[Rows(3, PAGE), Rows(9, PAGE)],
        host=[Rows(4, PAGE), Rows(8, PAGE)],
        groups=((page,), (other,), ()),
    )
    gpu = [np.full((rows.num_rows, PAGE), 5, dtype=np.uint8) for rows in layout.gpu]
    host = [np.zeros((rows.num_rows, PAGE), dtype=np.uint8) for rows in layout.host]
    worker = CopyWorker(layout, HostDevice(gpu, host))
    spec = GPULoadStoreSpec([2, 8, 10**6], [1, 1, 1], [0, 0, 0])
    assert worker.submit_store(1, spec, slots(3, 7, 2**31 - 1))
    worker.wait({1})
    assert [result.transfer_size for result in worker.get_finished()] == [2 * PAGE]
    assert (host[0][3] == 5).all()
    assert (host[1][7] == 5).all()
    worker.shutdown()


class RefusesOnce:
    """Counts calls that enqueue something, and raises at the n-th."""

    calls_left: int | None = None

    @property
    def is_armed(self) -> bool:
        return self.calls_left is not None

    def _count(self) -> None:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                self.calls_left = None
                raise OSError("cannot be enqueued")


class Flaky(RefusesOnce, HostDevice):
    """Raises at the n-th call that enqueues something, and where the names in `silent` are."""

    silent: frozenset[str] = frozenset()

    @override
    def record(self, event: HostEvent, stream: HostStream) -> None:
        self._count()
        super().record(event, stream)

    @override
    def wait(self, stream: HostStream, event: HostEvent) -> None:
        self._count()
        super().wait(stream, event)

    @override
    def copy(self, stream: HostStream, plan: CopyPlan, name: str) -> None:
        self._count()
        super().copy(stream, plan, name)

    @override
    def error(self, event: HostEvent) -> Exception | None:
        if "error" in self.silent:
            raise OSError("nobody knows")
        return super().error(event)

    @override
    def seconds_between(self, start: HostEvent, end: HostEvent) -> float | None:
        if "seconds" in self.silent:
            raise OSError("nobody knows")
        return super().seconds_between(start, end)


@frozen
class FlakyStand:
    """A worker whose blocks are full of threes, its slots empty, and a gate for kernels."""

    worker: CopyWorker[HostStream, HostEvent]
    device: Flaky
    host: Bytes
    gate: Gate


@contextmanager
def flaky() -> Generator[FlakyStand, None, None]:
    gpu = np.full((6, PAGE), 3, dtype=np.uint8)
    host = np.zeros((6, PAGE), dtype=np.uint8)
    device = Flaky([gpu], [host])
    stand = FlakyStand(CopyWorker(LAYOUT, device), device, host, Gate())
    try:
        yield stand
    finally:
        stand.gate.open()
        device.calls_left = None
        stand.worker.shutdown()


@pytest.mark.clause("COPY-4")
@pytest.mark.parametrize("call", range(5))
@pytest.mark.parametrize("is_last", [True, False])
def test_whatever_cannot_be_enqueued_the_job_fails_in_its_turn(call: int, is_last: bool) -> None:
    """Before the copy (record, wait, record), the copy itself, and its end."""
    with flaky() as stand:
        worker, device = stand.worker, stand.device
        device.launch(device.compute_stream, stand.gate.pass_through)
        assert worker.submit_store(1, blocks(0), slots(0))
        device.calls_left = call
        assert worker.submit_store(2, blocks(1), slots(1))
        assert not device.is_armed
        if not is_last:
            assert worker.submit_store(3, blocks(2), slots(2))
        assert worker.get_finished() == []
        stand.gate.open()
        worker.wait({2})
        results = worker.get_finished()
        assert [(one.job_id, one.success) for one in results[:2]] == [(1, True), (2, False)]
        # What was under way when it was said to be over is over.
        assert stand.host[1].any() == (call == 4)
        worker.wait({3})
        worker.shutdown()
        later = [one.job_id for one in [*results[2:], *worker.get_finished()]]
        assert later == ([] if is_last else [3])


@pytest.mark.clause("ORD-3")
def test_a_copy_whose_end_was_not_recorded_is_waited_for_all_the_same() -> None:
    with flaky() as stand:
        worker, device = stand.worker, stand.device
        device.launch(device.compute_stream, stand.gate.pass_through)
        device.calls_left = 4
        assert worker.submit_store(1, blocks(0), slots(4))
        assert worker.submit_load(2, slots(4), blocks(5))
        stand.gate.open()
        worker.wait({2})
        assert worker.get_finished()[-1].success
        assert stand.host[4].tolist() == [3] * PAGE


@pytest.mark.clause("COPY-4")
@pytest.mark.parametrize(("silent", "success"), [("error", False), ("seconds", True)])
def test_a_device_that_does_not_tell_how_it_went_loses_no_job(silent: str, success: bool) -> None:
    with flaky() as stand:
        worker = stand.worker
        stand.device.silent = frozenset({silent})
        assert worker.submit_store(1, blocks(0), slots(0))
        assert worker.submit_load(2, slots(1), blocks(1))
        worker.wait({1, 2})
        results = worker.get_finished()
        assert [(one.job_id, one.success) for one in results] == [(1, success), (2, success)]
        if silent == "seconds":
            assert {one.transfer_time for one in results} == {None}


@pytest.mark.clause("COPY-4")
def test_threads_share_a_worker() -> None:
    """Two submit, two wait and two collect; nothing is lost, doubled or raised."""
    num_jobs = 400
    with standing() as stand:
        reported: list[int] = []
        raised: list[BaseException] = []
        is_over = threading.Event()

        def submit(first: int) -> None:
            for job in range(first, num_jobs, 2):
                stand.store(job, block=job % 6, slot=job % 6)

        def until_over(call: Callable[[], object]) -> Callable[[], None]:
            def again() -> None:
                while not is_over.is_set():
                    call()

            return again

        def collect() -> None:
            reported.extend(result.job_id for result in stand.worker.get_finished())

        def guarded(call: Callable[[], None]) -> threading.Thread:
            def run() -> None:
                try:
                    call()
                except BaseException as error:
                    raised.append(error)

            return threading.Thread(target=run)

        everything = set(range(num_jobs))
        submitting = [guarded(lambda: submit(0)), guarded(lambda: submit(1))]
        others = [
            *(guarded(until_over(collect)) for _ in range(2)),
            *(guarded(until_over(lambda: stand.worker.wait(everything))) for _ in range(2)),
        ]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in (*others, *submitting):
                thread.start()
            for thread in submitting:
                thread.join()
            is_over.set()
            for thread in others:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
            is_over.set()
        assert raised == []
        reported += stand.finish(*everything)
        assert sorted(reported) == sorted(everything)


@pytest.mark.clause("COPY-4")
def test_who_shuts_down_second_returns_when_all_is_over() -> None:
    with standing() as stand:
        gate = stand.device.gate("store of job 1")
        stand.store(1, block=3, slot=0)
        assert gate.reached.wait(PATIENCE_S)
        seen: list[list[int]] = []

        def shut_down() -> None:
            stand.worker.shutdown()
            seen.append(stand.host[0].tolist())

        both = [threading.Thread(target=shut_down) for _ in range(2)]
        for thread in both:
            thread.start()
        opener = threading.Timer(0.05, gate.open)
        opener.start()
        for thread in (*both, opener):
            thread.join()
        assert seen == [[3] * PAGE] * 2


@pytest.mark.clause("COPY-4")
def test_a_process_that_was_forked_leaves_the_worker_alone() -> None:
    """It has none of the threads, and a lock that was held stays held in it."""
    with standing() as stand:
        gate = stand.device.gate("store of job 1")
        stand.store(1, block=3, slot=0)
        assert gate.reached.wait(PATIENCE_S)
        child = os.fork()
        if not child:
            os._exit(_as_a_child(stand))
        try:
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
        finally:
            gate.open()
        assert stand.finish(1)[1].success


def _as_a_child(stand: Stand) -> int:
    try:
        worker = stand.worker
        taken = worker.submit_store(2, blocks(0), slots(1))
        calls: list[Callable[[], None]] = [
            lambda: worker.wait({1}),
            lambda: stand.device.synchronize(HostEvent("")),
        ]
        for hopeless in calls:
            try:
                hopeless()
            except DeviceClosedError:
                continue
            return 1
        worker.shutdown()
        stand.device.close()
        return int(taken or worker.get_finished() != [])
    except BaseException:
        return 2


@pytest.mark.clause("COPY-4")
def test_a_kernel_that_ends_its_thread_ends_no_thread() -> None:
    with standing() as stand:

        def kernel() -> None:
            raise SystemExit(3)

        event = stand.device.new_event("event")
        stand.compute(kernel)
        stand.device.record(event, stand.device.compute_stream)
        stand.device.synchronize(event)
        assert isinstance(stand.device.error(event), DeviceError)
        stand.store(1, block=0, slot=0)
        assert stand.finish(1)[1].success


class FlakyOrdered(RefusesOnce, OrderedDevice):
    """Raises at the n-th call that enqueues something."""

    @override
    def record(self, event: OrderedEvent, stream: Stream) -> None:
        self._count()
        super().record(event, stream)

    @override
    def wait(self, stream: Stream, event: OrderedEvent) -> None:
        self._count()
        super().wait(stream, event)

    @override
    def copy(self, stream: Stream, plan: CopyPlan, name: str) -> None:
        self._count()
        super().copy(stream, plan, name)


@pytest.mark.clause("ORD-1", "ORD-2", "ORD-3")
@pytest.mark.parametrize("is_asked", [False, True])
def test_whatever_cannot_be_enqueued_nothing_loses_its_order(is_asked: bool) -> None:
    """Jobs of all lanes over one slot and two blocks, each call in turn refused."""
    call = 0
    while True:
        gpu = np.repeat(np.arange(6, dtype=np.uint8), PAGE).reshape(6, PAGE)
        host = np.full((6, PAGE), 9, dtype=np.uint8)
        device = FlakyOrdered([gpu], [host])
        worker = CopyWorker(LAYOUT, device)
        device.calls_left = call
        taken = [
            worker.submit_store(1, blocks(1), slots(4)),
            worker.submit_load(2, slots(4), blocks(2), expedited=True),
            worker.submit_store(3, blocks(3), slots(4)),
            worker.submit_load(4, slots(4), blocks(1)),
        ]
        assert taken == [True] * 4
        was_refused = not device.is_armed
        device.calls_left = None
        results = worker.get_finished() if is_asked else []
        worker.wait({4, 2})
        results += worker.get_finished()
        worker.shutdown()
        results += worker.get_finished()
        assert device.findings == []
        assert sorted(one.job_id for one in results) == [1, 2, 3, 4]
        failed = {one.job_id for one in results if not one.success}
        assert len(failed) == int(was_refused), call
        # A job whose end could not be recorded has copied all the same.
        if not failed & {1, 2}:
            assert gpu[2, 0] == 1
        if not failed & {3, 4}:
            assert gpu[1, 0] == 3
        if not was_refused:
            break
        call += 1
    # Four jobs of a record, a wait, a record, a copy and a record each, and their waits.
    assert call >= 4 * 5 + 3


@pytest.mark.clause("ORD-2")
@pytest.mark.parametrize("call", range(5))
def test_who_only_asks_is_told_when_it_is_over_and_events_are_not_used_too_early(call: int) -> None:
    device = FlakyOrdered(
        [np.zeros((6, PAGE), dtype=np.uint8)], [np.zeros((6, PAGE), dtype=np.uint8)]
    )
    worker = CopyWorker(LAYOUT, device)
    device.calls_left = call
    assert worker.submit_store(1, blocks(1), slots(4))
    copies = [operation for operation in device.graph.operations if operation.is_transfer]
    while not (results := worker.get_finished()):
        pass
    assert [one.success for one in results] == [False]
    assert all(map(device.is_over, copies))
    for job in (2, 3):
        assert worker.submit_store(job, blocks(job), slots(job))
    worker.shutdown()
    assert device.findings == []
    assert [one.success for one in worker.get_finished()] == [True, True]


@pytest.mark.clause("COPY-4")
def test_a_job_whose_submission_was_interrupted_has_failed() -> None:
    class Interrupted(HostDevice):
        @override
        def copy(self, stream: HostStream, plan: CopyPlan, name: str) -> None:
            super().copy(stream, plan, name)
            raise KeyboardInterrupt

    host = np.zeros((6, PAGE), dtype=np.uint8)
    worker = CopyWorker(LAYOUT, Interrupted([np.ones((6, PAGE), dtype=np.uint8)], [host]))
    with pytest.raises(KeyboardInterrupt):
        worker.submit_store(1, blocks(1), slots(4))
    worker.wait({1})
    assert host[4].tolist() == [1] * PAGE
    assert [(one.job_id, one.success) for one in worker.get_finished()] == [(1, False)]
    worker.shutdown()


@pytest.mark.clause("COPY-4")
def test_a_device_that_takes_its_time_to_close_is_waited_for_by_all() -> None:
    """Of several calls of `close` such a device heeds the first alone."""
    gate, calls = Gate(), list[str]()

    class Slow(HostDevice):
        @override
        def close(self) -> None:
            calls.append("begun")
            if len(calls) == 1:
                gate.pass_through()
                super().close()
                calls.append("done")

    memory = [np.zeros((6, PAGE), dtype=np.uint8) for _ in range(2)]
    worker = CopyWorker(LAYOUT, Slow(memory[:1], memory[1:]))
    seen: list[list[str]] = []

    def shut_down() -> None:
        worker.shutdown()
        seen.append(list(calls))

    both = [threading.Thread(target=shut_down) for _ in range(2)]
    for thread in both:
        thread.start()
    assert gate.reached.wait(PATIENCE_S)
    # Whoever would not wait has the time to come back.
    both[0].join(0.05)
    both[1].join(0.05)
    gate.open()
    for thread in both:
        thread.join()
    assert seen == [["begun", "done"]] * 2


@pytest.mark.clause("COPY-3")
def test_a_plan_that_leaves_the_memory_moves_no_byte() -> None:
    """Long rows are copied one by one, and the first would be there."""
    gpu, host = np.ones((4, 4096), dtype=np.uint8), np.zeros((4, 4096), dtype=np.uint8)
    device = HostDevice([gpu], [host])
    run = CopyRun(0, 0, 4096, 1, 4096, 4096)
    page = PagePlan(0, np.array([0, 1]), np.array([0, 4]), (run,))
    with pytest.raises(BlockOutOfRangeError, match="rows 0 to 4 of tensor 0 in host memory"):
        device.copy(device.compute_stream, CopyPlan(Direction.STORE, (page,)), "store")
    device.close()
    assert not host.any()


@pytest.mark.clause("COPY-3")
def test_tensors_that_meet_behind_another_are_refused() -> None:
    wide = np.zeros((4, 8), dtype=np.uint8)
    with pytest.raises(MappingError, match=r"gpu\[0\] and host\[1\] have bytes in common"):
        HostDevice([wide[:, :4], wide[:0]], [wide[:, 4:], wide[1:, :2]])


@pytest.mark.clause("COPY-4")
def test_a_shutdown_that_failed_is_tried_again() -> None:
    class Stuck(HostDevice):
        is_stuck = True

        @override
        def close(self) -> None:
            if self.is_stuck:
                raise OSError("not yet")
            super().close()

    memory = [np.zeros((6, PAGE), dtype=np.uint8) for _ in range(2)]
    device = Stuck(memory[:1], memory[1:])
    worker = CopyWorker(LAYOUT, device)
    gate = Gate()
    device.launch(device.compute_stream, gate.pass_through)
    assert worker.submit_store(1, blocks(1), slots(1))
    with pytest.raises(OSError, match="not yet"):
        worker.shutdown()
    assert worker.get_finished() == []
    assert not worker.submit_store(2, blocks(2), slots(2))
    device.is_stuck = False
    gate.open()
    worker.shutdown()
    assert [one.success for one in worker.get_finished()] == [True]


@pytest.mark.clause("COPY-4")
def test_memory_is_given_up_though_the_device_does_not_end_well() -> None:
    class Failing(HostDevice):
        @override
        def close(self) -> None:
            super().close()
            raise OSError("it ended, and not well")

    memory = PrivateMemory(LAYOUT.host)
    device = Failing([np.zeros((6, PAGE), dtype=np.uint8)], [memory.rows(0)])
    worker = CPUOffloadingWorker(LAYOUT, device, memory)
    with pytest.raises(OSError, match="not well"):
        worker.shutdown()
    with pytest.raises(MemoryClosedError):
        memory.rows(0)
