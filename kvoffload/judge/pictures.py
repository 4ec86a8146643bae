"""Pictures of a judgement (extra `plot`): readable in print and in colour blindness.

Colours are those of M. Okabe and K. Ito; lines differ by their style and markers as well.
"""

# pyright: reportUnknownMemberType=false
# matplotlib leaves open what its plotting methods take beside their data.

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kvoffload.canonical.drawing import PictureFormat, render, styled
from kvoffload.judge.report import Judgement
from kvoffload.judge.session_value import SessionValue
from kvoffload.judge.value import INFINITE, OPTIMUM, TierValue, TraceValue

# isort: split
# After `drawing`, which says what to install where it is missing.
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

__all__ = ["FORMATS", "draw_curves", "draw_turns", "render"]

FORMATS: Final[tuple[PictureFormat, ...]] = ("svg", "png")


class Line(NamedTuple):
    """How one policy is drawn."""

    colour: str
    style: str
    marker: str


JUDGED: Final = Line("#D55E00", "-", "o")
"""Vermilion: what the picture is about."""
_OTHERS: Final = {
    "lru": Line("#0072B2", "--", "s"),
    "arc": Line("#009E73", "-.", "^"),
    OPTIMUM: Line("#444444", ":", "D"),
}
_FURTHER: Final = (
    Line("#CC79A7", "-", "v"),
    Line("#CC79A7", ":", "1"),
    Line("#E69F00", "--", "P"),
    Line("#E69F00", ":", "2"),
    Line("#56B4E9", "-.", "X"),
    Line("#56B4E9", ":", "3"),
    Line("#D55E00", "-", "o"),
    Line("#D55E00", ":", "4"),
)


def draw_curves(value: TraceValue, judged: str = "") -> Figure:
    """Token hit ratio over the capacity, a panel for each GPU tier: every policy, and the optimum.

    Bands are 95% intervals of LRU and of the policy that is `judged`, if one is; the line at the
    top is an infinite CPU tier.
    """
    with styled():
        tiers = value.tiers
        figure = Figure(figsize=(4.4 * len(tiers) + 0.6, 4.1), layout="constrained")
        panels: list[Axes] = []
        for place in range(1, len(tiers) + 1):
            first = panels[0] if panels else None
            panels.append(figure.add_subplot(1, len(tiers), place, sharey=first))
        for axes, tier in zip(panels, tiers, strict=True):
            _draw_tier(axes, tier, judged)
        panels[0].set_ylabel(
            "token hit ratio (share of prompt tokens)"
            if value.tokens_known
            else "block hit ratio (share of blocks)",
            fontsize=9,
        )
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(5, 3 * len(tiers), len(labels)),
            frameon=False,
            fontsize=9,
        )
        figure.suptitle(
            f"{judged + ' on ' if judged else ''}{value.trace}, "
            f"after {value.warm_up:,} of {value.requests:,} requests",
            fontsize=10,
        )
        return figure


def draw_turns(judgement: Judgement, value: SessionValue) -> Figure:
    """Tokens that a request got, by turn: the median of each policy, and of an infinite cache.

    Bars go from the tenth to the ninetieth in a hundred.
    """
    with styled():
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.add_subplot()
        bare(axes)
        names = [each.policy for each in value.policies]
        reports = [(each.policy, each.report) for each in value.policies if each.report is not None]
        for place, (policy, report) in enumerate(reports):
            line = line_of(policy, judgement.name, names)
            # Beside each other, so that no bar hides another one.
            aside = 0.14 * (place - (len(reports) - 1) / 2)
            axes.errorbar(
                [turn.turn + aside for turn in report.turns],
                [turn.p50 for turn in report.turns],
                yerr=[
                    [turn.p50 - turn.p10 for turn in report.turns],
                    [turn.p90 - turn.p50 for turn in report.turns],
                ],
                color=line.colour,
                linestyle=line.style,
                marker=line.marker,
                markersize=5.5,
                markerfacecolor=line.colour if policy == judgement.name else "white",
                linewidth=1.4,
                elinewidth=0.8,
                capsize=2,
                label=policy,
                gid=f"turns-{policy}",
            )
        if reports:
            _, report = reports[0]
            axes.plot(
                [turn.turn for turn in report.turns],
                [turn.infinite_p50 for turn in report.turns],
                color="#000000",
                linewidth=0.8,
                label=INFINITE,
            )
            axes.set_xticks([turn.turn for turn in report.turns])
            axes.set_xticklabels(
                [f"{turn.turn}{'+' * turn.and_later}\n{turn.requests:,}" for turn in report.turns]
            )
        unit = "tokens" if value.tokens_known else "blocks"
        axes.set_ylabel(f"{unit} found (p50; bars: p10 and p90)", fontsize=9)
        axes.set_xlabel("turn of the session (below: requests)", fontsize=9)
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        figure.suptitle(
            f"{judgement.name} on {value.trace}, {value.capacity:,} chunks", fontsize=10
        )
        return figure


def _draw_tier(axes: Axes, tier: TierValue, name: str) -> None:
    bare(axes)
    names = list(dict.fromkeys(point.policy for point in tier.points))
    for policy in names:
        drawn = [point for point in tier.of(policy) if point.token_hits is not None]
        line = line_of(policy, name, names)
        sizes = [point.capacity for point in drawn]
        hits = [point.token_hits for point in drawn if point.token_hits is not None]
        axes.plot(
            sizes,
            [each.value for each in hits],
            color=line.colour,
            linestyle=line.style,
            marker=line.marker,
            # Where curves coincide, the larger and empty marks of the others are seen behind.
            markersize=4.5 if policy == name else 7.5,
            markerfacecolor=line.colour if policy == name else "none",
            linewidth=1.5,
            label=policy,
            gid=f"curve-{policy}",
            # What is judged lies on top of what it is compared with.
            zorder=4 if policy == name else 3,
        )
        if policy in (name, "lru"):
            lows = [each.value if each.low is None else each.low for each in hits]
            highs = [each.value if each.high is None else each.high for each in hits]
            axes.fill_between(sizes, lows, highs, color=line.colour, alpha=0.15, linewidth=0)
    if tier.infinite.token_hits is not None:
        axes.axhline(
            tier.infinite.token_hits.value,
            color="#000000",
            linewidth=0.8,
            label=INFINITE,
        )
    sizes = sorted({point.capacity for point in tier.points})
    shares = {point.capacity: point.of_working_set for point in tier.points}
    axes.set_xscale("log")
    axes.set_xticks(sizes)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{size:,}\n{shares[size]:.2g}" for size in sizes])
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xlabel("capacity (chunks; below: of the working set)", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.set_title(
        f"behind {tier.gpu_chunks:,} chunks of GPU" if tier.gpu_chunks else "without a GPU tier",
        fontsize=9,
    )


def bare(axes: Axes) -> None:
    """Nothing but a pale grid behind what is drawn."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.tick_params(labelsize=8)


def line_of(policy: str, judged: str, names: Sequence[str]) -> Line:
    if policy == judged:
        return JUDGED
    if policy in _OTHERS:
        return _OTHERS[policy]
    further = [each for each in names if each != judged and each not in _OTHERS]
    return _FURTHER[further.index(policy) % len(_FURTHER)]
