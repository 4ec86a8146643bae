"""Verdicts as a test file: a test for each program that broke a clause, and a parametrised one for
all other clauses."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import Final

from attrs import define, field

from stateful_models.trial.code_text import WIDTH, apart, expression, import_lines, laid_out
from stateful_models.trial.pasting import KIT, identifier, trial_options
from stateful_models.trial.verdicts import ClauseVerdict, Outcome, Report, Verdict

GIVEN: Final = "given"
"""The argument of a test for what a target is built with, where that is a grid."""
_TAKEN: Final = (GIVEN, "clause", "pytest")
"""Names of the file that are imported from no module of a pasted test."""
_GIVEN_TYPE: Final = "dict[str, str | int | float | bool | None]"
_DOCSTRING: Final = '''"""The contract of KV-cache offloading, as tests.

A clause that was broken by a program has a test of its own: it plays the program, which is quick,
and then asks a whole trial for the verdict, for another program may break it too. All other clauses
are asked together. A trial is held once for all of its clauses.
"""'''


def export_tests(reports: Iterable[Report]) -> str:
    """The text of a file for pytest, which needs nothing beside it and this package.

    What a program breaks has one test, which plays it and then asks for the verdict of a trial, so
    that it fails once and passes when no program breaks it any more. What follows from another
    conviction has no test of its own. A target that was tried with several arguments has one set
    of tests, each for all the arguments with which it is the same.
    """
    tried = [report for report in reports if report.verdict is not Outcome.UNTRIED]
    file = _File(_short_names(report.target for report in tried))
    for _, group in groupby(tried, key=_but_for_arguments):
        file.add(list(group))
    beside = {module for report in tried for module in _modules_beside(report)}
    pytest_line = ["import pytest"] if any("pytest." in test for test in file.tests) else []
    blocks = [
        _DOCSTRING.splitlines(),
        [*pytest_line, *file.imports(lambda module: module not in beside)],
        file.imports(lambda module: module in beside),
    ]
    head = ["\n".join(block) for block in blocks[: 3 if tried else 1] if block]
    return "\n\n\n".join(["\n\n".join(head), *file.tests]) + "\n"


def _short_names(targets: Iterable[str]) -> dict[str, str]:
    """What each target is called in the names of its tests: with its module where its own name is
    that of another one too."""
    own = {target: target.rpartition(":")[2] for target in targets}
    times = Counter(own.values())
    return {
        target: identifier(name if times[name] == 1 else _with_module(target))
        for target, name in own.items()
    }


def _with_module(target: str) -> str:
    module, _, name = target.rpartition(":")
    return f"{PurePath(module).stem if module.endswith('.py') else module}_{name}"


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
class _Program:
    """The body of a test that plays a program, with the reports that have it.

    `given`: it takes the arguments of the target, in place of those of one report.
    """

    body: str
    given: bool = field(kw_only=True)
    reports: list[Report] = field(factory=list, eq=False)


@define
class _File:
    """The tests of a file, and what they import from each module.

    `imported` is by module and name there, and gives the name here: no two are one.
    """

    short_names: Mapping[str, str]
    tests: list[str] = field(factory=list)
    _imported: dict[tuple[str, str], str] = field(
        factory=lambda: {(KIT, "verdict_on"): "verdict_on"}
    )
    _names: set[str] = field(factory=set)

    def imports(self, wanted: Callable[[str], bool]) -> list[str]:
        """The statements that import from such modules."""
        names: dict[str, list[str]] = defaultdict(list)
        for (module, name), here in self._imported.items():
            names[module].append(name if here == name else f"{name} as {here}")
        modules = sorted(filter(wanted, names))
        return [line for each in modules for line in import_lines(each, names[each])]

    def add(self, reports: Sequence[Report]) -> None:
        """Tests of one target, which was tried with the arguments of each of the reports."""
        target = self.short_names[reports[0].target]
        grid = reports if len(reports) > 1 and all(report.arguments for report in reports) else ()
        trial = self._name(f"trial_of_{target}")
        self.tests.append("\n".join(_trial(trial, reports[0], given=bool(grid))))
        asked: set[str] = set()
        for clause, programs in self._programs(reports, grid).items():
            # Else it is played with some of the arguments only, and the trial asked apart from it.
            whole = not grid or all(program.given for program in programs)
            rest = [each for each in grid if not any(each in one.reports for one in programs)]
            for program in programs:
                name = self._name(f"test_{target}_{identifier(clause)}")
                those = [*program.reports, *(rest if whole else ())] if program.given else ()
                rest = []
                then = [_asks(trial, expression(clause), given=bool(grid))] if whole else []
                self.tests.append("\n".join([*_head(name, those), program.body, *then]))
            asked |= {clause} if whole else set()
        name = self._name(f"test_{target}_keeps")
        others = [clause for clause in _clauses(reports) if clause not in asked]
        if others:
            self.tests.append("\n".join(_contract(name, trial, others, grid)))

    def _programs(
        self, reports: Sequence[Report], grid: Sequence[Report]
    ) -> dict[str, list[_Program]]:
        """What plays a program that broke a clause, by the clause; alike is there once."""
        found: dict[str, list[_Program]] = {}
        for report in reports:
            for root in filter(_shows_a_program, report.roots):
                alone = self._body(root.test)
                body = alone.replace(_arguments(report), GIVEN) if grid else alone
                program = _Program(body, given=body != alone)
                those = found.setdefault(root.id, [])
                if program not in those:
                    those.append(program)
                those[those.index(program)].reports.append(report)
        return found

    def _body(self, text: str) -> str:
        """What the test does; its imports are those of the file."""
        renamed: dict[str, str] = {}
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.ImportFrom) and statement.module is not None:
                for one in statement.names:
                    here = self._import(statement.module, one.name)
                    if here != (one.asname or one.name):
                        renamed[one.asname or one.name] = here
            if isinstance(statement, ast.FunctionDef):
                lines = text.splitlines()
                return "\n".join(_renamed(lines, statement, renamed)[statement.lineno :])
        return ""

    def _import(self, module: str, name: str) -> str:
        """What is called so in a module is called here: as there, unless another is."""
        taken = {*self._imported.values(), *_TAKEN}
        return self._imported.setdefault((module, name), apart(name, taken))

    def _name(self, wanted: str) -> str:
        name = apart(wanted, self._names)
        self._names.add(name)
        return name


def _renamed(
    lines: Sequence[str], function: ast.FunctionDef, names: Mapping[str, str]
) -> list[str]:
    """The lines of a text, with names in one of its functions replaced by others."""
    # Counted in bytes, from the last to the first, so that no place moves before its turn.
    written = [line.encode() for line in lines]
    found = [
        (node.lineno - 1, node.col_offset, node.id)
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id in names
    ]
    for row, column, name in sorted(found, reverse=True):
        line = written[row]
        after = line[column + len(name.encode()) :]
        written[row] = line[:column] + names[name].encode() + after
    new = [line.decode() for line in written]
    if max(map(len, new)) <= WIDTH:
        return new
    # The lines are laid out already: they keep their names.
    known = [f"    {name} = {names[name]}" for name in sorted({name for _, _, name in found})]
    return [*lines[: function.lineno], *known, *lines[function.lineno :]]


def _shows_a_program(clause: ClauseVerdict) -> bool:
    """Whether it has a test that is more than the question for the verdict of a trial."""
    return bool(clause.test) and "verdict = verdict_on(" not in clause.test


def _clauses(reports: Sequence[Report]) -> list[str]:
    """Those that apply under any of the arguments, without what is known to be broken."""
    known = {each.id for report in reports for each in report.clauses if each.known}
    applying = dict.fromkeys(
        each.id
        for report in reports
        for each in report.clauses
        if each.verdict is not Verdict.NOT_APPLICABLE and each.id not in known
    )
    return list(applying)


def _trial(name: str, report: Report, *, given: bool) -> Iterator[str]:
    """The function that fails with what a trial has found against a clause."""
    options = {each: expression(value) for each, value in trial_options(report)}
    if given:
        options["arguments"] = GIVEN
    listed = [expression(report.target), "clause", *(f"{k}={v}" for k, v in options.items())]
    parameters = ", ".join(_parameters("clause: str", given=given))
    yield from laid_out(f"def {name}({parameters}) -> None:", 0)
    yield '    """What a trial finds against a clause fails; all clauses are one trial."""'
    yield from laid_out(f"verdict = verdict_on({', '.join(listed)})", 4)
    yield '    told = "\\n".join([verdict.sentence, verdict.seen, *verdict.program])'
    yield "    if verdict.convicts and not verdict.follows:"
    yield "        pytest.fail(told, pytrace=False)"


def _asks(trial: str, clause: str, *, given: bool) -> str:
    """The call of that function."""
    return f"    {trial}({clause}{f', {GIVEN}' if given else ''})"


def _contract(
    name: str, trial: str, clauses: Sequence[str], grid: Sequence[Report]
) -> Iterator[str]:
    """A test for each of the clauses; of a grid it is given the arguments."""
    ids = expression(tuple(clauses))
    yield from laid_out(f'@pytest.mark.parametrize("clause", {ids})', 0)
    yield from _head(name, grid, "clause: str")
    yield '    """Each clause that applies, but for those whose own test asks the trial as well."""'
    yield _asks(trial, "clause", given=bool(grid))


def _head(name: str, grid: Sequence[Report], *parameters: str) -> Iterator[str]:
    """How the function of a test begins, which is given the arguments of each of a grid."""
    if grid:
        each = f"[{', '.join(map(_arguments, grid))}]"
        yield from laid_out(f'@pytest.mark.parametrize("{GIVEN}", {each}, ids=str)', 0)
    shown = ", ".join(_parameters(*parameters, given=bool(grid)))
    yield from laid_out(f"def {name}({shown}) -> None:", 0)


def _parameters(*parameters: str, given: bool) -> list[str]:
    return [*parameters, *([f"{GIVEN}: {_GIVEN_TYPE}"] if given else [])]


def _arguments(report: Report) -> str:
    return expression(dict(report.arguments))
