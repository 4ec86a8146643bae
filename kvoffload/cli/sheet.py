"""What a person reads of a layout: the header, a row a worker, strips of bytes, and copies."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Final, TypeVar

from attrs import frozen
from rich import box
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from kvoffload.canonical.identity import layout_id
from kvoffload.canonical.layers import SingleLayer
from kvoffload.canonical.pages import CopyRun
from kvoffload.canonical.palette import colour, ink
from kvoffload.canonical.report import Configuration, Target
from kvoffload.canonical.resharding import DirectRun
from kvoffload.canonical.strip import Panel, panels, rows_of, scaled
from kvoffload.canonical.wording import (
    describe_heads,
    describe_layer,
    describe_parallel,
    describe_range,
    describe_ranks,
    describe_run,
    describe_span,
    describe_tokens,
    describe_turns,
)
from kvoffload.cli.prose import tell
from kvoffload.wording import counted

SYMBOLS: Final = digits + ascii_lowercase + ascii_uppercase
# Of these, so many are shown where not all are asked for.
MAX_RANKS, MAX_RUNS, MAX_COPIES, MAX_ROWS, MAX_TURNS, MAX_STRIPS = 8, 4, 16, 8, 4, 8
# Columns for runs on a screen that is too narrow for them.
MIN_RUN: Final = 12
# Whose keeper is worked out for a strip; what is beyond is never shown.
MAX_CELLS: Final = 1 << 20


_T = TypeVar("_T")


@frozen
class Sheet:
    """Prints a layout of `layer` on `console`; everything, or what fits a screen."""

    console: Console
    layer: SingleLayer
    element: str
    everything: bool

    def show(self, source: Configuration, target: Target | None) -> None:
        """The layout and, if there is a target, the copies and the target's layout."""
        self._header(source)
        self._configuration(source)
        if target is not None:
            self._copies(target)
            self._say(f"to: {describe_parallel(target.configuration.parallel)}", "bold")
            self._configuration(target.configuration)

    def _header(self, source: Configuration) -> None:
        parallel, mapping = source.parallel, source.mappings[0]
        identity = layout_id(self.layer, parallel)
        page = (
            f"{mapping.canonical_page_size_bytes:,} bytes canonical, "
            f"{mapping.local_page_size_bytes:,} bytes a worker"
        )
        padded = self.layer.padded_page_size_bytes
        if padded is not None:
            padding = padded - mapping.local_page_size_bytes
            page += f" (and {counted(padding, 'byte')} of padding)"
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in (
            ("layer", describe_layer(self.layer, self.element)),
            ("workers", f"{describe_parallel(parallel)}: {counted(parallel.num_ranks, 'rank')}"),
            ("span", describe_span(parallel)),
            ("page", page),
            ("layout", identity.digest),
            ("", "; ".join(f"{field}: {value}" for field, value in identity.fields)),
        ):
            grid.add_row(name, Text(value))
        self.console.print(grid)

    def _configuration(self, configuration: Configuration) -> None:
        self._workers(configuration)
        notes = self._turns(configuration)
        hidden = self._more(len(configuration.shown), MAX_RANKS, "rank")
        for note in (*hidden, *notes):
            self._say(note)
        if hidden or notes:
            self.console.print()
        for panel in panels(self.layer, configuration.parallel):
            self._strip(panel, configuration)
        self._letters(configuration.parallel.num_ranks)

    def _workers(self, configuration: Configuration) -> None:
        table = self._workers_table(configuration, with_runs=True)
        if not self._fits(table):
            self.console.print(self._workers_table(configuration, with_runs=False))
            table = self._runs_table(configuration)
        self.console.print(table)

    def _workers_table(self, configuration: Configuration, *, with_runs: bool) -> Table:
        table = _table()
        for heading in ("rank", "tp", "cp"):
            table.add_column(heading, justify="right", no_wrap=True)
        for heading in ("heads", "tokens", "writer"):
            table.add_column(heading, overflow="fold", min_width=len(heading))
        if with_runs:
            table.add_column("runs: own page -> canonical page", no_wrap=True)
        for worker, mapping in self._first(configuration.workers, MAX_RANKS):
            cells: list[str | Text] = [
                _rank(worker.rank),
                str(worker.tp_rank),
                str(worker.cp_rank),
                describe_heads(self.layer, worker),
                describe_tokens(worker),
                f"{mapping.writer_index + 1} of {mapping.num_writers}",
            ]
            if with_runs:
                cells.append(self._runs(mapping.runs))
            table.add_row(*cells)
        return table

    def _runs_table(self, configuration: Configuration) -> Table:
        table = _table()
        table.add_column("rank", justify="right", no_wrap=True)
        table.add_column("runs: own page -> canonical page", overflow="fold", min_width=MIN_RUN)
        for worker, mapping in self._first(configuration.workers, MAX_RANKS):
            table.add_row(_rank(worker.rank), self._runs(mapping.runs))
        return table

    def _turns(self, configuration: Configuration) -> list[str]:
        """Who writes on which turn, where several keep the same bytes."""
        by_turn = {mapping.writer_index: mapping for mapping in configuration.mappings}
        if len(by_turn) == 1:
            return []
        notes = ["Ranks that keep the same bytes take turns to write them:"]
        for turn in self._first(sorted(by_turn), MAX_TURNS):
            ranks = tuple(
                rank
                for rank, mapping in enumerate(configuration.mappings)
                if mapping.writer_index == turn
            )
            noun = "rank" if len(ranks) == 1 else "ranks"
            blocks = describe_turns(by_turn[turn])
            notes.append(f"  {blocks} by {noun} {describe_ranks(ranks)}")
        return notes + self._more(len(by_turn), MAX_TURNS, "turn")

    def _letters(self, num_ranks: int) -> None:
        """What stands for ranks that have no digit of their own."""
        first_upper = len(digits + ascii_lowercase)
        named = [
            f"{symbol} is {what}"
            for first, symbol, what in (
                (len(digits), "a", f"rank {len(digits)}"),
                (first_upper, "A", f"rank {first_upper}"),
                (len(SYMBOLS), "#", f"any rank from {len(SYMBOLS)} on"),
            )
            if num_ranks > first
        ]
        if named:
            self._say(f"({', '.join(named)})", "dim")

    def _strip(self, panel: Panel, configuration: Configuration) -> None:
        """Rows of the canonical page, each place coloured and lettered by who keeps it."""
        if panel.start:
            self.console.print()
        self._say(
            f"canonical page, {panel.name}: bytes {panel.start:,} to "
            f"{panel.start + panel.size_bytes - 1:,}, {panel.cell_size_bytes:,} a "
            f"{' and '.join(filter(None, (panel.row, panel.column)))}"
        )
        if panel.num_columns > MAX_CELLS:
            self._say(f"(a row of {panel.num_columns:,} is too long to be shown)", "dim")
            return
        most = MAX_CELLS // panel.num_columns
        rows = rows_of(panel, configuration.mappings, max_rows=most)
        shown = self._first(rows, MAX_ROWS)
        labels = [_label(panel.row, *panel.places(row.first, row.end)) for row in shown]
        width = max(map(len, [*labels, panel.column or ""]))
        room = max(1, self.console.width - width - 1)
        cells = [row.cells for row in shown]
        size = self._columns_of_a_strip(panel.num_columns, room, cells)
        mixed = False
        for first in range(0, panel.num_columns, size):
            end = min(first + size, panel.num_columns)
            self._say(_scale(panel, range(first, end), width, room), "dim")
            for label, of_row in zip(labels, cells, strict=True):
                places = scaled(of_row[first:end], end - first, room)
                mixed = mixed or () in places
                line = Text(f"{label:{width}} ")
                self._paint(line, places, configuration)
                self.console.print(line, no_wrap=True, overflow="crop")
        hidden = panel.num_rows - shown[-1].end
        if hidden:
            self._say(f"... {counted(hidden, 'more row')}")
        if mixed:
            self._say("(* is kept by several ranks, by each a part)", "dim")

    def _columns_of_a_strip(
        self, num_columns: int, room: int, cells: Sequence[Sequence[tuple[int, ...]]]
    ) -> int:
        """How many columns one line has: all, unless that hides who keeps them."""
        strips = -(-num_columns // room)
        mixed = any(() in scaled(of_row, num_columns, room) for of_row in cells)
        if not mixed or (strips > MAX_STRIPS and not self.everything):
            return num_columns
        return -(-num_columns // strips)

    def _paint(
        self, line: Text, places: Sequence[tuple[int, ...]], configuration: Configuration
    ) -> None:
        """Where several ranks keep a place, their letters take turns."""
        before: tuple[int, ...] | None = None
        turn = 0
        for ranks in places:
            turn = turn + 1 if ranks == before else 0
            before = ranks
            kept = [rank for rank in ranks if rank in configuration.shown]
            if not ranks:
                line.append("*")
            elif not kept:
                line.append(".", "dim")
            else:
                rank = kept[turn % len(kept)]
                line.append(_symbol(rank), Style(color=ink(colour(rank)), bgcolor=colour(rank)))

    def _copies(self, target: Target) -> None:
        in_all = sum(copy.num_bytes for copy in target.copies)
        self.console.print()
        self._say(
            f"copies of block {target.block_id} from page to page: "
            f"{len(target.copies):,}, {in_all:,} bytes in all",
            "bold",
        )
        table = _table()
        for heading in ("from", "to", "bytes"):
            table.add_column(heading, justify="right", no_wrap=True)
        heading = "runs: page of one -> page of the other"
        table.add_column(heading, overflow="fold", min_width=MIN_RUN)
        for copy in self._first(target.copies, MAX_COPIES):
            table.add_row(
                _rank(copy.source_rank),
                _rank(copy.target_rank),
                f"{copy.num_bytes:,}",
                self._runs(copy.runs),
            )
        self.console.print(table)
        for note in self._more(len(target.copies), MAX_COPIES, "copy", "copies"):
            self._say(note)
        self.console.print()

    def _runs(self, runs: Sequence[CopyRun | DirectRun]) -> str:
        lines = [describe_run(run) for run in self._first(runs, MAX_RUNS)]
        hidden = len(runs) - len(lines)
        if hidden:
            lines.append(f"... {counted(hidden, 'more run')}")
        return "\n".join(lines)

    def _first(self, items: Sequence[_T], most: int) -> Sequence[_T]:
        return items if self.everything else items[:most]

    def _more(self, number: int, most: int, noun: str, plural: str | None = None) -> list[str]:
        """A line that counts what is not shown, if anything is not."""
        hidden = 0 if self.everything else number - most
        if hidden <= 0:
            return []
        named = noun if hidden == 1 else plural or f"{noun}s"
        return [f"... {hidden:,} more {named}; --all-runs shows all"]

    def _fits(self, table: Table) -> bool:
        unbounded = self.console.options.update(max_width=10_000)
        return self.console.measure(table, options=unbounded).maximum <= self.console.width

    def _say(self, text: str, style: str = "") -> None:
        tell(self.console, text, style)


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)


def _rank(rank: int) -> Text:
    """A rank in the colour that its bytes have in the strips."""
    return Text(f" {rank} ", Style(color=ink(colour(rank)), bgcolor=colour(rank)))


def _symbol(rank: int) -> str:
    return SYMBOLS[rank] if rank < len(SYMBOLS) else "#"


def _label(noun: str, first: int, end: int) -> str:
    return f"{noun}{'' if end - first == 1 else 's'} {describe_range(first, end)}"


def _scale(panel: Panel, columns: range, label_width: int, width: int) -> str:
    """Numbers over the columns of a strip, as many as have room; + where rows go on counting."""
    noun, sign = (panel.column, "") if panel.column is not None else ("", "+")
    number = len(columns)
    wide, narrow = max(1, width // number), max(1, -(-number // width))
    step = narrow
    while step * wide // narrow <= len(f"{sign}{columns[-1]}"):
        step *= 2
    numbers = (f"{f'{sign}{at}':<{step * wide // narrow}}" for at in columns[::step])
    return f"{noun:>{label_width}} {''.join(numbers)}".rstrip()
