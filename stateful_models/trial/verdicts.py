"""Verdicts: what a trial says of each clause, and of the target as a whole.

The JSON form of a `Report` is stable: fields are added, never renamed or taken away within one
version of the contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

import msgspec
from attrs import field, fields, frozen

from stateful_models.loading import printable
from stateful_models.trial.portability import Portability

CONTRACT: Final = "1"
"""The version of the contract that verdicts are about."""


class Verdict(Enum):
    """What is known of one clause."""

    HELD = "held"
    BROKEN = "broken"
    NOT_REACHED = "not reached"
    """What would have tried it did not come about, or lines that decide it never ran."""
    NOT_APPLICABLE = "not applicable"
    """The target does not promise it, or declines it."""


class Outcome(Enum):
    """What is said of a target."""

    CLEAN = "clean"
    CONVICTED = "convicted"
    UNTRIED = "untried"
    """It could not be built, loaded or called."""


@frozen(kw_only=True, repr=False)
class ClauseVerdict:
    """One clause, whose `kind` is called class in JSON.

    `convicts`: it is broken, and that counts under the profile.

    `reason` says what was not reached, or which capability makes it not applicable. A broken one
    has its shortest `program` as lines, `expected` and `seen`, `consequence` (what becomes of an
    engine), `test` (to be pasted), the `engine` that found it, the `invariant` if that is the
    author's own, and how many `programs` all engines had played by then, None where that is not
    known; `also` are lines about its other demands that are broken, each with a program of its own.
    `known`: it is on the list of known failures, and does not convict. `provisional`: the check is
    new in this release, and does not convict yet. `cut` are those of its engines that ended before
    they had played all their programs, for time was up or calls did not return, with how much of
    them was played; `share` is the least of it. `call` is the operation of its program that breaks
    it, 0 where no program shows it. If another clause was broken before, in `follows_at`, it
    `follows` from that one.
    """

    id: str
    kind: str
    source: str
    verdict: Verdict
    sentence: str
    convicts: bool = False
    reason: str = ""
    seen: str = ""
    expected: str = ""
    program: tuple[str, ...] = ()
    consequence: str = ""
    test: str = ""
    engine: str = ""
    invariant: str = ""
    programs: int | None = None
    known: bool = False
    provisional: bool = False
    also: tuple[str, ...] = ()
    share: float = 1.0
    call: int = 0
    follows: str = ""
    follows_at: int = 0
    cut: Mapping[str, float] = field(factory=dict)

    def __repr__(self) -> str:
        """In short, for assertions show it."""
        return f"<{self.id}: {self.verdict.value}>"

    @property
    def broken(self) -> bool:
        """Whether there is something that shows it broken, convicting or not."""
        return self.verdict is Verdict.BROKEN


@frozen(kw_only=True)
class MethodReach:
    """The lines of one method of the target's own; `never_ran` as "57-65".

    `file` is the name of its file where that is not the target's.
    """

    name: str
    ran: int
    lines: int
    never_ran: tuple[str, ...] = ()
    file: str = ""


@frozen(kw_only=True)
class Reached:
    """What a trial came to: situations with their numbers, and the target's own lines.

    `hints_missed`: names that the target asked a request for and that no request had.
    """

    situations: Mapping[str, int] = field(factory=dict)
    methods: tuple[MethodReach, ...] = ()
    hints_missed: tuple[str, ...] = ()
    programs: int = 0


@frozen(kw_only=True)
class Report:
    """One target on trial. `problem` says why it could not be tried; `notes` are worth reading.

    `cut` has the engines whose time was up before they had played all their programs, with the
    share of them that was (of the exhaustive one, the share of its depths or worlds). `vllm` is the
    version of vLLM that it was tried with, if it is written for vLLM, and `portability` what it is
    in each.
    """

    target: str
    verdict: Outcome
    profile: str
    level: str
    clauses: tuple[ClauseVerdict, ...] = ()
    reach: Reached = Reached()
    contract: str = CONTRACT
    seconds: float = 0.0
    host: str = ""
    seed: int = 0
    environment: Mapping[str, str] = field(factory=dict)
    arguments: Mapping[str, object] = field(factory=dict)
    driver: str | None = None
    invariants: tuple[str, ...] = ()
    manager: bool = False
    notes: tuple[str, ...] = ()
    problem: str = ""
    cut: Mapping[str, float] = field(factory=dict)
    vllm: str | None = None
    portability: tuple[Portability, ...] = ()

    @property
    def convictions(self) -> tuple[ClauseVerdict, ...]:
        """The broken clauses that count."""
        return tuple(clause for clause in self.clauses if clause.convicts)

    @property
    def roots(self) -> tuple[ClauseVerdict, ...]:
        """Those of the convictions that do not follow from another one."""
        return tuple(clause for clause in self.convictions if not clause.follows)

    def of(self, clause: str) -> ClauseVerdict:
        """The verdict on a clause. Raises KeyError when it is not in the report."""
        for verdict in self.clauses:
            if verdict.id == clause:
                return verdict
        raise KeyError(clause)


def to_builtins(report: Report) -> dict[str, object]:
    """A report as what JSON has, with fields in the order of the class."""
    built: dict[str, object] = msgspec.to_builtins(report)
    ordered = {each.name: built[each.name] for each in fields(Report)}
    return {**ordered, "clauses": [_clause(clause) for clause in report.clauses]}


def _clause(clause: ClauseVerdict) -> dict[str, object]:
    built: dict[str, object] = msgspec.to_builtins(clause)
    names = [each.name for each in fields(ClauseVerdict)]
    return {"class" if name == "kind" else name: built[name] for name in names}


def encode(report: Report) -> bytes:
    """A report as one line, for `decode`. Characters that no encoding has are escaped."""
    try:
        return msgspec.json.encode(report)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(msgspec.to_builtins(report)))


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        items: dict[str, object] = value
        return {name: _escaped(each) for name, each in items.items()}
    if isinstance(value, list):
        listed: list[object] = value
        return [_escaped(each) for each in listed]
    if isinstance(value, tuple):
        row: tuple[object, ...] = value
        return [_escaped(each) for each in row]
    return value


def encode_all(reports: Iterable[Report]) -> bytes:
    """Reports as a JSON list, to be read by people too."""
    data = msgspec.json.encode([to_builtins(report) for report in reports])
    return msgspec.json.format(data, indent=2) + b"\n"


def decode(line: bytes) -> Report:
    """The report of such a line. Raises msgspec.DecodeError or ValidationError."""
    return msgspec.json.decode(line, type=Report)
