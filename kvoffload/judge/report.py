"""A judgement as data: everything that the page says, and more, as report.json has it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from attrs import field, fields, frozen

from kvoffload.judge.cost_value import CostValue
from kvoffload.judge.hint_value import HintValue
from kvoffload.judge.session_value import SessionValue
from kvoffload.judge.value import TraceValue


@frozen(kw_only=True)
class ClauseLine:
    """A clause that is not held: what is known of it, and why."""

    id: str
    verdict: str
    what: str


@frozen(kw_only=True)
class Contract:
    """The verdict of `kvoffload verify`. `problem` says why there is none.

    `cut` has the engines whose time was up, with the share of their programs that they played.
    """

    verdict: str
    level: str
    host: str
    held: int
    held_clauses: tuple[str, ...] = ()
    not_held: tuple[ClauseLine, ...] = ()
    problem: str = ""
    cut: Mapping[str, float] = field(factory=dict)

    @property
    def convicted(self) -> bool:
        """Whether a clause is broken that counts."""
        return self.verdict == "convicted"


@frozen(kw_only=True)
class Judgement:
    """One policy, judged. Sections that were not asked for, or could not be had, are None or empty.

    `command` regenerates all of it, `commands` each section; `notes` are worth reading.
    """

    target: str
    name: str
    version: str
    command: str
    commands: Mapping[str, str] = field(factory=dict)
    driver: str | None = None
    vllm: str | None = None
    arguments: Mapping[str, object] = field(factory=dict)
    host: str = ""
    contract: Contract | None = None
    values: tuple[TraceValue, ...] = ()
    sessions: tuple[SessionValue, ...] = ()
    hints: tuple[HintValue, ...] = ()
    cost: CostValue | None = None
    notes: tuple[str, ...] = ()

    @property
    def convicted(self) -> bool:
        """Whether the policy broke its contract, on trial or in a run."""
        broke = self.contract is not None and self.contract.convicted
        own = [
            point.problem
            for value in self.values
            for tier in value.tiers
            for point in tier.of(self.name)
            if point.problem
        ]
        own += [
            each.problem
            for value in self.sessions
            for each in value.policies
            if each.policy == self.name and each.problem
        ]
        raised = [
            kind.raised
            for value in self.hints
            if value.report is not None
            for kind in value.report.kinds
            if kind.raised
        ]
        failed = () if self.cost is None else self.cost.of(self.name).problems
        return broke or bool(own) or bool(raised) or bool(failed)


def to_json(judgement: Judgement) -> bytes:
    """A judgement as JSON, with its fields in the order of the class."""
    built: dict[str, object] = msgspec.to_builtins(judgement)
    ordered = {each.name: built[each.name] for each in fields(Judgement)}
    return msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n"


def from_json(data: bytes) -> Judgement:
    """The judgement of such JSON. Raises msgspec.DecodeError or ValidationError."""
    return msgspec.json.decode(data, type=Judgement)
