"""What is on trial: something that moves blocks, on a device and in memory that it is given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol, TypeAlias

from attrs import frozen

from kvoffload import CopyRun, CPULoadStoreSpec, GPULoadStoreSpec, TransferResult
from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
from kvoffload.copying.ordered import OrderedDevice


class CopyingWorker(Protocol):
    """The part of a worker that moves bytes; `kvoffload.copying.worker.CopyWorker` is one.

    One without partial stores or an expedited lane takes the keyword and may ignore `expedited`.
    """

    def submit_store(
        self,
        job_id: int,
        src_spec: GPULoadStoreSpec,
        dst_spec: CPULoadStoreSpec,
        *,
        null_blocks: Mapping[int, Collection[int]] | None = None,
    ) -> bool:
        """Start a copy from blocks to slots; whether the job was taken."""
        ...

    def submit_load(
        self,
        job_id: int,
        src_spec: CPULoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        *,
        expedited: bool = False,
    ) -> bool:
        """Start a copy from slots to blocks; whether the job was taken."""
        ...

    def get_finished(self) -> list[TransferResult]:
        """Jobs that finished since the last call."""
        ...

    def wait(self, job_ids: set[int]) -> None:
        """Return when the jobs are done."""
        ...

    def shutdown(self) -> None:
        """Finish what was taken."""
        ...


MakeWorker: TypeAlias = Callable[[CopyLayout, OrderedDevice], CopyingWorker]


@frozen
class Scene:
    """Memory for a trial: a layout, and bytes at the end of each row that no page has."""

    name: str
    layout: CopyLayout
    padding: int = 2

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _whole(tensor: int, size: int) -> PageRuns:
    return PageRuns(tensor, (CopyRun(0, 0, size, 1, size, size),))


_NUM_BLOCKS: Final = 7
_NUM_SLOTS: Final = 6

SCENES: Final = (
    Scene(
        "one page a block, one block a chunk",
        CopyLayout(
            gpu=[Rows(_NUM_BLOCKS, 4)], host=[Rows(_NUM_SLOTS, 4)], groups=((_whole(0, 4),),)
        ),
    ),
    Scene(
        "two blocks a chunk",
        CopyLayout(
            gpu=[Rows(_NUM_BLOCKS, 4)],
            host=[Rows(_NUM_SLOTS * 2, 4)],
            groups=((_whole(0, 4),),),
            blocks_per_chunk=2,
        ),
    ),
    Scene(
        "two groups, three blocks a chunk",
        CopyLayout(
            gpu=[Rows(_NUM_BLOCKS, 4), Rows(_NUM_BLOCKS, 3)],
            host=[Rows(_NUM_SLOTS * 3, 4), Rows(_NUM_SLOTS * 3, 3)],
            groups=((_whole(0, 4),), (_whole(0, 4), _whole(1, 3))),
            blocks_per_chunk=3,
        ),
    ),
    Scene(
        "every second block is this rank's to store, in fragments",
        CopyLayout(
            gpu=[Rows(_NUM_BLOCKS, 6)],
            host=[Rows(_NUM_SLOTS * 2, 12)],
            groups=((PageRuns(0, (CopyRun(0, 2, 2, 3, 2, 4),), 2, 1),),),
            blocks_per_chunk=2,
            canonical=True,
        ),
    ),
)
"""Few blocks and few slots, so that transfers meet."""
