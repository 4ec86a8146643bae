"""A worker whose caches are on a GPU: rows of bytes over its tensors, and pinned host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvoffload.canonical.recognition import BlockView
from kvoffload.copying.cuda.device import CudaDevice
from kvoffload.copying.cuda.paths import DEFAULT_PATHS, PathTable
from kvoffload.copying.cuda.pinning import HostRegistry, PinnedAreas, TorchRegistry
from kvoffload.copying.tensors import bytes_needed
from kvoffload.errors import MappingError, WorkerUnavailableError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from kvoffload.canonical.pages import CanonicalKVCaches
    from kvoffload.copying.layout import CopyLayout
    from kvoffload.copying.memory import HostMemory

    Bytes = NDArray[np.uint8]


def require_cuda() -> None:
    """Raise WorkerUnavailableError where there is no CUDA device."""
    import torch

    if not torch.cuda.is_available():
        raise WorkerUnavailableError("copy_device 'cuda': torch finds no CUDA device")


class PinnedMemory:
    """Host memory of whatever kind, pinned as long as it is open: a `HostMemory` itself."""

    def __init__(
        self, memory: HostMemory, num_tensors: int, registry: HostRegistry | None = None
    ) -> None:
        self._memory = memory
        rows = [memory.rows(tensor) for tensor in range(num_tensors)]
        areas = [(one.ctypes.data, one.nbytes) for one in rows]
        self._pinned = PinnedAreas(areas, registry or TorchRegistry())

    def rows(self, tensor: int) -> Bytes:
        """The rows of a tensor, as `HostMemory.rows` says."""
        return self._memory.rows(tensor)

    def close(self) -> None:
        """Unpin it, then give it up. Twice is once."""
        try:
            self._pinned.close()
        finally:
            self._memory.close()


def cuda_device(
    kv_caches: CanonicalKVCaches,
    layout: CopyLayout,
    memory: HostMemory,
    *,
    paths: PathTable = DEFAULT_PATHS,
) -> CudaDevice:
    """The device between caches on a GPU and host memory.

    Raises MappingError for a tensor that is not rows of bytes on a GPU, by its number, and
    DeviceError where there is no CUDA device.
    """
    import torch

    gpu = [byte_rows(kv_caches, number) for number in range(len(kv_caches.tensors))]
    host = [torch.as_tensor(memory.rows(number)) for number in range(len(layout.host))]
    return CudaDevice(gpu, host, paths=paths)


def byte_rows(kv_caches: CanonicalKVCaches, number: int) -> torch.Tensor:
    """The blocks of a tensor as rows of bytes, where they are: shape (blocks, bytes a page)."""
    import torch

    one = kv_caches.tensors[number]
    tensor, name = one.tensor, f"tensor {number}"
    if not isinstance(tensor, torch.Tensor):
        raise MappingError(f"{name}: a tensor of torch is wanted, not {type(tensor).__name__}")
    view = BlockView.of(tensor, name)
    needed = bytes_needed(kv_caches)[number]
    step = view.block_step if view.num_blocks > 1 else one.page_size_bytes
    if view.extent < needed or step < needed:
        raise MappingError(
            f"{name}: blocks of {view.extent} bytes, {step} apart, for pages of {needed} ({view})"
        )
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.untyped_storage(), view.start, (view.num_blocks, needed), (step, 1)
    )
