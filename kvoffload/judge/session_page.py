"""The part of the page about sessions."""

from __future__ import annotations

from collections.abc import Iterator

from kvoffload.judge.layout import NOTHING, again, ends, row, table_head
from kvoffload.judge.resampling import Interval
from kvoffload.judge.session_value import PolicySessions, SessionValue


def session_lines(value: SessionValue, command: str) -> Iterator[str]:
    """Hits by turn for each policy, and who was starved, what was stranded and regretted."""
    reports = [each for each in value.policies if each.report is not None]
    where = f"behind {value.gpu_chunks:,} chunks of GPU" if value.gpu_chunks else "without GPU tier"
    yield f"## Sessions on {value.trace}"
    yield ""
    if reports and reports[0].report is not None:
        first = reports[0].report
        whose = "as the trace says" if first.told else "inferred from prefixes"
        unit = "tokens" if value.tokens_known else "blocks"
        yield (
            f"{value.capacity:,} chunks ({value.of_working_set:.4f} of the working set), {where}; "
            f"sessions {whose}: {first.continuing:,} of {first.requests:,} requests after the "
            f"warm-up continue one. By turn, the {unit} that a request got: p10 / p50 / p90; "
            "`infinite` is the p50 of a cache that keeps everything. Requests carry no hints here."
        )
        yield ""
        yield from table_head(["turn", "requests", "infinite", *(each.policy for each in reports)])
        for place, turn in enumerate(first.turns):
            yield row(
                [
                    f"{turn.turn}+" if turn.and_later else f"{turn.turn}",
                    f"{turn.requests:,}",
                    f"{turn.infinite_p50:,}",
                    *(_turn(each, place) for each in reports),
                ]
            )
        yield ""
        yield from table_head(["", *(each.policy for each in reports)])
        yield row(["starved: got nothing, could have", *map(_starved, reports)])
        yield row(["stranded: mean share of residents", *map(_stranded, reports)])
        yield row([f"regret: wanted within {first.regret.window:,}", *map(_regret, reports)])
        yield ""
    failed = [each for each in value.policies if each.problem]
    for each in failed:
        yield f"- **{each.policy}**: {each.problem}"
    if failed:
        yield ""
    yield from again(command)


def _turn(policy: PolicySessions, place: int) -> str:
    if policy.report is None:
        return NOTHING
    turn = policy.report.turns[place]
    return f"{turn.p10:,} / {turn.p50:,} / {turn.p90:,}"


def _starved(policy: PolicySessions) -> str:
    return NOTHING if policy.report is None else _share(policy.report.starved.share)


def _stranded(policy: PolicySessions) -> str:
    mean = None if policy.report is None else policy.report.stranded.mean
    return NOTHING if mean is None else f"{mean:.4f}"


def _regret(policy: PolicySessions) -> str:
    return NOTHING if policy.report is None else _share(policy.report.regret.share)


def _share(share: Interval | None) -> str:
    return NOTHING if share is None else f"{share.value:.4f} {ends(share)}".rstrip()
