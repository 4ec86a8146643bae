"""The caller's books: which jobs there are, what each touches, and what was said of it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from attrs import define, field

from kvoffload import TransferResult
from kvoffload.copying.graph import Operation
from kvoffload.copying.layout import CopyLayout
from stateful_models.models.worker import Bytes, Layout, Page, Place
from stateful_models.workers.blame import Blame
from stateful_models.workers.subject import Scene


@define(eq=False)
class Job:
    """A job that was taken: its lane, the rows that it touches, and what was said of it.

    `faces` are the rows that its blocks and slots name, another worker's turn or not. `copies` are
    what was enqueued while it was submitted.
    """

    number: int
    lane: str
    reads: set[Place]
    writes: set[Place]
    faces: set[Place]
    may_fail: bool
    copies: list[Operation]
    num_bytes: int = 0
    is_done: bool = False
    is_reported: bool = False

    def conflicts(self, reads: Collection[Place], writes: Collection[Place]) -> bool:
        """Whether these accesses meet its own, one of two writing."""
        return not (
            self.writes.isdisjoint(reads)
            and self.writes.isdisjoint(writes)
            and self.reads.isdisjoint(writes)
        )


@define(eq=False)
class Books:
    """What was asked, in order. Jobs and kernels have numbers of their own, from 1."""

    jobs: dict[int, Job] = field(factory=dict)
    num_kernels: int = 0
    has_failed: bool = False
    wrong_reads: list[tuple[str, Place]] = field(factory=list)

    @property
    def under_way(self) -> list[Job]:
        """Jobs that nobody was told are done."""
        return [job for job in self.jobs.values() if not job.is_done]

    def take_report(self, result: TransferResult) -> Blame | None:
        """Note that a job was reported; what is wrong with that (COPY-4)."""
        job = self.jobs.get(result.job_id)
        if job is None:
            return Blame("COPY-4", f"job {result.job_id} was reported and never submitted")
        if job.is_reported:
            return Blame("COPY-4", f"job {job.number} was reported twice")
        earlier = [
            one.number
            for one in self.jobs.values()
            if one.lane == job.lane and one.number < job.number and not one.is_reported
        ]
        if earlier:
            return Blame(
                "COPY-4",
                f"job {job.number} was reported before jobs {earlier} of its lane ({job.lane})",
            )
        job.is_reported = True
        if not result.success:
            # A failure is no excuse for others, but who is careful after one is let off.
            if self.has_failed:
                return None
            return Blame("COPY-4", f"job {job.number} was reported as failed, and nothing failed")
        if job.may_fail and job.num_bytes:
            return Blame("COPY-4", f"job {job.number} was reported as good, and its copy failed")
        if result.transfer_size not in (None, job.num_bytes):
            return Blame(
                "COPY-4",
                f"job {job.number} reports {result.transfer_size} bytes, "
                f"and {job.num_bytes} were to be moved",
            )
        return None


def described(layout: CopyLayout) -> Layout:
    """A layout in the words of the oracle."""
    return Layout(
        tuple(
            tuple(
                Page(page.tensor, page.runs, page.num_writers, page.writer_index) for page in pages
            )
            for pages in layout.groups
        ),
        layout.blocks_per_chunk,
    )


def memory(scene: Scene) -> tuple[list[Bytes], list[Bytes]]:
    """Rows of which no two have the same bytes."""
    sides: list[list[Bytes]] = []
    for number, side in enumerate((scene.layout.gpu, scene.layout.host)):
        arrays: list[Bytes] = []
        for tensor, rows in enumerate(side):
            size = rows.row_size_bytes + scene.padding
            first = 129 + 64 * number + 24 * tensor
            arrays.append(np.stack([content(first + row, size) for row in range(rows.num_rows)]))
        sides.append(arrays)
    return sides[0], sides[1]


def content(number: int, size: int) -> Bytes:
    """Bytes by which a row is known: those of other numbers differ in every byte."""
    return np.array([(i * 167 + number * 101) % 256 for i in range(size)], dtype=np.uint8)
