"""Places in a worker's memory: rows of either side, and bytes of them."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Side(Enum):
    """Where rows are."""

    GPU = "on the GPU"
    HOST = "in host memory"


class RowBytes(NamedTuple):
    """Bytes [start, stop) of a row of a tensor; all that the row has for a `stop` of None."""

    side: Side
    tensor: int
    row: int
    start: int = 0
    stop: int | None = None

    def __str__(self) -> str:
        if self.stop is None:
            which = "all bytes" if not self.start else f"all bytes from {self.start} on"
        else:
            which = f"bytes [{self.start}, {self.stop})"
        return f"{which} of row {self.row} of tensor {self.tensor} {self.side.value}"
