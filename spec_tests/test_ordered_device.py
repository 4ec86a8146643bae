"""The ordered device: what may happen when, what is an error, and what it finds by itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray

from kvoffload import CopyRun, InvalidValueError, MappingError
from kvoffload.copying.actions import Action
from kvoffload.copying.findings import RowsChanged, StrayAccess
from kvoffload.copying.graph import StreamReuse
from kvoffload.copying.ordered import PATIENCE, OrderedDevice
from kvoffload.copying.places import RowBytes, Side
from kvoffload.copying.plans import CopyPlan, Direction, PagePlan
from kvoffload.errors import DeviceClosedError, StreamDeadlockError

Bytes = NDArray[np.uint8]
RUN = CopyRun(0, 0, 4, 1, 4, 4)


def plan(
    gpu: Sequence[int], host: Sequence[int], direction: Direction = Direction.STORE
) -> CopyPlan:
    return CopyPlan(direction, (PagePlan(0, np.array(gpu), np.array(host), (RUN,)),))


def memory() -> tuple[Bytes, Bytes]:
    gpu = np.repeat(np.arange(6, dtype=np.uint8), 4).reshape(6, 4)
    return gpu, gpu + 100


def names(device: OrderedDevice) -> list[str]:
    return [str(action) for action in device.ready()]


def test_nothing_happens_by_itself() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("event")
    device.copy(stream, plan([1, 2], [3, 4]), "copy")
    device.record(event, stream)
    assert host[3, 0] == 103
    assert names(device) == [
        "'copy' (stream 'store'), piece 1 of 2",
        "'copy' (stream 'store'), piece 2 of 2",
    ]
    device.run(device.ready()[1])
    assert (host[3, 0], host[4, 0]) == (103, 2)
    assert not device.is_done(event)
    assert device.has_begun(device.graph.operations[0])
    device.run(device.ready()[0])
    assert host[3].tolist() == [1] * 4
    assert names(device) == ["'record event' (stream 'store')"]
    assert not device.is_done(event)
    device.run(device.ready()[0])
    assert device.is_done(event)
    assert device.ready() == []


def test_what_is_not_ready_cannot_run() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("event")
    device.launch(device.compute_stream, lambda: None, name="kernel")
    device.record(event, device.compute_stream)
    device.wait(stream, event)
    device.copy(stream, plan([1], [3]), "copy")
    copy = Action(device.graph.operations[-1])
    assert names(device) == ["'kernel' (stream 'compute')"]
    with pytest.raises(InvalidValueError, match="one that is ready, got"):
        device.run(copy)
    (kernel,) = device.ready()
    device.run(kernel)
    with pytest.raises(InvalidValueError, match="'kernel'"):
        device.run(kernel)
    device.run(device.ready()[0])
    device.run(copy)
    assert host[3, 0] == 1


def test_copies_without_order_interleave() -> None:
    seen: set[tuple[int, int]] = set()
    for order in permutations([0, 0, 1, 1]):
        gpu, host = memory()
        picks = list(order)
        device = OrderedDevice([gpu], [host])
        streams = [device.new_stream("one"), device.new_stream("two")]
        device.copy(streams[0], plan([0, 1], [3, 4]), "one")
        device.copy(streams[1], plan([2, 5], [3, 4]), "two")
        while picks:
            stream = streams[picks.pop()]
            device.run(next(a for a in device.ready() if a.operation.stream is stream))
        seen.add((int(host[3, 0]), int(host[4, 0])))
    assert seen == {(0, 1), (2, 5), (0, 5), (2, 1)}


def test_copies_in_one_piece() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host], in_pieces=False)
    device.copy(device.new_stream("store"), plan([1, 2], [3, 4]), "copy")
    assert names(device) == ["'copy' (stream 'store')"]
    device.run(device.ready()[0])
    assert host[3:5, 0].tolist() == [1, 2]


def test_a_copy_of_nothing_takes_its_turn() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("event")
    device.copy(stream, CopyPlan(Direction.STORE, ()), "copy")
    device.record(event, stream)
    assert names(device) == ["'copy' (stream 'store')"]
    device.synchronize(event)
    assert device.ready() == []


def test_synchronizing_runs_what_is_needed() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("event")
    other = device.new_stream("other")
    device.copy(other, plan([5], [5]), "other copy")
    device.copy(stream, plan([1], [3]), "copy")
    device.record(event, stream)
    device.copy(stream, plan([2], [4]), "later copy")
    device.synchronize(event)
    assert host[:, 0].tolist() == [100, 101, 102, 1, 104, 105]
    device.close()
    assert host[:, 0].tolist() == [100, 101, 102, 1, 2, 5]


def test_a_chooser_says_who_goes_next() -> None:
    gpu, host = memory()
    asked: list[int] = []

    def last(ready: Sequence[Action]) -> Action | None:
        asked.append(len(ready))
        return ready[-1]

    device = OrderedDevice([gpu], [host], chooser=last)
    stream, event = device.new_stream("store"), device.new_event("event")
    other = device.new_stream("other")
    device.copy(stream, plan([1], [3]), "copy")
    device.record(event, stream)
    device.copy(other, plan([2, 5], [4, 5]), "other copy")
    device.synchronize(event)
    assert asked == [3, 2, 1, 1]
    assert host[:, 0].tolist() == [100, 101, 102, 1, 2, 5]


def test_an_event_that_was_never_recorded_is_done() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("event")
    device.launch(device.compute_stream, lambda: None)
    assert device.is_done(event)
    device.synchronize(event)
    device.wait(stream, event)
    device.record(event, device.compute_stream)
    device.copy(stream, plan([1], [3]), "copy")
    assert "'copy' (stream 'store')" in names(device)
    assert not device.is_done(event)


def test_recording_again_leaves_earlier_waits_alone() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    first, second = device.new_stream("first"), device.new_stream("second")
    event = device.new_event("event")
    device.record(event, device.compute_stream)
    device.wait(first, event)
    device.launch(device.compute_stream, lambda: None, name="kernel")
    device.synchronize(event)
    device.record(event, device.compute_stream)
    device.wait(second, event)
    device.copy(first, plan([1], [3]), "first copy")
    device.copy(second, plan([2], [4]), "second copy")
    assert names(device) == ["'kernel' (stream 'compute')", "'first copy' (stream 'first')"]
    assert device.findings == []


def test_who_asks_again_and_again_sees_the_device_move_on() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("event")
    device.copy(stream, plan([1], [3]), "copy")
    device.record(event, stream)
    questions = 1
    while not device.is_done(event):
        questions += 1
    assert host[3, 0] == 1
    assert PATIENCE < questions < 4 * PATIENCE


def test_a_deadlock_tells_who_waits_for_what() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("submitted")
    ended = device.new_event("ended")
    device.launch(device.compute_stream, lambda: None, name="kernel")
    device.record(event, device.compute_stream)
    device.wait(stream, event)
    device.copy(stream, plan([1], [3]), "copy")
    device.record(ended, stream)
    device.hold(device.compute_stream)
    with pytest.raises(StreamDeadlockError) as raised:
        device.synchronize(ended)
    assert "'record ended' (stream 'store') needs" in str(raised.value)
    assert "stream 'compute' is held before 'kernel'" in str(raised.value)
    assert "stream 'store' stands at 'wait for submitted'" in str(raised.value)
    assert "in stream 'compute' behind 1 operations" in str(raised.value)
    other = device.new_stream("other")
    device.launch(other, lambda: None, name="elsewhere")
    with pytest.raises(StreamDeadlockError, match="stream 'other' could go on with 'elsewhere'"):
        device.synchronize(ended)
    with pytest.raises(StreamDeadlockError):
        device.close()
    device.release(device.compute_stream)
    device.synchronize(ended)
    assert host[3, 0] == 1


def test_what_goes_wrong_is_the_error_of_the_next_event() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream = device.new_stream("store")
    events = [device.new_event(f"event {number}") for number in range(3)]
    device.break_next_copy(OSError("broken"))
    device.record(events[0], stream)
    device.copy(stream, plan([1, 2], [3, 4]), "copy")
    device.record(events[1], stream)
    device.record(events[2], stream)
    device.synchronize(events[2])
    assert [str(device.error(event)) for event in events] == ["None", "broken", "None"]
    assert host[3:5, 0].tolist() == [103, 2], "one piece of two went wrong"
    device.refuse_next_copy(OSError("refused"))
    with pytest.raises(OSError, match="refused"):
        device.copy(stream, plan([1], [3]), "copy")
    device.break_next_copy(OSError("never"))
    assert not device.disarm()
    assert device.disarm()


def test_seconds_are_actions() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream = device.new_stream("store")
    start, end = device.new_event("start"), device.new_event("end")
    device.record(start, stream)
    assert device.seconds_between(start, end) is None
    device.copy(stream, plan([1, 2], [3, 4]), "copy")
    device.record(end, stream)
    device.synchronize(end)
    assert device.seconds_between(start, end) == 3.0


def test_a_closed_device_takes_no_more() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("event")
    device.copy(stream, plan([1], [3]), "copy")
    device.record(event, stream)
    device.close()
    device.close()
    assert host[3, 0] == 1
    assert all(map(device.graph.is_known, device.graph.operations))
    assert device.is_done(event)
    with pytest.raises(DeviceClosedError, match="'store'"):
        device.copy(stream, plan([1], [3]), "copy")
    with pytest.raises(DeviceClosedError):
        device.wait(stream, event)
    with pytest.raises(DeviceClosedError):
        device.record(event, stream)
    with pytest.raises(DeviceClosedError):
        device.launch(stream, lambda: None)


@pytest.mark.clause("ORD-2")
def test_rows_that_change_before_the_copy_runs_are_found_and_used() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream = device.new_stream("store")
    rows = np.array([1, 2])
    page = PagePlan(0, rows, np.array([3, 4]), (RUN,))
    device.copy(stream, CopyPlan(Direction.STORE, (page,)), "copy")
    rows[:] = 5, 0
    assert device.findings == []
    device.run_all()
    assert host[3:5, 0].tolist() == [5, 0], "the device reads them when the copy runs"
    (finding,) = device.findings
    assert isinstance(finding, RowsChanged)
    assert (finding.clause, finding.operation.name) == ("ORD-2", "copy")
    assert "were changed after it was enqueued" in str(finding)


@pytest.mark.clause("COPY-3")
def test_accesses_outside_are_found_when_they_are_enqueued() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("event")
    device.copy(stream, plan([1], [6]), "too high")
    long = PagePlan(0, np.array([1]), np.array([3]), (CopyRun(0, 1, 4, 1, 4, 4),))
    device.copy(stream, CopyPlan(Direction.STORE, (long,)), "too long")
    device.launch(stream, lambda: None, writes=[RowBytes(Side.GPU, 2, 0)], name="no such tensor")
    found = device.findings
    assert [type(one) for one in found] == [StrayAccess] * 3
    assert [one.clause for one in found] == ["COPY-3"] * 3
    assert "bytes [0, 4) of row 6 of tensor 0 in host memory, which has 6 rows of 4 bytes" in str(
        found[0]
    )
    assert "bytes [1, 5) of row 3" in str(found[1])
    assert "1 tensors" in str(found[2])
    device.record(event, stream)
    device.synchronize(event)
    assert device.error(event) is not None


def test_a_row_declared_whole_is_as_long_as_it_is() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    kernel = device.launch(
        device.compute_stream, lambda: None, writes=[RowBytes(Side.GPU, 0, 2, 1)], name="kernel"
    )
    assert kernel.touches[0].byte_set == 0b1110


@pytest.mark.clause("ORD-2")
def test_a_stream_that_is_taken_again_while_it_runs() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("ended")
    device.copy(stream, plan([1], [3]), "copy")
    device.record(event, stream)
    device.hand_back(stream)
    assert device.findings == []
    # That it is over is nothing the host knows, as it did not ask.
    device.run_all()
    assert device.new_stream("load") is stream
    (finding,) = device.findings
    assert isinstance(finding, StreamReuse)
    assert (finding.clause, finding.operation.name) == ("ORD-2", "record ended")
    assert "'store' was handed back and is taken again as 'load'" in str(finding)


@pytest.mark.clause("ORD-2")
def test_a_stream_that_is_over_is_anybodys() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("ended")
    device.copy(stream, plan([1], [3]), "copy")
    device.record(event, stream)
    device.hand_back(stream)
    device.synchronize(event)
    unused = device.new_stream("load")
    device.hand_back(unused)
    assert unused is stream
    assert device.new_stream("store") is stream
    assert device.new_stream("load") is not stream
    device.copy(stream, plan([2], [4]), "copy")
    device.close()
    assert host[4, 0] == 2
    assert device.findings == []


@pytest.mark.clause("ORD-2")
def test_a_stream_that_was_handed_back_is_not_used() -> None:
    gpu, host = memory()
    device = OrderedDevice([gpu], [host])
    stream, event = device.new_stream("store"), device.new_event("event")
    device.hand_back(stream)
    device.record(event, stream)
    device.copy(stream, plan([1], [3]), "copy")
    device.wait(stream, event)
    found = [str(finding) for finding in device.findings]
    assert len(found) == 3
    assert "'copy' (stream 'store') was enqueued after its stream had been handed back" in found[1]
    for refused in (stream, device.compute_stream):
        with pytest.raises(InvalidValueError, match="stream"):
            device.hand_back(refused)


@pytest.mark.clause("COPY-3")
def test_rows_that_are_the_same_bytes_are_refused() -> None:
    """The detector knows rows by their numbers, and would not see them meet."""
    gpu, host = memory()
    for one, other in (([gpu, gpu[3:]], [host, host]), ([gpu], [gpu[::-1]])):
        with pytest.raises(MappingError, match="have bytes in common"):
            OrderedDevice(one, other)
    both = np.zeros((6, 8), dtype=np.uint8)
    OrderedDevice([both[:, :4], both[:, 4:]], [gpu, host])


@pytest.mark.clause("COPY-3")
def test_a_stray_copy_of_fragments_touches_nothing_else() -> None:
    around = np.zeros((2, 4), dtype=np.uint8)
    device = OrderedDevice([around[:1]], [np.full((1, 8), 7, dtype=np.uint8)])
    stream, event = device.new_stream("load"), device.new_event("ended")
    rows = np.array([0])
    run = CopyRun(0, 0, 2, 3, 3, 2)
    device.copy(stream, CopyPlan(Direction.LOAD, (PagePlan(0, rows, rows, (run,)),)), "copy")
    device.record(event, stream)
    device.synchronize(event)
    assert isinstance(device.findings[0], StrayAccess)
    assert isinstance(device.error(event), MappingError)
    assert not around.any()
