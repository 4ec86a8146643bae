"""The worker: transfers as jobs, each in its lane, on any device (COPY-4, ORD-1 to ORD-3)."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Generic

from attrs import define
from typing_extensions import override

from kvoffload.copying.device import CopyDevice, EventT, StreamT
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ledger import AccessLedger, Lane
from kvoffload.copying.plans import CopyPlan, of_blocks, of_slots, plan_load, plan_store
from kvoffload.errors import DeviceClosedError, DeviceError, InvalidValueError
from kvoffload.transfers import (
    BlockIDsLoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
    TransferResult,
)
from kvoffload.worker import OffloadingWorker

if TYPE_CHECKING:
    from kvoffload.copying.ledger import Numbers


@define(eq=False)
class _Transfer(Generic[EventT]):
    """A job under way. Its events are its own until it has been reported (ORD-2).

    `has_begun` when its copies may be on their way, `is_marked` when `ended` stands behind them.
    """

    job_id: int
    lane: Lane
    number: int
    num_bytes: int
    submitted: EventT
    started: EventT
    ended: EventT
    error: Exception | None
    has_begun: bool = False
    is_marked: bool = False
    is_reported: bool = False
    # Who waits for it now, in whatever thread, and uses its events.
    num_waiting: int = 0


class CopyWorker(OffloadingWorker, Generic[StreamT, EventT]):
    """Carries out transfers between GPU blocks and slots of host memory.

    Stores, loads and expedited loads are three lanes: transfers of one are done in the order
    submitted, those of different ones side by side. A transfer begins when all is done that the
    compute stream held at its submission (ORD-1), and when every earlier transfer of another lane
    that touches the same blocks or slots is over (ORD-1, ORD-3), however long ago it was submitted
    and whatever was reset since.

    Threads may share a worker; processes may not: one that was forked submits nothing, and its
    `shutdown` does nothing.
    """

    def __init__(self, layout: CopyLayout, device: CopyDevice[StreamT, EventT]) -> None:
        self.layout = layout
        self._device = device
        self._streams = {lane: device.new_stream(lane.value) for lane in Lane}
        self._blocks = AccessLedger(layout.num_blocks)
        self._slots = AccessLedger(layout.most_slots)
        self._under_way: dict[Lane, deque[_Transfer[EventT]]] = {lane: deque() for lane in Lane}
        self._results: list[TransferResult] = []
        self._free_events: list[EventT] = []
        self._num_events = 0
        self._num_transfers = 0
        self._is_shut_down = False
        self._is_drained = False
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._shutdown_lock = threading.Lock()

    @override
    def submit_store(
        self,
        job_id: int,
        src_spec: GPULoadStoreSpec,
        dst_spec: LoadStoreSpec,
        *,
        null_blocks: Mapping[int, Collection[int]] | None = None,
    ) -> bool:
        """Start a copy from GPU blocks to slots; False after `shutdown`.

        `null_blocks[g]` are logical blocks of group g that hold nothing, which a store of part of
        a chunk leaves out (COPY-6). Raises a TransferError for specs that do not fit, and
        InvalidValueError for others and for a job id that is under way. Whatever the device says
        to it, the job is taken then: it fails in its turn, and is reported.
        """
        blocks, slots = of_blocks("src_spec", src_spec), of_slots("dst_spec", dst_spec)

        def plan() -> CopyPlan:
            return plan_store(self.layout, blocks, slots, null_blocks=null_blocks)

        return self._submit(Lane.STORE, job_id, plan, blocks, slots)

    @override
    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        *,
        expedited: bool = False,
    ) -> bool:
        """Start a copy from slots to GPU blocks; False after `shutdown`.

        An `expedited` one does not queue behind other loads, except where it touches what they
        touch. Raises as `submit_store`.
        """
        slots, blocks = of_slots("src_spec", src_spec), of_blocks("dst_spec", dst_spec)

        def plan() -> CopyPlan:
            return plan_load(self.layout, slots, blocks)

        lane = Lane.EXPEDITED if expedited else Lane.LOAD
        return self._submit(lane, job_id, plan, blocks, slots)

    @override
    def get_finished(self) -> list[TransferResult]:
        if self._is_inherited:
            return []
        with self._lock:
            for transfers in self._under_way.values():
                while transfers and self._is_over(transfers[0]):
                    self._results.append(self._report(transfers.popleft()))
            # Should the device raise, what was found before is for the next call.
            results, self._results = self._results, []
        return results

    @override
    def wait(self, job_ids: set[int]) -> None:
        if self._is_inherited:
            raise DeviceClosedError(
                f"this process was forked from process {self._process}, whose transfers these are"
            )
        with self._lock:
            waiting = list(self._to_pass(job_ids))
            for transfer in waiting:
                transfer.num_waiting += 1
        try:
            for transfer in waiting:
                self._device.synchronize(transfer.ended)
        finally:
            with self._lock:
                for transfer in waiting:
                    transfer.num_waiting -= 1
                    self._release_events(transfer)

    @override
    def shutdown(self) -> None:
        """Finish what was taken and release everything; what finished can still be asked for."""
        if self._is_inherited:
            return
        # Who comes second returns when the first one is done.
        with self._shutdown_lock:
            if self._is_drained:
                return
            with self._lock:
                self._is_shut_down = True
            self._device.close()
            self._is_drained = True

    @property
    def _is_inherited(self) -> bool:
        """Whether this process was forked from the one that copies; its locks may be held."""
        return os.getpid() != self._process

    def _submit(
        self,
        lane: Lane,
        job_id: int,
        make_plan: Callable[[], CopyPlan],
        blocks_spec: GPULoadStoreSpec,
        slots_spec: BlockIDsLoadStoreSpec,
    ) -> bool:
        import numpy as np

        if self._is_inherited:
            return False
        with self._lock:
            if self._is_shut_down:
                return False
            if any(one.job_id == job_id for lane in self._under_way.values() for one in lane):
                raise InvalidValueError("job_id", job_id, "that of no job under way")
            plan = make_plan()
            blocks = self._blocks.places_of(blocks_spec.block_ids.astype(np.int64))
            slots = self._slots.places_of(slots_spec.block_ids.astype(np.int64))
            name = f"{lane.value} of job {job_id}"
            self._num_transfers += 1
            transfer = _Transfer(
                job_id,
                lane,
                self._num_transfers,
                plan.num_bytes,
                self._event(),
                self._event(),
                self._event(),
                DeviceError(f"{name}: its submission was interrupted"),
            )
            try:
                self._enqueue(lane, transfer, plan, blocks, slots, name)
            except Exception as error:
                # The job was taken: it fails in its turn, and the worker goes on (COPY-4).
                transfer.error = error
                if not transfer.has_begun:
                    self._under_way[lane].append(transfer)
        return True

    def _enqueue(
        self,
        lane: Lane,
        transfer: _Transfer[EventT],
        plan: CopyPlan,
        blocks: Numbers,
        slots: Numbers,
        name: str,
    ) -> None:
        """What it must come after, its copies, and its end."""
        stream, device = self._streams[lane], self._device
        device.record(transfer.submitted, device.compute_stream)
        device.wait(stream, transfer.submitted)
        for earlier in self._to_wait_for(lane, blocks, slots):
            self._mark(earlier)
            device.wait(stream, earlier.ended)
        device.record(transfer.started, stream)
        # From here on bytes may move, whatever is raised: others have to wait for it.
        transfer.has_begun = True
        self._note(lane, blocks, slots, transfer.number)
        self._under_way[lane].append(transfer)
        try:
            device.copy(stream, plan, name)
        finally:
            self._mark(transfer)
        transfer.error = None

    def _mark(self, transfer: _Transfer[EventT]) -> None:
        """Record the end of a transfer, unless that was done."""
        if not transfer.is_marked:
            self._device.record(transfer.ended, self._streams[transfer.lane])
            transfer.is_marked = True

    def _to_pass(self, job_ids: Collection[int]) -> Iterable[_Transfer[EventT]]:
        """The transfers whose ends say that these jobs are done: a lane works in order."""
        for transfers in self._under_way.values():
            wanted = [at for at, one in enumerate(transfers) if one.job_id in job_ids]
            for transfer in list(transfers)[: max(wanted, default=-1) + 1]:
                if transfer.has_begun and not self._is_drained:
                    self._mark(transfer)
                    yield transfer

    def _is_over(self, transfer: _Transfer[EventT]) -> bool:
        """Whether the first transfer of its lane is; one that has not begun was, in its turn."""
        if self._is_drained or not transfer.has_begun:
            return True
        self._mark(transfer)
        return self._device.is_done(transfer.ended)

    def _to_wait_for(self, lane: Lane, blocks: Numbers, slots: Numbers) -> list[_Transfer[EventT]]:
        """The latest transfer of each other lane that this one must come after."""
        if lane is Lane.STORE:
            by_block = self._blocks.before_read(blocks, lane)
            by_slot = self._slots.before_write(slots, lane)
        else:
            by_block = self._blocks.before_write(blocks, lane)
            by_slot = self._slots.before_read(slots, lane)
        found: list[_Transfer[EventT]] = []
        for other in {*by_block, *by_slot}:
            number = max(by_block.get(other, 0), by_slot.get(other, 0))
            # Those no longer under way are over.
            found += [one for one in self._under_way[other] if one.number == number]
        return found

    def _note(self, lane: Lane, blocks: Numbers, slots: Numbers, number: int) -> None:
        if lane is Lane.STORE:
            self._blocks.note_read(blocks, lane, number)
            self._slots.note_write(slots, lane, number)
        else:
            self._blocks.note_write(blocks, lane, number)
            self._slots.note_read(slots, lane, number)

    def _event(self) -> EventT:
        if self._free_events:
            return self._free_events.pop()
        self._num_events += 1
        return self._device.new_event(f"event {self._num_events}")

    def _report(self, transfer: _Transfer[EventT]) -> TransferResult:
        error, seconds = transfer.error, None
        if transfer.is_marked:
            try:
                error = error or self._device.error(transfer.ended)
            except Exception as unknown:
                # How it went cannot be told, so it did not go well.
                error = unknown
            with suppress(Exception):
                seconds = self._device.seconds_between(transfer.started, transfer.ended)
        transfer.is_reported = True
        self._release_events(transfer)
        return TransferResult(
            job_id=transfer.job_id,
            success=error is None,
            transfer_size=transfer.num_bytes if error is None else None,
            transfer_time=seconds,
        )

    def _release_events(self, transfer: _Transfer[EventT]) -> None:
        """Keep them for others, when nobody asks for this transfer any more (ORD-2).

        Those of one that never began or was not marked are left to themselves: what stands behind
        them in their streams nobody knows.
        """
        if transfer.is_reported and transfer.is_marked and not transfer.num_waiting:
            self._free_events += [transfer.submitted, transfer.started, transfer.ended]
