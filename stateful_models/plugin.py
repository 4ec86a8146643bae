"""A pytest plugin: one test for each clause that a target is held to. Nothing loads it by itself:

pytest -p stateful_models.plugin --kvoffload-policy my_policy.py:MyPolicy

A test is called `TARGET::CLAUSE`, and can be named like this among the arguments, as can a whole
target; then nothing else is run. Before them comes `TARGET::trial`, which fails where the target
cannot be tried. A clause that was not reached is skipped; `-rs` tells why. Where an argument
of the target has several values, each combination is tried, as `TARGET[window=8]`; without the
bracket all of them are meant.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from stateful_models.trial.request import OwnClause, Request
    from stateful_models.trial.verdicts import ClauseVerdict, Report

_CHOSEN: Final = pytest.StashKey[list[str]]()
"""What was named of targets among the arguments."""
TRIAL: Final = "trial"
"""The test that a target can be tried at all."""


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
        "--kvoffload-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE[,VALUE...]",
        help="an argument of its constructor: true, false, none, a number, or text; several values "
        "make a trial each",
    )
    group.addoption(
        "--kvoffload-vllm",
        metavar="VERSION",
        help="what policies import of vLLM is answered by stand-ins of this version, or by what is "
        "installed",
    )
    for option, what in (("only", "judge only clauses like this"), ("without", "leave out these")):
        group.addoption(
            f"--kvoffload-{option}",
            action="append",
            default=[],
            metavar="GLOB",
            help=f"{what}, such as 'POL-*'",
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Set aside what names a target or a test of one: pytest would look for a file."""
    config = session.config
    targets = [target for _, target in _targets(config)]
    config.stash[_CHOSEN] = [
        argument
        for argument in config.args
        if any(argument == one or argument.startswith((f"{one}::", f"{one}[")) for one in targets)
    ]
    config.args = [one for one in config.args if one not in config.stash[_CHOSEN]]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Add the targets to what the session consists of.

    Raises pytest.UsageError for what was chosen and is no combination of arguments.
    """
    report = yield
    if isinstance(collector, pytest.Session) and report.passed:
        no_ids: list[str] = []
        chosen = collector.config.stash.get(_CHOSEN, no_ids)
        of_none = set(chosen)
        for name, request, own in _trials(collector.config):
            meant = {one: _in_full(one, name, request.target) for one in chosen}
            of_none -= {one for one, full in meant.items() if full}
            ids = list(filter(None, meant.values()))
            if ids or not chosen:
                # pytest leaves the type of what it passes on open, here and below.
                target = Target.from_parent(  # pyright: ignore[reportUnknownMemberType]
                    collector, name=name, nodeid=name, request=request, own=own, chosen=ids
                )
                report.result.append(target)
        if of_none:
            raise pytest.UsageError(f"not found: {', '.join(sorted(of_none))}")
    return report


class Target(pytest.Collector):
    """One target; it is tried when the first of its tests is run.

    `chosen` are the ids of those tests that are wanted, or its own; empty: all. `own` are the
    clauses of the author's own.
    """

    def __init__(
        self, *, request: Request, own: OwnClauses, chosen: Sequence[str], **kwargs: object
    ) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]  # name and parent, as pytest has them
        self.chosen = chosen
        self.told: bool = False
        """Whether a test has failed because the target cannot be tried."""
        self._request = request
        self._own = own
        self._report: Report | None = None
        self._invariants: dict[str, str] = {}

    def collect(self) -> Iterable[TrialTest]:
        """The trial, and the clauses that a target of its kind can be held to, as far as they are
        wanted.

        Raises pytest.UsageError for what was chosen and is not there.
        """
        from stateful_models.trial.trials import clauses_of

        request = self._request
        names = list(filter(request.wants, clauses_of(request.task)))
        self._invariants = self._own.wanted(request)
        names += self._invariants
        tests: list[TrialTest] = [
            TrialTest.from_parent(self, name=TRIAL),  # pyright: ignore[reportUnknownMemberType]
            *(
                ClauseTest.from_parent(self, name=name)  # pyright: ignore[reportUnknownMemberType]
                for name in names
            ),
        ]
        for one in self.chosen:
            if one not in (self.nodeid, *(test.nodeid for test in tests)):
                raise pytest.UsageError(f"not found: {one}")
        whole = not self.chosen or self.nodeid in self.chosen
        return [test for test in tests if whole or test.nodeid in self.chosen]

    def verdicts(self, name: str) -> Iterator[ClauseVerdict]:
        """The verdicts on a clause, and on what its invariant found that it does not list."""
        invariant = self._invariants.get(name)
        for clause in self.report().clauses:
            stray = clause.source == invariant and clause.id not in self._invariants
            if name == clause.id or stray:
                yield clause

    def report(self) -> Report:
        """The report; the trial is held only once."""
        from stateful_models.trial.trials import hold_trial

        if self._report is None:
            self._report = hold_trial(self._request)
        return self._report


class TrialTest(pytest.Item):
    """That a target can be tried. The first test of it to be run fails when it cannot, and the
    others are skipped."""

    def runtest(self) -> None:
        """Raise ClauseFailure, or skip."""
        self.tried()

    def tried(self) -> Target:
        """The target after its trial. Raises ClauseFailure, or skips, where there was none."""
        target = self.parent
        if not isinstance(target, Target):
            raise TypeError(f"{self.name} is no part of a target")
        report = target.report()
        if report.problem and target.told:
            pytest.skip("not run, for the target could not be tried")
        if report.problem:
            target.told = True
            why = report.problem.removeprefix(f"{report.target}: ")
            raise ClauseFailure(f"could not be tried: {why}")
        return target

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


class ClauseTest(TrialTest):
    """One clause. It fails when the clause is broken and that convicts; it is skipped when it does
    not apply or was not reached, and `pytest -rs` then tells which one it is, and why."""

    def runtest(self) -> None:
        """Raise ClauseFailure, or skip."""
        target = self.tried()
        for verdict in target.verdicts(self.name):
            if verdict.convicts:
                raise ClauseFailure(_told(verdict, target.report().host))
            if verdict.verdict.value in ("not reached", "not applicable"):
                # pytest says where this line stands, and not whose reason it is.
                pytest.skip(f"{self.nodeid}: {verdict.verdict.value}: {verdict.reason}")


class ClauseFailure(Exception):  # noqa: N818 - a verdict, not an error
    """A clause is broken, or there is no verdict; the message is what pytest prints."""


class OwnClauses:
    """The clauses of the invariants that are named, asked of a process once and when needed."""

    def __init__(self, request: Request) -> None:
        self._request = request

    @cached_property
    def found(self) -> tuple[OwnClause, ...]:
        """All of them. Raises TargetError when they cannot be had."""
        from stateful_models.trial.trials import own_clauses

        return own_clauses(self._request)

    def wanted(self, request: Request) -> dict[str, str]:
        """Those that are wanted, each with the class that judges it.

        An invariant that lists none, or that cannot be loaded, stands there as it was named.
        """
        from stateful_models.loading import TargetError

        named = {name: name.rpartition(":")[2] for name in request.invariants}
        try:
            found = self.found
        except TargetError:
            # The trial ends with it too, and says so.
            return {kind: kind for kind in named.values()}
        listed = {one.invariant for one in found}
        bare = {kind: kind for name, kind in named.items() if name not in listed}
        return {**{one.id: one.kind for one in found if request.wants(one.id)}, **bare}

    def check_globs(self, request: Request) -> None:
        """Raise pytest.UsageError for a glob that fits no clause, ours or the author's own."""
        from stateful_models.contract import CLAUSES
        from stateful_models.globs import fitting, none_fits
        from stateful_models.loading import TargetError
        from stateful_models.trial.scope import CLAIMS

        for option, globs in (("only", request.only), ("without", request.without)):
            for glob in globs:
                if fitting(glob, (*CLAUSES, *CLAIMS)):
                    continue
                try:
                    own = [clause.id for clause in self.found]
                except TargetError as error:
                    raise pytest.UsageError(f"--kvoffload-invariant: {error}") from error
                if not fitting(glob, own):
                    told = none_fits(own, "--kvoffload-invariant")
                    raise pytest.UsageError(f"--kvoffload-{option} {glob}: {told}")


def _targets(config: pytest.Config) -> list[tuple[str, str]]:
    """Their kinds and names."""
    return [
        (kind, target)
        for kind in ("policy", "manager")
        for target in _texts(config, f"--kvoffload-{kind}")
    ]


def _in_full(chosen: str, name: str, target: str) -> str:
    """The id of what was chosen, if it is of the trial of this name or of all of its target."""
    for begin in (name, target):
        if chosen == begin or chosen.startswith(f"{begin}::"):
            return name + chosen.removeprefix(begin)
    return ""


def _trials(config: pytest.Config) -> Iterator[tuple[str, Request, OwnClauses]]:
    """What is to be tried: a name, what is asked for, and the clauses of the author's own."""
    targets = _targets(config)
    if not targets:
        return
    from stateful_models.contract import Profile
    from stateful_models.trial.arguments import ArgumentTextError, argument_grid, argument_words
    from stateful_models.trial.request import Request, Task

    level: str | None = config.getoption("--kvoffload-level")
    seed: int | None = config.getoption("--kvoffload-seed")
    try:
        grid = list(argument_grid(_texts(config, "--kvoffload-arg")))
    except ArgumentTextError as error:
        raise pytest.UsageError(f"--kvoffload-arg {error}") from error
    words = list(map(argument_words, grid))
    common = set(words[0]).intersection(*words)
    own: OwnClauses | None = None
    for (kind, target), arguments in product(targets, grid):
        request = Request(
            task=Task(kind),
            target=target,
            driver=config.getoption("--kvoffload-driver"),
            invariants=_texts(config, "--kvoffload-invariant"),
            profile=Profile(config.getoption("--kvoffload-profile")),
            level=level or "quick",
            seed=seed or 0,
            unhurried=True,
            only=_texts(config, "--kvoffload-only"),
            without=_texts(config, "--kvoffload-without"),
            arguments=arguments,
            vllm=config.getoption("--kvoffload-vllm") if kind == "policy" else None,
        )
        if own is None:
            own = OwnClauses(request)
            own.check_globs(request)
        # What is the same for all says nothing.
        differing = [word for word in argument_words(arguments) if word not in common]
        name = f"{target}[{','.join(differing)}]" if differing else target
        yield name, request, own


def _texts(config: pytest.Config, option: str) -> tuple[str, ...]:
    """What was given for an option that may be repeated."""
    texts: list[str] | None = config.getoption(option)
    return tuple(texts or ())


def _told(verdict: ClauseVerdict, host: str) -> str:
    lines = [
        f"{verdict.id} ({verdict.kind}, {verdict.source}): {verdict.sentence}",
        f"seen: {verdict.seen}",
    ]
    if verdict.expected:
        lines.append(f"expected: {verdict.expected}")
    lines += verdict.program
    if verdict.consequence:
        lines.append(f"{host or 'an engine'} then: {verdict.consequence}")
    if verdict.test:
        lines += ["", "as a test:", "", *verdict.test.splitlines()]
    return "\n".join(lines)
