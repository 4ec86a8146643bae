"""Laws of completions, for those who claim them: failed stores, and ends of loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
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
    choices_of,
    play_all,
)
from stateful_models.engines.drawing import Scheduler
from stateful_models.engines.runs import PolicyRun
from stateful_models.engines.samples import drawn_programs, example_hints
from stateful_models.programs import HostOperation, Program, keys

P = TypeVar("P", bound=CachePolicy)


FAILING: Final = "failing"
"""The request whose stores are made to fail."""
_OF_GROUP: Final = 4
"""As many bytes of a key, at its end, are its group."""
_MARK: Final = b"'"


class Reinsertion(ClaimedLaw):
    """Removing a key and inserting it equals a fresh insertion (POL-6).

    A request offers more than fits, so that the policy is told all about its keys and none is
    stored. What it stores after that comes to nothing but insertions, and removals when it fails:
    into a program come stores of that kind, of keys that were never there or are gone since a
    store of theirs failed, and nothing may come of these.

    Where the failing request has hints, what these did to others may last. There the run is held
    against one in which stores of other keys fail, which the same request was told of as well.
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
    def why_not(self, trial: PolicyTrial[P]) -> tuple[str, str] | None:
        if trial.driver.host.touches_steps:
            return self.part, f"{trial.driver.host.name} touches what it stores, each time"
        return super().why_not(trial)

    @override
    def programs(self, trial: PolicyTrial[P]) -> list[Program]:
        drawn = drawn_programs(
            trial,
            trial.level.laws,
            self.name,
            durations=self.durations,
            schedulers=(_FailingStores, Scheduler),
        )
        hints = [one for one in example_hints(trial) if one]
        programs: list[Program] = []
        for number, program in enumerate(drawn):
            told = tuple(_told_of(program, program.operations))
            if hints and number % 2:
                chosen = Random(f"{trial.seed} {self.name} {number}").choice(hints)
                # What lasts of them shows best where nobody else has any.
                rest = told if number % 8 > 3 else _without_hints(told)
                told = (op.NewRequest(FAILING, chosen), *rest)
            programs.append(program.with_operations(told))
        return programs

    @override
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        failing = _Failing(trial, program)
        if failing.repeated is None:
            return
        seen = failing.choices
        if not any(choice for place, choice in seen.made.items() if place > failing.repeated):
            return
        trial.reach.note(self.situation)
        if failing.hinted:
            expected = _Failing(trial, program, others=True).choices
            otherwise = "where a store of another key failed"
        else:
            expected = choices_of(play_all(trial.begin(program.capacity), program.operations))
            otherwise = "where none failed"
        yield Comparison(expected, seen, otherwise, "after a store that failed and was repeated")

    @override
    def shown(self, trial: PolicyTrial[P], program: Program) -> Program:
        return program.with_operations(_Failing(trial, program).run.operations)


def _told_of(program: Program, operations: Sequence[HostOperation]) -> Iterator[HostOperation]:
    """The operations, with an offer that is too large before them and after each reset."""
    fillers = keys(" ".join(f"more{number}" for number in range(program.capacity + 1)))
    others = tuple(map(_other, program.universe))
    offer = op.PrepareStore(FAILING, (*program.universe, *others, *fillers))
    yield offer
    for operation in operations:
        yield operation
        if isinstance(operation, op.Reset):
            yield offer


def _without_hints(operations: Iterable[HostOperation]) -> list[HostOperation]:
    return [one for one in operations if not isinstance(one, op.NewRequest)]


def _other(key: OffloadKey) -> OffloadKey:
    """A key that no program stores, next to this one."""
    return OffloadKey(key[:-_OF_GROUP] + _MARK + key[-_OF_GROUP:])


def _is_other(key: OffloadKey) -> bool:
    return key[:-_OF_GROUP].endswith(_MARK)


class _Failing(Generic[P]):
    """A run of the program with stores that fail among its operations; or those of `others`.

    `starts` says where in the run each operation begins, `repeated` which of them first stores
    what had failed. Half of the keys fail as soon as they can, the others just before they are
    stored.
    """

    def __init__(self, trial: PolicyTrial[P], program: Program, *, others: bool = False) -> None:
        self.hinted: bool = any(
            isinstance(one, op.NewRequest) and one.request == FAILING and bool(one.hints)
            for one in program.operations
        )
        self._others = others
        self.run: PolicyRun[P] = trial.begin(program.capacity)
        self.starts: list[int] = []
        self.repeated: int | None = None
        # Of which the policy has been told for the request that fails; what was evicted since it
        # was removed may be remembered; what has failed here since either.
        self._told: set[OffloadKey] = set()
        self._evicted: set[OffloadKey] = set()
        self._failed: set[OffloadKey] = set()
        for place, operation in enumerate(program.operations):
            self.starts.append(len(self.run.played))
            offered = operation.keys if isinstance(operation, op.PrepareStore) else ()
            if not self._fail([key for key in offered if sum(key) % 2]):
                break
            self.starts[-1] = len(self.run.played)
            if not self._play(operation, place):
                break
            own = [key for key in program.universe if not _is_other(key)]
            early = [key for key in own if not sum(key) % 2]
            if not self._fail(key for key in early if key not in self._failed):
                break

    @property
    def choices(self) -> Choices:
        """What was chosen in the operations of the program."""
        answers = choices_of(self.run).made
        made = {place: answers[n] for place, n in enumerate(self.starts) if n in answers}
        return Choices(made, len(self.starts) - self.run.over, self.run.played, self.starts)

    def _fail(self, wanted: Iterable[OffloadKey]) -> bool:
        host = self.run.host
        for key in list(wanted):
            unknown = key not in self._told or key in self._evicted
            if self.hinted and _other(key) not in self._told:
                unknown = True
            if unknown or key in host.ref_cnt or not host.state.free:
                continue
            failing = (_other(key) if self._others else key,)
            stored = self.run.play(op.PrepareStore(FAILING, failing))
            if not (stored and self.run.play(op.CompleteStore(FAILING, failing, success=False))):
                return False
            self._failed.add(key)
        return True

    def _play(self, operation: HostOperation, place: int) -> bool:
        goes_on = self.run.play(operation)
        for step in self.run.played[-1].steps:
            match step.operation:
                # Not every host tells of accesses; where one does, they come with the misses.
                case op.StoreMiss(request, told) | op.RequestAccess(request, told) if (
                    request == FAILING
                ):
                    self._told.update(told)
                case op.Insert(key):
                    if key in self._failed and self.repeated is None:
                        self.repeated = place
                    self._failed.discard(key)
                    self._evicted.add(key)
                case op.Remove(key):
                    self._evicted.discard(key)
                case op.Clear():
                    self._told.clear()
                    self._evicted.clear()
                    self._failed.clear()
                case _:
                    pass
        return goes_on


class _FailingStores(Scheduler[P]):
    """Single keys are often stored, and often fail."""

    @override
    def _mixture(self) -> list[Callable[[], bool]]:
        return [*super()._mixture(), *[self._store_one] * 20]

    def _store_one(self) -> bool:
        request, stored = self._request(), self._some(self._universe, 1)
        if not self._do(op.PrepareStore(request, stored)):
            return False
        if self._chance.random() < 0.3:
            return True
        success = self._chance.random() < 0.7
        return self._do(op.CompleteStore(request, stored, success))


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
            yield Comparison(expected, evolve(seen, end=end), "as they end here", when)


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
    run = trial.begin(program.capacity)
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
