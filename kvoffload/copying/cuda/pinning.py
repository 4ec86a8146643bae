"""Pinning host memory that is already there, so that a GPU reads and writes it by itself."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol, SupportsInt

from kvoffload.errors import DeviceError


class HostRegistry(Protocol):
    """The two calls of the CUDA runtime that pinning takes; 0 is success."""

    def register(self, address: int, num_bytes: int) -> int:
        """Pin memory. Answers the runtime's status."""
        ...

    def unregister(self, address: int) -> int:
        """Undo it. Answers the runtime's status."""
        ...


class _Runtime(Protocol):
    def cudaHostRegister(self, address: int, size: int, flags: int) -> SupportsInt: ...  # noqa: N802

    def cudaHostUnregister(self, address: int) -> SupportsInt: ...  # noqa: N802


class TorchRegistry:
    """The runtime that torch has loaded."""

    def __init__(self) -> None:
        # Its functions have no types in torch.
        self._runtime: _Runtime = importlib.import_module("torch").cuda.cudart()

    def register(self, address: int, num_bytes: int) -> int:
        """Pin memory."""
        return int(self._runtime.cudaHostRegister(address, num_bytes, 0))

    def unregister(self, address: int) -> int:
        """Undo it."""
        return int(self._runtime.cudaHostUnregister(address))


class PinnedAreas:
    """Areas of host memory, (address, bytes) each, that are pinned until `close`.

    Raises DeviceError if one cannot be; those before it are not pinned any more then.
    """

    def __init__(self, areas: Sequence[tuple[int, int]], registry: HostRegistry) -> None:
        self._registry = registry
        self._pinned: list[int] = []
        try:
            for address, num_bytes in areas:
                if num_bytes:
                    self._pin(address, num_bytes)
        except BaseException:
            self.close()
            raise

    def _pin(self, address: int, num_bytes: int) -> None:
        status = self._registry.register(address, num_bytes)
        if status:
            raise DeviceError(
                f"{num_bytes} bytes of host memory at {address:#x} cannot be pinned: "
                f"cudaHostRegister says {status}"
            )
        self._pinned.append(address)

    def close(self) -> None:
        """Undo all of it, the last first. Twice is once.

        Raises DeviceError for areas that cannot be; the others are not pinned any more then.
        """
        failed: list[str] = []
        while self._pinned:
            address = self._pinned.pop()
            try:
                status = self._registry.unregister(address)
            except Exception as error:
                failed.append(f"{address:#x} ({error})")
            else:
                if status:
                    failed.append(f"{address:#x} ({status})")
        if failed:
            raise DeviceError(f"host memory stays pinned, as the runtime says: {', '.join(failed)}")
