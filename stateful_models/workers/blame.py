"""Which clause wrong bytes speak of, by where they are and whose they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np

from kvoffload.copying.accesses import ends_of
from kvoffload.copying.graph import Operation
from kvoffload.copying.places import RowBytes, Side
from stateful_models.models.worker import (
    Bytes,
    ExpectedMemory,
    Flags,
    Layout,
    Place,
    Transfer,
    flags_of,
    pairs_of,
)


class NamedRows(Protocol):
    """What is known of a job: the rows that it writes, and those of its slots and blocks."""

    @property
    def number(self) -> int:
        """Of the job."""
        ...

    @property
    def writes(self) -> set[Place]:
        """Those that are its own to write."""
        ...

    @property
    def faces(self) -> set[Place]:
        """Those that its blocks have on either side, another worker's turn or not."""
        ...


class Blame(NamedTuple):
    """A clause, and a sentence."""

    clause: str
    message: str


def blame(
    expected: ExpectedMemory, place: Place, seen: Bytes, wrong: Flags, jobs: Iterable[NamedRows]
) -> Blame:
    """What the `wrong` bytes of a row come from; nothing raced for them."""
    jobs = list(jobs)
    state = expected.state[place]
    at = np.flatnonzero(wrong)
    where = str(RowBytes(*place, int(at[0]), int(at[-1]) + 1))
    values = f"expected {_hex(state.content[wrong])}, seen {_hex(seen[wrong])}"
    covered = expected.covered(place)
    if not (wrong & covered).any():
        return Blame("COPY-1", f"{where} belong to no page and have changed: {values}")
    origin = expected.origin(place, seen)
    if any(place in job.writes for job in jobs):
        writer = state.writer or 0
        whose = f"job {writer}" if writer > 0 else f"kernel {-writer}"
        if origin is not None:
            other = f"row {origin.row} {origin.side.value}"
            return Blame(
                "COPY-2", f"{where}, last written by {whose}, hold what was of {other}: {values}"
            )
        return Blame("COPY-1", f"{where}, last written by {whose}, are wrong: {values}")
    if _is_shared(expected.layout, place) and any(place in job.faces for job in jobs):
        return Blame("MAP-3", f"{where} were another worker's to store: {values}")
    if origin is not None or is_of_a_chunk(expected.layout, place, jobs):
        return Blame("COPY-2", f"{where} are where no job puts a block: {values}")
    return Blame("COPY-3", f"{where} are of a page that no job touches: {values}")


def blame_copies(
    expected: ExpectedMemory,
    transfer: Transfer,
    copies: Iterable[Operation],
    job: NamedRows,
    *,
    is_store: bool,
) -> Blame | None:
    """What is wrong with the rows and bytes that a job's copies touch; nothing has run for it."""
    wanted: dict[tuple[Place, bool], int] = {}
    in_turn = False
    for pair in pairs_of(expected.layout, transfer):
        page = pair.page
        if is_store and pair.host_row % page.num_writers != page.writer_index:
            continue
        for side, row in ((Side.GPU, pair.block), (Side.HOST, pair.host_row)):
            place = Place(side, page.tensor, row)
            flags = flags_of(page, side, len(expected.state[place].content))
            key = (place, (side is Side.HOST) is is_store)
            wanted[key] = wanted.get(key, 0) | _set_of(flags)
            in_turn |= is_store and page.num_writers > 1
    touched: dict[tuple[Place, bool], int] = {}
    for copy in copies:
        for touch in copy.touches:
            key = (Place(touch.side, touch.tensor, touch.row), touch.writes)
            touched[key] = touched.get(key, 0) | touch.byte_set
    for place, writes in [one for one in touched if one not in wanted]:
        verb = "writes" if writes else "reads"
        where = f"row {place.row} of tensor {place.tensor} {place.side.value}"
        what = f"job {job.number} {verb} {where}"
        if place in job.faces:
            return Blame("MAP-3", f"{what}, which is another worker's to store")
        if is_of_a_chunk(expected.layout, place, [job]):
            return Blame("COPY-2", f"{what}: a sub-block for which it has no block")
        if writes:
            return Blame("COPY-3", f"{what}, which is not of its blocks or slots")
    if in_turn and not touched:
        return Blame("MAP-3", f"job {job.number} stores nothing, and it is this worker's turn")
    for (place, writes), byte_set in wanted.items():
        seen = touched.get((place, writes), 0)
        if seen != byte_set:
            start, stop = ends_of(seen ^ byte_set)
            more = "touches" if seen & ~byte_set else "does not touch"
            return Blame("COPY-1", f"job {job.number} {more} {RowBytes(*place, start, stop)}")
    return None


def is_of_a_chunk(layout: Layout, place: Place, jobs: Iterable[NamedRows]) -> bool:
    """Whether a row of host memory is of a chunk to which a job's blocks go."""
    factor = layout.blocks_per_chunk
    return place.side is Side.HOST and any(
        (one.side, one.row // factor) == (Side.HOST, place.row // factor)
        for job in jobs
        for one in job.faces
    )


def _is_shared(layout: Layout, place: Place) -> bool:
    """Whether several workers take turns to store a row."""
    return place.side is Side.HOST and any(
        page.tensor == place.tensor and page.num_writers > 1
        for pages in layout.groups
        for page in pages
    )


def _set_of(flags: Flags) -> int:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def _hex(content: Bytes) -> str:
    return content.tobytes().hex(" ")
