"""What an ordered device finds beside races: reuse, and accesses outside of what there is."""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from kvoffload.copying.graph import EventReuse, Operation, StreamReuse
from kvoffload.copying.places import RowBytes
from kvoffload.copying.races import Race


@frozen
class RowsChanged:
    """The row numbers of a copy changed between its submission and its execution (ORD-2)."""

    operation: Operation
    clause: str = "ORD-2"

    def __str__(self) -> str:
        return (
            f"ORD-2: the rows of {self.operation} were changed after it was enqueued and before "
            "it ran; the device reads them only then"
        )


@frozen
class StrayAccess:
    """An operation would leave the memory that there is (COPY-3)."""

    operation: Operation
    place: RowBytes
    limit: str
    clause: str = "COPY-3"

    def __str__(self) -> str:
        return f"COPY-3: {self.operation} touches {self.place}, which has {self.limit}"


Finding: TypeAlias = Race | EventReuse | StreamReuse | RowsChanged | StrayAccess
"""Each has the `clause` that it breaks."""
