"""The worker's side: what moves bytes between the GPU and one offloaded medium."""

from __future__ import annotations

from abc import ABC, abstractmethod

from kvoffload.transfers import GPULoadStoreSpec, LoadStoreSpec, TransferResult


class OffloadingWorker(ABC):
    """Moves blocks of one worker process, asynchronously (COPY-4).

    The direction is in the call. A job is named by the caller; jobs of one direction finish in
    the order submitted.
    """

    @abstractmethod
    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Start a copy from the GPU to the medium; whether the job was taken."""

    @abstractmethod
    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Start a copy from the medium to the GPU; whether the job was taken."""

    @abstractmethod
    def get_finished(self) -> list[TransferResult]:
        """Jobs that finished since the last call, each reported once, failed ones too."""

    @abstractmethod
    def wait(self, job_ids: set[int]) -> None:
        """Return when the jobs are done; unknown ones are ignored."""

    def shutdown(self) -> None:
        """Finish what was taken and release everything. A second call does nothing."""
        return None
