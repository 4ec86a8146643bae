"""The judge: tells invariants each step, and reports what they object to with the calls before.

An invariant that raises disturbs nobody: that it raised is reported once, under its own name, and
from then on it is not asked again, for nobody knows what it still remembers.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Final, Generic, TypeVar

from attrs import frozen

from kvoffload.keys import OffloadKey
from stateful_models.contract import CLAUSES, Kind
from stateful_models.invariants.base import Books, Finding, Invariant
from stateful_models.loading import words_of
from stateful_models.operations import Operation, key_text
from stateful_models.steps import Step

BooksT = TypeVar("BooksT", bound=Books)

NOT_ASKED_AGAIN: Final = "; it was not asked again"
"""How the message ends about an invariant that raised."""
_OURS: Final = __name__.partition(".")[0]
_BYTES_LITERAL = re.compile(r"""b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*\"""")


class InvariantFailedError(Exception):
    """An invariant raised, or did not return, instead of judging."""


@frozen
class Violation:
    """A breach of `clause` at step `number`; `calls` are the last steps up to it, as text.

    `invariant` is the class that found it and `promise` the sentence of what is broken: the first
    line of its docstring, but ours in a clause of ours if the class is ours too, or does not list
    the clause. `kind` is the class of the demand that is broken, None in a clause that is not ours.
    Where `raised`, nothing was found: the invariant itself failed, and `clause` is its name.
    `strayed` is as in a `Finding`.
    """

    clause: str
    message: str
    number: int
    calls: tuple[str, ...]
    invariant: str = ""
    promise: str = ""
    raised: bool = False
    kind: Kind | None = None
    strayed: OffloadKey | None = None

    def __str__(self) -> str:
        sentence = f"\n  {self.promise}" if self.promise else ""
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
        self._text: tuple[str, ...] | None = None
        self._asked: tuple[Invariant[BooksT], ...] = self.invariants
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
                for invariant in self._asked
                if not invariant.concerns or issubclass(kind, invariant.concerns)
            )
        self._last.append(step)
        self._text = None
        violations: list[Violation] = []
        for invariant in concerned:
            try:
                for finding in invariant.judge(step, books):
                    violations.append(self._found(invariant, finding, step))
            # An invariant may be anybody's, and the subject's host must not suffer from it.
            except Exception as error:
                violations.append(self._failed(invariant, error, step))
        self.checks += len(concerned)
        books.apply(step)
        return violations

    def _found(self, invariant: Invariant[BooksT], finding: Finding, step: Step) -> Violation:
        name, clause = type(invariant).__name__, finding.clause
        message = keys_in_short(finding.message)
        kind: Kind | None = None
        promise = (type(invariant).__doc__ or "").strip().partition("\n")[0]
        if clause in CLAUSES:
            part = CLAUSES[clause].part(finding.kind)
            kind = part.kind
            ours = type(invariant).__module__.partition(".")[0] == _OURS
            if ours or clause not in invariant.clauses or not promise:
                promise = part.sentence
        elif clause not in invariant.clauses:
            message = f"{message} (found by {name}, which does not list {clause})"
        return Violation(
            clause,
            message,
            step.number,
            self._calls(),
            name,
            promise,
            kind=kind,
            strayed=finding.strayed,
        )

    def _failed(self, invariant: Invariant[BooksT], error: Exception, step: Step) -> Violation:
        self._asked = tuple(asked for asked in self._asked if asked is not invariant)
        self._concerned.clear()
        name = type(invariant).__name__
        last = extract_tb(error.__traceback__)[-1]
        message = (
            f"raised {type(error).__name__}: {keys_in_short(words_of(error))} in {name}.judge "
            f"({Path(last.filename).name}:{last.lineno}){NOT_ASKED_AGAIN}"
        )
        return Violation(name, message, step.number, self._calls(), name, raised=True)

    def _calls(self) -> tuple[str, ...]:
        # One step may break a thousand things, and be long itself.
        if self._text is None:
            self._text = tuple(keys_in_short(str(step)) for step in self._last)
        return self._text


def keys_in_short(text: str) -> str:
    """The text with keys as `key_text` gives them, where it has the literals of their bytes.

    Bytes count as a key if what would be the group is below 65,536: no text ends like that.
    """
    return _BYTES_LITERAL.sub(_in_short, text)


def _in_short(match: re.Match[str]) -> str:
    try:
        value: object = literal_eval(match[0])
    except (SyntaxError, ValueError):
        return match[0]
    if isinstance(value, bytes) and len(value) > 4 and value[-4:-2] == bytes(2):
        return key_text(OffloadKey(value))
    return match[0]
