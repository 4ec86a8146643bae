"""The race detector, against an oracle that knows all pairs, and against what really happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvoffload import CopyRun
from kvoffload.copying.accesses import Touch, between, declared, ends_of
from kvoffload.copying.actions import Action
from kvoffload.copying.graph import CopyGraph, Operation, Stream, Work
from kvoffload.copying.ordered import OrderedDevice, OrderedEvent
from kvoffload.copying.places import RowBytes, Side
from kvoffload.copying.plans import CopyPlan, Direction, PagePlan
from kvoffload.copying.races import Duty, Race, explain, find_races
from stateful_models.reach import Reach

Bytes = NDArray[np.uint8]
ROWS, SIZE, STREAMS, EVENTS = 2, 4, 3, 2


class Do(NamedTuple):
    """One call: a kernel, a copy, or something for order; numbers mean what fits."""

    what: str
    stream: int = 0
    event: int = 0
    near: RowBytes = RowBytes(Side.GPU, 0, 0, 0, SIZE)
    far: RowBytes = RowBytes(Side.HOST, 0, 0, 0, SIZE)


@st.composite
def parts(draw: st.DrawFn, side: Side) -> RowBytes:
    start = draw(st.integers(0, 1))
    stop = start + draw(st.integers(1, SIZE - 1))
    return RowBytes(side, 0, draw(st.integers(0, ROWS - 1)), start, stop)


def calls(*what: str) -> st.SearchStrategy[list[Do]]:
    return st.builds(
        Do,
        st.sampled_from(what),
        st.integers(0, STREAMS - 1),
        st.integers(0, EVENTS - 1),
        parts(Side.GPU),
        parts(Side.HOST),
    ).map(lambda one: [one])


ACCESSES = calls("kernel", "store", "load")
# Accesses and what is for order, about as often.
CALLS = st.one_of(ACCESSES, calls("record", "wait", "record", "wait", "synchronize", "ask"))
# One stream waits for another.
JOINS = st.tuples(
    st.integers(0, STREAMS - 1), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)
).map(lambda join: [Do("record", join[0], join[2]), Do("wait", join[1], join[2])])
# The host waits for a stream.
TELLS = st.tuples(st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)).map(
    lambda pair: [Do("record", *pair), Do("synchronize", *pair)]
)
PROGRAMS = st.lists(st.one_of(CALLS, CALLS, CALLS, JOINS, TELLS), min_size=8, max_size=24).map(
    lambda calls: [one for call in calls for one in call]
)


class Stand:
    """A device, and what its memory should hold if everything happened at once."""

    def __init__(self, picks: Sequence[int] = ()) -> None:
        self.gpu = np.arange(ROWS * SIZE, dtype=np.uint8).reshape(ROWS, SIZE)
        self.host = self.gpu + 100
        self.expected = [self.gpu.copy(), self.host.copy()]
        self.picks = list(picks)
        self.device = OrderedDevice([self.gpu], [self.host], chooser=self.choose)
        self.streams = [
            self.device.compute_stream,
            *(self.device.new_stream(f"stream {number}") for number in range(1, STREAMS)),
        ]
        self.events = [self.device.new_event(f"event {number}") for number in range(EVENTS)]
        self.known: set[int] = set()
        self.number = 0

    def choose(self, ready: Sequence[Action]) -> Action | None:
        return ready[self.picks.pop() % len(ready)] if self.picks else None

    def do(self, one: Do) -> None:
        device, stream, event = self.device, self.streams[one.stream], self.events[one.event]
        self.number += 1
        match one.what:
            case "kernel":
                self.launch(one)
            case "store" | "load":
                self.copy(one)
            case "record":
                device.record(event, stream)
            case "wait":
                device.wait(stream, event)
            case "synchronize":
                device.synchronize(event)
                self.learn(event)
            case _:
                if device.is_done(event):
                    self.learn(event)

    def learn(self, event: OrderedEvent) -> None:
        if event.recording is not None:
            self.known.add(event.recording.number)

    def streams_that_meet(self, one: Do) -> list[Stream]:
        """Other streams that hold what an access conflicts with."""
        near, far = one.near._replace(stop=one.near.start + 2), one.far
        match one.what:
            case "kernel":
                own = declared([far._replace(side=Side.GPU)], [one.near])
            case "store":
                own = declared([near], [far._replace(stop=far.start + 2)])
            case "load":
                own = declared([far._replace(stop=far.start + 2)], [near])
            case _:
                return []
        touches = list(own)
        return [
            stream
            for number, stream in enumerate(self.streams)
            if number != one.stream
            and any(meet(touches, operation.touches) for operation in stream.operations)
        ]

    def launch(self, one: Do) -> None:
        """Reads one range and writes another of the same side."""
        number = self.number

        def kernel(rows: Bytes) -> None:
            read = int(rows[one.far.row, one.far.start : one.far.stop].sum())
            rows[one.near.row, one.near.start : one.near.stop] = (read + number) % 256

        self.device.launch(
            self.streams[one.stream],
            lambda: kernel(self.gpu),
            reads=[one.far._replace(side=Side.GPU)],
            writes=[one.near],
            name=f"kernel {number}",
        )
        kernel(self.expected[0])

    def copy(self, one: Do) -> None:
        run = CopyRun(one.near.start, one.far.start, 2, 1, 2, 2)
        near, far = np.array([one.near.row]), np.array([one.far.row])
        direction = Direction.STORE if one.what == "store" else Direction.LOAD
        plan = CopyPlan(direction, (PagePlan(0, near, far, (run,)),))
        self.device.copy(self.streams[one.stream], plan, f"{one.what} {self.number}")
        gpu = self.expected[0][one.near.row, one.near.start : one.near.start + 2]
        host = self.expected[1][one.far.row, one.far.start : one.far.start + 2]
        if one.what == "store":
            host[:] = gpu
        else:
            gpu[:] = host


class Oracle:
    """Who comes before whom, by following every edge from the beginning each time."""

    def __init__(self, stand: Stand) -> None:
        self.edges: dict[int, set[int]] = {}
        self.stand = stand
        self.tails: dict[int, int] = {}
        self.recorded: dict[int, int] = {}

    def see(self, one: Do, known: set[int]) -> None:
        operations = self.stand.device.graph.operations
        if one.what in ("synchronize", "ask"):
            return
        number = operations[-1].number
        before = set(known)
        if one.stream in self.tails:
            before.add(self.tails[one.stream])
        if one.what == "wait" and one.event in self.recorded:
            before.add(self.recorded[one.event])
        if one.what == "record":
            self.recorded[one.event] = number
        self.edges[number] = before
        self.tails[one.stream] = number

    def before(self, number: int) -> set[int]:
        found: set[int] = set()
        new = set(self.edges[number])
        while new:
            found |= new
            new = {edge for one in new for edge in self.edges[one]} - found
        return found

    def racing(self) -> set[tuple[int, Side]]:
        """Operations that race with an earlier one, and on which side."""
        operations = self.stand.device.graph.operations
        return {
            (later.number, side)
            for later in operations
            for earlier in operations[: later.number - 1]
            if earlier.number not in self.before(later.number)
            for side in Side
            if self.meet(earlier, later, side)
        }

    def meet(self, earlier: Operation, later: Operation, side: Side) -> bool:
        return meet(
            [one for one in earlier.touches if one.side is side],
            [one for one in later.touches if one.side is side],
        )


def meet(some: Sequence[Touch], others: Sequence[Touch]) -> bool:
    """Whether any of these are of the same bytes, and one writes."""
    return any(
        one.row == other.row
        and one.side is other.side
        and (one.writes or other.writes)
        and bool(one.byte_set & other.byte_set)
        for one in some
        for other in others
    )


# It takes three operations in the right places, or more, to tell some mistakes from the truth.
@settings(max_examples=8 * settings().max_examples)
@given(PROGRAMS, st.lists(st.integers(0, 8), max_size=10))
def test_races_are_those_of_the_oracle(program: list[Do], picks: list[int]) -> None:
    stand = Stand(picks)
    oracle = Oracle(stand)
    for one in program:
        known = set(stand.known)
        stand.do(one)
        oracle.see(one, known)
    races = stand.device.races
    assert {(race.later.number, race.places[0].side) for race in races} == oracle.racing()
    assert find_races(stand.device.graph.operations) == races
    for race in races:
        assert race.earlier.number not in oracle.before(race.later.number)
        assert all(oracle.meet(race.earlier, race.later, place.side) for place in race.places)
        assert explain(race).startswith(race.clause)


def test_what_does_not_race_comes_out_the_same_in_every_order() -> None:
    """Every access waits for the streams that hold something it conflicts with, and no others."""
    reach = Reach()

    @given(PROGRAMS, st.lists(st.integers(0, 8), max_size=60))
    def tried(program: list[Do], picks: list[int]) -> None:
        stand = Stand(picks)
        device = stand.device
        for one in program:
            for stream in stand.streams_that_meet(one):
                event = device.new_event("joint")
                device.record(event, stream)
                device.wait(stand.streams[one.stream], event)
                reach.note("waited")
            reach.note("several ready", len(device.ready()) > 1)
            stand.do(one)
        assert device.races == []
        device.close()
        assert stand.gpu.tolist() == stand.expected[0].tolist()
        assert stand.host.tolist() == stand.expected[1].tolist()

    tried()
    assert reach.missing(["waited", "several ready"]) == []


def test_sets_of_bytes() -> None:
    assert between(2, 4) == 0b1100
    assert between(3, 3) == between(3, 2) == 0
    assert ends_of(between(2, 7)) == (2, 7)
    assert ends_of(between(2, None)) == (2, None)
    assert between(2, None) & between(0, 4) == between(2, 4)
    assert not between(4, None) & between(0, 4)


WHOLE = RowBytes(Side.GPU, 0, 3)


def enqueue(graph: CopyGraph, stream: int, work: Work, name: str, *, writes: bool) -> Operation:
    touches = declared([], [WHOLE]) if writes else declared([WHOLE], [])
    return graph.enqueue(graph.streams[stream], work, name, touches)


def two_streams() -> CopyGraph:
    graph = CopyGraph()
    graph.new_stream("compute")
    graph.new_stream("load")
    return graph


def only_race(graph: CopyGraph) -> Race:
    (race,) = find_races(graph.operations)
    return race


@pytest.mark.clause("ORD-1")
def test_a_graph_needs_no_device() -> None:
    graph = two_streams()
    zeroing = enqueue(graph, 0, Work.KERNEL, "zero block 3", writes=True)
    load = enqueue(graph, 1, Work.COPY, "load of job 1", writes=True)
    race = only_race(graph)
    assert (race.earlier, race.later) == (zeroing, load)
    assert (race.duty, race.clause) == (Duty.WORKER, "ORD-1")
    assert race.places == (WHOLE,)
    assert "all bytes of row 3 of tensor 0 on the GPU" in str(race)
    assert "the worker should let stream 'load'\nwait for an event recorded" in explain(race)


@pytest.mark.clause("ORD-4")
def test_whose_duty_the_order_was() -> None:
    graph = two_streams()
    enqueue(graph, 1, Work.COPY, "load of job 1", writes=True)
    enqueue(graph, 0, Work.KERNEL, "attention", writes=False)
    assert (only_race(graph).duty, only_race(graph).clause) == (Duty.CALLER, "ORD-4")
    assert "the caller should wait for the job" in explain(only_race(graph))
    both = two_streams()
    enqueue(both, 1, Work.KERNEL, "one", writes=True)
    enqueue(both, 0, Work.KERNEL, "other", writes=False)
    assert only_race(both).clause == "ORD-4"
    assert "the caller should let stream 'compute'" in explain(only_race(both))


@pytest.mark.clause("ORD-3")
def test_races_of_slots_have_a_clause_of_their_own() -> None:
    graph = two_streams()
    slot = RowBytes(Side.HOST, 1, 2, 0, 8)
    graph.enqueue(graph.streams[0], Work.COPY, "store of job 1", declared([], [slot]))
    graph.enqueue(graph.streams[1], Work.COPY, "load of job 2", declared([slot], []))
    assert (only_race(graph).duty, only_race(graph).clause) == (Duty.WORKER, "ORD-3")


def test_reads_do_not_race_and_neither_do_other_bytes() -> None:
    graph = two_streams()
    enqueue(graph, 0, Work.KERNEL, "one", writes=False)
    enqueue(graph, 1, Work.COPY, "other", writes=False)
    left, right = WHOLE._replace(stop=4), WHOLE._replace(start=4)
    graph.enqueue(graph.streams[0], Work.KERNEL, "three", declared([], [left._replace(row=4)]))
    graph.enqueue(graph.streams[1], Work.COPY, "four", declared([], [right._replace(row=4)]))
    assert find_races(graph.operations) == []


def test_a_write_is_not_forgotten_when_it_was_read() -> None:
    graph = two_streams()
    event = OrderedEvent("event")
    write = enqueue(graph, 0, Work.KERNEL, "write", writes=True)
    graph.record(event, graph.streams[0])
    graph.wait(graph.streams[1], event)
    enqueue(graph, 1, Work.KERNEL, "read", writes=False)
    graph.enqueue(graph.new_stream("third"), Work.COPY, "store", declared([WHOLE], []))
    assert only_race(graph).earlier is write


def test_an_event_waited_for_orders_what_was_before_it_only() -> None:
    graph = two_streams()
    event = OrderedEvent("event")
    enqueue(graph, 0, Work.KERNEL, "before", writes=True)
    graph.record(event, graph.streams[0])
    behind = enqueue(graph, 0, Work.KERNEL, "behind", writes=False)
    graph.wait(graph.streams[1], event)
    enqueue(graph, 1, Work.COPY, "load", writes=True)
    assert only_race(graph).earlier is behind


def test_a_wait_before_the_recording_is_for_nothing() -> None:
    graph = two_streams()
    event = OrderedEvent("event")
    enqueue(graph, 0, Work.KERNEL, "kernel", writes=True)
    wait = graph.wait(graph.streams[1], event)
    graph.record(event, graph.streams[0])
    enqueue(graph, 1, Work.COPY, "load", writes=True)
    assert wait.recording is None
    assert "wait for event, never recorded: for nothing" in explain(only_race(graph))


def test_recording_again_changes_later_waits_only() -> None:
    graph = two_streams()
    third = graph.new_stream("third")
    event = OrderedEvent("event")
    graph.record(event, graph.streams[0])
    graph.wait(graph.streams[1], event)
    kernel = enqueue(graph, 0, Work.KERNEL, "kernel", writes=True)
    graph.host_learns(event.recording or kernel)
    graph.record(event, graph.streams[0])
    early = enqueue(graph, 1, Work.COPY, "early", writes=True)
    graph.wait(third, event)
    late = graph.enqueue(third, Work.COPY, "late", declared([WHOLE], []))
    assert not kernel.is_before(early)
    assert kernel.is_before(late)
    assert graph.event_reuses == []


@pytest.mark.clause("ORD-2")
def test_an_event_recorded_again_too_early() -> None:
    graph = two_streams()
    event = OrderedEvent("ended")
    enqueue(graph, 1, Work.COPY, "load of job 1", writes=True)
    first = graph.record(event, graph.streams[1])
    second = graph.record(event, graph.streams[1])
    (reuse,) = graph.event_reuses
    assert (reuse.earlier, reuse.later, reuse.clause) == (first, second, "ORD-2")
    assert "'ended' was recorded again in stream 'load'" in str(reuse)
    graph.host_learns(second)
    graph.record(event, graph.streams[0])
    assert len(graph.event_reuses) == 1


def test_what_the_host_knows_orders_all_streams() -> None:
    graph = two_streams()
    event = OrderedEvent("event")
    enqueue(graph, 1, Work.COPY, "load", writes=True)
    recording = graph.record(event, graph.streams[1])
    assert not graph.is_known(recording)
    graph.host_learns(recording)
    assert graph.is_known(recording)
    enqueue(graph, 0, Work.KERNEL, "kernel", writes=True)
    assert find_races(graph.operations) == []


def test_long_histories_cost_little() -> None:
    """What is compared does not grow with what is over: 2,000 kernels leave a row one access."""
    graph = two_streams()
    for number in range(2_000):
        enqueue(graph, 0, Work.KERNEL, f"kernel {number}", writes=bool(number % 2))
    enqueue(graph, 1, Work.COPY, "load", writes=True)
    assert only_race(graph).earlier.name == "kernel 1999"


def test_a_report_shows_several_rows_and_counts_the_rest() -> None:
    graph = two_streams()
    rows = [WHOLE._replace(row=row, stop=8) for row in range(5)]
    graph.enqueue(graph.streams[0], Work.KERNEL, "kernel", declared(rows, []))
    graph.enqueue(graph.streams[1], Work.COPY, "load", declared([], rows))
    assert "and 2 more rows" in explain(only_race(graph))
    assert "and 4 more rows" in str(only_race(graph))
