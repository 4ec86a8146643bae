"""Programs in words: numbered calls with a line of state each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stateful_models import operations as op
from stateful_models.engines.runs import Played
from stateful_models.hosting import HostState
from stateful_models.judge import Violation, keys_in_short
from stateful_models.programs import Program
from stateful_models.steps import Step

HEADING: Final = "resident pinned pending free"
"""The columns of state behind each call."""
QUIET: Final = (op.Get, op.SetRefCount, op.SetPositions, op.NewRequest, op.BeforeStore)
"""Calls to a policy that are shown only where they went wrong."""
CALL_WIDTH: Final = 62
SETTLED: Final = "then every transfer is completed"
"""What a host does by itself where a program ends with some in flight."""


def program_lines(everything: Sequence[Played], violations: Sequence[Violation]) -> tuple[str, ...]:
    """What was played, numbered, each with the state after it and what it came to.

    Under the last operation stand the calls that the subject got.
    """
    lines = [f"     {'':{CALL_WIDTH}} {HEADING}"]
    for number, played in enumerate(everything, 1):
        lines.append(f"{number:4} {played.operation!s:{CALL_WIDTH}} {_state(played)}")
        last = number == len(everything)
        for place, step in enumerate(played.steps):
            if place == played.settles and played.settled is not None:
                lines.append(f"     {SETTLED:{CALL_WIDTH}} {_numbers(played.settled)}")
            if last or isinstance(step.operation, op.Evict):
                if not (isinstance(step.operation, QUIET) and not _wrong(step, violations)):
                    lines.append(f"       {_short(step)}")
    return tuple(lines)


def plain_lines(program: Program) -> tuple[str, ...]:
    """The operations of a program, numbered, where no run is to be had."""
    return tuple(f"{number:4} {each}" for number, each in enumerate(program.operations, 1))


def _state(played: Played) -> str:
    return _numbers(played.state)


def _numbers(state: HostState) -> str:
    resident, pinned, pending, free = state
    return f"{resident:8} {pinned:6} {pending:7} {free:4}"


def _wrong(step: Step, violations: Sequence[Violation]) -> bool:
    return step.error is not None or any(found.number == step.number for found in violations)


def _short(step: Step) -> str:
    return keys_in_short(str(step).strip().partition(" ")[2].strip())
