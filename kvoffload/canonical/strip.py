"""A canonical page to look at: grids of cells in the order of its bytes, and who keeps each.

Made from the mappings alone, so what is shown is what was derived; the description only says
where a row ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from attrs import evolve, frozen

from kvoffload.canonical.derivation import derive_mappings
from kvoffload.canonical.layers import AttentionLayer, LatentLayer, Layer, PackedLayers, SingleLayer
from kvoffload.canonical.pages import CanonicalPageMapping, CopyRun
from kvoffload.canonical.parallel import KVParallelConfig
from kvoffload.errors import MappingError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_COLUMNS: Final = 16
"""Cells in a row where nothing but their order says where a row ends."""
# Ranks are gathered as bits, so many of them in an int64.
_BITS: Final = 62


@frozen(kw_only=True)
class Panel:
    """A part of a canonical page as a grid: read by rows, its cells are its bytes in order.

    `start` is the part's offset in the page, in bytes. A row is a `row` (a token, say) and a
    column a `column`; where `column` is None there is one sequence of cells, each a `row`, that
    is cut into rows of `num_columns`, the last of which may be shorter.
    """

    name: str
    start: int
    cell_size_bytes: int
    num_cells: int
    num_columns: int
    row: str
    column: str | None

    @property
    def num_rows(self) -> int:
        """Rows, the last one perhaps shorter."""
        return -(-self.num_cells // self.num_columns)

    @property
    def size_bytes(self) -> int:
        """Bytes of this part of the page."""
        return self.num_cells * self.cell_size_bytes

    def places(self, first: int, end: int) -> tuple[int, int]:
        """Which `row`s, [first, end), the grid's rows [first, end) hold."""
        if self.column is not None:
            return first, end
        return first * self.num_columns, min(end * self.num_columns, self.num_cells)


class Segment(NamedTuple):
    """Neighbouring cells [first, end) of a row that the same ranks keep, in order of rank."""

    first: int
    end: int
    ranks: tuple[int, ...]


class Rows(NamedTuple):
    """Neighbouring rows [first, end) of a panel that look alike."""

    first: int
    end: int
    segments: tuple[Segment, ...]

    @property
    def cells(self) -> tuple[tuple[int, ...], ...]:
        """Who keeps each cell of one of the rows."""
        return tuple(
            segment.ranks for segment in self.segments for _ in range(segment.first, segment.end)
        )


def panels(layer: Layer, parallel: KVParallelConfig) -> tuple[Panel, ...]:
    """The canonical page of `layer` as grids, in the order of its bytes.

    Raises MappingError where the encoding is not known.
    """
    if not isinstance(layer, PackedLayers):
        return _panels(layer, parallel)
    found: list[Panel] = []
    start = 0
    for index, one in enumerate(layer.layers):
        for panel in _panels(one, parallel):
            name = f"layer {index}, {panel.name}"
            found.append(evolve(panel, name=name, start=start + panel.start))
        start += derive_mappings(one, parallel)[0].canonical_page_size_bytes
    return tuple(found)


def holders(
    mappings: Sequence[CanonicalPageMapping], start: int, cell_size: int, num_cells: int
) -> list[tuple[int, ...]]:
    """For each cell of `cell_size` bytes from `start` on, the ranks that keep it, in order.

    `mappings` are those of all workers, in order of rank. Raises MappingError where a fragment
    ends inside a cell.
    """
    import numpy as np

    whose: NDArray[np.int64] = np.zeros(num_cells, dtype=np.int64)
    words: list[NDArray[np.int64]] = []
    for low in range(0, len(mappings), _BITS):
        word: NDArray[np.int64] = np.zeros(num_cells, dtype=np.int64)
        for bit, mapping in enumerate(mappings[low : low + _BITS]):
            for run in mapping.runs:
                word[_cells(run, start, cell_size, num_cells)] |= 1 << bit
        words.append(word)
        kinds, of_word = np.unique(word, return_inverse=True)
        whose = np.unique(whose * len(kinds) + of_word, return_inverse=True)[1]
    _, examples = np.unique(whose, return_index=True)
    sets = [
        tuple(
            rank
            for rank in range(len(mappings))
            if int(words[rank // _BITS][example]) >> rank % _BITS & 1
        )
        for example in examples
    ]
    return [sets[kind] for kind in whose]


def rows_of(
    panel: Panel, mappings: Sequence[CanonicalPageMapping], *, max_rows: int | None = None
) -> tuple[Rows, ...]:
    """The rows of a panel, or its first `max_rows`; tokens or heads that look alike as one."""
    num_rows = panel.num_rows if max_rows is None else min(max_rows, panel.num_rows)
    num_cells = min(panel.num_cells, num_rows * panel.num_columns)
    kept = holders(mappings, panel.start, panel.cell_size_bytes, num_cells)
    width = panel.num_columns
    rows: list[Rows] = []
    last: list[tuple[int, ...]] | None = None
    for row in range(num_rows):
        cells = kept[row * width : (row + 1) * width]
        if cells == last and panel.column is not None:
            rows[-1] = rows[-1]._replace(end=row + 1)
        else:
            rows.append(Rows(row, row + 1, _segments(cells)))
        last = cells
    return tuple(rows)


def scaled(
    cells: Sequence[tuple[int, ...]], num_columns: int, width: int
) -> tuple[tuple[int, ...], ...]:
    """Cells of a row of `num_columns` as a strip of at most `width` places: who keeps each.

    Every cell gets as many places as every other. Where there are more columns than places, each
    place stands for several neighbours, and is nobody's (an empty tuple) if they differ.
    """
    if num_columns <= width:
        return tuple(ranks for ranks in cells for _ in range(width // num_columns))
    step = -(-num_columns // width)
    groups = (set(cells[at : at + step]) for at in range(0, len(cells), step))
    return tuple(group.pop() if len(group) == 1 else () for group in groups)


def _panels(layer: SingleLayer, parallel: KVParallelConfig) -> tuple[Panel, ...]:
    if isinstance(layer, AttentionLayer):
        return _attention(layer, parallel)
    if isinstance(layer, LatentLayer):
        return (_sequence("latent rows", 0, layer.row_size_bytes, "token", parallel.span),)
    pages = parallel.num_ranks
    return (_sequence("whole pages", 0, layer.page_size_bytes, "page", pages),)


def _attention(layer: AttentionLayer, parallel: KVParallelConfig) -> tuple[Panel, ...]:
    if layer.encoding is None:
        raise MappingError("encoding is None: in which order a page holds its bytes is not known")
    heads, vector = layer.total_kv_heads, layer.vector_size_bytes
    parts = ("K", "V") if layer.encoding.is_split else ("K and V",)
    cell = vector if layer.encoding.is_split else 2 * vector
    rows, columns = ("token", parallel.span), ("head", heads)
    if layer.encoding.is_head_major:
        rows, columns = columns, rows
    num_cells = heads * parallel.span
    return tuple(
        _sequence(name, place * num_cells * cell, cell, "token", num_cells)
        if heads == 1
        else Panel(
            name=name,
            start=place * num_cells * cell,
            cell_size_bytes=cell,
            num_cells=num_cells,
            num_columns=columns[1],
            row=rows[0],
            column=columns[0],
        )
        for place, name in enumerate(parts)
    )


def _sequence(name: str, start: int, cell_size: int, noun: str, num_cells: int) -> Panel:
    """Cells of one noun; as many in a row as divide them, if that is not too few."""
    most = min(num_cells, MAX_COLUMNS)
    even = (width for width in range(most, most // 2, -1) if num_cells % width == 0)
    return Panel(
        name=name,
        start=start,
        cell_size_bytes=cell_size,
        num_cells=num_cells,
        num_columns=next(even, most),
        row=noun,
        column=None,
    )


def _segments(cells: Sequence[tuple[int, ...]]) -> tuple[Segment, ...]:
    found: list[Segment] = []
    for ranks, alike in groupby(cells):
        first = found[-1].end if found else 0
        found.append(Segment(first, first + sum(1 for _ in alike), ranks))
    return tuple(found)


def _cells(run: CopyRun, start: int, cell_size: int, num_cells: int) -> NDArray[np.int64]:
    """The cells that a run covers, of `num_cells` from `start` on."""
    import numpy as np

    offset, size, step = run.canonical_offset - start, run.fragment_size, run.canonical_stride
    low, high, end = 0, run.num_fragments, num_cells * cell_size
    if high > 1:
        # Those fragments that reach into the cells; a lone one's stride says nothing.
        low = max(0, -((offset + size - 1) // step))
        high = max(low, min(high, -((offset - end) // step)))
    starts = offset + np.arange(low, high, dtype=np.int64) * step
    first, last = np.maximum(starts, 0), np.minimum(starts + size, end)
    first, last = first[first < last], last[first < last]
    if np.any(first % cell_size) or np.any(last % cell_size):
        raise MappingError(
            f"fragments of {size} bytes from {run.canonical_offset} on, every "
            f"{run.canonical_stride}, end inside cells of {cell_size} bytes"
        )
    first, length = first // cell_size, (last - first) // cell_size
    cells: NDArray[np.int64] = np.repeat(first - np.cumsum(length) + length, length)
    return cells + np.arange(len(cells))
