"""What a person reads of portability: whether a policy for vLLM loads in each version, and what to
edit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvoffload.cli.prose import tell
from stateful_models.loading import in_one_line
from stateful_models.trial.portability import Obstacle, Portability
from stateful_models.trial.verdicts import Report

WORKS, FAILS, REFUSED = "yes", "yes, and fails", "no"
STYLES = {WORKS: "green", FAILS: "yellow", REFUSED: "red"}


def show_fallbacks(console: Console, report: Report) -> None:
    """Say loudly that a module did not notice that it lacks what it needs."""
    rows = report.portability
    told = [{f"{each.place}: {each.what}" for each in row.fallbacks} for row in rows]
    for one in dict.fromkeys(chain.from_iterable(map(sorted, told))):
        where = _spans(rows, [one in these for these in told])
        text = f"{report.target}: {one}, in {where}"
        tell(console, in_one_line(text), "bold red")


def show_portability(console: Console, report: Report) -> None:
    """A row for each range of versions in which it is the same, apart from the contract."""
    rows = report.portability
    if not rows:
        return
    tell(console, in_one_line(f"{report.target}: portability. {_recognised(rows)}"))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("vLLM", overflow="fold", min_width=7)
    table.add_column("loads", overflow="fold", min_width=5)
    table.add_column("what is in the way", overflow="fold", ratio=3)
    table.add_column("edit", overflow="fold", ratio=2)
    for (_, status, obstacles), group in groupby(rows, key=_shown):
        versions = _span(list(group)).removeprefix("vLLM ").removeprefix("the vLLM that is ")
        first = [Text(versions), Text(status, style=STYLES[status])]
        for obstacle in obstacles or (None,):
            table.add_row(*first, *_cells(obstacle))
            first = [Text(), Text()]
    console.print(table)


def _shown(row: Portability) -> tuple[bool, str, tuple[Obstacle, ...]]:
    """What stands in the row of a version: remarks only where nothing else is in the way.

    What is installed has a row of its own.
    """
    if row.works:
        return row.installed, WORKS, row.obstacles
    return row.installed, FAILS if row.loads else REFUSED, row.grave


def _cells(obstacle: Obstacle | None) -> Iterator[Text]:
    if obstacle is None:
        yield from (Text(), Text())
        return
    place = f"{obstacle.place}: " if obstacle.place else ""
    yield Text(in_one_line(f"{place}{obstacle.what}"), style="" if obstacle.grave else "dim")
    yield Text(in_one_line(obstacle.edit))


def _recognised(rows: Sequence[Portability]) -> str:
    tried = next((row for row in rows if row.tried_as), None)
    works = _spans(rows, [row.works for row in rows])
    where = f"It works in {works}" if works else "It works in no vLLM that is known"
    if tried is None:
        return f"{where}; no trial could be held."
    least = "" if tried.works else ", where least is in its way"
    return f"{where}; the trial was held as in {_span([tried])}{least}."


def _spans(rows: Sequence[Portability], chosen: Sequence[bool]) -> str:
    """The ranges of the versions that are chosen: "vLLM 0.21 to 0.23, vLLM 0.33"."""
    groups = groupby(zip(rows, chosen, strict=True), key=lambda each: (each[1], each[0].installed))
    spans = [_span([row for row, _ in group]) for (is_chosen, _), group in groups if is_chosen]
    return ", ".join(reversed(spans))


def _span(rows: Sequence[Portability]) -> str:
    """Versions that follow each other, the newest first, as a range: "vLLM 0.21 to 0.23"."""
    if rows[0].installed:
        return "the vLLM that is installed"
    oldest, newest = rows[-1].oldest, rows[0].version
    return f"vLLM {newest}" if oldest == newest else f"vLLM {oldest} to {newest}"
