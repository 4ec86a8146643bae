"""What docs/vllm-manager.md says of vLLM 0.33.0's manager happens, and is what a trial finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FunctionType
from typing import Any, Final

import pytest
from attrs import frozen

from spec_tests.built import ROOT
from spec_tests.peer.root import peer
from stateful_models.checking import BrokenClauseError
from stateful_models.contract import Profile
from stateful_models.trial.request import Request, Task
from stateful_models.trial.trials import hold_trial
from stateful_models.trial.verdicts import Outcome, Report, Verdict
from stateful_models.vllm.manager_target import manager_target

PAGE: Final = (ROOT / "docs" / "vllm-manager.md").read_text(encoding="utf-8")
FINDINGS: Final = import_module("spec_tests.peer.findings.test_cpu_manager")
UNJUDGED: Final = "not judged"


@frozen
class Row:
    """A row of the table of findings."""

    finding: str
    clause: str
    demand: str
    whose: str
    vllm: str
    reference: str


def rows() -> Iterator[Row]:
    for line in re.findall(r"^\| (\[.*) \|$", PAGE, re.M):
        yield Row(*(cell.strip() for cell in line.split("|")))


def findings() -> Iterator[FunctionType]:
    for name, value in vars(FINDINGS).items():
        if name.startswith("test_") and isinstance(value, FunctionType):
            yield value


@pytest.mark.parametrize("test", list(findings()), ids=lambda test: test.__name__)
def test_a_finding_fails_exactly_as_it_says(
    test: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    # Marks are kept as the list that pytest makes of them.
    marks: list[Any] = vars(test)["pytestmark"]
    (expected,) = [mark.kwargs for mark in marks if mark.name == "xfail"]
    names = test.__code__.co_varnames[: test.__code__.co_argcount]
    with pytest.raises(expected["raises"]) as caught:
        test(**{name: request.getfixturevalue(name) for name in names})
    assert str(caught.value).splitlines()[0] == expected["reason"]


@pytest.fixture(scope="module")
def reports() -> dict[Profile, Report]:
    """The quick trial under each profile."""
    target = manager_target(peer().root)
    return {
        profile: hold_trial(
            Request(task=Task.MANAGER, target=target, profile=profile, unhurried=True)
        )
        for profile in Profile
    }


def said(report: Report, clause: str) -> str:
    """What a trial says of a clause, in the words of the table."""
    found = report.of(clause)
    if found.verdict is Verdict.BROKEN:
        return "convicts" if found.convicts else "reported"
    return str(found.verdict.value)


def test_the_verdicts_are_those_of_the_page(reports: dict[Profile, Report]) -> None:
    assert reports[Profile.VLLM].verdict is Outcome.CLEAN
    assert reports[Profile.REFERENCE].verdict is Outcome.CONVICTED
    table = list(rows())
    assert len(table) >= 13
    for row in table:
        if row.clause == "none":
            assert (row.vllm, row.reference) == (UNJUDGED, UNJUDGED)
            continue
        vllm, reference = (
            said(reports[profile], row.clause) for profile in (Profile.VLLM, Profile.REFERENCE)
        )
        assert (row.finding, vllm, reference) == (row.finding, row.vllm, row.reference)
        found = reports[Profile.REFERENCE].of(row.clause)
        assert row.demand == f"{found.kind}, {found.source}"


def test_nothing_is_found_that_the_page_does_not_have(reports: dict[Profile, Report]) -> None:
    (consequences,) = re.findall(r"With a host that errs,.*?\n\n", PAGE, re.S)
    own = {row.clause for row in rows()}
    named = {
        Profile.VLLM: {row.clause for row in rows() if row.vllm == "reported"},
        Profile.REFERENCE: own | set(re.findall(r"[A-Z]+-\d+", consequences)),
    }
    for profile, report in reports.items():
        broken = {each.id for each in report.clauses if each.verdict is Verdict.BROKEN}
        assert broken <= named[profile]
    broken = {each.id for each in reports[Profile.VLLM].clauses if each.verdict is Verdict.BROKEN}
    assert broken == named[Profile.VLLM]


def test_the_report_says_what_was_tried(reports: dict[Profile, Report]) -> None:
    for report in reports.values():
        assert f"on trial is the CPUOffloadingManager of {peer()}" in report.notes[0]
        files = {method.name for method in report.reach.methods}
        # The lines that count are vLLM's, and not of what calls it.
        assert "CPUOffloadingManager.prepare_store" in files
        assert not any(name.startswith("VLLMManager") for name in files)


def test_what_becomes_of_an_engine_is_told(reports: dict[Profile, Report]) -> None:
    report = reports[Profile.VLLM]
    assert report.of("EVT-5").consequence.startswith("a router believes that [a/0] is here")
    assert "unless the GPU's cache is reset with it" in report.of("EVT-5").consequence
    assert "victims that are not there" in report.of("STORE-6").consequence


@pytest.mark.parametrize("profile", Profile)
def test_the_tests_to_paste_show_it(reports: dict[Profile, Report], profile: Profile) -> None:
    shown = 0
    for clause in reports[profile].clauses:
        if clause.verdict is not Verdict.BROKEN or "verdict_on" in clause.test:
            continue
        namespace: dict[str, Any] = {}  # whatever a test imports
        exec(compile(clause.test, clause.id, "exec"), namespace)
        (test,) = [value for name, value in namespace.items() if name.startswith("test_")]
        with pytest.raises(BrokenClauseError, match=clause.id):
            test()
        shown += 1
    assert shown >= 3
