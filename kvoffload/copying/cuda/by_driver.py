"""The path by the driver: one call for all fragments of a transfer (cuMemcpyBatchAsync)."""

# cuda-bindings is optional and has no types.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvoffload.copying.plans import CopyPlan, Memory
from kvoffload.errors import DeviceError


class BatchedCopy(Protocol):
    """One call of the driver; what stands in for it in tests sees just these arguments."""

    def __call__(
        self, targets: list[int], sources: list[int], sizes: list[int], stream: int
    ) -> None:
        """Enqueue all copies in a stream, given by its handle. Raises DeviceError."""
        ...


def copy_pages(
    plan: CopyPlan,
    gpu: Sequence[Memory],
    host: Sequence[Memory],
    stream: int,
    call: BatchedCopy,
) -> None:
    """Enqueue a plan in one call; nothing for a plan without bytes, which the driver refuses."""
    pieces = plan.written_out(gpu, host)
    if len(pieces.size):
        call(pieces.target.tolist(), pieces.source.tolist(), pieces.size.tolist(), stream)


def batched_copy() -> BatchedCopy | None:
    """The driver's call through cuda-bindings; None where either does not have it."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    if not hasattr(driver, "cuMemcpyBatchAsync"):
        return None

    def call(targets: list[int], sources: list[int], sizes: list[int], stream: int) -> None:
        attributes = driver.CUmemcpyAttributes()
        # Sources are read in the order of the stream, as all that it waits for may write them.
        attributes.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        (status, *_) = driver.cuMemcpyBatchAsync(
            [driver.CUdeviceptr(address) for address in targets],
            [driver.CUdeviceptr(address) for address in sources],
            sizes,
            len(sizes),
            [attributes],
            [0],
            1,
            driver.CUstream(stream),
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            raise DeviceError(f"cuMemcpyBatchAsync of {len(sizes)} copies: {status.name}")

    return call
