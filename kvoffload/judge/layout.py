"""Lines of Markdown that the parts of the page share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kvoffload.judge.resampling import Interval

NOTHING: Final = "-"


def table_head(names: Sequence[str]) -> Iterator[str]:
    """The head of a table of numbers."""
    yield row(names)
    yield row(["---:"] * len(names))


def row(cells: Iterable[str]) -> str:
    """A row of a table."""
    # A bar would end the cell.
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def ends(interval: Interval) -> str:
    """The ends of an interval; nothing where it has none."""
    if interval.low is None or interval.high is None:
        return ""
    return f"[{interval.low:.4f}, {interval.high:.4f}]"


def size_text(number: int) -> str:
    """Bytes, by the largest unit."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"


def again(command: str) -> Iterator[str]:
    """The command that gives a section again."""
    if command:
        yield f"Again: `{command}`"
        yield ""


def interval_text(interval: Interval | None, *, signed: bool = False) -> str:
    """A figure with its interval, with its sign where that is asked for."""
    if interval is None:
        return NOTHING
    value = f"{interval.value:+.4f}" if signed else f"{interval.value:.4f}"
    return f"{value} {ends(interval)}".rstrip()
