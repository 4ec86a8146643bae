"""The judge: tells invariants each step, and reports what they object to with the calls before."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from attrs import frozen

from stateful_models.contract import CLAUSES
from stateful_models.invariants.base import Books, Invariant
from stateful_models.operations import Operation
from stateful_models.steps import Step

BooksT = TypeVar("BooksT", bound=Books)


@frozen
class Violation:
    """A breach of `clause` at step `number`; `calls` are the last steps up to it, as text."""

    clause: str
    message: str
    number: int
    calls: tuple[str, ...]

    def __str__(self) -> str:
        known = CLAUSES.get(self.clause)
        sentence = f"\n  {known.sentence}" if known is not None else ""
        calls = "".join(f"\n  {call}" for call in self.calls)
        return f"{self.clause}: {self.message}{sentence}{calls}"


class Judge(Generic[BooksT]):
    """Judges one subject by `invariants`, which share `books`.

    `checks` counts the judgements made: one for every invariant that is concerned with a step.
    The text of the last `keep_last` calls is made only when it is needed.
    """

    def __init__(
        self, invariants: Sequence[Invariant[BooksT]], books: BooksT, *, keep_last: int = 12
    ) -> None:
        self.books = books
        self.invariants: tuple[Invariant[BooksT], ...] = tuple(invariants)
        self.checks: int = 0
        self._last: deque[Step] = deque(maxlen=keep_last)
        self._concerned: dict[type[Operation], tuple[Invariant[BooksT], ...]] = {}

    def judge(self, step: Step) -> Sequence[Violation]:
        """Let every invariant that is concerned judge the step, then write it down."""
        books = self.books
        books.read(step)
        kind = type(step.operation)
        concerned = self._concerned.get(kind)
        if concerned is None:
            concerned = self._concerned[kind] = tuple(
                invariant
                for invariant in self.invariants
                if not invariant.concerns or issubclass(kind, invariant.concerns)
            )
        self._last.append(step)
        violations: Sequence[Violation] = ()
        for invariant in concerned:
            for finding in invariant.judge(step, books):
                violations = [
                    *violations,
                    Violation(finding.clause, finding.message, step.number, self._calls()),
                ]
        self.checks += len(concerned)
        books.apply(step)
        return violations

    def _calls(self) -> tuple[str, ...]:
        return tuple(map(str, self._last))
