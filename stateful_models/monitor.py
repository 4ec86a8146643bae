"""The monitor: what the watch over a live subject consists of, whatever the subject.

It numbers the steps, has them judged, keeps what was found and tells observers. None of these
may disturb the subject or its host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Generic, Literal, Protocol, TypeVar

from attrs import define, field, frozen

from stateful_models.capabilities import NONE, Capabilities
from stateful_models.invariants.base import Books, Invariant
from stateful_models.judge import Judge, Violation, keys_in_short
from stateful_models.operations import Operation, PolicyOperation
from stateful_models.steps import NOTHING_VISIBLE, Result, Step, Visible

BooksT = TypeVar("BooksT", bound=Books)
ValueT = TypeVar("ValueT")

KEPT_VIOLATIONS = 100
"""How many violations of a clause are kept in full; one that is broken all the time must not hide
the others."""


@frozen(kw_only=True)
class Setup:
    """What is watched and how it was built, as far as whoever watches it was told."""

    kind: Literal["manager", "policy"]
    num_chunks: int | None = None
    store_threshold: int = 1
    enable_events: bool = False
    capabilities: Capabilities = NONE
    """What the policy promises and declines; of a manager's, whether it may refuse."""


class Observer(Protocol):
    """Told of everything that a watched subject does.

    One that raises becomes a violation under its own name, and is told nothing more.
    """

    def begin(self, setup: Setup) -> None:
        """The watch begins; called once, before the first step."""
        ...

    def observe(self, step: Step) -> None:
        """The step is over, and was judged."""
        ...


@define(eq=False)
class Tally:
    """What watching came to: how many `steps` were judged, and which `violations` they showed.

    `violations` has the first hundred of every clause, `num_violations` counts all: once the books
    of the two sides differ, one mistake shows at many calls.
    """

    violations: list[Violation] = field(factory=list)
    num_violations: int = 0
    steps: int = 0
    _kept: Counter[str] = field(factory=Counter, init=False, repr=False)

    def keep(self, found: Sequence[Violation]) -> None:
        """Count violations, and keep them unless there are enough of their clause."""
        self.num_violations += len(found)
        for violation in found:
            self._kept[violation.clause] += 1
            if self._kept[violation.clause] <= KEPT_VIOLATIONS:
                self.violations.append(violation)


class Monitor(Generic[BooksT]):
    """Watches one subject by `invariants` over `books`.

    A `tally` that is given goes on where it stands; several monitors can share one, and number
    their steps together.
    """

    def __init__(
        self,
        setup: Setup,
        invariants: Sequence[Invariant[BooksT]],
        books: BooksT,
        *,
        keep_last: int = 12,
        observers: Sequence[Observer] = (),
        tally: Tally | None = None,
    ) -> None:
        self.setup = setup
        self.tally: Tally = Tally() if tally is None else tally
        self.judge: Judge[BooksT] = Judge(invariants, books, keep_last=keep_last)
        self._judged = self.judge.judge
        self._observers: list[Observer] = list(observers)
        for observer in observers:
            try:
                observer.begin(setup)
            except Exception as error:
                self._dismiss(observer, error)

    @property
    def books(self) -> BooksT:
        """What the invariants know in common."""
        return self.judge.books

    def tell(
        self,
        operation: Operation,
        result: Result = None,
        error: BaseException | None = None,
        visible: Visible = NOTHING_VISIBLE,
        told: tuple[PolicyOperation, ...] | None = None,
    ) -> None:
        """The subject answered `operation` with `result`, or raised `error`.

        `visible` and `told` are those of `Step`.
        """
        tally = self.tally
        tally.steps += 1
        step = Step(tally.steps, operation, result, error, visible, told)
        found = self._judged(step)
        if found:
            tally.keep(found)
        if self._observers:
            self._observed(step)

    def _observed(self, step: Step) -> None:
        for observer in tuple(self._observers):
            try:
                observer.observe(step)
            # An observer may be anybody's, and its disk may be full.
            except Exception as error:
                self._dismiss(observer, error)

    def _dismiss(self, observer: Observer, error: Exception) -> None:
        self._observers.remove(observer)
        name = type(observer).__name__
        last = extract_tb(error.__traceback__)[-1]
        message = (
            f"raised {type(error).__name__}: {keys_in_short(str(error))} "
            f"({Path(last.filename).name}:{last.lineno}); it is told nothing more"
        )
        self.tally.keep([Violation(name, message, self.tally.steps, (), name, raised=True)])


def reread(values: Iterable[ValueT]) -> Collection[ValueT]:
    """The values, fit to be read by the subject, its host and the judge.

    What can be read only once, as callers without a type checker may give, is read here.
    """
    return values if isinstance(values, Collection) else list(values)
