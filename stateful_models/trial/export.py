"""Verdicts as a test file: a test for each conviction, and a parametrised one for the contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from stateful_models.trial.verdicts import ClauseVerdict, Outcome, Report, Verdict

_CONTRACT = '''

@pytest.mark.parametrize("clause", {clauses!r})
def test_{name}_keeps(clause: str) -> None:
    """Each clause that applies; one that was broken fails until it is mended."""
    verdict = verdict_on(
        {target!r},
        clause,
{options}    )
    assert not verdict.convicts, "\\n".join([verdict.sentence, verdict.seen, *verdict.program])
'''


def export_tests(reports: Iterable[Report]) -> str:
    """The text of a file for pytest, which needs nothing beside it and this package."""
    tried = [report for report in reports if report.verdict is not Outcome.UNTRIED]
    imports = {"import pytest"}
    own: list[str] = []
    bodies: list[str] = []
    names: Counter[str] = Counter()
    for report in tried:
        name = _name(report)
        names[name] += 1
        if names[name] > 1:
            name = f"{name}_{names[name]}"
        for clause in report.convictions:
            lines, body = _parts(clause)
            own += [line for line in lines if line not in own]
            if body:
                bodies.append(body.replace("def test_", f"def test_{name}_", 1))
        bodies.append(_contract(report, name))
    used = ["verdict_on"] if not any("check_policy" in body for body in bodies) else _NAMES
    kit = f"from stateful_models.checking import {', '.join(used)}"
    head = '"""The contract of KV-cache offloading, as tests."""\n\n'
    packages = "\n".join([*sorted(imports), "", *(line for line in own if line != kit)])
    return f"{head}{packages.rstrip()}\n{kit}\n{''.join(bodies)}"


_NAMES = ["check_policy", "keys", "op", "verdict_on"]


def _parts(clause: ClauseVerdict) -> tuple[list[str], str]:
    """The imports of a conviction's test, and the test."""
    head, _, body = clause.test.partition("\n\n\n")
    lines = [line for line in head.splitlines() if "stateful_models.checking" not in line]
    return lines, f"\n\n{body}\n" if body else ""


def _contract(report: Report, name: str) -> str:
    clauses = tuple(
        clause.id
        for clause in report.clauses
        if clause.verdict is not Verdict.NOT_APPLICABLE and not clause.known
    )
    return _CONTRACT.format(
        clauses=clauses,
        name=name,
        target=report.target,
        options="".join(f"        {name}={value!r},\n" for name, value in _options(report)),
    )


def _options(report: Report) -> Iterator[tuple[str, object]]:
    """How the trial was held, as far as it was not by default."""
    if report.driver is not None:
        yield "driver", report.driver
    if report.invariants:
        yield "invariants", list(report.invariants)
    if report.arguments:
        yield "arguments", dict(report.arguments)
    if report.manager:
        yield "manager", True
    yield "profile", report.profile
    yield "level", report.level
    yield "seed", report.seed


def _name(report: Report) -> str:
    name = report.target.rpartition(":")[2]
    return "".join(c if c.isalnum() else "_" for c in name).lower()
