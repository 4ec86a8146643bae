"""What a child process is asked to do, and what it answers, as messages."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeAlias

import msgspec
from attrs import field, frozen

from stateful_models.contract import Profile
from stateful_models.globs import is_chosen
from stateful_models.levels import LEVELS, Level
from stateful_models.trial.verdicts import Outcome, Report, decode, encode

Argument: TypeAlias = "str | int | float | bool | None"
"""A constructor argument, as a command line can give one."""


def read_argument(text: str) -> Argument:
    """The value that a text on a command line stands for, if any; else the text."""
    words: dict[str, Argument] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


class Task(Enum):
    """What the child is for."""

    POLICY = "policy"
    MANAGER = "manager"
    DIGEST = "digest"
    """Only the choices that a policy makes in the drawn programs, as a digest."""


@frozen(kw_only=True)
class Request:
    """One target, and how to try it. Names are resolved by the child, where the target runs.

    `only` and `without` are globs over the ids of clauses, `known` the clauses that are known to
    be broken.
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
    environment: Mapping[str, str] = field(factory=dict)
    arguments: Mapping[str, Argument] = field(factory=dict)

    @property
    def budgets(self) -> Level:
        """The budgets of its level."""
        return LEVELS[self.level]

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
    )


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


Answer: TypeAlias = "Progress | Untriable | Digest | Report"

_PROGRESS: Final = b"p"
_UNTRIABLE: Final = b"u"
_DIGEST: Final = b"d"
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
    return msgspec.json.decode(body, type=Untriable)
