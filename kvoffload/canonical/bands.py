"""Copies between two configurations as bands from page to page (extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kvoffload.canonical.drawing import LINE, SMALL, Box, Sheet
from kvoffload.canonical.report import Configuration, Target
from kvoffload.canonical.resharding import PageCopy
from kvoffload.wording import counted

# Width of a worker's page.
_PAGE: Final = 0.9
# Share of the height that is between the pages of one side, and the most between two of them.
_BETWEEN, _GAP = 0.12, 0.35


def draw_copies(
    sheet: Sheet, box: Box, source: Configuration, target: Target, max_ranks: int
) -> None:
    """The first `max_ranks` pages of either side, and a band for each copy between these.

    Pages and bands are as high as they have bytes; the bands of a page that is read more than
    once share its height.
    """
    other = target.configuration
    scale = min(_scale(side, box.height, max_ranks) for side in (source, other))
    left = _stacked(source, box, box.left, scale, max_ranks)
    right = _stacked(other, box, box.right - _PAGE, scale, max_ranks)
    copies = [
        copy for copy in target.copies if copy.source_rank in left and copy.target_rank in right
    ]
    leaving = _shared(left, source, {copy: copy.source_rank for copy in copies})
    coming = _shared(right, other, {copy: copy.target_rank for copy in copies})
    for copy in copies:
        start, end = leaving[copy], coming[copy]
        gid = f"copy-{copy.source_rank}-{copy.target_rank}"
        sheet.band(start, end, copy.source_rank, gid)
        if start.height >= LINE:
            text = f"{copy.num_bytes:,} bytes in {counted(len(copy.runs), 'run')}"
            middle = start.top + start.height / 2
            sheet.text(start.right + 0.15, middle, text, size=SMALL, down="center")
    read = {copy.source_rank for copy in copies}
    for rank, page in left.items():
        pale = rank not in read
        sheet.block(page, rank, f"from-{rank}", pale=pale)
        names = (f"rank {rank}", str(rank))
        sheet.label(page, ("not read", "-") if pale else names, None if pale else rank)
        if pale:
            middle = page.top + page.height / 2
            sheet.text(page.left - 0.06, middle, str(rank), across="right", down="center")
    for rank, page in right.items():
        sheet.block(page, rank, f"to-{rank}")
        sheet.label(page, (f"rank {rank}", str(rank)), rank)


def _scale(side: Configuration, height: float, max_ranks: int) -> float:
    """Inches a byte that make the pages of a side fill the height."""
    number = min(max_ranks, len(side.mappings))
    share = 1 - _BETWEEN if number > 1 else 1
    return height * share / (number * side.mappings[0].local_page_size_bytes)


def _stacked(
    side: Configuration, box: Box, left: float, scale: float, max_ranks: int
) -> Mapping[int, Box]:
    """The pages of one side, by rank, spread over the height."""
    number = min(max_ranks, len(side.mappings))
    height = side.mappings[0].local_page_size_bytes * scale
    gap = min((box.height - number * height) / max(1, number - 1), _GAP)
    top = box.top + (box.height - number * height - (number - 1) * gap) / 2
    return {rank: Box(left, top + rank * (height + gap), _PAGE, height) for rank in range(number)}


def _shared(
    pages: Mapping[int, Box], side: Configuration, copies: Mapping[PageCopy, int]
) -> Mapping[PageCopy, Box]:
    """Each copy's part of the page of the rank that it leaves, or comes to."""
    found: dict[PageCopy, Box] = {}
    for rank, page in pages.items():
        mine: Sequence[PageCopy] = [copy for copy, its_rank in copies.items() if its_rank == rank]
        # A page may be read in part, or several times.
        size = side.mappings[rank].local_page_size_bytes
        in_all = max(size, sum(copy.num_bytes for copy in mine))
        top = page.top
        for copy in mine:
            found[copy] = page._replace(top=top, height=page.height * copy.num_bytes / in_all)
            top = found[copy].bottom
    return found
