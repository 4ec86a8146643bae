"""Workers that let something overtake what it should come after, or reuse too early (ORD)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from attrs import evolve
from typing_extensions import override

from kvoffload import GPULoadStoreSpec, LoadStoreSpec, TransferResult
from kvoffload.copying.graph import Stream
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ledger import AccessLedger, Lane
from kvoffload.copying.ordered import OrderedDevice, OrderedEvent
from kvoffload.copying.plans import CopyPlan, PagePlan
from kvoffload.copying.worker import CopyWorker
from stateful_models.gallery.broken_workers.base import BrokenWorker, Tap, on
from stateful_models.gallery.broken_workers.ledgers import (
    ExpeditedJumpsConflicts,
    FirstBlockOnly,
    FirstSlotOnly,
    LoadBesideStore,
    LoadOverStore,
    LoadsInAnyOrder,
    NobodyWaitsForExpedited,
    OneLaneOfTwo,
    StoreBesideLoad,
    StoreOverLoad,
)
from stateful_models.gallery.broken_workers.pooling import StreamsFreeAtOnce

_RING: Final = 9


class _LoadBesideCompute(Tap):
    lanes = frozenset({"load"})

    @override
    def wait(self, stream: Stream, event: OrderedEvent) -> None:
        if stream.name not in self.lanes or not self.is_of_compute(event):
            super().wait(stream, event)


class _StoreBesideCompute(_LoadBesideCompute):
    lanes = frozenset({"store"})


class _ExpeditedBesideCompute(_LoadBesideCompute):
    lanes = frozenset({"expedited load"})


class _WaitsBehindTheCopy(Tap):
    def __init__(self, device: OrderedDevice) -> None:
        super().__init__(device)
        self._late: dict[str, OrderedEvent] = {}

    @override
    def wait(self, stream: Stream, event: OrderedEvent) -> None:
        if self.is_of_compute(event):
            self._late[stream.name] = event
        else:
            super().wait(stream, event)

    @override
    def copy(self, stream: Stream, plan: CopyPlan, name: str) -> None:
        super().copy(stream, plan, name)
        super().wait(stream, self._late[stream.name])


class _RecordsBehindTheWait(Tap):
    """The event is recorded only after it was waited for, so the wait is for nothing."""

    def __init__(self, device: OrderedDevice) -> None:
        super().__init__(device)
        self._unrecorded: list[OrderedEvent] = []

    @override
    def record(self, event: OrderedEvent, stream: Stream) -> None:
        if stream is self.compute_stream:
            self._unrecorded.append(event)
        else:
            super().record(event, stream)

    @override
    def wait(self, stream: Stream, event: OrderedEvent) -> None:
        super().wait(stream, event)
        while self._unrecorded:
            super().record(self._unrecorded.pop(), self.compute_stream)


class _ForgetsWhenReported(CopyWorker[Stream, OrderedEvent]):
    @override
    def get_finished(self) -> list[TransferResult]:
        results = super().get_finished()
        if results:
            self._slots = AccessLedger(self.layout.num_slots)
        return results


class _ForgetsWhenALaneIsIdle(CopyWorker[Stream, OrderedEvent]):
    """Takes a lane without jobs for a sign that a reset is over, and begins its books anew."""

    @override
    def get_finished(self) -> list[TransferResult]:
        results = super().get_finished()
        if not self._under_way[Lane.STORE]:
            self._slots = AccessLedger(self.layout.num_slots)
        return results


class _StreamsByTurns(Tap):
    """Every transfer goes to the next of three streams, whatever its lane."""

    def __init__(self, device: OrderedDevice) -> None:
        super().__init__(device)
        self._streams = [device.new_stream(f"stream {number}") for number in range(3)]
        self._turn = 0

    @override
    def wait(self, stream: Stream, event: OrderedEvent) -> None:
        if self.is_of_compute(event):
            self._turn += 1
        super().wait(self._now, event)

    @override
    def record(self, event: OrderedEvent, stream: Stream) -> None:
        super().record(event, stream if stream is self.compute_stream else self._now)

    @override
    def copy(self, stream: Stream, plan: CopyPlan, name: str) -> None:
        super().copy(self._now, plan, name)

    @property
    def _now(self) -> Stream:
        return self._streams[self._turn % len(self._streams)]


class _RingOfEvents(CopyWorker[Stream, OrderedEvent]):
    def __init__(self, layout: CopyLayout, device: OrderedDevice) -> None:
        super().__init__(layout, device)
        self._ring: list[OrderedEvent] = []
        self._turn = 0

    @override
    def _event(self) -> OrderedEvent:
        if len(self._ring) < _RING:
            self._ring.append(super()._event())
        self._turn += 1
        return self._ring[(self._turn - 1) % len(self._ring)]


class _EventsFreeAtOnce(CopyWorker[Stream, OrderedEvent]):
    @override
    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        *,
        expedited: bool = False,
    ) -> bool:
        taken = super().submit_load(job_id, src_spec, dst_spec, expedited=expedited)
        if taken:
            one = self._under_way[Lane.EXPEDITED if expedited else Lane.LOAD][-1]
            self._free_events += [one.started, one.ended]
        return taken


class _OneSetOfRows(Tap):
    """Row numbers lie in buffers made once, into which every transfer writes its own."""

    def __init__(self, device: OrderedDevice) -> None:
        super().__init__(device)
        self._buffers = (np.zeros(64, dtype=np.int64), np.zeros(64, dtype=np.int64))

    @override
    def copy(self, stream: Stream, plan: CopyPlan, name: str) -> None:
        super().copy(stream, evolve(plan, pages=tuple(map(self._staged, plan.pages[:1]))), name)
        for page in plan.pages[1:]:
            super().copy(stream, evolve(plan, pages=(page,)), name)

    def _staged(self, page: PagePlan) -> PagePlan:
        near, far = self._buffers
        count = len(page.gpu_rows)
        near[:count], far[:count] = page.gpu_rows, page.host_rows
        return evolve(page, gpu_rows=near[:count], host_rows=far[:count])


BROKEN_ORDERS: Final[Mapping[str, BrokenWorker]] = {
    "Ord1LoadBesideCompute": BrokenWorker(
        "ORD-1",
        "a load does not wait for the kernels before it, which still read or write its blocks",
        on(_LoadBesideCompute),
        ("W2", "W4", "W10"),
        also=("ORD-2",),
    ),
    "Ord1StoreBesideCompute": BrokenWorker(
        "ORD-1",
        "a store does not wait for the kernels that write its blocks",
        on(_StoreBesideCompute),
        ("W3",),
        also=("ORD-2",),
    ),
    "Ord1ExpeditedBesideCompute": BrokenWorker(
        "ORD-1",
        "an expedited load waits for no kernel: it is in a hurry",
        on(_ExpeditedBesideCompute),
        also=("ORD-2",),
    ),
    "Ord1WaitsBehindTheCopy": BrokenWorker(
        "ORD-1",
        "waits for the compute stream behind the copy instead of before it",
        on(_WaitsBehindTheCopy),
        also=("ORD-2",),
    ),
    "Ord1RecordsBehindTheWait": BrokenWorker(
        "ORD-1",
        "waits for an event that is recorded only afterwards: such a wait is for nothing",
        on(_RecordsBehindTheWait),
        also=("ORD-2",),
    ),
    "Ord1LoadOverStore": BrokenWorker(
        "ORD-1",
        "a load overwrites a block that an earlier store still reads",
        LoadOverStore,
        ("W11",),
    ),
    "Ord1StoreBesideLoad": BrokenWorker(
        "ORD-1", "a store reads a block that an earlier load still brings", StoreBesideLoad
    ),
    "Ord1LoadsInAnyOrder": BrokenWorker(
        "ORD-1", "loads of two lanes into one block come in any order", LoadsInAnyOrder
    ),
    "Ord1FirstBlockOnly": BrokenWorker(
        "ORD-1", "remembers of each transfer only the first block", FirstBlockOnly
    ),
    "Ord1StreamsByTurns": BrokenWorker(
        "ORD-1",
        "spreads a lane over three streams, and relies on the lane's order all the same",
        on(_StreamsByTurns),
        also=("ORD-3",),
    ),
    "Ord2RingOfEvents": BrokenWorker(
        "ORD-2",
        "uses events again in turn, whoever uses them still",
        _RingOfEvents,
        also=("COPY-4",),
    ),
    "Ord2EventsFreeAtOnce": BrokenWorker(
        "ORD-2",
        "takes the events of a load for free as soon as it is submitted",
        _EventsFreeAtOnce,
        also=("COPY-4",),
    ),
    "Ord2OneSetOfRows": BrokenWorker(
        "ORD-2",
        "writes the rows of each transfer into one buffer, from which earlier copies still read",
        on(_OneSetOfRows),
        ("W7", "W8"),
    ),
    "Ord2StreamsFreeAtOnce": BrokenWorker(
        "ORD-2",
        "hands the stream of a transfer back when it is enqueued, to be taken for the next one",
        on(StreamsFreeAtOnce),
    ),
    "Ord3LoadBesideStore": BrokenWorker(
        "ORD-3",
        "a load reads a slot that an earlier store still writes",
        LoadBesideStore,
        ("W5",),
    ),
    "Ord3StoreOverLoad": BrokenWorker(
        "ORD-3",
        "a store overwrites a slot that an earlier load still reads",
        StoreOverLoad,
        ("W5",),
    ),
    "Ord3FirstSlotOnly": BrokenWorker(
        "ORD-3", "remembers of each transfer only the first slot", FirstSlotOnly
    ),
    "Ord3ForgetsWhenReported": BrokenWorker(
        "ORD-3", "forgets who uses which slot as soon as any job is reported", _ForgetsWhenReported
    ),
    "Ord3ForgetsAtReset": BrokenWorker(
        "ORD-3",
        "takes idle stores for a sign of a reset, and forgets the loads that still read slots",
        _ForgetsWhenALaneIsIdle,
    ),
    "Ord3ExpeditedJumpsConflicts": BrokenWorker(
        "ORD-3",
        "an expedited load waits for nobody, whatever it touches",
        ExpeditedJumpsConflicts,
        also=("ORD-1",),
    ),
    "Ord3NobodyWaitsForExpedited": BrokenWorker(
        "ORD-3",
        "a store does not wait for expedited loads, which it does not know",
        NobodyWaitsForExpedited,
        also=("ORD-1",),
    ),
    "Ord3OneLaneOfTwo": BrokenWorker(
        "ORD-3",
        "where two lanes must be waited for, waits for one",
        OneLaneOfTwo,
    ),
    "Ord4CarelessCaller": BrokenWorker(
        "ORD-4",
        "the worker is right: its caller enqueues a kernel without waiting for the job",
        CopyWorker,
        careless_caller=True,
    ),
}
