"""Copy plans: what one transfer moves, checked before the first byte does (COPY-1 to 3, COPY-6).

A plan stays compressed: pairs of rows, once for all layers of a group, and the runs of each layer.
Where a device needs addresses, they are written out by numpy, all at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from attrs import frozen

from kvoffload.canonical.pages import CopyRun
from kvoffload.copying.layout import CopyLayout
from kvoffload.errors import (
    BlockOutOfRangeError,
    DoubledDestinationError,
    InvalidValueError,
    PartialChunkError,
    TransferCountError,
)
from kvoffload.transfers import BlockIDsLoadStoreSpec, GPULoadStoreSpec, LoadStoreSpec
from kvoffload.validation import require_each

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    RowNumbers = NDArray[np.int64]


class Direction(Enum):
    """Which way bytes go."""

    STORE = "store"
    LOAD = "load"


@frozen(eq=False)
class PagePlan:
    """The copies of one layer: row `gpu_rows[i]` and row `host_rows[i]` of a tensor, by `runs`.

    Both arrays have shape (n,) and int64, and may be those of other layers too.
    """

    tensor: int
    gpu_rows: RowNumbers
    host_rows: RowNumbers
    runs: tuple[CopyRun, ...]

    @property
    def num_fragments(self) -> int:
        """Contiguous pieces that are copied."""
        return len(self.gpu_rows) * sum(run.num_fragments for run in self.runs)

    @property
    def num_bytes(self) -> int:
        """Bytes that are copied."""
        page = sum(run.fragment_size * run.num_fragments for run in self.runs)
        return len(self.gpu_rows) * page


class Addresses(NamedTuple):
    """A plan written out: piece i is `size[i]` bytes, from `source[i]` to `target[i]`; int64."""

    source: RowNumbers
    target: RowNumbers
    size: RowNumbers


class Memory(NamedTuple):
    """Where a tensor's rows are: the address of the first, and bytes from one to the next."""

    address: int
    row_step: int


@frozen(eq=False)
class CopyPlan:
    """One transfer: the copies of every layer, in the direction that bytes go."""

    direction: Direction
    pages: tuple[PagePlan, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes that are copied."""
        return sum(page.num_bytes for page in self.pages)

    @property
    def num_fragments(self) -> int:
        """Contiguous pieces that are copied."""
        return sum(page.num_fragments for page in self.pages)

    def require_inside(
        self, gpu: Sequence[tuple[int, ...]], host: Sequence[tuple[int, ...]]
    ) -> None:
        """Raise BlockOutOfRangeError unless all of it lies in memory of these shapes (COPY-3).

        `gpu[t]` and `host[t]` are (rows, bytes a row) of the two sides of tensor t: what there
        really is, which a layout may be wrong about.
        """
        # Layers of a group share their arrays of row numbers.
        bounds: dict[int, tuple[int, int]] = {}
        for page in self.pages:
            ends = max((run.local_end for run in page.runs), default=0)
            host_ends = max((run.canonical_end for run in page.runs), default=0)
            for side, shapes, numbers, end in (
                ("on the GPU", gpu, page.gpu_rows, ends),
                ("in host memory", host, page.host_rows, host_ends),
            ):
                if not len(numbers):
                    continue
                if id(numbers) not in bounds:
                    bounds[id(numbers)] = int(numbers.min()), int(numbers.max())
                first, last = bounds[id(numbers)]
                if not 0 <= page.tensor < len(shapes):
                    raise BlockOutOfRangeError(
                        f"tensor {page.tensor} of {len(shapes)} {side}: there is none"
                    )
                num_rows, size = shapes[page.tensor]
                if first < 0 or last >= num_rows or end > size:
                    raise BlockOutOfRangeError(
                        f"rows {first} to {last} of tensor {page.tensor} {side}, {end} bytes of "
                        f"each; there are {num_rows} rows of {size} bytes"
                    )

    def written_out(self, gpu: Sequence[Memory], host: Sequence[Memory]) -> Addresses:
        """Every piece's addresses, where tensor t lies at `gpu[t]` and `host[t]`.

        Layer by layer, run by run; within a run block by block, its fragments in order.
        """
        import numpy as np

        total = self.num_fragments
        near, far, size = (np.empty(total, dtype=np.int64) for _ in range(3))
        at = 0
        for page in self.pages:
            gpu_base = gpu[page.tensor].address + page.gpu_rows * gpu[page.tensor].row_step
            host_base = host[page.tensor].address + page.host_rows * host[page.tensor].row_step
            for run in page.runs:
                steps = np.arange(run.num_fragments, dtype=np.int64)
                end = at + len(gpu_base) * run.num_fragments
                shape = (len(gpu_base), run.num_fragments)
                np.add.outer(
                    gpu_base + run.local_offset,
                    steps * run.local_stride,
                    out=near[at:end].reshape(shape),
                )
                np.add.outer(
                    host_base + run.canonical_offset,
                    steps * run.canonical_stride,
                    out=far[at:end].reshape(shape),
                )
                size[at:end] = run.fragment_size
                at = end
        if self.direction is Direction.STORE:
            return Addresses(near, far, size)
        return Addresses(far, near, size)


def plan_store(
    layout: CopyLayout,
    source: GPULoadStoreSpec,
    target: BlockIDsLoadStoreSpec,
    *,
    null_blocks: Mapping[int, Collection[int]] | None = None,
) -> CopyPlan:
    """Plan the way of `source`'s blocks into the slots of `target`.

    `null_blocks[g]` are the logical blocks of group g that hold nothing: where a store covers part
    of a chunk, the rest must be among them (PartialChunkError, COPY-6). Only rows whose turn it is
    to be written by this worker are copied (MAP-3). Raises TransferCountError,
    BlockOutOfRangeError or DoubledDestinationError for specs that do not fit, InvalidValueError
    for what is no such spec.
    """
    _require_null_blocks(null_blocks)
    pairs = list(_pairs(layout, of_blocks("source", source), of_slots("target", target)))
    _require_whole_chunks(layout, pairs, null_blocks or {})
    _require_distinct(layout, pairs, Direction.STORE)
    return CopyPlan(Direction.STORE, tuple(_pages(layout, pairs, elected_only=True)))


def plan_load(
    layout: CopyLayout, source: BlockIDsLoadStoreSpec, target: GPULoadStoreSpec
) -> CopyPlan:
    """Plan the way of the slots of `source` into `target`'s blocks.

    Raises TransferCountError, BlockOutOfRangeError or DoubledDestinationError for specs that do
    not fit, InvalidValueError for what is no such spec.
    """
    pairs = list(_pairs(layout, of_blocks("target", target), of_slots("source", source)))
    _require_distinct(layout, pairs, Direction.LOAD)
    return CopyPlan(Direction.LOAD, tuple(_pages(layout, pairs, elected_only=False)))


def of_blocks(name: str, spec: LoadStoreSpec) -> GPULoadStoreSpec:
    """A spec of blocks on the GPU. Raises InvalidValueError for another."""
    if not isinstance(spec, GPULoadStoreSpec):
        raise InvalidValueError(name, spec, "a spec of blocks on the GPU")
    return spec


def of_slots(name: str, spec: LoadStoreSpec) -> BlockIDsLoadStoreSpec:
    """A spec of slots in host memory. Raises InvalidValueError for another."""
    if not isinstance(spec, BlockIDsLoadStoreSpec) or isinstance(spec, GPULoadStoreSpec):
        raise InvalidValueError(name, spec, "a spec of slots")
    return spec


def _require_null_blocks(null_blocks: Mapping[int, Collection[int]] | None) -> None:
    if null_blocks is None:
        return
    if not isinstance(null_blocks, Mapping):
        raise InvalidValueError("null_blocks", null_blocks, "blocks by the number of their group")
    require_each("null_blocks", null_blocks.values(), Collection)


class _Pairs(NamedTuple):
    """The blocks of one group: rows on both sides, and where it begins in its request."""

    group: int
    first_block: int
    gpu_rows: RowNumbers
    host_rows: RowNumbers


def _pairs(
    layout: CopyLayout, gpu: GPULoadStoreSpec, host: BlockIDsLoadStoreSpec
) -> Iterator[_Pairs]:
    """Which rows face each other, group by group (COPY-2)."""
    import numpy as np

    if len(gpu.group_sizes) != len(layout.groups):
        raise TransferCountError(
            f"{len(gpu.group_sizes)} groups in the transfer, {len(layout.groups)} in the layout"
        )
    factor = layout.blocks_per_chunk
    skips = [index % factor for index in gpu.block_indices]
    chunks = [
        -(-(skip + size) // factor) if size else 0
        for skip, size in zip(skips, gpu.group_sizes, strict=True)
    ]
    if sum(chunks) != len(host.block_ids):
        raise TransferCountError(
            f"{len(host.block_ids)} slots for blocks that lie in {sum(chunks)} chunks: groups of "
            f"{list(gpu.group_sizes)} blocks begin {skips} blocks into chunks of {factor}"
        )
    blocks = gpu.block_ids.astype(np.int64)
    slots = host.block_ids.astype(np.int64)
    at_block = at_slot = 0
    for group, (size, skip, num_chunks) in enumerate(
        zip(gpu.group_sizes, skips, chunks, strict=True)
    ):
        own = slots[at_slot : at_slot + num_chunks]
        place = np.arange(skip, skip + size, dtype=np.int64)
        host_rows = own[place // factor] * factor + place % factor
        gpu_rows = blocks[at_block : at_block + size]
        _require_range(layout, group, gpu_rows, own)
        yield _Pairs(group, gpu.block_indices[group], gpu_rows, host_rows)
        at_block += size
        at_slot += num_chunks


def _require_range(layout: CopyLayout, group: int, blocks: RowNumbers, slots: RowNumbers) -> None:
    """Ids are never negative: specs refuse that."""
    for page in layout.groups[group]:
        gpu, host = layout.gpu[page.tensor], layout.host[page.tensor]
        num_slots = host.num_rows // layout.blocks_per_chunk
        for what, ids, limit in (("block", blocks, gpu.num_rows), ("slot", slots, num_slots)):
            if len(ids) and int(ids.max()) >= limit:
                raise BlockOutOfRangeError(
                    f"group {group}: {what} {int(ids.max())} is not below the {limit} that tensor "
                    f"{page.tensor} has"
                )


def _require_whole_chunks(
    layout: CopyLayout, pairs: Sequence[_Pairs], null_blocks: Mapping[int, Collection[int]]
) -> None:
    factor = layout.blocks_per_chunk
    for one in pairs:
        if not len(one.gpu_rows):
            continue
        end = one.first_block + len(one.gpu_rows)
        before = range(one.first_block - one.first_block % factor, one.first_block)
        after = range(end, end + -end % factor)
        known = null_blocks.get(one.group, ())
        left_out = [block for block in (*before, *after) if block not in known]
        if left_out:
            raise PartialChunkError(
                f"group {one.group}: blocks [{one.first_block}, {end}) cover part of a chunk of "
                f"{factor}, and blocks {left_out} are not known to hold nothing"
            )


def _require_distinct(layout: CopyLayout, pairs: Sequence[_Pairs], direction: Direction) -> None:
    """No row of any tensor is written twice; groups may share tensors."""
    import numpy as np

    of_tensor: dict[int, list[RowNumbers]] = {}
    for one in pairs:
        rows = one.host_rows if direction is Direction.STORE else one.gpu_rows
        for tensor in {page.tensor for page in layout.groups[one.group]}:
            of_tensor.setdefault(tensor, []).append(rows)
    # The same arrays are there for every layer of a group; each combination is looked at once.
    seen: set[tuple[int, ...]] = set()
    for tensor, arrays in of_tensor.items():
        which = tuple(id(array) for array in arrays)
        if which in seen:
            continue
        seen.add(which)
        rows, counts = np.unique(np.concatenate(arrays), return_counts=True)
        if len(rows) and int(counts.max()) > 1:
            row = int(rows[counts > 1][0])
            what = "block" if direction is Direction.LOAD else "row"
            raise DoubledDestinationError(
                f"{direction.value}: {what} {row} of tensor {tensor} would be written "
                f"{int(counts.max())} times"
            )


def _pages(
    layout: CopyLayout, pairs: Sequence[_Pairs], *, elected_only: bool
) -> Iterator[PagePlan]:
    for one in pairs:
        elected: dict[tuple[int, int], tuple[RowNumbers, RowNumbers]] = {}
        for page in layout.groups[one.group]:
            turn = (page.num_writers, page.writer_index) if elected_only else (1, 0)
            if turn not in elected:
                elected[turn] = _elected(one, *turn)
            gpu_rows, host_rows = elected[turn]
            if len(gpu_rows):
                yield PagePlan(page.tensor, gpu_rows, host_rows, page.runs)


def _elected(pairs: _Pairs, num_writers: int, writer_index: int) -> tuple[RowNumbers, RowNumbers]:
    """The rows that are this worker's turn (MAP-3)."""
    if num_writers == 1:
        return pairs.gpu_rows, pairs.host_rows
    mine = pairs.host_rows % num_writers == writer_index
    return pairs.gpu_rows[mine], pairs.host_rows[mine]
