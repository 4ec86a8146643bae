"""Programs in words: numbered calls with a line of state each, and a test to be pasted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, cast

from attrs import fields

from kvoffload import OffloadKey
from stateful_models import operations as op
from stateful_models.engines.runs import Played
from stateful_models.judge import Violation
from stateful_models.operations import key_text
from stateful_models.programs import HostOperation, Program
from stateful_models.steps import Step
from stateful_models.trial.request import Request

HEADING: Final = "resident pinned pending free"
"""The columns of state behind each call."""
QUIET: Final = (op.Get, op.SetRefCount, op.SetPositions, op.NewRequest, op.BeforeStore)
"""Calls to a policy that are shown only where they went wrong."""
CALL_WIDTH: Final = 62
MESSAGE_WIDTH: Final = 80


def program_lines(everything: Sequence[Played], violations: Sequence[Violation]) -> tuple[str, ...]:
    """What was played, numbered, each with the state after it and what it came to.

    Under the last operation stand the calls that the subject got.
    """
    lines = [f"     {'':{CALL_WIDTH}} {HEADING}"]
    for number, played in enumerate(everything, 1):
        lines.append(f"{number:4} {played.operation!s:{CALL_WIDTH}} {_state(played)}")
        last = number == len(everything)
        for step in played.steps:
            if last or isinstance(step.operation, op.Evict):
                if not (isinstance(step.operation, QUIET) and not _wrong(step, violations)):
                    lines.append(f"       {_short(step)}")
    return tuple(lines)


def plain_lines(program: Program) -> tuple[str, ...]:
    """The operations of a program, numbered, where no run is to be had."""
    return tuple(f"{number:4} {each}" for number, each in enumerate(program.operations, 1))


def policy_test_text(
    clause: str, request: Request, program: Program, message: str, invariant: str | None = None
) -> str:
    """A test of at most 15 lines that fails as the trial did, if the program is short.

    `invariant` names one of the author's own, where it found what is shown.
    """
    target, imports = _target_text(request)
    variables = {key: _variable(key) for key in program.universe}
    shown = " ".join(map(key_text, variables)).replace("/0", "")
    unpacked = ", ".join(variables.values()) + ("," if len(variables) == 1 else "")
    options = ", watchful=True" if program.watchful else ""
    if invariant is not None:
        own, line = _import_of(invariant)
        imports.append(line)
        options += f", invariants=[{own}()]"
    lines = [*dict.fromkeys(imports)]
    lines.append("from stateful_models.checking import check_policy, keys, op")
    lines += ["", ""]
    lines.append(f"def test_{clause.lower().replace('-', '_').replace(' ', '_')}() -> None:")
    if variables:
        lines.append(f'    {unpacked} = keys("{shown}")')
    lines.append(f"    check_policy({target}, {program.capacity}, [")
    lines += [f"        {_call(each, variables)}," for each in program.operations]
    # What was seen tells the next reader what it is about.
    lines.append(
        f"    ]{options})  # {message}" if len(message) < MESSAGE_WIDTH else f"    ]{options})"
    )
    return "\n".join(lines)


def _target_text(request: Request) -> tuple[str, list[str]]:
    """The target as an expression, and what it imports."""
    if ":" in request.target:
        target, line = _import_of(request.target)
        imports = [line]
    elif request.driver is None and not request.arguments:
        return json.dumps(request.target), []
    else:
        return f"registered({json.dumps(request.target)})", [
            "from stateful_models.drivers import registered"
        ]
    if request.driver is None and not request.arguments:
        return target, imports
    driver, line = _import_of(request.driver or "stateful_models.drivers:Driver")
    arguments = f", {_expression(dict(request.arguments), {})}" if request.arguments else ""
    return f"{driver}({target}{arguments})", [*imports, line]


def _import_of(name: str) -> tuple[str, str]:
    """What a named thing is called, and the line that imports it."""
    module, _, attribute = name.rpartition(":")
    if module.endswith(".py"):
        module = module.removesuffix(".py").rpartition("/")[2]
    first = attribute.partition(".")[0]
    return attribute, f"from {module} import {first}"


def _state(played: Played) -> str:
    resident, pinned, pending, free = played.state
    return f"{resident:8} {pinned:6} {pending:7} {free:4}"


def _wrong(step: Step, violations: Sequence[Violation]) -> bool:
    return step.error is not None or any(found.number == step.number for found in violations)


def _short(step: Step) -> str:
    return str(step).strip().partition(" ")[2].strip()


def _variable(key: OffloadKey) -> str:
    name = key_text(key).removesuffix("/0").replace("/", "_")
    return name if name.isidentifier() else f"key_{name}"


def _call(operation: HostOperation, named: Mapping[OffloadKey, str]) -> str:
    """The operation as an expression. Fields that have their default are left out."""
    arguments: list[str] = []
    skipped = False
    for each in fields(type(operation)):
        value: object = getattr(operation, each.name)
        if value == each.default and not isinstance(value, str):
            skipped = skipped or not each.kw_only
            continue
        text = _expression(value, named)
        arguments.append(f"{each.name}={text}" if skipped or each.kw_only else text)
    return f"op.{type(operation).__name__}({', '.join(arguments)})"


def _expression(value: object, named: Mapping[OffloadKey, str]) -> str:
    if isinstance(value, bytes):
        return named.get(OffloadKey(value), repr(value))
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    if isinstance(value, str):
        return json.dumps(value)
    # What is in a container may be anything, which is what `object` says.
    if isinstance(value, tuple):
        inside = [_expression(each, named) for each in cast("tuple[object, ...]", value)]
        return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
    if isinstance(value, list):
        inside = [_expression(each, named) for each in cast("list[object]", value)]
        return f"[{', '.join(inside)}]"
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        shown = [f"{_expression(k, named)}: {_expression(v, named)}" for k, v in items]
        return f"{{{', '.join(shown)}}}"
    return repr(value)
