"""The picture of what calls cost (extra `plot`), drawn as all pictures of a judgement."""

# pyright: reportUnknownMemberType=false
# matplotlib leaves open what its plotting methods take beside their data.

from __future__ import annotations

from kvoffload.canonical.drawing import styled
from kvoffload.judge.call_cost import CallCost
from kvoffload.judge.cost_page import time_text
from kvoffload.judge.cost_value import CostValue
from kvoffload.judge.pictures import bare, line_of

# isort: split
# After `drawing`, which says what to install where it is missing.
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

__all__ = ["draw_cost"]


def draw_cost(name: str, value: CostValue) -> Figure:
    """The time of each kind of call over the size of the cache: p50 and, paler, the worst.

    A panel for each call; both axes are logarithmic. `name`: the policy that is judged.
    """
    with styled():
        calls = list(dict.fromkeys(one.call for each in value.policies for one in each.cost.costs))
        figure = Figure(figsize=(2.4 * len(calls) + 0.6, 3.4), layout="constrained")
        panels: list[Axes] = []
        for place, call in enumerate(calls, 1):
            axes = figure.add_subplot(1, len(calls), place, sharey=panels[0] if panels else None)
            panels.append(axes)
            _draw_call(axes, call, name, value)
        panels[0].set_ylabel("time of a call (above: worst, below: p50)", fontsize=9)
        for axes in panels[1:]:
            axes.tick_params(axis="y", labelleft=False)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(6, len(labels)),
            frameon=False,
            fontsize=9,
        )
        figure.suptitle(f"{name}: what calls cost, over the size of the cache", fontsize=10)
        return figure


def _draw_call(axes: Axes, call: str, name: str, value: CostValue) -> None:
    bare(axes)
    names = [each.policy for each in value.policies]
    sizes: set[int] = set()
    for each in value.policies:
        drawn = each.cost.of(call)
        line = line_of(each.policy, name, names)
        sizes.update(one.size for one in drawn)
        for point, pale in ((_p50, False), (_worst, True)):
            axes.plot(
                [one.size for one in drawn],
                [point(one) for one in drawn],
                color=line.colour,
                linestyle=line.style,
                marker=line.marker,
                markersize=4.5 if each.policy == name else 7.0,
                markerfacecolor=line.colour if each.policy == name else "none",
                linewidth=0.8 if pale else 1.6,
                alpha=0.6 if pale else 1.0,
                label=f"{each.policy}, worst" if pale else f"{each.policy}, p50",
                gid=f"cost-{call}-{each.policy}-{'worst' if pale else 'p50'}",
                # What is judged lies on top of what it is compared with.
                zorder=4 if each.policy == name else 3,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sorted(sizes))
    axes.set_xticklabels([f"{size:,}" for size in sorted(sizes)])
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xlabel("chunks in the cache", fontsize=9)
    axes.set_title(call, fontsize=9)


def _tick(seconds: float, _: int | None) -> str:
    return time_text(seconds)


def _p50(cost: CallCost) -> float:
    return cost.seconds.p50


def _worst(cost: CallCost) -> float:
    return cost.seconds.worst
