"""A worker over memory on a GPU, and kernels in front of its transfers that take their time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from kvoffload.copying.cuda.device import CudaDevice, CudaEvent, CudaStream
from kvoffload.copying.cuda.paths import CopyPath, PathTable
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.worker import CopyWorker

Bytes = NDArray[np.uint8]
SLOW_CYCLES = 20_000_000
"""Some ten milliseconds of a GPU: longer than any transfer of the tests waits to be enqueued."""


@frozen
class Stand:
    """Both sides of a worker's memory, and the worker."""

    gpu: list[torch.Tensor]
    host: list[torch.Tensor]
    device: CudaDevice
    worker: CopyWorker[CudaStream, CudaEvent]

    def finish(self, *jobs: int) -> None:
        """Wait for jobs, all of which must have gone well."""
        self.worker.wait(set(jobs))
        results = {result.job_id: result for result in self.worker.get_finished()}
        for job in jobs:
            assert results[job].success, f"job {job} failed"
            seconds = results[job].transfer_time
            assert seconds is not None
            assert seconds >= 0


def host_tensor(array: Bytes, *, pinned: bool) -> torch.Tensor:
    """A copy of an array in host memory, pinned or not."""
    tensor = torch.empty(array.shape, dtype=torch.uint8, pin_memory=pinned)
    tensor.copy_(torch.as_tensor(array))
    return tensor


def make_stand(
    layout: CopyLayout,
    gpu: Sequence[Bytes],
    host: Sequence[torch.Tensor],
    path: CopyPath,
) -> Stand:
    """A worker whose copies all go by `path`."""
    tensors = [torch.as_tensor(array).cuda() for array in gpu]
    device = CudaDevice(tensors, host, paths=PathTable.only(path))
    return Stand(tensors, list(host), device, CopyWorker(layout, device))


def sleep() -> None:
    """Keep the current stream busy, so that a missing wait shows in the bytes."""
    # No public function of torch only takes time.
    torch.cuda._sleep(SLOW_CYCLES)  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]


def array_of(tensor: torch.Tensor) -> Bytes:
    """The bytes of a tensor, when all is done."""
    torch.cuda.synchronize()
    return np.asarray(tensor.cpu())
