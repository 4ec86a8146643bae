"""Which bytes an operation touches: rows of either side, and of each row a set of bytes.

A set of bytes is an int, bit i for byte i of the row: what two have in common is their `&`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kvoffload.copying.places import RowBytes, Side
from kvoffload.copying.plans import CopyPlan, Direction

if TYPE_CHECKING:
    from kvoffload.canonical.pages import CopyRun


class Touch(NamedTuple):
    """One row that an operation reads or writes, and the set of its bytes."""

    side: Side
    tensor: int
    row: int
    byte_set: int
    writes: bool


def between(start: int, stop: int | None) -> int:
    """The set of bytes [start, stop), or of all from `start`, which no int >= 0 can be."""
    if stop is None:
        return -1 << start
    return ((1 << (stop - start)) - 1) << start if stop > start else 0


def ends_of(byte_set: int) -> tuple[int, int | None]:
    """The first byte of a set that is not empty, and the one after its last, if it has one."""
    start = (byte_set & -byte_set).bit_length() - 1
    return start, None if byte_set < 0 else byte_set.bit_length()


def declared(reads: Iterable[RowBytes], writes: Iterable[RowBytes]) -> Iterator[Touch]:
    """What a kernel touches, as its caller says."""
    for rows, is_written in ((reads, False), (writes, True)):
        for one in rows:
            yield Touch(one.side, one.tensor, one.row, between(one.start, one.stop), is_written)


def touches_of(plan: CopyPlan) -> Iterator[Touch]:
    """What a copy touches: rows of the one side are read, of the other written."""
    is_store = plan.direction is Direction.STORE
    # Layers of a group share their arrays, and often their runs.
    for page in plan.pages:
        near, far = _bytes_of_runs(page.runs)
        for gpu_row, host_row in zip(page.gpu_rows.tolist(), page.host_rows.tolist(), strict=True):
            yield Touch(Side.GPU, page.tensor, gpu_row, near, not is_store)
            yield Touch(Side.HOST, page.tensor, host_row, far, is_store)


def _bytes_of_runs(runs: Iterable[CopyRun]) -> tuple[int, int]:
    near = far = 0
    for run in runs:
        fragment = between(0, run.fragment_size)
        for i in range(run.num_fragments):
            near |= fragment << (run.local_offset + i * run.local_stride)
            far |= fragment << (run.canonical_offset + i * run.canonical_stride)
    return near, far
