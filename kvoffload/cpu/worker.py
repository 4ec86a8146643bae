"""The worker of the CPU tier: a copy worker together with the host memory that its slots are in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from kvoffload.copying.device import CopyDevice, EventT, StreamT
from kvoffload.copying.host import HostDevice, HostEvent, HostStream
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.memory import HostMemory
from kvoffload.copying.tensors import byte_rows
from kvoffload.copying.worker import CopyWorker

if TYPE_CHECKING:
    from kvoffload.canonical.pages import CanonicalKVCaches


class CPUOffloadingWorker(CopyWorker[StreamT, EventT]):
    """Moves blocks between a worker's KV caches and slots in host memory (COPY-1 to COPY-6).

    `memory` is the worker's from now on: `shutdown` gives it up when the last copy is done.
    """

    def __init__(
        self, layout: CopyLayout, device: CopyDevice[StreamT, EventT], memory: HostMemory
    ) -> None:
        super().__init__(layout, device)
        self.memory = memory

    @override
    def shutdown(self) -> None:
        """Finish what was taken, end the device's threads and give the host memory up."""
        try:
            super().shutdown()
        finally:
            self.memory.close()


def host_worker(
    kv_caches: CanonicalKVCaches, layout: CopyLayout, memory: HostMemory, *, copy_threads: int = 1
) -> CPUOffloadingWorker[HostStream, HostEvent]:
    """A worker for caches in the memory of the CPU, with threads of its own that copy.

    `layout` is that of `kv_caches`, `memory` has its host rows. Raises MappingError for a tensor
    that is not rows of bytes there, by its number; nothing has been taken over then.
    """
    gpu = byte_rows(kv_caches)
    host = [memory.rows(tensor) for tensor in range(len(layout.host))]
    return CPUOffloadingWorker(layout, HostDevice(gpu, host, num_threads=copy_threads), memory)
