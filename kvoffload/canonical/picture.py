"""Pictures of layouts (extra `plot`): the canonical page, every worker's page, and copies.

A canonical page is drawn as its grids (`strip`): reading one by rows is walking through memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvoffload.canonical.bands import draw_copies
from kvoffload.canonical.drawing import (
    LARGE,
    LINE,
    SMALL,
    Box,
    PictureFormat,
    Raster,
    Sheet,
    every,
    fits,
    render,
    styled,
)
from kvoffload.canonical.layers import Layer
from kvoffload.canonical.report import Configuration, Target
from kvoffload.canonical.strip import Panel, Rows, Segment, panels, rows_of
from kvoffload.canonical.wording import (
    describe_layer,
    describe_parallel,
    describe_ranks,
    describe_turns,
)
from kvoffload.wording import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PictureFormat", "draw_layout", "render"]

WIDTH: Final = 11.0
# What is beyond is counted and not drawn.
MAX_ROWS, MAX_RANKS = 64, 32
_LEFT, _RIGHT = 0.7, 0.75
_INNER: Final = WIDTH - _LEFT - _RIGHT
# Above the grids: the titles, and the grids' own heads.
_TITLES, _HEAD = 0.85, 0.5
# Between grids, with room for their labels.
_GAP: Final = 1.15
# Pages of workers: how many abreast, what is between them, the most inches, room for their titles.
_ABREAST, _PAGE_GAP, _PAGE_WIDTH, _PAGE_HEIGHT, _PAGE_HEAD = 8, 0.35, 2.5, 1.6, 0.75
# Columns of the page of a worker that keeps one sequence.
_COLUMNS: Final = 4


def draw_layout(
    layer: Layer,
    source: Configuration,
    target: Target | None = None,
    *,
    element: str | None = None,
) -> Figure:
    """The canonical page by rank and each worker's own page; or, with a target, the copies.

    `element` is the type of the layer's elements, for the title. The artists' gids say what they
    are: `rank-3` in the canonical page, `page-3` in that worker's own, `copy-0-3` for a copy,
    `from-0` and `to-3` for the pages at its ends.
    """
    with styled():
        if target is None:
            return _layout(layer, source, element)
        return _copies(layer, source, target, element)


class _Grid(NamedTuple):
    """A panel, the rows of it that are drawn, and how high they are in all."""

    panel: Panel
    rows: tuple[Rows, ...]
    height: float


class _Part(NamedTuple):
    """A worker's cells of a panel, as a grid: what its rows and columns are in the canonical page.

    `columns` is empty where the cells are one sequence, which `rows` then names one by one.
    """

    panel: Panel
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def num_columns(self) -> int:
        return len(self.columns) or min(len(self.rows), _COLUMNS)

    @property
    def num_rows(self) -> int:
        return len(self.rows) if self.columns else -(-len(self.rows) // self.num_columns)


def _layout(layer: Layer, source: Configuration, element: str | None) -> Figure:
    grids = _grids(layer, source)
    high = max(grid.height for grid in grids)
    ranks = source.shown[:MAX_RANKS]
    own = {rank: _own_page(grids, rank) for rank in ranks}
    abreast = min(len(ranks), _ABREAST)
    row_high = 0.17 if any(grid.panel.column is None for grid in grids) else 0.11
    page_high = min(_PAGE_HEIGHT, max(0.4, row_high * max(map(_num_rows, own.values()))))
    line_high = _PAGE_HEAD + page_high
    pages = _TITLES + _HEAD + high + 0.3
    sheet = Sheet(WIDTH, pages + line_high * -(-len(ranks) // abreast) + 0.3)
    _titles(sheet, describe_parallel(source.parallel), layer, source, element)
    _draw_grids(sheet, Box(_LEFT, _TITLES + _HEAD, _INNER, high), grids, source)

    mapping = source.mappings[0]
    whose = "The worker's" if len(source.shown) == 1 else "Each worker's"
    about = f"{whose} own page, {mapping.local_page_size_bytes:,} bytes; numbers are those of the "
    sheet.text(_LEFT, pages, f"{about}canonical page", bold=True)
    if mapping.num_writers > 1:
        striped = "Striped bytes are kept by several workers, which take turns to write them"
        sheet.text(_LEFT, pages + 0.2, f"{striped}: those framed in black write block 0")
    width = (_INNER + _PAGE_GAP) / abreast - _PAGE_GAP
    for place, (rank, parts) in enumerate(own.items()):
        line, column = divmod(place, abreast)
        left = _LEFT + column * (width + _PAGE_GAP)
        top = pages + 0.3 + line * line_high + _PAGE_HEAD - 0.3
        box = Box(left, top, min(width, _PAGE_WIDTH), page_high)
        turns = describe_turns(source.mappings[rank])
        sheet.text(left, top - 0.06, f"rank {rank} writes\n{turns}", size=SMALL, down="bottom")
        _draw_own_page(sheet, box, parts, rank)
        sheet.frame(box, bold=source.mappings[rank].is_writer(0))
    hidden = len(source.shown) - len(ranks)
    if hidden:
        more = f"... {counted(hidden, 'more rank')}"
        sheet.text(WIDTH - _RIGHT, pages, more, bold=True, across="right")
    return sheet.figure


def _copies(layer: Layer, source: Configuration, target: Target, element: str | None) -> Figure:
    other = target.configuration
    sides = [(side, _grids(layer, side)) for side in (source, other)]
    high = max(grid.height for _, grids in sides for grid in grids)
    most = min(MAX_RANKS, max(len(side.mappings) for side, _ in sides))
    top = _TITLES + 0.25 + _HEAD
    bands = Box(_LEFT, top + high + 0.8, _INNER, max(2.2, 0.42 * most))
    sheet = Sheet(WIDTH, bands.bottom + 0.25)
    names = [describe_parallel(side.parallel) for side, _ in sides]
    _titles(sheet, " to ".join(names), layer, source, element)
    width = (_INNER - _GAP) / 2
    for place, (word, name, (side, grids)) in enumerate(
        zip(("from", "to"), names, sides, strict=True)
    ):
        left = _LEFT + place * (width + _GAP)
        block = f"block of {counted(side.parallel.block_size, 'token')}"
        sheet.text(left, _TITLES + 0.05, f"{word} {name}, {block}", bold=True)
        _draw_grids(sheet, Box(left, top, width, high), grids, side)
    about = f"Copies of block {target.block_id}, from page to page; bands have the colour of the "
    sheet.text(_LEFT, top + high + 0.3, f"{about}worker that is read", bold=True)
    notes: list[str] = []
    if source.mappings[0].num_writers > 1:
        notes.append("Of workers that keep the same bytes, which is read depends on block and page")
    hidden = max(len(side.mappings) for side, _ in sides) - most
    if hidden:
        notes.append(f"{counted(hidden, 'more rank')} not drawn")
    if notes:
        sheet.text(_LEFT, top + high + 0.5, "; ".join(notes))
    draw_copies(sheet, bands, source, target, MAX_RANKS)
    return sheet.figure


def _titles(
    sheet: Sheet, title: str, layer: Layer, source: Configuration, element: str | None
) -> None:
    size = source.mappings[0].canonical_page_size_bytes
    tokens = counted(source.parallel.span, "token")
    sheet.text(_LEFT, 0.12, title, size=LARGE, bold=True)
    sheet.text(_LEFT, 0.4, describe_layer(layer, element))
    sheet.text(_LEFT, 0.6, f"canonical page: {tokens}, {size:,} bytes, in memory row by row")


def _grids(layer: Layer, side: Configuration) -> list[_Grid]:
    grids: list[_Grid] = []
    for panel in panels(layer, side.parallel):
        rows = rows_of(panel, side.mappings, max_rows=MAX_ROWS)
        # Rows that are alike have one label for all of them, those of a sequence one each.
        a_stripe = 0.15 if panel.column is None else 0.05
        row_high = max(0.2, a_stripe * side.mappings[0].num_writers)
        grids.append(_Grid(panel, rows, min(5.0, max(0.5, row_high * rows[-1].end))))
    return grids


def _draw_grids(sheet: Sheet, box: Box, grids: list[_Grid], side: Configuration) -> None:
    """The parts of a canonical page, one beside the other."""
    width = (box.width + _GAP) / len(grids) - _GAP
    for place, grid in enumerate(grids):
        left = box.left + place * (width + _GAP)
        own = Box(left, box.top, width, grid.height)
        raster = Raster(own, grid.panel.num_columns, grid.rows[-1].end)
        for rows in grid.rows:
            for segment in rows.segments:
                _draw_segment(sheet, raster, rows, segment, side)
        sheet.lines(raster)
        _number_grid(sheet, raster, grid.panel)


def _draw_segment(
    sheet: Sheet, raster: Raster, rows: Rows, segment: Segment, side: Configuration
) -> None:
    """Bytes of the same ranks, in a stripe for each of these."""
    width = segment.end - segment.first
    box = raster.cells(segment.first, rows.first, width, rows.end - rows.first)
    shown = [rank for rank in segment.ranks if rank in side.shown]
    sheet.frame(box)
    if not shown:
        if segment.ranks:
            sheet.blank(box)
        return
    for row in range(rows.first, rows.end):
        for stripe, rank in enumerate(shown):
            top = row + stripe / len(shown)
            part = raster.cells(segment.first, top, width, 1 / len(shown))
            sheet.block(part, rank, f"rank-{rank}")
    name = describe_ranks(segment.ranks)
    texts = (f"{'rank' if len(segment.ranks) == 1 else 'ranks'} {name}", name)
    sheet.label(box, texts, shown[0] if len(shown) == 1 else None)


def _number_grid(sheet: Sheet, raster: Raster, panel: Panel) -> None:
    """What rows and columns are, where in the page each row begins, and a title."""
    box = raster.box
    sign = "" if panel.column is not None else "+"
    for column in range(0, raster.num_columns, every(raster.cell_width, 0.25)):
        x = box.left + (column + 0.5) * raster.cell_width
        number = f"{sign}{column}"
        sheet.text(x, box.top - 0.04, number, size=SMALL, across="center", down="bottom")
    for row in range(0, raster.num_rows, every(raster.cell_height, LINE)):
        y = box.top + (row + 0.5) * raster.cell_height
        number = str(panel.places(row, row + 1)[0])
        sheet.text(box.left - 0.06, y, number, size=SMALL, across="right", down="center")
    row_size = panel.num_columns * panel.cell_size_bytes
    for row in range(0, raster.num_rows, every(raster.cell_height, 0.3)):
        offset = f"{'' if row else 'byte '}{panel.start + row * row_size:,}"
        y = box.top + row * raster.cell_height
        sheet.text(box.right + 0.06, y, offset, size=SMALL, grey=True)
    middle = box.top + box.height / 2
    sheet.text(box.left - 0.38, middle, panel.row, across="right", down="center", turned=True)
    if panel.column is not None:
        x = box.left + box.width / 2
        sheet.text(x, box.top - 0.17, panel.column, across="center", down="bottom")
    title = f"{panel.name}: bytes {panel.start:,} to {panel.start + panel.size_bytes - 1:,}"
    each = " and ".join(filter(None, (panel.row, panel.column)))
    detailed = f"{title}, {panel.cell_size_bytes:,} a {each}"
    wide = fits(detailed, box.width, LINE)
    sheet.text(box.left, box.top - 0.32, detailed if wide else title, size=SMALL, down="bottom")
    hidden = panel.num_rows - raster.num_rows
    if hidden:
        sheet.text(box.left, box.bottom + 0.05, f"... {counted(hidden, 'more row')}", size=SMALL)


def _own_page(grids: list[_Grid], rank: int) -> list[_Part]:
    """What worker `rank` keeps of each grid; its own page has it in the same order (MAP-5)."""
    parts: list[_Part] = []
    for panel, rows, _ in grids:
        kept: list[tuple[int, list[int]]] = []
        for alike in rows:
            mine = [segment for segment in alike.segments if rank in segment.ranks]
            cells = [cell for segment in mine for cell in range(segment.first, segment.end)]
            if cells:
                kept += [(row, cells) for row in range(alike.first, alike.end)]
        if not kept:
            continue
        if panel.column is None:
            numbers = [row * panel.num_columns + cell for row, cells in kept for cell in cells]
            parts.append(_Part(panel, tuple(numbers), ()))
        else:
            parts.append(_Part(panel, tuple(row for row, _ in kept), tuple(kept[0][1])))
    return parts


def _num_rows(parts: list[_Part]) -> int:
    return sum(part.num_rows for part in parts)


def _draw_own_page(sheet: Sheet, box: Box, parts: list[_Part], rank: int) -> None:
    """A worker's page, part under part."""
    top = box.top
    for part in parts:
        height = box.height * part.num_rows / _num_rows(parts)
        raster = Raster(Box(box.left, top, box.width, height), part.num_columns, part.num_rows)
        top += height
        for row in range(part.num_rows):
            filled = part.num_columns if part.columns else len(part.rows) - row * part.num_columns
            block = raster.cells(0, row, min(filled, part.num_columns), 1)
            sheet.block(block, rank, f"page-{rank}")
        sheet.lines(raster)
        if part.columns:
            _number_own_page(sheet, raster, part, last=part is parts[-1])
        elif fits(str(part.rows[-1]), raster.cell_width, raster.cell_height):
            for place, number in enumerate(part.rows):
                row, column = divmod(place, part.num_columns)
                sheet.number(raster.cells(column, row, 1, 1), number, rank)
        if len(parts) > 1:
            sheet.frame(raster.box)
            middle = raster.box.top + height / 2
            name = part.panel.name
            sheet.text(box.right + 0.04, middle, name, size=SMALL, down="center")


def _number_own_page(sheet: Sheet, raster: Raster, part: _Part, *, last: bool) -> None:
    box = raster.box
    for row in range(0, raster.num_rows, every(raster.cell_height, 0.11)):
        y = box.top + (row + 0.5) * raster.cell_height
        number = str(part.rows[row])
        sheet.text(box.left - 0.04, y, number, size=SMALL, across="right", down="center")
    if last:
        for column in range(0, raster.num_columns, every(raster.cell_width, 0.2)):
            x = box.left + (column + 0.5) * raster.cell_width
            sheet.text(x, box.bottom + 0.03, str(part.columns[column]), size=SMALL, across="center")
