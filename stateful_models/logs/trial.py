"""The trial of a log: the invariants of a live watch judge what was written down."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar, cast

from attrs import frozen
from typing_extensions import override

from kvoffload.wording import counted
from stateful_models.account import Account
from stateful_models.contract import CLAUSES, Profile
from stateful_models.invariants import (
    Books,
    Invariant,
    PolicyBooks,
    manager_invariants,
    policy_invariants,
)
from stateful_models.judge import Violation
from stateful_models.logs.reader import LogReader
from stateful_models.monitor import Monitor, Setup
from stateful_models.operations import NewRequest

BooksT = TypeVar("BooksT", bound=Books)


@frozen(kw_only=True)
class LogReport:
    """What the trial of the log at `path` came to.

    `violations` has the first hundred of every clause, `num_violations` counts all. `host` is who
    made the calls, as far as the log says. `cut`: the log ends in the middle of a line, and what
    came after `steps` is not known. `hints_are_types`: requests had hints, and the log has only
    their types, so that an invariant that reads hints has judged nothing of the kind.
    `hints_listed`: the log has these fields of hints alone; None: it has all or types.
    """

    path: Path
    setup: Setup
    host: str | None
    profile: Profile
    steps: int
    checks: int
    violations: tuple[Violation, ...]
    num_violations: int
    cut: bool
    hints_are_types: bool = False
    hints_listed: tuple[str, ...] | None = None

    @property
    def convictions(self) -> tuple[Violation, ...]:
        """The violations that convict under the profile; those of clauses of one's own do."""
        return tuple(found for found in self.violations if convicts(found, self.profile))

    @override
    def __str__(self) -> str:
        setup = self.setup
        many = setup.num_chunks
        size = "unknown many chunks" if many is None else counted(many, "chunk")
        host = f", called by {self.host}" if self.host else ""
        convicting = {found.clause for found in self.convictions}
        lines = [
            f"{self.path}: a {setup.kind} of {size}{host}",
            f"{counted(self.steps, 'step')}, {counted(self.checks, 'judgement')}, "
            f"{counted(self.num_violations, 'violation')}",
            f"clauses that convict (profile {self.profile.value}): "
            f"{', '.join(sorted(convicting)) or 'none'}",
        ]
        if self.cut:
            lines.append(f"the log is cut off: what came after step {self.steps:,} is not known")
        if self.hints_are_types:
            lines.append("hints are types: an invariant that reads hints cannot judge them")
        if self.hints_listed is not None:
            fields = ", ".join(self.hints_listed) or "none"
            lines.append(f"of hints, the log has these fields: {fields}")
        for first in _firsts(self.violations):
            reported = "" if first.clause in convicting else "(reported only) "
            lines += ["", f"{reported}{first}"]
        return "\n".join(lines)


def judge_log(
    path: str | os.PathLike[str],
    *,
    profile: Profile = Profile.VLLM,
    invariants: Sequence[Invariant[Account]] | Sequence[Invariant[PolicyBooks]] = (),
    keep_last: int = 12,
) -> LogReport:
    """Judge the log at `path` as a watch would have judged the calls when they were made.

    `invariants` judge beside the usual ones; they must be for what the log is of, a manager or a
    policy. Violations have the number of their step, which is that of its line, less the header.
    Raises LogError, with file and line, for what cannot be read.
    """
    with LogReader(path) as reader:
        setup = reader.setup
        # Of what a log is shows only now; an invariant of other books fails, and is reported so.
        if setup.kind == "manager":
            usual = manager_invariants(
                store_threshold=setup.store_threshold,
                enable_events=setup.enable_events,
                may_refuse=setup.capabilities.may_refuse is not None,
                may_evict_more=setup.capabilities.may_evict_more is not None,
            )
            own = cast("Sequence[Invariant[Account]]", invariants)
            books = Account(setup.num_chunks)
            return _judged(
                reader, Monitor(setup, [*usual, *own], books, keep_last=keep_last), profile
            )
        usual_of_policy = policy_invariants(setup.capabilities, setup.num_chunks or 0)
        own_of_policy = cast("Sequence[Invariant[PolicyBooks]]", invariants)
        both = [*usual_of_policy, *own_of_policy]
        return _judged(reader, Monitor(setup, both, PolicyBooks(), keep_last=keep_last), profile)


def _judged(reader: LogReader, monitor: Monitor[BooksT], profile: Profile) -> LogReport:
    hinted, listed = False, reader.header.hints == "listed"
    for step in reader:
        if isinstance(step.operation, NewRequest):
            # Of those that are not listed nothing is left but that there were some.
            sent = step.operation.hints
            hinted = hinted or (sent is not None if listed else bool(sent))
        monitor.tell(step.operation, step.result, step.error, step.visible, step.told)
    tally = monitor.tally
    return LogReport(
        path=reader.path,
        setup=reader.setup,
        host=reader.header.host,
        profile=profile,
        steps=tally.steps,
        checks=monitor.judge.checks,
        violations=tuple(tally.violations),
        num_violations=tally.num_violations,
        cut=reader.cut,
        hints_are_types=hinted and reader.header.hints == "types",
        hints_listed=reader.header.listed if hinted and listed else None,
    )


def convicts(found: Violation, profile: Profile) -> bool:
    """Whether a violation convicts under the profile; one of a clause of one's own does."""
    if found.raised:
        return False
    clause = CLAUSES.get(found.clause)
    return clause is None or clause.part(found.kind).convicts(profile)


def _firsts(violations: Iterable[Violation]) -> Iterable[Violation]:
    firsts: dict[str, Violation] = {}
    for found in violations:
        firsts.setdefault(found.clause, found)
    return firsts.values()
