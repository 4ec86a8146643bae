"""Workers that move other bytes than they were asked to, or take what they must refuse (COPY)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import numpy as np
from attrs import evolve
from typing_extensions import override

from kvoffload import CopyRun, CPULoadStoreSpec, GPULoadStoreSpec, LoadStoreSpec
from kvoffload.copying.graph import Stream
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ordered import OrderedDevice, OrderedEvent
from kvoffload.copying.plans import CopyPlan, Direction, PagePlan
from kvoffload.copying.worker import CopyWorker
from kvoffload.transfers import BlockIDsLoadStoreSpec
from stateful_models.gallery.broken_workers.base import BrokenWorker, planning
from stateful_models.workers.subject import CopyingWorker, MakeWorker


def _pages(change: Callable[[PagePlan], PagePlan]) -> MakeWorker:
    def changed(plan: CopyPlan, device: OrderedDevice) -> CopyPlan:
        return evolve(plan, pages=tuple(map(change, plan.pages)))

    return planning(changed)


def _runs(change: Callable[[CopyRun], CopyRun]) -> MakeWorker:
    return _pages(lambda page: evolve(page, runs=tuple(map(change, page.runs))))


def _lone(run: CopyRun, more: int) -> CopyRun:
    """A run of one fragment that is longer by some bytes."""
    return run if run.num_fragments > 1 else evolve(run, fragment_size=run.fragment_size + more)


def _with_padding(run: CopyRun) -> CopyRun:
    return _lone(run, 2)


def _past_the_row(run: CopyRun) -> CopyRun:
    return _lone(run, 8)


def _short(run: CopyRun) -> CopyRun:
    return evolve(run, fragment_size=run.fragment_size - 1) if run.fragment_size > 1 else run


def _gapless(run: CopyRun) -> CopyRun:
    return evolve(run, canonical_stride=run.local_stride)


def _without_the_last(page: PagePlan) -> PagePlan:
    end = max(1, len(page.gpu_rows) - 1)
    return evolve(page, gpu_rows=page.gpu_rows[:end], host_rows=page.host_rows[:end])


def _twisted(page: PagePlan) -> PagePlan:
    return evolve(page, host_rows=page.host_rows[::-1])


class _Rewriting(CopyWorker[Stream, OrderedEvent]):
    """The reference, with specs that are rewritten before it sees them."""

    def rewritten(
        self, blocks: GPULoadStoreSpec, slots: BlockIDsLoadStoreSpec, direction: Direction
    ) -> tuple[GPULoadStoreSpec, BlockIDsLoadStoreSpec]:
        """What it sees."""
        return blocks, slots

    @override
    def submit_store(
        self,
        job_id: int,
        src_spec: GPULoadStoreSpec,
        dst_spec: LoadStoreSpec,
        *,
        null_blocks: Mapping[int, Collection[int]] | None = None,
    ) -> bool:
        if isinstance(dst_spec, BlockIDsLoadStoreSpec):
            src_spec, dst_spec = self.rewritten(src_spec, dst_spec, Direction.STORE)
        return super().submit_store(job_id, src_spec, dst_spec, null_blocks=null_blocks)

    @override
    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        *,
        expedited: bool = False,
    ) -> bool:
        if isinstance(src_spec, BlockIDsLoadStoreSpec):
            dst_spec, src_spec = self.rewritten(dst_spec, src_spec, Direction.LOAD)
        return super().submit_load(job_id, src_spec, dst_spec, expedited=expedited)

    def num_slots_needed(self, blocks: GPULoadStoreSpec) -> int:
        """The chunks that blocks lie in."""
        factor = self.layout.blocks_per_chunk
        return sum(
            -(-(first % factor + size) // factor) if size else 0
            for size, first in zip(blocks.group_sizes, blocks.block_indices, strict=True)
        )


class _SkipsOnTheWrongSide(_Rewriting):
    """Where a group begins inside a chunk, begins as many blocks later on the GPU as well."""

    @override
    def rewritten(
        self, blocks: GPULoadStoreSpec, slots: BlockIDsLoadStoreSpec, direction: Direction
    ) -> tuple[GPULoadStoreSpec, BlockIDsLoadStoreSpec]:
        ids: list[int] = []
        for size, first in zip(blocks.group_sizes, blocks.block_indices, strict=True):
            own = blocks.block_ids[len(ids) : len(ids) + size].tolist()
            skip = first % self.layout.blocks_per_chunk
            ids += own[skip:] + own[:skip]
        return GPULoadStoreSpec(ids, blocks.group_sizes, blocks.block_indices), slots


class _BeginsAtSubBlockZero(_Rewriting):
    """Puts the first block of a group into the first sub-block of its chunk, always."""

    @override
    def rewritten(
        self, blocks: GPULoadStoreSpec, slots: BlockIDsLoadStoreSpec, direction: Direction
    ) -> tuple[GPULoadStoreSpec, BlockIDsLoadStoreSpec]:
        factor = self.layout.blocks_per_chunk
        firsts = [first - first % factor for first in blocks.block_indices]
        moved = GPULoadStoreSpec(blocks.block_ids, blocks.group_sizes, firsts)
        if self.num_slots_needed(moved) != len(slots.block_ids):
            return blocks, slots
        return moved, slots


class _SpareSlotsIgnored(_Rewriting):
    @override
    def rewritten(
        self, blocks: GPULoadStoreSpec, slots: BlockIDsLoadStoreSpec, direction: Direction
    ) -> tuple[GPULoadStoreSpec, BlockIDsLoadStoreSpec]:
        return blocks, CPULoadStoreSpec(slots.block_ids[: self.num_slots_needed(blocks)])


class _FewSlotsSuffice(_Rewriting):
    """Where slots are missing, moves what there is room for."""

    @override
    def rewritten(
        self, blocks: GPULoadStoreSpec, slots: BlockIDsLoadStoreSpec, direction: Direction
    ) -> tuple[GPULoadStoreSpec, BlockIDsLoadStoreSpec]:
        sizes, ids = list(blocks.group_sizes), blocks.block_ids
        while self.num_slots_needed(blocks) > len(slots.block_ids):
            sizes[max(range(len(sizes)), key=lambda group: (sizes[group] > 0, group))] -= 1
            blocks = GPULoadStoreSpec(ids[: sum(sizes)], sizes, blocks.block_indices)
        return blocks, slots


class _WrapsNumbers(_Rewriting):
    """Numbers that are too large begin again at 0."""

    @override
    def rewritten(
        self, blocks: GPULoadStoreSpec, slots: BlockIDsLoadStoreSpec, direction: Direction
    ) -> tuple[GPULoadStoreSpec, BlockIDsLoadStoreSpec]:
        return (
            GPULoadStoreSpec(
                blocks.block_ids % self.layout.gpu[0].num_rows,
                blocks.group_sizes,
                blocks.block_indices,
            ),
            CPULoadStoreSpec(slots.block_ids % self.layout.num_slots),
        )


class _TakesPartOfAChunk(CopyWorker[Stream, OrderedEvent]):
    """Takes all blocks that it was not given for blocks that hold nothing."""

    @override
    def submit_store(
        self,
        job_id: int,
        src_spec: GPULoadStoreSpec,
        dst_spec: LoadStoreSpec,
        *,
        null_blocks: Mapping[int, Collection[int]] | None = None,
    ) -> bool:
        everything = dict.fromkeys(range(len(src_spec.group_sizes)), range(1000))
        return super().submit_store(job_id, src_spec, dst_spec, null_blocks=everything)


def _fills_the_chunk(layout: CopyLayout, device: OrderedDevice) -> CopyingWorker:
    """Stores the last block of a chunk once more into the sub-block after it."""
    if layout.blocks_per_chunk == 1 or layout.canonical:
        return CopyWorker(layout, device)

    def changed(page: PagePlan) -> PagePlan:
        following = int(page.host_rows[-1]) + 1
        if following % layout.blocks_per_chunk == 0 or following in page.host_rows:
            return page
        return evolve(
            page,
            gpu_rows=np.append(page.gpu_rows, page.gpu_rows[-1]),
            host_rows=np.append(page.host_rows, following),
        )

    def change(plan: CopyPlan, device: OrderedDevice) -> CopyPlan:
        if plan.direction is Direction.LOAD:
            return plan
        return evolve(plan, pages=tuple(map(changed, plan.pages)))

    return planning(change)(layout, device)


def _everybody_stores(layout: CopyLayout, device: OrderedDevice) -> CopyingWorker:
    groups = tuple(
        tuple(evolve(page, num_writers=1, writer_index=0) for page in pages)
        for pages in layout.groups
    )
    return CopyWorker(evolve(layout, groups=groups), device)


def _turns_by_block(layout: CopyLayout, device: OrderedDevice) -> CopyingWorker:
    """Whose turn it is is asked of the other rank's number."""
    groups = tuple(
        tuple(
            evolve(page, writer_index=(page.writer_index + 1) % page.num_writers) for page in pages
        )
        for pages in layout.groups
    )
    return CopyWorker(evolve(layout, groups=groups), device)


BROKEN_MOVES: Final[Mapping[str, BrokenWorker]] = {
    "Copy1PaddingToo": BrokenWorker(
        "COPY-1", "copies the padding of a row with its page", _runs(_with_padding)
    ),
    "Copy1LastBlockMissing": BrokenWorker(
        "COPY-1", "leaves out the last of several blocks", _pages(_without_the_last)
    ),
    "Copy1LastByteMissing": BrokenWorker(
        "COPY-1", "copies fragments without their last byte", _runs(_short)
    ),
    "Copy1StridesOfOneSide": BrokenWorker(
        "COPY-1", "steps through the page in host memory as on the GPU", _runs(_gapless)
    ),
    "Copy2SkipsOnTheWrongSide": BrokenWorker(
        "COPY-2",
        "where a group begins inside a chunk, skips blocks on the GPU too",
        _SkipsOnTheWrongSide,
        ("W1",),
        also=("MAP-3",),
    ),
    "Copy2BeginsAtSubBlockZero": BrokenWorker(
        "COPY-2",
        "begins at the first sub-block of a chunk wherever the group begins",
        _BeginsAtSubBlockZero,
        also=("COPY-4",),
    ),
    "Copy2Backwards": BrokenWorker(
        "COPY-2",
        "fills the sub-blocks of a transfer from its end",
        _pages(_twisted),
        also=("COPY-1",),
    ),
    "Copy2FillsTheChunk": BrokenWorker(
        "COPY-2",
        "stores a block a second time where the chunk holds nothing",
        _fills_the_chunk,
    ),
    "Copy2SpareSlotsIgnored": BrokenWorker(
        "COPY-2", "takes more slots than there are chunks, and ignores the rest", _SpareSlotsIgnored
    ),
    "Copy2FewSlotsSuffice": BrokenWorker(
        "COPY-2", "takes too few slots, and moves what they have room for", _FewSlotsSuffice
    ),
    "Copy3WrapsNumbers": BrokenWorker(
        "COPY-3",
        "takes the numbers of blocks and slots modulo how many there are",
        _WrapsNumbers,
    ),
    "Copy3PastTheRow": BrokenWorker("COPY-3", "copies past the end of a row", _runs(_past_the_row)),
    "Copy6TakesPartOfAChunk": BrokenWorker(
        "COPY-6",
        "stores part of a chunk though nobody said that the rest holds nothing",
        _TakesPartOfAChunk,
    ),
    "Map3EveryRankStores": BrokenWorker(
        "MAP-3", "stores all blocks, also those that are another rank's turn", _everybody_stores
    ),
    "Map3AnotherTurn": BrokenWorker(
        "MAP-3", "stores the blocks of the next rank instead of its own", _turns_by_block
    ),
}
