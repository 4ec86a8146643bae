"""Sections as a person reads them: plain lines when they go to a file or a pipe."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spec_tests.bench.figures import Figure, Ratio, Section

PIPED_WIDTH = 120
"""Enough that no row is folded where there is no terminal to ask for its width."""


def make_console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if console.is_terminal:
        return console
    return Console(stderr=stderr, highlight=False, width=PIPED_WIDTH)


def show_section(console: Console, section: Section) -> None:
    """Ratios first: they compare, and what is behind them depends on the machine."""
    console.print(Text(section.title, style="bold"))
    ratios = _table("ratio of medians", "ratio", "range of rounds", "target", "met")
    for found in section.ratios:
        ratios.add_row(*_ratio_cells(found))
    console.print(ratios)
    figures = _table("measured", "median", "lowest", "highest", "unit", "")
    for figure in section.figures:
        figures.add_row(*_figure_cells(figure))
    console.print(figures)
    for note in section.notes:
        console.print(Text(note))
    console.print()


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _ratio_cells(found: Ratio) -> tuple[Text, ...]:
    target, met = Text(""), Text("")
    if found.target is not None:
        target = Text(str(found.target))
        met = Text("yes", "green") if found.target.is_met(found.value) else Text("no", "yellow")
    spread = f"{_number(min(found.rounds))} to {_number(max(found.rounds))}"
    return Text(found.what), Text(_number(found.value), "bold"), Text(spread), target, met


def _figure_cells(figure: Figure) -> tuple[Text, ...]:
    values = (figure.median, min(figure.runs), max(figure.runs))
    return (
        Text(figure.what),
        *(Text(_number(value)) for value in values),
        Text(figure.unit),
        Text(figure.remark),
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"
