"""The part of the page about cost and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from kvoffload.judge.call_cost import CallCost, Growth
from kvoffload.judge.cost import CostReport
from kvoffload.judge.cost_value import CostValue, PolicyCost
from kvoffload.judge.held import REFERENCE, Churn
from kvoffload.judge.layout import NOTHING, again, row, size_text, table_head
from kvoffload.judge.memory import MemoryReport


def cost_lines(
    value: CostValue, name: str, command: str, *, driven: bool, picture: str | None
) -> Iterator[str]:
    """What calls cost and what is held in memory, of the policy of this name and those beside it.

    `driven`: its calls go through a driver. `picture` is the name of a file.
    """
    own = value.of(name)
    others = [each for each in value.policies if each is not own]
    yield "## Cost"
    yield ""
    through = f" What its driver does is in the figures of {name}." if driven else ""
    yield (
        f"Calls with a full cache: p50 / p99 / worst; without p99 where fewer than 100 were made. "
        "Visits are reads of a chunk's `ref_cnt`, and hashes and comparisons of keys: the same in "
        f"every run. Times are those of one machine: {value.machine}. Each policy was measured "
        f"alone, for {value.seconds:g} s at most.{through}"
    )
    yield ""
    yield from _calls(own, others)
    yield from _growth(own.cost)
    if picture is not None:
        yield f"![What calls cost, over the size of the cache]({picture})"
        yield ""
    yield from _memory((own, *others))
    missing = [line for each in (own, *others) for line in _missing(each)]
    yield from missing
    if missing:
        yield ""
    yield from again(command)


def time_text(seconds: float) -> str:
    """A time, by a unit in which it is easily read."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds / 1e-6)} us"


def _three(number: float) -> str:
    """Three figures, and no exponent."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _calls(own: PolicyCost, others: Sequence[PolicyCost]) -> Iterator[str]:
    """A row for each call and size."""
    policies = (own, *others)
    known = {(each.policy, one.call, one.size): one for each in policies for one in each.cost.costs}
    calls = dict.fromkeys(one.call for each in policies for one in each.cost.costs)
    if not calls:
        return
    beside = [f"{each.policy}: p50 / worst" for each in others]
    yield from table_head(["call", "chunks", own.policy, "visits", *beside])
    for call, size in product(calls, own.cost.sizes):
        mine, *theirs = (known.get((each.policy, call, size)) for each in policies)
        yield row(
            [call, f"{size:,}", _seconds(mine), _visits(mine), *map(_shortly, theirs)],
        )
    yield ""


def _seconds(cost: CallCost | None) -> str:
    if cost is None:
        return NOTHING
    spread = cost.seconds
    p99 = [spread.p99] if spread.calls >= 100 else []
    return " / ".join(map(time_text, (spread.p50, *p99, spread.worst)))


def _visits(cost: CallCost | None) -> str:
    if cost is None:
        return NOTHING
    spread = cost.visits
    p99 = [spread.p99] if spread.calls >= 100 else []
    return " / ".join(f"{one:,.0f}" for one in (spread.p50, *p99, spread.worst))


def _shortly(cost: CallCost | None) -> str:
    if cost is None:
        return NOTHING
    return f"{time_text(cost.seconds.p50)} / {time_text(cost.seconds.worst)}"


def _growth(report: CostReport) -> Iterator[str]:
    """How each call grows with the cache; nothing where that is not known of any."""
    known = {(one.call, one.measure, one.of): one for one in report.growth}
    calls = dict.fromkeys(one.call for one in report.growth if one.slope is not None)
    if not calls:
        return
    yield from table_head(["growth with the cache", "visits, p50", "visits, worst", "time, p50"])
    for call in calls:
        yield row(
            [
                call,
                _slope(known.get((call, "visits", "p50"))),
                _slope(known.get((call, "visits", "worst"))),
                _slope(known.get((call, "seconds", "p50"))),
            ]
        )
    yield ""


def _slope(growth: Growth | None) -> str:
    if growth is None or growth.slope is None:
        return NOTHING
    return f"{growth.words} ({growth.slope:+.2f})"


def _memory(policies: Sequence[PolicyCost]) -> Iterator[str]:
    """A row for each figure, a column for each policy."""
    reports = [each.memory for each in policies]
    sizes = reports[0].sizes
    yield (
        "Memory that a policy holds beside what its host has anyway, which is resident keys and "
        f"chunks, and contexts; with {sizes[0]:,} chunks unless it says otherwise."
    )
    yield ""
    yield from table_head(["bytes of", *(each.policy for each in policies)])
    for size in sizes:
        yield row([f"a resident chunk of {size:,}", *(_resident(one, size) for one in reports)])
    rows: tuple[tuple[str, Callable[[MemoryReport], str]], ...] = (
        ("an empty cache", _empty),
        ("a ghost", _ghost),
        ("a live request", _live),
        ("a dead session", lambda report: _dead(report.sessions)),
        ("further keys", lambda report: _trend(report.keys)),
        ("further sessions", lambda report: _trend(report.sessions)),
    )
    for what, text in rows:
        yield row([what, *map(text, reports)])
    yield ""


def _resident(report: MemoryReport, size: int) -> str:
    return next((f"{one.a_chunk:,.0f}" for one in report.full if one.size == size), NOTHING)


def _empty(report: MemoryReport) -> str:
    return f"{report.full[0].empty:,}" if report.full else NOTHING


def _ghost(report: MemoryReport) -> str:
    ghosts = report.ghosts
    if ghosts is None:
        return NOTHING
    if ghosts.a_ghost is None:
        return "none"
    return f"{ghosts.a_ghost:,.0f} ({ghosts.number:,} kept)"


def _live(report: MemoryReport) -> str:
    return NOTHING if report.live is None else _each(report.live.each)


def _dead(churn: Churn | None) -> str:
    return NOTHING if churn is None else _each(churn.each)


def _each(size: float) -> str:
    """What less than a reference comes to is not kept for each, but goes up and down."""
    return f"{size:,.0f}" if size >= REFERENCE else "none"


def _trend(churn: Churn | None) -> str:
    if churn is None:
        return NOTHING
    if churn.grows:
        return f"**{churn.each:,.0f} each**, after {churn.passed:,} as well"
    return f"plateau at {size_text(churn.most)}"


def _missing(one: PolicyCost) -> Iterator[str]:
    """How a policy failed, and what there was no time for."""
    for problem in one.problems:
        yield f"- **{one.policy}**: {problem}"
    if not one.cost.problem:
        for left in one.cost.left_out:
            calls = ", ".join(left.calls)
            yield f"- {one.policy} with {left.size:,} chunks, not measured: {calls}; {left.why}"
    if one.memory.left_out and not one.memory.problem:
        what = ", ".join(one.memory.left_out)
        over = f"the {round(one.memory.budget_s, 1):g} s for it were over"
        yield f"- {one.policy}, memory not measured: {what}; {over}"
