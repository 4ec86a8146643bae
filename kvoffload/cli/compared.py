"""What a person reads of a comparison: for each trace and GPU tier a table that fits the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvoffload.cli.prose import tell
from kvoffload.judge.comparison import Comparison
from kvoffload.judge.layout import NOTHING
from kvoffload.judge.resampling import Interval
from kvoffload.judge.value import BASELINE, Point, TierValue, TraceValue
from kvoffload.wording import counted
from stateful_models.loading import in_one_line

SURE = "*"


def show_comparison(console: Console, comparison: Comparison) -> None:
    """A row for each policy, two columns for each capacity; then what failed."""
    for value in comparison.values:
        size = f" of {value.block_tokens} tokens" if value.block_tokens else ""
        tell(
            console,
            f"{value.trace}: {value.requests:,} requests, {value.blocks:,} blocks{size}, "
            f"{value.working_set:,} distinct; the first {value.warm_up:,} requests warm up",
        )
        for tier in value.tiers:
            _show_tier(console, value, tier)
    tell(
        console,
        f"Under the chunks of each cache: the share of the distinct blocks that they are. {SURE}: "
        f"the 95% interval of the difference to {BASELINE} is on one side of 0. --out DIR has all "
        "intervals, the share of the way to the optimum, and pictures.",
    )
    tell(console, f"Again: {comparison.command}")


def _show_tier(console: Console, value: TraceValue, tier: TierValue) -> None:
    what = "tokens" if value.tokens_known else "blocks"
    where = f"behind {tier.gpu_chunks:,} chunks of GPU" if tier.gpu_chunks else "without GPU tier"
    bound = _hits(tier.infinite, value)
    tell(
        console,
        f"share of {what} that hit, and the difference to {BASELINE}, {where}; a cache without "
        f"bound: {bound}",
    )
    capacities = list(dict.fromkeys(point.capacity for point in tier.points))
    unbounded = console.options.update(max_width=10_000)
    while capacities:
        # As many as there is room for, and one whatever the room.
        fitting = len(capacities)
        table = _table(value, tier, capacities)
        while fitting > 1 and console.measure(table, options=unbounded).maximum > console.width:
            fitting -= 1
            table = _table(value, tier, capacities[:fitting])
        console.print(table)
        capacities = capacities[fitting:]
    for point in tier.points:
        if point.problem:
            whose = f"{point.policy} at {counted(point.capacity, 'chunk')}"
            tell(console, in_one_line(f"{whose}: {point.problem}"), "bold red")


def _table(value: TraceValue, tier: TierValue, capacities: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("policy", overflow="fold")
    rows: dict[str, list[str]] = {}
    for capacity in capacities:
        points = [point for point in tier.points if point.capacity == capacity]
        table.add_column(f"{capacity:,}\n{points[0].of_working_set:.1%}", justify="right")
        table.add_column(f"over\n{BASELINE}", no_wrap=True)
        for point in points:
            over = point.over_lru if value.tokens_known else point.over_lru_blocks
            rows.setdefault(point.policy, []).extend((_hits(point, value), _over(over)))
    for name, cells in rows.items():
        table.add_row(Text(name), *cells)
    return table


def _hits(point: Point, value: TraceValue) -> str:
    hits = point.token_hits if value.tokens_known else point.block_hits
    return NOTHING if hits is None else f"{hits.value:.4f}"


def _over(interval: Interval | None) -> str:
    """The difference, marked where its interval is on one side of 0."""
    if interval is None:
        return ""
    low, high = interval.low, interval.high
    sure = low is not None and high is not None and (low > 0 or high < 0)
    return f"{interval.value:+.4f}{SURE if sure else ''}"
