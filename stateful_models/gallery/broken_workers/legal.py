"""Workers that are odd and right."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from attrs import evolve
from typing_extensions import override

from kvoffload import GPULoadStoreSpec, LoadStoreSpec, TransferResult
from kvoffload.copying.graph import Stream
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ledger import Lane
from kvoffload.copying.ordered import OrderedDevice, OrderedEvent
from kvoffload.copying.plans import CopyPlan
from kvoffload.copying.worker import CopyWorker
from stateful_models.gallery.broken_workers.base import LegalWorker, Tap, on
from stateful_models.gallery.broken_workers.pooling import StreamOfEachTransfer

_Reference = CopyWorker[Stream, OrderedEvent]


class _OneStream(Tap):
    @override
    def new_stream(self, name: str) -> Stream:
        return self.compute_stream


class _OneCopyStream(Tap):
    def __init__(self, device: OrderedDevice) -> None:
        super().__init__(device)
        self._copies = device.new_stream("copies")

    @override
    def new_stream(self, name: str) -> Stream:
        return self._copies


class _EventsPerLane(_Reference):
    """Each lane has events of its own, which it uses again when their job was reported."""

    def __init__(self, layout: CopyLayout, device: OrderedDevice) -> None:
        super().__init__(layout, device)
        self._pools: dict[str, list[OrderedEvent]] = {lane.value: [] for lane in Lane}

    @override
    def submit_store(
        self,
        job_id: int,
        src_spec: GPULoadStoreSpec,
        dst_spec: LoadStoreSpec,
        *,
        null_blocks: Mapping[int, Collection[int]] | None = None,
    ) -> bool:
        self._free_events = self._pools[Lane.STORE.value]
        return super().submit_store(job_id, src_spec, dst_spec, null_blocks=null_blocks)

    @override
    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        *,
        expedited: bool = False,
    ) -> bool:
        self._free_events = self._pools[(Lane.EXPEDITED if expedited else Lane.LOAD).value]
        return super().submit_load(job_id, src_spec, dst_spec, expedited=expedited)

    @override
    def get_finished(self) -> list[TransferResult]:
        results: list[TransferResult] = []
        for lane, transfers in self._under_way.items():
            self._free_events = self._pools[lane.value]
            while transfers and self._device.is_done(transfers[0].ended):
                results.append(self._report(transfers.popleft()))
        return results


class _NewEvents(_Reference):
    """Every event is used once."""

    @override
    def _event(self) -> OrderedEvent:
        self._free_events.clear()
        return super()._event()


class _ExtraWaits(Tap):
    """Before each copy, its stream waits for all others, twice."""

    def __init__(self, device: OrderedDevice) -> None:
        super().__init__(device)
        self._streams = [device.compute_stream]

    @override
    def new_stream(self, name: str) -> Stream:
        stream = super().new_stream(name)
        self._streams.append(stream)
        return stream

    @override
    def copy(self, stream: Stream, plan: CopyPlan, name: str) -> None:
        for other in self._streams:
            event = self.new_event("extra")
            self.record(event, other)
            self.wait(stream, event)
            self.wait(stream, event)
        super().copy(stream, plan, name)


class _Synchronous(_Reference):
    """Every submission returns when its job is done."""

    @override
    def submit_store(
        self,
        job_id: int,
        src_spec: GPULoadStoreSpec,
        dst_spec: LoadStoreSpec,
        *,
        null_blocks: Mapping[int, Collection[int]] | None = None,
    ) -> bool:
        taken = super().submit_store(job_id, src_spec, dst_spec, null_blocks=null_blocks)
        self.wait({job_id})
        return taken

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
        self.wait({job_id})
        return taken


class _Polling(_Reference):
    """Waits by asking again and again."""

    @override
    def wait(self, job_ids: set[int]) -> None:
        for transfers in self._under_way.values():
            for transfer in transfers:
                while transfer.job_id in job_ids and not self._device.is_done(transfer.ended):
                    pass


class _NothingExpedited(_Reference):
    """Has no expedited lane: such loads queue with the others."""

    @override
    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        *,
        expedited: bool = False,
    ) -> bool:
        return super().submit_load(job_id, src_spec, dst_spec)


class _PageByPage(Tap):
    """A copy for every layer, those of a transfer in the other order."""

    @override
    def copy(self, stream: Stream, plan: CopyPlan, name: str) -> None:
        for page in plan.pages[::-1]:
            super().copy(stream, evolve(plan, pages=(page,)), name)


class _NoSizes(_Reference):
    """Tells neither bytes nor seconds."""

    @override
    def get_finished(self) -> list[TransferResult]:
        return [TransferResult(one.job_id, one.success) for one in super().get_finished()]


class _NotTaken(_Reference):
    """Answers that it did not take what its device cannot enqueue."""

    @override
    def submit_store(
        self,
        job_id: int,
        src_spec: GPULoadStoreSpec,
        dst_spec: LoadStoreSpec,
        *,
        null_blocks: Mapping[int, Collection[int]] | None = None,
    ) -> bool:
        taken = super().submit_store(job_id, src_spec, dst_spec, null_blocks=null_blocks)
        transfers = self._under_way[Lane.STORE]
        if taken and transfers[-1].error is not None:
            # Others may have to wait for it all the same, or rather for what its lane did before.
            transfers[-1].job_id = -1 - transfers[-1].number
            return False
        return taken

    @override
    def get_finished(self) -> list[TransferResult]:
        return [one for one in super().get_finished() if one.job_id >= 0]


LEGAL_WORKERS: Final[Mapping[str, LegalWorker]] = {
    "everything in the compute stream": LegalWorker(
        "kernels and transfers are done one after another", on(_OneStream)
    ),
    "one stream for all copies": LegalWorker(
        "no two transfers are done side by side", on(_OneCopyStream)
    ),
    "a stream for each transfer": LegalWorker(
        "every transfer has a stream of its own, handed back when it is over",
        on(StreamOfEachTransfer),
    ),
    "events per lane": LegalWorker("each lane has a pool of events of its own", _EventsPerLane),
    "events used once": LegalWorker("no event is ever recorded again", _NewEvents),
    "extra waits": LegalWorker(
        "each copy comes after all that was enqueued anywhere, twice over", on(_ExtraWaits)
    ),
    "synchronous": LegalWorker("a submission returns when its job is done", _Synchronous),
    "polling": LegalWorker("waits by asking the device again and again", _Polling),
    "nothing expedited": LegalWorker("expedited loads queue with the others", _NothingExpedited),
    "page by page": LegalWorker("a copy for every layer, the last layer first", on(_PageByPage)),
    "no figures": LegalWorker("reports neither bytes nor seconds", _NoSizes),
    "not taken": LegalWorker(
        "answers that it did not take a store that its device cannot enqueue", _NotTaken
    ),
}
