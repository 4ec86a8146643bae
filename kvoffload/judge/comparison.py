"""Policies side by side on traces: what each is worth, beside LRU and the optimum, as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from attrs import frozen

from kvoffload.judge.layout import again, interval_text, row, size_text
from kvoffload.judge.value import BASELINE, INFINITE, OPTIMUM, Point, TierValue, TraceValue


@frozen(kw_only=True)
class Comparison:
    """Policies, compared on traces. `command` gives the figures again."""

    version: str
    command: str
    values: tuple[TraceValue, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What ended runs."""
        return tuple(problem for value in self.values for problem in value.problems)


def to_json(comparison: Comparison) -> bytes:
    """A comparison as JSON."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n"


def from_json(data: bytes) -> Comparison:
    """The comparison of such JSON. Raises msgspec.DecodeError or ValidationError."""
    return msgspec.json.decode(data, type=Comparison)


def comparison_page(comparison: Comparison, pictures: Mapping[str, str] | None = None) -> str:
    """The page. `pictures` has file names beside it by what they show; None without matplotlib."""
    return "\n".join(("# Policies compared", "", *comparison_lines(comparison, pictures)))


def comparison_lines(
    comparison: Comparison, pictures: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The lines of the page below its title: a part for each trace, and how they were made."""
    for number, value in enumerate(comparison.values):
        yield f"## On {value.trace}"
        yield ""
        size = f" of {value.block_tokens} tokens" if value.block_tokens else ""
        yield (
            f"{value.requests:,} requests, {value.blocks:,} blocks{size}; the working set is "
            f"{value.working_set:,} chunks of {size_text(value.chunk_bytes)}. The first "
            f"{value.warm_up:,} requests warm up and are left out."
        )
        yield ""
        for tier in value.tiers:
            for capacity in dict.fromkeys(point.capacity for point in tier.points):
                yield from _table(tier, capacity, tokens_known=value.tokens_known)
        name = (pictures or {}).get(f"curves-{number}")
        if name is not None:
            yield f"![Token hit ratio over the capacity, {value.trace}]({name})"
            yield ""
    if pictures is None:
        yield "There are no pictures: they need matplotlib (`pip install 'kvoffload[plot]'`)."
        yield ""
    yield f"Made by kvoffload {comparison.version}. Intervals are of 95%."
    yield ""
    yield from again(comparison.command)


def _table(tier: TierValue, capacity: int, *, tokens_known: bool) -> Iterator[str]:
    points = [point for point in tier.points if point.capacity == capacity]
    where = f"behind {tier.gpu_chunks:,} chunks of GPU" if tier.gpu_chunks else "without GPU tier"
    yield f"**{capacity:,} chunks**, {points[0].of_working_set:.1%} of the working set, {where}:"
    yield ""
    head = ["token hits", "block hits"] if tokens_known else ["block hits"]
    yield row(["policy", *head, f"over {BASELINE}", "gap closed"])
    yield row(["---", *["---:"] * (len(head) + 2)])
    for point in (*points, tier.infinite):
        hits = [point.token_hits, point.block_hits] if tokens_known else [point.block_hits]
        shown = [interval_text(each) for each in hits]
        over = interval_text(point.over_lru, signed=True)
        yield row([_name(point), *shown, over, interval_text(point.gap_closed)])
    yield ""
    for point in points:
        if point.problem:
            yield f"- **{point.policy}**: {point.problem}"
    if any(point.problem for point in points):
        yield ""


def _name(point: Point) -> str:
    return point.policy if point.policy in (OPTIMUM, INFINITE) else f"`{point.policy}`"
