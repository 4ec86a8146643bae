"""What an invariant is: something that is told every step and objects in words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

from kvoffload.keys import OffloadKey
from stateful_models.contract import Kind
from stateful_models.operations import Operation
from stateful_models.steps import Step


class Finding(NamedTuple):
    """A breach: the id of the clause, and what happened.

    A clause may make several demands of different weight; `kind` says which of them is broken,
    None the leading one. `strayed` is a key that was lost, or came back, in one of several calls:
    which of them is not known, so that a host which looks it up after each may say more.
    """

    clause: str
    message: str
    kind: Kind | None = None
    strayed: OffloadKey | None = None


class Books(Protocol):
    """What invariants of one subject share, kept up to date by whoever judges."""

    def read(self, step: Step) -> None:
        """Prepare for the judgement of a step; the books are still those from before it."""

    def apply(self, step: Step) -> None:
        """Write down what a step did, after it was judged."""


BooksT_contra = TypeVar("BooksT_contra", bound=Books, contravariant=True)


class Invariant(ABC, Generic[BooksT_contra]):
    """A promise about sequences of steps.

    Subclass it and write `judge`. What it knows comes from the steps and the books alone: it
    never calls the subject. Each judgement takes time in proportion to the keys of the step.
    """

    clauses: ClassVar[tuple[str, ...]] = ()
    """The clauses it can find broken."""
    concerns: ClassVar[tuple[type[Operation], ...]] = ()
    """The operations it is told of; empty: all."""

    @abstractmethod
    def judge(self, step: Step, books: BooksT_contra) -> Iterable[Finding]:
        """Every breach that this step shows. `books` are those from before the step."""
