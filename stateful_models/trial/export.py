"""Verdicts as a test file: a test for each conviction, and a parametrised one for the contract."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import Final

from attrs import define, field

from stateful_models.trial.code_text import expression, import_lines, laid_out
from stateful_models.trial.pasting import KIT, identifier, trial_options
from stateful_models.trial.verdicts import ClauseVerdict, Outcome, Report, Verdict

GIVEN: Final = "given"
"""The argument of a test for what a target is built with, where that is a grid."""
_GIVEN_TYPE: Final = "dict[str, str | int | float | bool | None]"


def export_tests(reports: Iterable[Report]) -> str:
    """The text of a file for pytest, which needs nothing beside it and this package.

    What follows from another conviction has no test of its own. A target that was tried with
    several arguments has one set of tests, each for all the arguments with which it is the same.
    """
    tried = [report for report in reports if report.verdict is not Outcome.UNTRIED]
    file = _File()
    for _, group in groupby(tried, key=_but_for_arguments):
        file.add(list(group))
    beside = {module for report in tried for module in _modules_beside(report)}
    blocks = [
        ['"""The contract of KV-cache offloading, as tests."""'],
        ["import pytest", *file.imports(lambda module: module not in beside)],
        file.imports(lambda module: module in beside),
    ]
    head = ["\n".join(block) for block in blocks[: 3 if tried else 1] if block]
    return "\n\n\n".join(["\n\n".join(head), *file.tests]) + "\n"


def _but_for_arguments(report: Report) -> tuple[str, list[tuple[str, object]]]:
    """What a target is, and how it was tried."""
    options = [one for one in trial_options(report) if one[0] != "arguments"]
    return report.target, options


def _modules_beside(report: Report) -> Iterator[str]:
    """The modules of files, which lie beside the test."""
    for name in (report.target, report.driver or "", *report.invariants):
        path = PurePath(name.rpartition(":")[0])
        if path.suffix == ".py":
            yield path.stem


@define
class _File:
    """The tests of a file, and what they import from each module."""

    tests: list[str] = field(factory=list)
    _imported: dict[str, set[str]] = field(factory=lambda: defaultdict(set, {KIT: {"verdict_on"}}))
    _names: set[str] = field(factory=set)

    def imports(self, wanted: Callable[[str], bool]) -> list[str]:
        """The statements that import from such modules."""
        modules = sorted(filter(wanted, self._imported))
        return [line for each in modules for line in import_lines(each, list(self._imported[each]))]

    def add(self, reports: Sequence[Report]) -> None:
        """Tests of one target, which was tried with the arguments of each of the reports."""
        target = identifier(reports[0].target.rpartition(":")[2])
        grid = len(reports) > 1 and all(report.arguments for report in reports)
        whose: dict[tuple[str, str, bool], list[Report]] = {}
        for report in reports:
            for root in filter(_has_test, report.roots):
                alone = self._body(root.test)
                body = alone.replace(_arguments(report), GIVEN) if grid else alone
                whose.setdefault((root.id, body, body != alone), []).append(report)
        for (clause, body, given), those in whose.items():
            name = self._name(f"test_{target}_{identifier(clause)}")
            self.tests.append("\n".join([*_head(name, those if given else ()), body]))
        name = self._name(f"test_{target}_keeps")
        self.tests.append("\n".join(_contract(name, reports, reports if grid else ())))

    def _body(self, text: str) -> str:
        """What the test does; its imports are those of the file."""
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.ImportFrom) and statement.module is not None:
                self._imported[statement.module].update(one.name for one in statement.names)
            if isinstance(statement, ast.FunctionDef):
                return "\n".join(text.splitlines()[statement.lineno :])
        return ""

    def _name(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name


def _has_test(clause: ClauseVerdict) -> bool:
    return bool(clause.test)


def _contract(name: str, reports: Sequence[Report], grid: Sequence[Report]) -> Iterator[str]:
    """A test for each clause that applies under any arguments; of a grid it is given them."""
    known = {each.id for report in reports for each in report.clauses if each.known}
    clauses = dict.fromkeys(
        each.id
        for report in reports
        for each in report.clauses
        if each.verdict is not Verdict.NOT_APPLICABLE and each.id not in known
    )
    options = {each: expression(value) for each, value in trial_options(reports[0])}
    if grid:
        options["arguments"] = GIVEN
    listed = [expression(reports[0].target), "clause", *(f"{k}={v}" for k, v in options.items())]
    ids = expression(tuple(clauses))
    yield from laid_out(f'@pytest.mark.parametrize("clause", {ids})', 0)
    yield from _head(name, grid, "clause: str")
    yield '    """Each clause that applies; one that was broken fails until it is mended."""'
    yield from laid_out(f"verdict = verdict_on({', '.join(listed)})", 4)
    yield '    told = "\\n".join([verdict.sentence, verdict.seen, *verdict.program])'
    yield "    assert verdict.follows or not verdict.convicts, told"


def _head(name: str, grid: Sequence[Report], *parameters: str) -> Iterator[str]:
    """How the function of a test begins, which is given the arguments of each of a grid."""
    if grid:
        each = f"[{', '.join(map(_arguments, grid))}]"
        yield from laid_out(f'@pytest.mark.parametrize("{GIVEN}", {each}, ids=str)', 0)
        parameters = (*parameters, f"{GIVEN}: {_GIVEN_TYPE}")
    yield from laid_out(f"def {name}({', '.join(parameters)}) -> None:", 0)


def _arguments(report: Report) -> str:
    return expression(dict(report.arguments))
