"""A pytest plugin: one test for each clause that a target is held to. Nothing loads it by itself:

pytest -p stateful_models.plugin --kvoffload-policy my_policy.py:MyPolicy
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stateful_models.trial.request import Request
    from stateful_models.trial.verdicts import ClauseVerdict, Report


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, each named as that of `kvoffload verify`."""
    group = parser.getgroup("kvoffload", "KV-cache offloading: policies and managers on trial")
    for kind in ("policy", "manager"):
        group.addoption(
            f"--kvoffload-{kind}",
            action="append",
            default=[],
            metavar="TARGET",
            help=f"a {kind} to put on trial: a registered name, pkg.mod:Class or file.py:Class",
        )
    group.addoption("--kvoffload-driver", metavar="M:CLASS", help="how to build and call it")
    group.addoption(
        "--kvoffload-invariant",
        action="append",
        default=[],
        metavar="M:CLASS",
        help="an invariant of your own that judges beside the others",
    )
    group.addoption(
        "--kvoffload-profile",
        choices=("vllm", "reference"),
        default="vllm",
        help="whose code it is",
    )
    group.addoption(
        "--kvoffload-level",
        choices=("quick", "ci", "nightly"),
        default="quick",
        help="how long a trial takes",
    )
    group.addoption(
        "--kvoffload-seed", type=int, default=0, metavar="N", help="chooses the programs"
    )


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add a test for each clause of each target."""
    for request in _requests(config):
        collector = Target.from_parent(session, name=request.target, request=request)
        items.extend(collector.collect())


class Target(pytest.Collector):
    """One target; it is tried when the first of its clauses is asked for."""

    def __init__(self, *, request: Request, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]  # name and parent, as pytest has them
        self._request = request
        self._report: Report | None = None

    def collect(self) -> Iterable[ClauseTest]:
        """The clauses that a target of its kind can be held to."""
        from stateful_models.trial.trials import clauses_of

        for clause in clauses_of(self._request.task):
            yield ClauseTest.from_parent(self, name=clause)
        for invariant in self._request.invariants:
            yield ClauseTest.from_parent(self, name=invariant.rpartition(":")[2])

    def verdicts(self, name: str) -> Iterator[ClauseVerdict]:
        """The verdicts on a clause, or on what an invariant of this name found."""
        report = self.report()
        for clause in report.clauses:
            if name in (clause.id, clause.source):
                yield clause

    def report(self) -> Report:
        """The report; the trial is held only once."""
        from stateful_models.trial.trials import hold_trial

        if self._report is None:
            self._report = hold_trial(self._request)
        return self._report


class ClauseTest(pytest.Item):
    """One clause. It fails when the clause is broken and that convicts, or when the target cannot
    be tried; it is skipped, with the reason, when it does not apply or was not reached."""

    def runtest(self) -> None:
        """Raise ClauseFailure, or skip."""
        target = self.parent
        if not isinstance(target, Target):
            raise TypeError(f"{self.name} is no part of a target")
        report = target.report()
        if report.problem:
            raise ClauseFailure(f"{report.target} could not be tried: {report.problem}")
        for verdict in target.verdicts(self.name):
            if verdict.convicts:
                raise ClauseFailure(_told(verdict))
            if verdict.verdict.value in ("not reached", "not applicable"):
                pytest.skip(f"{verdict.verdict.value}: {verdict.reason}")

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None
    ) -> str:
        """What is broken, in place of a traceback through the kit."""
        if isinstance(excinfo.value, ClauseFailure):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[str, None, str]:
        """Where the test stands, in words."""
        target = self.parent.name if self.parent is not None else ""
        return target, None, f"{target} {self.name}"


class ClauseFailure(Exception):  # noqa: N818 - a verdict, not an error
    """A clause is broken; the message is what pytest prints."""


def _requests(config: pytest.Config) -> Iterator[Request]:
    targets: list[tuple[str, str]] = [
        (kind, target)
        for kind in ("policy", "manager")
        for target in config.getoption(f"--kvoffload-{kind}")
    ]
    if not targets:
        return
    from stateful_models.contract import Profile
    from stateful_models.trial.request import Request, Task

    for kind, target in targets:
        yield Request(
            task=Task(kind),
            target=target,
            driver=config.getoption("--kvoffload-driver"),
            invariants=tuple(config.getoption("--kvoffload-invariant")),
            profile=Profile(config.getoption("--kvoffload-profile")),
            level=config.getoption("--kvoffload-level"),
            seed=config.getoption("--kvoffload-seed"),
        )


def _told(verdict: ClauseVerdict) -> str:
    lines = [
        f"{verdict.id} ({verdict.kind}, {verdict.source}): {verdict.sentence}",
        f"seen: {verdict.seen}",
    ]
    if verdict.expected:
        lines.append(f"expected: {verdict.expected}")
    lines += verdict.program
    if verdict.consequence:
        lines.append(f"vLLM 0.33 then: {verdict.consequence}")
    if verdict.test:
        lines += ["as a test:", *verdict.test.splitlines()]
    return "\n".join(lines)
