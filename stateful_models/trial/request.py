"""What a child process is asked to do, and what it answers, as messages."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeAlias

import msgspec
from attrs import evolve, field, frozen

from stateful_models.contract import Profile
from stateful_models.globs import is_chosen
from stateful_models.levels import LEVELS, Level
from stateful_models.trial.arguments import Argument
from stateful_models.trial.verdicts import Outcome, Report, decode, encode

UNHURRIED: Final = 50
"""Where a trial is not to be cut, it may still not go on for ever."""


class Task(Enum):
    """What the child is for."""

    POLICY = "policy"
    MANAGER = "manager"
    DIGEST = "digest"
    """Only the choices that a policy makes in the drawn programs, as a digest."""
    CLAUSES = "clauses"
    """Only the clauses of the invariants that are named, whatever the target is."""


@frozen(kw_only=True)
class Request:
    """One target, and how to try it. Names are resolved by the child, where the target runs.

    `only` and `without` are globs over the ids of clauses, `known` the clauses that are known to
    be broken. One that is `unhurried` plays all its programs, however long that takes: what is
    a test has to come to the same on any machine. `vllm` is the version of vLLM that the target is
    written for, whose stand-ins answer its imports, or "installed"; None for what needs none.
    """

    task: Task
    target: str
    driver: str | None = None
    invariants: tuple[str, ...] = ()
    profile: Profile = Profile.VLLM
    level: str = "quick"
    seed: int = 0
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    unhurried: bool = False
    vllm: str | None = None
    environment: Mapping[str, str] = field(factory=dict)
    arguments: Mapping[str, Argument] = field(factory=dict)

    @property
    def budgets(self) -> Level:
        """The budgets of its level."""
        level = LEVELS[self.level]
        return evolve(level, patience_s=UNHURRIED * level.patience_s) if self.unhurried else level

    def wants(self, clause: str) -> bool:
        """Whether the clause is among those that are to be judged."""
        return is_chosen(clause, self.only, self.without)


def report_on(request: Request, verdict: Outcome) -> Report:
    """A report that says what was asked and the verdict, and nothing else yet."""
    return Report(
        target=request.target,
        verdict=verdict,
        profile=request.profile.value,
        level=request.level,
        seed=request.seed,
        environment=request.environment,
        arguments=request.arguments,
        driver=request.driver,
        invariants=request.invariants,
        manager=request.task is Task.MANAGER,
        vllm=request.vllm,
    )


@frozen
class Doing:
    """What a process marks, in case that it does not get over it: a call, or that it loads.

    `call` is the name of what it calls of the target, `loading` of what it imports; nothing but
    the kit's own doing if both are empty.
    """

    call: str = ""
    loading: str = ""

    def encode(self) -> bytes:
        """As a mark."""
        return b"c" + self.call.encode() if self.call else b"l" + self.loading.encode()

    @classmethod
    def decode(cls, mark: bytes) -> Doing:
        """What such a mark, or none yet, says."""
        text = mark[1:].decode(errors="replace")
        return cls(call=text) if mark[:1] == b"c" else cls(loading=text)


@frozen
class Progress:
    """How far an engine is."""

    engine: str
    share: float


@frozen
class Untriable:
    """Why the target could not be tried."""

    problem: str


@frozen
class Digest:
    """The choices of a policy, as a digest."""

    choices: str


@frozen
class OwnClause:
    """A clause of an author's own: what its invariant promises, of which class, and named how.

    `subjects` says whose calls it judges, as far as its class names the books it asks for: "policy"
    or "manager".
    """

    id: str
    promise: str
    kind: str
    invariant: str
    subjects: tuple[str, ...] = ()


@frozen
class OwnClauses:
    """The clauses of the invariants that a request names."""

    clauses: tuple[OwnClause, ...]


Answer: TypeAlias = "Progress | Untriable | Digest | OwnClauses | Report"

_PROGRESS: Final = b"p"
_UNTRIABLE: Final = b"u"
_DIGEST: Final = b"d"
_CLAUSES: Final = b"c"
_REPORT: Final = b"r"


def encode_request(request: Request) -> bytes:
    """A request as bytes."""
    return msgspec.json.encode(request)


def decode_request(data: bytes) -> Request:
    """The request of such bytes."""
    return msgspec.json.decode(data, type=Request)


def encode_answer(answer: Answer) -> bytes:
    """An answer as one line of bytes."""
    if isinstance(answer, Report):
        return _REPORT + encode(answer)
    if isinstance(answer, Progress):
        return _PROGRESS + msgspec.json.encode(answer)
    if isinstance(answer, Digest):
        return _DIGEST + msgspec.json.encode(answer)
    if isinstance(answer, OwnClauses):
        return _CLAUSES + msgspec.json.encode(answer)
    return _UNTRIABLE + msgspec.json.encode(answer)


def decode_answer(line: bytes) -> Answer:
    """The answer of such a line. Raises msgspec.DecodeError."""
    kind, body = line[:1], line[1:]
    if kind == _REPORT:
        return decode(body)
    if kind == _PROGRESS:
        return msgspec.json.decode(body, type=Progress)
    if kind == _DIGEST:
        return msgspec.json.decode(body, type=Digest)
    if kind == _CLAUSES:
        return msgspec.json.decode(body, type=OwnClauses)
    return msgspec.json.decode(body, type=Untriable)
