"""Verdicts as a test file: a test for each conviction, and a parametrised one for the contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stateful_models.trial.pasting import KIT, kit_imports, trial_options
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
    used = {"verdict_on"}
    bodies: list[str] = []
    names: Counter[str] = Counter()
    for report in tried:
        name = _name(report)
        names[name] += 1
        if names[name] > 1:
            name = f"{name}_{names[name]}"
        for clause in report.convictions:
            lines, named, body = _parts(clause)
            own += [line for line in lines if line not in own]
            used.update(named)
            if body:
                bodies.append(body.replace("def test_", f"def test_{name}_", 1))
        bodies.append(_contract(report, name))
    head = '"""The contract of KV-cache offloading, as tests."""\n\n'
    packages = "\n".join([*sorted(imports), "", *own]).rstrip()
    kit = "\n".join(kit_imports(sorted(used)))
    return f"{head}{packages}\n{kit}\n{''.join(bodies)}"


def _parts(clause: ClauseVerdict) -> tuple[list[str], list[str], str]:
    """Of a conviction's test: its imports, what it uses of the kit, and the test."""
    head, _, body = clause.test.partition("\n\n\n")
    lines: list[str] = []
    used: list[str] = []
    for line in head.splitlines():
        if line.startswith(_KIT):
            used += line.removeprefix(_KIT).split(", ")
        else:
            lines.append(line)
    return lines, used, f"\n\n{body}\n" if body else ""


_KIT = f"from {KIT} import "


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
        options="".join(f"        {name}={value!r},\n" for name, value in trial_options(report)),
    )


def _name(report: Report) -> str:
    name = report.target.rpartition(":")[2]
    return "".join(c if c.isalnum() else "_" for c in name).lower()
