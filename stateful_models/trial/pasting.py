"""Tests to be pasted: a few lines that fail as the trial did, and pass once it is mended."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from attrs import fields, frozen

from kvoffload import OffloadKey
from stateful_models.engines.base import Breach
from stateful_models.loading import in_one_line
from stateful_models.manager_drivers import OWN_MANAGERS
from stateful_models.operations import key_text
from stateful_models.programs import ManagerSettings, Program, keys
from stateful_models.trial.code_text import (
    WIDTH,
    apart,
    call_text,
    expression,
    import_lines,
    laid_out,
    packed,
)
from stateful_models.trial.reports import OwnPromise
from stateful_models.trial.request import Request, Task, report_on
from stateful_models.trial.verdicts import Outcome, Report
from stateful_models.vllm.manager_target import is_manager_target

MOST_LINES: Final = 15
KIT: Final = "stateful_models.checking"


_WORDS: Final = ("Locality", "Medium", "OffloadKey", "TierFilter", "TierMatcher")


class _ElsewhereError(Exception):
    """A name that no import statement of a test reaches."""


@frozen
class _Named:
    """An expression, and what has to be imported for it: pairs of a module and a name."""

    text: str
    imports: tuple[tuple[str, str], ...] = ()


def program_test(
    request: Request,
    breach: Breach,
    program: Program,
    *,
    law: str | None = None,
    own: Sequence[OwnPromise] = (),
) -> str:
    """A test of at most 15 lines that plays the program; "" if it takes more, or cannot be.

    With a `law` it is held to that one, else to all invariants; `own` are those of the author.
    What is tried must be importable from beside the test, in this environment.
    """
    if request.environment:
        return ""
    try:
        target = _target(request)
        invariant = _own_invariant(request, breach, own, program.capacity, target.imports)
    except _ElsewhereError:
        return ""
    manager = request.task is Task.MANAGER
    check = ("check_manager" if manager else "check_policy") + ("" if law is None else "_law")
    # What no short name gives stands as bytes: what is too short for a key, or not text.
    variables = {key: _variable(key) for key in program.universe if _has_name(key)}
    head: list[str] = []
    if variables:
        shown = " ".join(map(key_text, variables)).replace("/0", "")
        unpacked = ", ".join(variables.values()) + ("," if len(variables) == 1 else "")
        head += laid_out(f'{unpacked} = keys("{shown}")', 4)
    named = "" if law is None else f", {json.dumps(law)}"
    call = f"    {check}({target.text}{named}, {program.capacity}, ["
    if len(call) > WIDTH:
        head += laid_out(f"driver = {target.text}", 4)
        call = f"    {check}(driver{named}, {program.capacity}, ["
    head.append(call)
    options = [f"invariants=[{invariant.text}]"] if invariant.text and law is None else []
    if program.watchful:
        options.append("watchful=True")
    settings = "" if program.settings is None else _settings(program.settings)
    if settings:
        options.append(f"settings={settings}")
    names = [check, "op", *(["keys"] if variables else []), *(["ManagerSettings"] * bool(settings))]
    calls = [f"{call_text(each, variables)}," for each in program.operations]
    named_by = [*target.imports, *(invariant.imports if law is None else ())]
    head = [
        *_import_block([*_words_in(calls), *named_by, *((KIT, name) for name in names)]),
        "",
        "",
        f"def test_{identifier(breach.clause)}() -> None:",
        *head,
    ]
    foot = [f"    ]{''.join(f', {option}' for option in options)})"]
    if len(foot[0]) > WIDTH:
        below = (line for option in options for line in laid_out(f"{option},", 4))
        foot = ["    ],", *below, "    )"]
    one_a_line = [line for call in calls for line in laid_out(call, 8)]
    for body in (one_a_line, packed(calls, 8)):
        lines = _with_remark([*head, *body, *foot], breach.message)
        if len(lines) <= MOST_LINES and max(map(len, lines)) <= WIDTH:
            return "\n".join(lines)
    return ""


def verdict_test(request: Request, breach: Breach) -> str:
    """A test that holds the trial again, for what no single program shows."""
    arguments = [f"{json.dumps(request.target)},", f"{json.dumps(breach.clause)},"]
    for name, value in trial_options(report_on(request, Outcome.CONVICTED), everything=False):
        arguments.append(f"{name}={expression(value)},")
    call = f"    verdict = verdict_on({' '.join(arguments).rstrip(',')})"
    lines = [call]
    if len(call) > WIDTH:
        lines = ["    verdict = verdict_on(", *packed(arguments, 8), "    )"]
    lines = [
        *import_lines(KIT, ["verdict_on"]),
        "",
        "",
        f"def test_{identifier(breach.clause)}() -> None:",
        *lines,
        "    assert not verdict.broken, verdict.seen",
    ]
    return "\n".join(_with_remark(lines, breach.message))


def trial_options(report: Report, *, everything: bool = True) -> Iterator[tuple[str, object]]:
    """How a trial was held, as arguments of `verdict_on`; not `everything`: none by default."""
    if report.driver is not None:
        yield "driver", report.driver
    if report.invariants:
        yield "invariants", list(report.invariants)
    if report.arguments:
        yield "arguments", dict(report.arguments)
    if report.environment:
        yield "environment", dict(report.environment)
    if report.manager:
        yield "manager", True
    if report.vllm is not None:
        yield "vllm", report.vllm
    default = Request(task=Task.POLICY, target="")
    if everything or report.profile != default.profile.value:
        yield "profile", report.profile
    if everything or report.level != default.level:
        yield "level", report.level
    if everything or report.seed != default.seed:
        yield "seed", report.seed


def _import_block(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The lines that import names, each with its module: one statement for each module."""
    names: dict[str, set[str]] = {}
    for module, name in pairs:
        names.setdefault(module, set()).add(name)
    for module in sorted(names):
        yield from import_lines(module, list(names[module]))


def _words_in(calls: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What calls are about beside keys, with its module."""
    for word in _WORDS:
        if any(re.search(rf"\b{word}\b", call) for call in calls):
            yield "kvoffload", word


def _target(request: Request) -> _Named:
    """The target as an expression. Raises _ElsewhereError."""
    if request.vllm is not None:
        return _vllm_target(request, request.vllm)
    if is_manager_target(request.target):
        return _vllm_manager(request)
    manager = request.task is Task.MANAGER
    registered = ":" not in request.target or (manager and request.target in OWN_MANAGERS)
    plain = request.driver is None and not request.arguments
    if registered and plain:
        return _Named(json.dumps(request.target))
    arguments = f", {expression(dict(request.arguments))}" if request.arguments else ""
    if registered and request.driver is None:
        name = "registered_manager" if manager else "registered"
        module = "manager_drivers" if manager else "drivers"
        return _Named(
            f"{name}({json.dumps(request.target)}{arguments})",
            ((f"stateful_models.{module}", name),),
        )
    if not registered:
        target = _import_of(request.target)
    elif manager:
        target = _Named("CPUOffloadingManager", (("kvoffload", "CPUOffloadingManager"),))
    else:
        factory = f"CachePolicyFactory.get_cache_policy_cls({json.dumps(request.target)})"
        target = _Named(factory, (("kvoffload", "CachePolicyFactory"),))
    if plain:
        return target
    usual = (
        "stateful_models.manager_drivers:ManagerDriver"
        if manager
        else "stateful_models.drivers:Driver"
    )
    driver = _import_of(request.driver or usual, target.imports)
    return _Named(f"{driver.text}({target.text}{arguments})", (*target.imports, *driver.imports))


def _vllm_target(request: Request, version: str) -> _Named:
    """A policy whose imports have to be answered, so that no import statement gets it."""
    imported = "stateful_models.vllm.policies", "policy_driver"
    return _Named(f"policy_driver({', '.join(_vllm_options(request, version))})", (imported,))


def _vllm_options(request: Request, version: str) -> list[str]:
    """The arguments of `policy_driver`."""
    options = [json.dumps(request.target), json.dumps(version)]
    if request.driver is not None:
        options.append(f"driver={json.dumps(request.driver)}")
    if request.arguments:
        options.append(f"arguments={expression(dict(request.arguments))}")
    return options


def _vllm_manager(request: Request) -> _Named:
    """vLLM's own manager, which is had by its name alone. Raises _ElsewhereError."""
    name = json.dumps(request.target)
    arguments = f", {expression(dict(request.arguments))}" if request.arguments else ""
    module = "stateful_models.vllm.manager_target"
    if request.driver is not None:
        driver = _import_of(request.driver)
        make = f"{driver.text}(manager_maker({name}){arguments})"
        return _Named(make, (*driver.imports, (module, "manager_maker")))
    if not arguments:
        return _Named(name)
    return _Named(f"manager_driver({name}{arguments})", ((module, "manager_driver"),))


def _own_invariant(
    request: Request,
    breach: Breach,
    own: Sequence[OwnPromise],
    capacity: int,
    beside: Sequence[tuple[str, str]],
) -> _Named:
    """One of the author's own, if it found the breach. Raises _ElsewhereError."""
    known = {one.target: (one.name, one.arguments(capacity)) for one in own}
    for name in request.invariants:
        kind, arguments = known.get(name, (name.rpartition(":")[2], {}))
        if kind == breach.invariant:
            found = _import_of(name, beside)
            given = ", ".join(f"{each}={expression(v)}" for each, v in arguments.items())
            return _Named(f"{found.text}({given})", found.imports)
    return _Named("")


def _import_of(name: str, beside: Sequence[tuple[str, str]] = ()) -> _Named:
    """What a named thing is called, and where it is imported from. Raises _ElsewhereError.

    Another of its name may be imported `beside` it: then it is called otherwise.
    """
    module, _, attribute = name.rpartition(":")
    if module.endswith(".py"):
        path = PurePath(module)
        if len(path.parts) > 1:
            raise _ElsewhereError(name)
        module = path.stem
    if not all(part.isidentifier() for part in module.split(".")):
        raise _ElsewhereError(name)
    first, dot, rest = attribute.partition(".")
    others = {each.rpartition(" ")[2] for place, each in beside if (place, each) != (module, first)}
    here = apart(first, others)
    imported = first if here == first else f"{first} as {here}"
    return _Named(f"{here}{dot}{rest}", ((module, imported),))


def _settings(settings: ManagerSettings) -> str:
    """The settings as an expression; "" for the usual ones."""
    usual = ManagerSettings()
    given = {
        each.name: value
        for each in fields(ManagerSettings)
        if (value := getattr(settings, each.name)) != getattr(usual, each.name)
    }
    if not given:
        return ""
    return f"ManagerSettings({', '.join(f'{k}={expression(v)}' for k, v in given.items())})"


def _with_remark(lines: Sequence[str], message: str) -> list[str]:
    """The lines with what was seen, which tells the next reader what it is about, if it fits."""
    remark = f"# {in_one_line(message)}"
    if len(lines[-1]) + 2 + len(remark) <= WIDTH:
        return [*lines[:-1], f"{lines[-1]}  {remark}"]
    if len(lines) < MOST_LINES and len(remark) + 4 <= WIDTH:
        place = next(n for n, line in enumerate(lines, 1) if line.startswith("def "))
        return [*lines[:place], f"    {remark}", *lines[place:]]
    return list(lines)


def identifier(text: str) -> str:
    """The text as a part of a name."""
    return "".join(each if each.isalnum() else "_" for each in text).lower()


def _has_name(key: OffloadKey) -> bool:
    try:
        return keys(key_text(key)) == (key,)
    except ValueError:
        return False


def _variable(key: OffloadKey) -> str:
    name = key_text(key).removesuffix("/0").replace("/", "_")
    return name if name.isidentifier() else f"key_{identifier(name)}"
