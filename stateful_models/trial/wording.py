"""Programs in words: numbered calls with a line of state each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain
from textwrap import wrap
from typing import Final, TypeAlias

from attrs import evolve, frozen

from stateful_models import operations as op
from stateful_models.engines.base import Breach
from stateful_models.engines.runs import ComparedRun, Played
from stateful_models.hosting import HostState
from stateful_models.judge import Violation, keys_in_short
from stateful_models.programs import Program
from stateful_models.steps import Step

HEADING: Final = "resident pinned pending free"
"""The columns of state behind each call."""
QUIET: Final = (op.Get, op.SetRefCount, op.SetPositions, op.NewRequest, op.BeforeStore)
"""Calls to a policy that are shown only where they went wrong."""
CALL_WIDTHS: Final = (40, 44)
"""Columns of the calls, at least and at most; what takes more goes on below them. A program that is
shown two columns to the right then fits on a terminal of 80."""
SETTLED: Final = "then every transfer is completed"
"""What a host does by itself where a program ends with some in flight."""
DIFFERS: Final = "> is where the runs differ"
MOST_LINES: Final = 6
"""What takes more is not shown to its end."""
EVICTS: Final = f"{op.Evict.verb}("
_LEAD: Final = "     "
_MARK: Final = ">"


@frozen
class _Row:
    """One call: of a host, numbered and with the state after it, or under it of the subject."""

    lead: str
    text: str
    state: HostState | None = None

    def marked(self) -> _Row:
        """The same where it is marked."""
        return evolve(self, lead=_MARK + self.lead[1:])


_Call: TypeAlias = list[_Row]
"""A call of a host, and what stands under it."""


def program_lines(everything: Sequence[Played], violations: Sequence[Violation]) -> tuple[str, ...]:
    """What was played, numbered, each with the state after it and what it came to.

    Under the last operation stand the calls that the subject got.
    """
    return _table("", chain.from_iterable(_calls(everything, violations)))


def compared_lines(runs: Sequence[ComparedRun]) -> tuple[str, ...]:
    """One run after the other as `program_lines` has them, with a mark where two differ.

    Of the calls that the subject got only those are shown then, and evictions.
    """
    texts = [_calls(run.played, (), run.first, run.names) for run in runs]
    if len(runs) == 2:
        texts = [_beside(texts[0], texts[1]), _beside(texts[1], texts[0])]
    rows: list[_Row] = []
    for run, calls in zip(runs, texts, strict=True):
        rows += [_Row(_LEAD, f"{run.when}:"), *chain.from_iterable(calls)]
    return _table(DIFFERS if len(runs) == 2 else "", rows)


def breach_lines(
    breach: Breach, program: Program, everything: Sequence[Played], violations: Sequence[Violation]
) -> tuple[str, ...]:
    """The runs that were compared if any were, else the program as it was played, all of it."""
    if breach.runs:
        return compared_lines(breach.runs)
    if len(everything) == len(program):
        return program_lines(everything, violations)
    return plain_lines(program)


def plain_lines(program: Program) -> tuple[str, ...]:
    """The operations of a program, numbered, where no run is to be had."""
    return tuple(f"{number:4} {each}" for number, each in enumerate(program.operations, 1))


def _calls(
    everything: Sequence[Played],
    violations: Sequence[Violation],
    first: int = 1,
    names: Mapping[str, str] | None = None,
) -> list[_Call]:
    def named(text: str) -> str:
        for name, other in (names or {}).items():
            text = text.replace(name, other)
        return text

    calls: list[_Call] = []
    last = first + len(everything) - 1
    for number, played in enumerate(everything, first):
        call = [_Row(f"{number:4} ", named(str(played.operation)), played.state)]
        for place, step in enumerate(played.steps):
            if place == played.settles and played.settled is not None:
                call.append(_Row(_LEAD, SETTLED, played.settled))
            if number == last or isinstance(step.operation, op.Evict):
                if not (isinstance(step.operation, QUIET) and not _wrong(step, violations)):
                    call.append(_Row(_LEAD + "  ", named(_short(step))))
        calls.append(call)
    return calls


def _beside(calls: Sequence[_Call], others: Sequence[_Call]) -> list[_Call]:
    """The calls, with a mark at what the other run has not."""
    texts, other_texts = [[call[0].text for call in each] for each in (calls, others)]
    matching = SequenceMatcher(None, texts, other_texts, autojunk=False)
    found = {
        one + n: other + n
        for one, other, size in matching.get_matching_blocks()
        for n in range(size)
    }
    marked: list[_Call] = []
    for place, (operation, *answers) in enumerate(calls):
        if place not in found:
            marked.append([operation.marked(), *answers])
            continue
        known = {row.text for row in others[found[place]]}
        shown = [
            row if row.text in known else row.marked()
            for row in answers
            if row.state is not None or row.text not in known or row.text.startswith(EVICTS)
        ]
        marked.append([operation, *shown])
    return marked


def _table(legend: str, rows: Iterable[_Row]) -> tuple[str, ...]:
    """Rows under the heading of the columns, which stand as far to the left as the calls allow."""
    rows = list(rows)
    least, most = CALL_WIDTHS
    longest = max((len(row.text) for row in rows if row.state is not None), default=0)
    width = min(most, max(least, longest))
    lines = [f"{_LEAD}{legend:{width}} {HEADING}"]
    for row in rows:
        room = len(lines[0]) - len(row.lead) if row.state is None else width
        text, *more = _folded(row.text, room)
        state = "" if row.state is None else _numbers(row.state)
        lines.append(f"{row.lead}{text:{width}} {state}".rstrip())
        lines += [f"{' ' * len(row.lead)}{each}" for each in more]
    return tuple(lines)


def _folded(text: str, width: int) -> list[str]:
    """The text on lines of that width, the others indented under the first."""
    lines = wrap(text, width, subsequent_indent="  ", break_on_hyphens=False) or [""]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], "  ..."]
    return lines


def _numbers(state: HostState) -> str:
    resident, pinned, pending, free = state
    return f"{resident:8} {pinned:6} {pending:7} {free:4}"


def _wrong(step: Step, violations: Sequence[Violation]) -> bool:
    return step.error is not None or any(found.number == step.number for found in violations)


def _short(step: Step) -> str:
    text = keys_in_short(str(step).strip().partition(" ")[2].strip())
    # Hooks answer nothing.
    hook = isinstance(step.operation, op.PolicyOperation) and not isinstance(
        step.operation, (op.Get, op.Evict)
    )
    return text.removesuffix(" -> None") if hook else text
