"""The part of the page about hints."""

from __future__ import annotations

from collections.abc import Iterator

from kvoffload.judge.hint_value import HintValue
from kvoffload.judge.hints import HintReport
from kvoffload.judge.layout import again, interval_text, row, table_head


def hint_lines(value: HintValue, command: str) -> Iterator[str]:
    """What each kind of hints does to the value, and what the policy raised on."""
    where = f"behind {value.gpu_chunks:,} chunks of GPU" if value.gpu_chunks else "without GPU tier"
    yield f"## Hints on {value.trace}"
    yield ""
    yield (
        f"{value.capacity:,} chunks, {where}; hints are taken from the trace's future, and "
        f"spoilt. {_said(value.report)}"
    )
    yield ""
    if value.problem:
        yield f"- **{value.problem}**"
        yield ""
    if value.report is not None and value.report.reads_hints is not False:
        yield from table_head(["hints", "token hits", "over none"])
        for kind in value.report.kinds:
            yield row(
                [
                    kind.kind.value,
                    interval_text(kind.value),
                    interval_text(kind.over_none, signed=True),
                ]
            )
        yield ""
    kinds = value.report.kinds if value.report is not None else ()
    for kind in kinds:
        for raised in kind.raised:
            on = f" on {raised.value}" if raised.value is not None else ""
            yield f"- **{kind.kind.value}{on}**: {raised.error} (in request {raised.request})"
    if any(kind.raised for kind in kinds):
        yield ""
    yield from again(command)


def _said(report: HintReport | None) -> str:
    if report is None:
        return ""
    said: list[str] = []
    if report.reads_hints is not None:
        said.append(
            "True hints change what it hits."
            if report.reads_hints
            else "True hints change nothing that it hits."
        )
    if report.equals_base:
        said.append(f"Without hints it equals {report.base}.")
    elif report.unlike_base is not None:
        over = interval_text(report.over_base, signed=True)
        said.append(
            f"Without hints it differs from {report.base} in {report.unlike_base:,} requests, in "
            f"value by {over}."
        )
    if report.costs_at_most is not None and report.reads_hints is not False:
        said.append(
            "Wrong or malformed hints take at most "
            f"{report.costs_at_most:.4f} from its value without any."
        )
    return " ".join(said)
