"""What memory must hold after transfers and kernels, one after another, as the caller asked.

Right because it does what the words say, byte by byte and at once: block `first + j` of a group
goes to sub-block `(first + j) % blocks_per_chunk` of the slot of its chunk, fragment i of a run
lies i strides behind the offset (COPY-1, COPY-2, MAP-1), and a worker stores the rows that are its
turn (MAP-3). It knows nothing of plans, streams or threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from kvoffload.canonical.pages import CopyRun
from kvoffload.copying.places import Side

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


class Page(NamedTuple):
    """What of a layer's page is copied: the runs have the GPU on their local side.

    Of `num_writers` workers that keep the same bytes, number `writer_index` stores host row r if
    r % num_writers == writer_index.
    """

    tensor: int
    runs: tuple[CopyRun, ...]
    num_writers: int
    writer_index: int


class Layout(NamedTuple):
    """The pages of a block of each group, and the rows of a slot."""

    groups: tuple[tuple[Page, ...], ...]
    blocks_per_chunk: int


class Place(NamedTuple):
    """A row."""

    side: Side
    tensor: int
    row: int


@frozen
class Transfer:
    """Blocks and slots of one transfer, group after group: as in the specs of SPECS-1."""

    blocks: tuple[int, ...]
    sizes: tuple[int, ...]
    firsts: tuple[int, ...]
    slots: tuple[int, ...]


class RowPair(NamedTuple):
    """A page of a transfer, and the rows that it has on both sides."""

    page: Page
    block: int
    host_row: int


def pairs_of(layout: Layout, transfer: Transfer) -> Iterator[RowPair]:
    """Which rows face each other."""
    factor = layout.blocks_per_chunk
    blocks, slots = list(transfer.blocks), list(transfer.slots)
    for pages, size, first in zip(layout.groups, transfer.sizes, transfer.firsts, strict=True):
        slot_of_chunk: dict[int, int] = {}
        for logical in range(first, first + size):
            chunk = logical // factor
            if chunk not in slot_of_chunk:
                slot_of_chunk[chunk] = slots.pop(0)
            row = slot_of_chunk[chunk] * factor + logical % factor
            block = blocks.pop(0)
            for page in pages:
                yield RowPair(page, block, row)


def num_slots_needed(blocks_per_chunk: int, size: int, first: int) -> int:
    """How many chunks the blocks of a group lie in."""
    return len({logical // blocks_per_chunk for logical in range(first, first + size)})


@define(eq=False)
class RowState:
    """A row: its bytes, which of them are known, and who wrote there last."""

    content: Bytes
    known: Flags
    writer: int | None = None

    def copy(self) -> RowState:
        """As it is now."""
        return RowState(self.content.copy(), self.known.copy(), self.writer)


class ExpectedMemory:
    """Both sides; `state[place]` is what a row must hold."""

    def __init__(self, layout: Layout, gpu: Sequence[Bytes], host: Sequence[Bytes]) -> None:
        self.layout: Layout = layout
        self._covered: dict[tuple[Side, int], Flags] = {}
        self.state: dict[Place, RowState] = {
            Place(side, tensor, row): RowState(content.copy(), np.ones(len(content), dtype=bool))
            for side, arrays in ((Side.GPU, gpu), (Side.HOST, host))
            for tensor, array in enumerate(arrays)
            for row, content in enumerate(array)
        }
        # What any row has ever held of its pages, by tensor, and which rows those were.
        self._held: dict[tuple[int, bytes], list[Place]] = {}
        for place in self.state:
            self._remember(place)

    def write(self, place: Place, content: Bytes, writer: int) -> None:
        """A kernel writes a row."""
        state = self.state[place]
        state.content[:] = content
        state.known[:] = True
        state.writer = writer
        self._remember(place)

    def copy(self, transfer: Transfer, *, is_store: bool, writer: int, fails: bool) -> int:
        """A transfer; the bytes moved. What one that fails has written is not known."""
        moved = 0
        sources = self._sources(transfer, is_store=is_store)
        for pair, (source, source_known) in zip(
            pairs_of(self.layout, transfer), sources, strict=True
        ):
            page = pair.page
            if is_store and pair.host_row % page.num_writers != page.writer_index:
                continue
            side, row = (Side.HOST, pair.host_row) if is_store else (Side.GPU, pair.block)
            place = Place(side, page.tensor, row)
            target = self.state[place]
            target.writer = writer
            for run in page.runs:
                for i in range(run.num_fragments):
                    near = run.local_offset + i * run.local_stride
                    far = run.canonical_offset + i * run.canonical_stride
                    here, there = (near, far) if is_store else (far, near)
                    size = run.fragment_size
                    known = source_known[here : here + size] & (not fails)
                    target.content[there : there + size] = source[here : here + size]
                    target.known[there : there + size] = known
                    moved += size
            self._remember(place)
        return moved

    def origin(self, place: Place, seen: Bytes) -> Place | None:
        """Another row that the pages seen in this one have ever been in, if there is one."""
        held = self._held.get((place.tensor, seen[self.covered(place)].tobytes()), ())
        return next((one for one in held if one != place), None)

    def _remember(self, place: Place) -> None:
        held = self.state[place].content[self.covered(place)].tobytes()
        self._held.setdefault((place.tensor, held), []).append(place)

    def _sources(self, transfer: Transfer, *, is_store: bool) -> list[tuple[Bytes, Flags]]:
        """What the rows that are read hold before any is written."""
        side = Side.GPU if is_store else Side.HOST
        found: list[tuple[Bytes, Flags]] = []
        for pair in pairs_of(self.layout, transfer):
            row = pair.block if is_store else pair.host_row
            state = self.state[Place(side, pair.page.tensor, row)]
            found.append((state.content.copy(), state.known.copy()))
        return found

    def places(self, transfer: Transfer, *, is_store: bool) -> tuple[set[Place], set[Place]]:
        """The rows that a transfer reads, and those that it writes."""
        near: set[Place] = set()
        far: set[Place] = set()
        for page, block, host_row in pairs_of(self.layout, transfer):
            if is_store and host_row % page.num_writers != page.writer_index:
                continue
            near.add(Place(Side.GPU, page.tensor, block))
            far.add(Place(Side.HOST, page.tensor, host_row))
        return (near, far) if is_store else (far, near)

    def faces(self, transfer: Transfer) -> set[Place]:
        """The rows on both sides that its blocks have, whoever's turn it is to store them."""
        found: set[Place] = set()
        for page, block, host_row in pairs_of(self.layout, transfer):
            found.add(Place(Side.GPU, page.tensor, block))
            found.add(Place(Side.HOST, page.tensor, host_row))
        return found

    def covered(self, place: Place) -> Flags:
        """The bytes of a row that belong to any page."""
        key = place.side, place.tensor
        if key not in self._covered:
            found = np.zeros_like(self.state[place].known)
            for pages in self.layout.groups:
                for page in pages:
                    if page.tensor == place.tensor:
                        found |= flags_of(page, place.side, len(found))
            self._covered[key] = found
        return self._covered[key]


def flags_of(page: Page, side: Side, size: int) -> Flags:
    """The bytes of a row of `size` that belong to a page."""
    found = np.zeros(size, dtype=bool)
    for run in page.runs:
        for i in range(run.num_fragments):
            near = run.local_offset + i * run.local_stride
            far = run.canonical_offset + i * run.canonical_stride
            start = near if side is Side.GPU else far
            found[start : start + run.fragment_size] = True
    return found
