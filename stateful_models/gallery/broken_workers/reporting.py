"""Workers that tell the wrong story of their jobs (COPY-4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from attrs import evolve
from typing_extensions import override

from kvoffload import GPULoadStoreSpec, LoadStoreSpec, TransferResult
from kvoffload.copying.graph import Stream
from kvoffload.copying.ordered import OrderedEvent
from kvoffload.copying.worker import CopyWorker
from stateful_models.gallery.broken_workers.base import BrokenWorker

_Reference = CopyWorker[Stream, OrderedEvent]


class _NewestFirst(_Reference):
    @override
    def get_finished(self) -> list[TransferResult]:
        return super().get_finished()[::-1]


class _Twice(_Reference):
    """Reports the last job of a call again in the next."""

    last: TransferResult | None = None

    @override
    def get_finished(self) -> list[TransferResult]:
        results = super().get_finished()
        again = [self.last] if self.last is not None else []
        self.last = results[-1] if results else None
        return again + results


class _OneOfTwo(_Reference):
    """Reports one job a call, and forgets the others that finished."""

    @override
    def get_finished(self) -> list[TransferResult]:
        return super().get_finished()[:1]


class _FailuresForgotten(_Reference):
    @override
    def get_finished(self) -> list[TransferResult]:
        return [result for result in super().get_finished() if result.success]


class _FailureSwallowed(_Reference):
    @override
    def get_finished(self) -> list[TransferResult]:
        return [evolve(result, success=True) for result in super().get_finished()]


class _DiesOfAFailure(_Reference):
    @override
    def get_finished(self) -> list[TransferResult]:
        results = super().get_finished()
        failed = [result.job_id for result in results if not result.success]
        if failed:
            raise OSError(f"jobs {failed} failed")
        return results


class _WaitsForNothing(_Reference):
    @override
    def wait(self, job_ids: set[int]) -> None:
        return None


class _WaitsForTheFirst(_Reference):
    """Of the jobs of each lane that it should wait for, waits for the first."""

    @override
    def wait(self, job_ids: set[int]) -> None:
        for transfers in self._under_way.values():
            for transfer in transfers:
                if transfer.job_id in job_ids:
                    self._device.synchronize(transfer.ended)
                    break


class _WaitsForTheStart(_Reference):
    @override
    def wait(self, job_ids: set[int]) -> None:
        for transfers in self._under_way.values():
            for transfer in transfers:
                if transfer.job_id in job_ids:
                    self._device.synchronize(transfer.started)


class _KnowsItsJobs(_Reference):
    """Refuses to wait for jobs that it does not know."""

    @override
    def wait(self, job_ids: set[int]) -> None:
        known = {one.job_id for lane in self._under_way.values() for one in lane}
        if not job_ids <= known:
            raise KeyError(sorted(job_ids - known)[0])
        super().wait(job_ids)


class _DoneWhenStarted(_Reference):
    @override
    def get_finished(self) -> list[TransferResult]:
        results: list[TransferResult] = []
        for transfers in self._under_way.values():
            while transfers and self._device.is_done(transfers[0].started):
                results.append(self._report(transfers.popleft()))
        return results


class _WrongSizes(_Reference):
    """Counts the bytes of whole rows, whoever writes them."""

    @override
    def get_finished(self) -> list[TransferResult]:
        return [
            evolve(result, transfer_size=result.transfer_size + 1)
            if result.transfer_size
            else result
            for result in super().get_finished()
        ]


class _ShutdownDrops(_Reference):
    """Shuts down without a look at what is under way."""

    @override
    def shutdown(self) -> None:
        self._is_shut_down = True


class _OnlyOneShutdown(_Reference):
    @override
    def shutdown(self) -> None:
        if self._is_shut_down:
            raise RuntimeError("shut down already")
        super().shutdown()


class _TakesAfterShutdown(_Reference):
    """Says that it took what it cannot do any more."""

    @override
    def submit_store(
        self,
        job_id: int,
        src_spec: GPULoadStoreSpec,
        dst_spec: LoadStoreSpec,
        *,
        null_blocks: Mapping[int, Collection[int]] | None = None,
    ) -> bool:
        super().submit_store(job_id, src_spec, dst_spec, null_blocks=null_blocks)
        return True


class _OneAtATime(_Reference):
    """Takes no second load while one is under way, and does not say so."""

    @override
    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        *,
        expedited: bool = False,
    ) -> bool:
        if any(self._under_way.values()):
            return True
        return super().submit_load(job_id, src_spec, dst_spec, expedited=expedited)


class _SilentlyRefused(_Reference):
    """A refused copy is no job: it is taken, and never heard of again."""

    @override
    def get_finished(self) -> list[TransferResult]:
        refused = {
            one.job_id for lane in self._under_way.values() for one in lane if one.error is not None
        }
        return [one for one in super().get_finished() if one.job_id not in refused]


BROKEN_REPORTS: Final[Mapping[str, BrokenWorker]] = {
    "Copy4NewestFirst": BrokenWorker(
        "COPY-4", "reports jobs of one lane in the wrong order", _NewestFirst
    ),
    "Copy4Twice": BrokenWorker("COPY-4", "reports jobs twice", _Twice),
    "Copy4OneOfTwo": BrokenWorker(
        "COPY-4", "forgets to report a job when several finish at once", _OneOfTwo
    ),
    "Copy4FailuresForgotten": BrokenWorker(
        "COPY-4", "never reports a job whose copy failed", _FailuresForgotten
    ),
    "Copy4RefusalsForgotten": BrokenWorker(
        "COPY-4", "never reports a job whose copy could not be enqueued", _SilentlyRefused
    ),
    "Copy4FailureSwallowed": BrokenWorker(
        "COPY-4", "reports a copy that failed as good", _FailureSwallowed
    ),
    "Copy4DiesOfAFailure": BrokenWorker(
        "COPY-4", "raises where it should report a failed copy", _DiesOfAFailure
    ),
    "Copy4WaitsForNothing": BrokenWorker(
        "COPY-4", "waits for nothing: returns at once", _WaitsForNothing
    ),
    "Copy4WaitsForTheFirst": BrokenWorker(
        "COPY-4", "of several jobs of a lane, waits for the first", _WaitsForTheFirst
    ),
    "Copy4WaitsForTheStart": BrokenWorker(
        "COPY-4", "returns from a wait when the copy begins", _WaitsForTheStart
    ),
    "Copy4KnowsItsJobs": BrokenWorker(
        "COPY-4", "raises for a job that it does not know", _KnowsItsJobs
    ),
    "Copy4DoneWhenStarted": BrokenWorker(
        "COPY-4",
        "reports a job as done when its copy begins",
        _DoneWhenStarted,
        also=("ORD-1", "ORD-2", "ORD-3"),
    ),
    "Copy4WrongSizes": BrokenWorker("COPY-4", "reports more bytes than it moved", _WrongSizes),
    "Copy4ShutdownDrops": BrokenWorker(
        "COPY-4", "drops at shutdown what is under way", _ShutdownDrops
    ),
    "Copy4OnlyOneShutdown": BrokenWorker(
        "COPY-4", "raises when it is shut down twice", _OnlyOneShutdown
    ),
    "Copy4TakesAfterShutdown": BrokenWorker(
        "COPY-4", "says after shutdown that it took a job", _TakesAfterShutdown
    ),
    "Copy4OneAtATime": BrokenWorker(
        "COPY-4",
        "says that it took a load, which it dropped because it was busy",
        _OneAtATime,
        also=("COPY-2", "COPY-3"),
    ),
}
