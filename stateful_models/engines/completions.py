"""Laws of completions, for those who claim them: failed stores, and ends of loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, Generic, TypeVar

from attrs import evolve
from typing_extensions import override

from kvoffload import CachePolicy, OffloadKey
from stateful_models import operations as op
from stateful_models.capabilities import Capabilities
from stateful_models.contract import Kind
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.comparing import (
    Choices,
    ClaimedLaw,
    Comparison,
    begin,
    choices_of,
    play_all,
)
from stateful_models.engines.drawing import Scheduler
from stateful_models.engines.runs import PolicyRun
from stateful_models.engines.samples import drawn_programs
from stateful_models.programs import HostOperation, Program

P = TypeVar("P", bound=CachePolicy)


class Reinsertion(ClaimedLaw):
    """Removing a key and inserting it equals a fresh insertion (POL-6).

    Into a program come stores that fail at once, in such places that the policy is told no more
    by them than the insertions and the removals: nothing may come of these.
    """

    name: ClassVar[str] = "law of reinsertion"
    clauses: ClassVar[tuple[str, ...]] = ("POL-6",)
    clause: ClassVar[str] = "POL-6"
    kind: ClassVar[Kind | None] = Kind.CLAIM
    situation: ClassVar[str] = "eviction after a store that failed and was repeated"
    claim: ClassVar[str] = "fresh_reinsertion"
    part: ClassVar[str] = "POL-6 C"

    @override
    def claimed(self, capabilities: Capabilities) -> bool:
        return capabilities.fresh_reinsertion

    @override
    def programs(self, trial: PolicyTrial[P]) -> list[Program]:
        return drawn_programs(
            trial,
            trial.level.laws,
            self.name,
            durations=self.durations,
            schedulers=(_FailingStores, Scheduler),
        )

    @override
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        repeating = _Repeating(trial, program)
        if repeating.first is None:
            return
        answers = choices_of(repeating.run)
        made = {
            place: answers.made[n] for place, n in enumerate(repeating.starts) if n in answers.made
        }
        if not any(choice for place, choice in made.items() if place > repeating.first):
            return
        trial.reach.note(self.situation)
        seen = Choices(made, len(repeating.starts) - repeating.run.over)
        expected = choices_of(play_all(begin(trial, program.capacity), program.operations))
        yield Comparison(
            expected, seen, "where none failed", "after a store that failed and was repeated"
        )

    @override
    def shown(self, trial: PolicyTrial[P], program: Program) -> Program:
        return program.with_operations(_Repeating(trial, program).run.operations)


class _Repeating(Generic[P]):
    """A run of the program with stores that fail among its operations.

    `starts` says where in the run each operation begins, `first` before or at which of them the
    first store failed.
    """

    def __init__(self, trial: PolicyTrial[P], program: Program) -> None:
        self.run: PolicyRun[P] = begin(trial, program.capacity)
        self.starts: list[int] = []
        self.first: int | None = None
        self._touches = trial.driver.host.touches_steps
        # Who stored keys that are gone since this failed, and nothing has been told of it since.
        self._failed: dict[OffloadKey, op.RequestId] = {}
        self._stored_by: dict[OffloadKey, op.RequestId] = {}
        for place, operation in enumerate(program.operations):
            self.starts.append(len(self.run.played))
            offer = operation if isinstance(operation, op.PrepareStore) else None
            if offer is not None and not self._fail_before(place, offer.keys):
                break
            self.starts[-1] = len(self.run.played)
            if not self._play(operation):
                break
            if offer is not None and not self._fail_after(place, offer):
                break

    def _fail_before(self, place: int, keys: Sequence[OffloadKey]) -> bool:
        """Fail to store keys on behalf of those who failed before and were told of all."""
        for key in dict.fromkeys(keys):
            request = self._failed.get(key)
            unknown = request is None or self.run.host.finished(request)
            if unknown or self._touches or not self.run.host.state.free:
                continue
            offer = op.PrepareStore(request or "", (key,))
            if not (self._play(offer) and self._fail(place, offer, [key])):
                return False
        return True

    def _fail_after(self, place: int, operation: op.PrepareStore) -> bool:
        """Fail what was offered, and offer it again."""
        steps = self.run.played[-1].steps
        stored = [one.operation.key for one in steps if isinstance(one.operation, op.Insert)]
        # Every other store, and the same ones in any part of the program.
        if not stored or sum(stored[0]) % 2:
            return True
        if self._touches and len(stored) < len(set(operation.keys)):
            # What was resident would be touched once more.
            return True
        return self._fail(place, operation, stored) and self._play(operation)

    def _fail(self, place: int, offer: op.PrepareStore, stored: list[OffloadKey]) -> bool:
        if self.first is None:
            self.first = place
        # Slots come back last first, so that each key gets the one that it had.
        return self._play(op.CompleteStore(offer.request, tuple(reversed(stored)), success=False))

    def _play(self, operation: HostOperation) -> bool:
        goes_on = self.run.play(operation)
        for step in self.run.played[-1].steps:
            match step.operation:
                case op.Insert(key, _, request):
                    self._stored_by[key] = request
                    self._failed.pop(key, None)
                case op.Remove(key):
                    self._failed[key] = self._stored_by[key]
                case op.Clear():
                    self._failed.clear()
                case _:
                    pass
        return goes_on


class _FailingStores(Scheduler[P]):
    """Stores of requests that never end often fail, and are tried again."""

    @override
    def _mixture(self) -> list[Callable[[], bool]]:
        moves = [move for move in super()._mixture() if move != self._finish]
        return [*moves, *[self._fail] * 6, *[self._store_one] * 20]

    def _fail(self) -> bool:
        pending = self._host.pending
        failed = op.CompleteStore(self._requests[0], self._some(pending, 2), success=False)
        return not pending or self._do(failed)

    def _store_one(self) -> bool:
        request, keys = self._request(), self._some(self._universe, 1)
        return self._do(op.PrepareStore(request, keys)) and (
            self._chance.random() < 0.5 or self._do(op.CompleteStore(request, keys))
        )


class ReleaseOrder(ClaimedLaw):
    """When and in which order pins are released never decides who goes (POL-9).

    Loads end between two offers all the same, but in another order, or later. Stores end when
    they do: what is pending is not pinned.
    """

    name: ClassVar[str] = "law of releases"
    clauses: ClassVar[tuple[str, ...]] = ("POL-9",)
    clause: ClassVar[str] = "POL-9"
    kind: ClassVar[Kind | None] = Kind.CLAIM
    situation: ClassVar[str] = "eviction after loads that could end otherwise"
    claim: ClassVar[str] = "release_order"
    part: ClassVar[str] = "POL-9"

    @override
    def claimed(self, capabilities: Capabilities) -> bool:
        return capabilities.release_order

    @override
    def programs(self, trial: PolicyTrial[P]) -> list[Program]:
        return drawn_programs(
            trial,
            trial.level.laws,
            self.name,
            durations=self.durations,
            schedulers=(_Loads,),
        )

    @override
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        expected: Choices | None = None
        before: list[_Books] = []
        for when, arrange in _ARRANGEMENTS:
            other = program.with_operations(_rearranged(program.operations, arrange))
            if other == program:
                continue
            if expected is None:
                expected, before = _with_books(trial, program)
            seen, books = _with_books(trial, other)
            # What ended later may have been ended by something else.
            agree = next(
                (n for n, (a, b) in enumerate(zip(before, books, strict=False)) if a != b),
                len(program),
            )
            pairs = enumerate(zip(program.operations, other.operations, strict=True))
            first = next(n for n, (one, moved) in pairs if one != moved)
            if any(choice for n, choice in seen.made.items() if first < n < agree):
                trial.reach.note(self.situation)
            end = min(seen.end, agree)
            yield Comparison(expected, Choices(seen.made, end), "as they end here", when)


class _Loads(Scheduler[P]):
    """Several loads often begin together and end before the next offer, which makes room."""

    @override
    def _mixture(self) -> list[Callable[[], bool]]:
        return [*super()._mixture(), *[self._load_together] * 8]

    def _load_together(self) -> bool:
        loaded = self._some(self._host.ready, 3)
        for key in loaded:
            if not self._do(op.PrepareLoad(self._request(), (key,))):
                return False
        if self._chance.random() < 0.3 and not self._touch():
            return False
        for key in self._some(loaded, 3):
            if not self._do(op.CompleteLoad(self._requests[0], (key,))):
                return False
        return self._offer_new()


_Books = dict[OffloadKey, int]
Arrange = Callable[[list[op.CompleteLoad]], list[op.CompleteLoad]]


def _with_books(trial: PolicyTrial[P], program: Program) -> tuple[Choices, list[_Books]]:
    """The choices, and who was pinned how often before each offer, empty elsewhere."""
    run = begin(trial, program.capacity)
    books: list[_Books] = []
    for operation in program.operations:
        offers = isinstance(operation, op.PrepareStore)
        books.append(dict(run.host.ref_cnt) if offers else {})
        if not run.play(operation):
            break
    return choices_of(run), books


def _rearranged(operations: Sequence[HostOperation], arrange: Arrange) -> list[HostOperation]:
    """The operations, with the ends of loads between two offers arranged otherwise."""
    arranged: list[HostOperation] = []
    window: list[HostOperation] = []
    for operation in (*operations, None):
        if operation is None or isinstance(operation, (op.PrepareStore, op.Reset)):
            arranged += _within(window, arrange)
            window = []
            if operation is not None:
                arranged.append(operation)
        else:
            window.append(operation)
    return arranged


def _within(window: list[HostOperation], arrange: Arrange) -> list[HostOperation]:
    ends = [one for one in window if isinstance(one, op.CompleteLoad)]
    return [*(one for one in window if not isinstance(one, op.CompleteLoad)), *arrange(ends)]


def _keys_reversed(ends: list[op.CompleteLoad]) -> list[op.CompleteLoad]:
    return [evolve(end, keys=end.keys[::-1]) for end in ends]


def _all_reversed(ends: list[op.CompleteLoad]) -> list[op.CompleteLoad]:
    return _keys_reversed(ends)[::-1]


_ARRANGEMENTS: Final[tuple[tuple[str, Arrange], ...]] = (
    ("when loads end as late as before the next offer", list),
    ("when loads end late, and their keys in the other order", _keys_reversed),
    ("when loads end late, and in the other order", _all_reversed),
)
