"""The worker: transfers as jobs, each in its lane, on any device (COPY-4, ORD-1 to ORD-3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Generic

from attrs import define
from typing_extensions import override

from kvoffload.copying.device import CopyDevice, EventT, StreamT
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ledger import AccessLedger, Lane
from kvoffload.copying.plans import CopyPlan, plan_load, plan_store
from kvoffload.errors import InvalidValueError
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
    """A job under way. Its events are its own until it has been reported (ORD-2)."""

    job_id: int
    number: int
    num_bytes: int
    submitted: EventT
    started: EventT
    ended: EventT
    error: Exception | None = None


class CopyWorker(OffloadingWorker, Generic[StreamT, EventT]):
    """Carries out transfers between GPU blocks and slots of host memory.

    Stores, loads and expedited loads are three lanes: transfers of one are done in the order
    submitted, those of different ones side by side. A transfer begins when all is done that the
    compute stream held at its submission (ORD-1), and when every earlier transfer of another lane
    that touches the same blocks or slots is over (ORD-1, ORD-3), however long ago it was submitted
    and whatever was reset since.
    """

    def __init__(self, layout: CopyLayout, device: CopyDevice[StreamT, EventT]) -> None:
        self.layout = layout
        self._device = device
        self._streams = {lane: device.new_stream(lane.value) for lane in Lane}
        self._blocks = AccessLedger(max((rows.num_rows for rows in layout.gpu), default=0))
        self._slots = AccessLedger(layout.num_slots)
        self._under_way: dict[Lane, deque[_Transfer[EventT]]] = {lane: deque() for lane in Lane}
        self._free_events: list[EventT] = []
        self._num_events = 0
        self._num_transfers = 0
        self._is_shut_down = False

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
        InvalidValueError for a job id that is under way.
        """
        slots = _of_slots("dst_spec", dst_spec)

        def plan() -> CopyPlan:
            return plan_store(self.layout, src_spec, slots, null_blocks=null_blocks)

        return self._submit(Lane.STORE, job_id, plan, src_spec, slots)

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
        slots = _of_slots("src_spec", src_spec)

        def plan() -> CopyPlan:
            return plan_load(self.layout, slots, dst_spec)

        lane = Lane.EXPEDITED if expedited else Lane.LOAD
        return self._submit(lane, job_id, plan, dst_spec, slots)

    @override
    def get_finished(self) -> list[TransferResult]:
        results: list[TransferResult] = []
        for transfers in self._under_way.values():
            while transfers and self._device.is_done(transfers[0].ended):
                results.append(self._report(transfers.popleft()))
        return results

    @override
    def wait(self, job_ids: set[int]) -> None:
        for transfers in self._under_way.values():
            for transfer in transfers:
                if transfer.job_id in job_ids:
                    self._device.synchronize(transfer.ended)

    @override
    def shutdown(self) -> None:
        """Finish what was taken and release everything; what finished can still be asked for."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        for transfers in self._under_way.values():
            for transfer in transfers:
                self._device.synchronize(transfer.ended)
        self._device.close()

    def _submit(
        self,
        lane: Lane,
        job_id: int,
        make_plan: Callable[[], CopyPlan],
        blocks_spec: GPULoadStoreSpec,
        slots_spec: BlockIDsLoadStoreSpec,
    ) -> bool:
        import numpy as np

        if self._is_shut_down:
            return False
        if any(one.job_id == job_id for lane in self._under_way.values() for one in lane):
            raise InvalidValueError("job_id", job_id, "that of no job under way")
        plan = make_plan()
        blocks = blocks_spec.block_ids.astype(np.int64)
        slots = slots_spec.block_ids.astype(np.int64)
        self._num_transfers += 1
        transfer = _Transfer(
            job_id, self._num_transfers, plan.num_bytes, self._event(), self._event(), self._event()
        )
        stream, device = self._streams[lane], self._device
        device.record(transfer.submitted, device.compute_stream)
        device.wait(stream, transfer.submitted)
        for earlier in self._to_wait_for(lane, blocks, slots):
            device.wait(stream, earlier.ended)
        device.record(transfer.started, stream)
        try:
            device.copy(stream, plan, f"{lane.value} of job {job_id}")
        except Exception as error:
            # The job was taken: it fails in its turn, and the worker goes on (COPY-4).
            transfer.error = error
        device.record(transfer.ended, stream)
        self._note(lane, blocks, slots, transfer.number)
        self._under_way[lane].append(transfer)
        return True

    def _to_wait_for(self, lane: Lane, blocks: Numbers, slots: Numbers) -> list[_Transfer[EventT]]:
        """The latest transfer of each other lane that this one must come after."""
        if lane is Lane.STORE:
            of_blocks = self._blocks.before_read(blocks, lane)
            of_slots = self._slots.before_write(slots, lane)
        else:
            of_blocks = self._blocks.before_write(blocks, lane)
            of_slots = self._slots.before_read(slots, lane)
        found: list[_Transfer[EventT]] = []
        for other in {*of_blocks, *of_slots}:
            number = max(of_blocks.get(other, 0), of_slots.get(other, 0))
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
        error = transfer.error or self._device.error(transfer.ended)
        seconds = self._device.seconds_between(transfer.started, transfer.ended)
        self._free_events += [transfer.submitted, transfer.started, transfer.ended]
        return TransferResult(
            job_id=transfer.job_id,
            success=error is None,
            transfer_size=transfer.num_bytes if error is None else None,
            transfer_time=seconds,
        )


def _of_slots(name: str, spec: LoadStoreSpec) -> BlockIDsLoadStoreSpec:
    if not isinstance(spec, BlockIDsLoadStoreSpec) or isinstance(spec, GPULoadStoreSpec):
        raise InvalidValueError(name, spec, "a spec of slots")
    return spec
