"""Host memory: where the slots of a worker are, tensor by tensor."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from kvoffload.copying.layout import Rows
from kvoffload.errors import HostMemoryError, MemoryClosedError
from kvoffload.validation import require_each, require_int

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


class HostMemory(Protocol):
    """The host's side of every tensor of a `CopyLayout`."""

    def rows(self, tensor: int) -> Bytes:
        """The rows of a tensor: shape (rows, bytes a row), uint8, the same bytes at every call.

        They lie one behind the other, the first at a boundary of pages. Raises InvalidValueError
        for a tensor that does not exist, MemoryClosedError after `close`.
        """
        ...

    def close(self) -> None:
        """Give the memory up. Twice is once.

        Arrays that `rows` handed out can still be used: their bytes are released with the last.
        """
        ...


def page_aligned(size: int) -> int:
    """The smallest multiple of the system's page size that is not below `size`."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


@frozen
class RowAreas:
    """Where each tensor's rows lie in one piece of memory: each area begins with a page."""

    rows: tuple[Rows, ...]
    starts: tuple[int, ...]
    end: int

    @classmethod
    def behind(cls, rows: Sequence[Rows], first: int) -> RowAreas:
        """Areas one after another, from byte `first` on, a multiple of the page size."""
        require_each("rows", rows, Rows)
        starts: list[int] = []
        end = first
        for one in rows:
            starts.append(end)
            end += page_aligned(one.num_rows * one.row_size_bytes)
        return cls(tuple(rows), tuple(starts), end)

    def view(self, memory: mmap.mmap, tensor: int) -> Bytes:
        """The rows of a tensor. Raises InvalidValueError for one that does not exist."""
        import numpy as np

        require_int("tensor", tensor, 0, len(self.rows) - 1)
        one = self.rows[tensor]
        shape = one.num_rows, one.row_size_bytes
        return np.ndarray(shape, dtype=np.uint8, buffer=memory, offset=self.starts[tensor])


class PrivateMemory:
    """Host memory of one worker alone. All zeros, and physically there once it is written.

    Raises HostMemoryError for more than the system gives.
    """

    def __init__(self, host: Sequence[Rows]) -> None:
        self._areas = RowAreas.behind(host, 0)
        # At least a page, for nothing cannot be mapped.
        size = max(self._areas.end, mmap.PAGESIZE)
        try:
            self._memory: mmap.mmap | None = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
        except (OSError, OverflowError) as error:
            raise HostMemoryError(
                f"{size} bytes of host memory are not to be had ({error}); lower cpu_bytes_to_use"
            ) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Copies are faster with them; a kernel built without them says no.
            with suppress(OSError):
                self._memory.madvise(mmap.MADV_HUGEPAGE)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors, in whole pages."""
        return self._areas.end

    def rows(self, tensor: int) -> Bytes:
        """The rows of a tensor, as `HostMemory.rows` says."""
        if self._memory is None:
            raise MemoryClosedError("this host memory has been closed")
        return self._areas.view(self._memory, tensor)

    def close(self) -> None:
        """Give the memory up. Twice is once."""
        self._memory = None
