"""Comparing: what laws have in common, which hold two runs against each other.

What does not make the same choices twice breaks no law by that: it is left to the engine of
determinism.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, TypeAlias, TypeVar

from attrs import evolve, field, frozen
from typing_extensions import override

from kvoffload import CachePolicy, OffloadKey
from stateful_models import operations as op
from stateful_models.capabilities import Capabilities
from stateful_models.contract import Kind
from stateful_models.engines.base import Breach, Engine, PolicyTrial
from stateful_models.engines.runs import ComparedRun, Played, PolicyRun
from stateful_models.engines.samples import drawn_programs
from stateful_models.operations import keys_text
from stateful_models.programs import HostOperation, Program, keys
from stateful_models.steps import Victims

P = TypeVar("P", bound=CachePolicy)

DETERMINISM: Final = "determinism"
"""The engine that finds what is not the same twice."""
TIMES: Final = 8
"""How often a program must come to the same before anybody is blamed for it."""

Choice: TypeAlias = "frozenset[OffloadKey] | None"
"""Who went, None for a refusal. In which order they went is not told."""


@frozen
class Choices:
    """What a policy chose in a run, by the place of the operation in the program.

    The first `end` operations went well. `played` is all that was, and `places` says where in it
    each operation of the program is.
    """

    made: Mapping[int, Choice]
    end: int
    played: Sequence[Played] = field(default=(), eq=False, repr=False)
    places: Sequence[int] = field(default=(), eq=False, repr=False)

    def played_to(self, place: int) -> Sequence[Played]:
        """What was played up to an operation, and that."""
        return self.played[: self.places[place] + 1]


class Comparison(NamedTuple):
    """Choices that must be equal: those expected, and those seen.

    `when_expected` and `when_seen` tell under which circumstances each was made, as the end of a
    sentence. Place 0 of both is `offset` in the program, with which the run begins that is seen.
    `names` is what `ComparedRun` has for that one.
    """

    expected: Choices
    seen: Choices
    when_expected: str
    when_seen: str
    offset: int = 0
    names: Mapping[str, str] = MappingProxyType({})

    def runs(self, place: int) -> tuple[ComparedRun, ComparedRun]:
        """Both runs, up to this place."""
        expected, seen = self.expected.played_to(place), self.seen.played_to(place)
        return (
            ComparedRun(self.when_expected, expected, 1 + self.offset),
            ComparedRun(self.when_seen, seen, names=self.names),
        )


def play_all(run: PolicyRun[P], operations: Iterable[HostOperation]) -> PolicyRun[P]:
    """The run, after as many of the operations as go well, and one that does not."""
    for operation in operations:
        if not run.play(operation):
            break
    return run


def nudge(trial: PolicyTrial[P]) -> None:
    """Have another policy of the kind evict a single chunk."""
    a, b = keys("a b")
    stored = (op.PrepareStore("nudge", (a,)), op.CompleteStore("nudge", (a,)))
    play_all(trial.begin(1), (*stored, op.PrepareStore("nudge", (b,))))


def choices_of(run: PolicyRun[P], start: int = 0) -> Choices:
    """The choices made in a run, of which the first `start` operations do not count."""
    made: dict[int, Choice] = {}
    for place, played in enumerate(run.played[start:]):
        for step in played.steps:
            if isinstance(step.operation, op.Evict):
                victims = step.result
                made[place] = frozenset(victims.keys) if isinstance(victims, Victims) else None
    places = range(start, len(run.played))
    return Choices(made, len(places) - run.over, run.played, places)


def first_difference(expected: Choices, seen: Choices) -> int | None:
    """The place of the first choice that both made, and not the same; None if there is none."""
    end = min(expected.end, seen.end)
    shared = sorted(expected.made.keys() & seen.made.keys())
    return next(
        (place for place in shared if place < end and expected.made[place] != seen.made[place]),
        None,
    )


def choice_text(choice: Choice) -> str:
    """A choice in words."""
    return "refused" if choice is None else f"evicted {keys_text(sorted(choice))}"


class Law(Engine):
    """One law of the clause `clause`; `kind` is the class of the demand, None if it is no clause.

    `situation` is what must come about for it to be tried.
    """

    compares: ClassVar[bool] = True
    independent: ClassVar[bool] = True
    clause: ClassVar[str]
    kind: ClassVar[Kind | None]
    situation: ClassVar[str]
    promise: ClassVar[str] = ""
    """The sentence of a law that is none of ours."""

    def __init__(self, durations: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.durations: tuple[float, ...] = durations

    def why_not(self, trial: PolicyTrial[P]) -> tuple[str, str] | None:
        """What is not tried, as `PolicyTrial.declined` names it, and why; None if it is."""
        return None

    def programs(self, trial: PolicyTrial[P]) -> list[Program]:
        """Programs to be compared, `level.laws` in number."""
        return drawn_programs(trial, trial.level.laws, self.name, durations=self.durations)

    @abstractmethod
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        """Play the program under all circumstances; notes the situation when it comes about."""

    def forgives(self, trial: PolicyTrial[P], expected: Choice, seen: Choice) -> bool:
        """Whether this difference, and what follows it, is no breach."""
        return False

    def shown(self, trial: PolicyTrial[P], program: Program) -> Program:
        """The program as a reader should see it."""
        return program

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        declined = self.why_not(trial)
        if declined is not None:
            trial.declined[declined[0]] = declined[1]
            return
        unlike = trial.breaches.get(("POL-5", Kind.HOST))
        if unlike is not None and unlike.engine == DETERMINISM:
            trial.note("laws of victims were not tried: the same calls do not give the same ones")
            return
        reached = trial.reach[self.situation]
        for program in self.paced(trial, self.programs(trial)):
            breach = self.broken_by(trial, program) if self.suspects(trial, program) else None
            if breach is not None and self.broken_by(trial, program, TIMES) is not None:
                if trial.found(breach, lambda shorter: self.broken_by(trial, shorter)):
                    self._show(trial, breach)
                break
        if trial.reach[self.situation] > reached:
            trial.tried.add(self.clause)

    def suspects(self, trial: PolicyTrial[P], program: Program) -> bool:
        """Whether the program may show a breach, by runs that are not judged, which is quicker.

        A judged one is the same up to where a clause is broken, and is not compared from there on.
        """
        with trial.unjudged():
            return self.broken_by(trial, program, 1) is not None

    @override
    def broken_by(self, trial: PolicyTrial[P], program: Program, times: int = 2) -> Breach | None:
        """The breach that the program shows, if it shows the same as often as that."""
        for number, comparison in enumerate(self.comparisons(trial, program)):
            place = self._first_difference(trial, comparison)
            if place is None:
                continue
            for repeated in range(1, times):
                # A policy that counts for all of its class goes on from another figure each time.
                for _ in range(repeated):
                    nudge(trial)
                again = list(self.comparisons(trial, program))
                if len(again) <= number or again[number] != comparison:
                    return None
            expected = choice_text(comparison.expected.made[place])
            expected = f"{expected} {comparison.when_expected}"
            seen = f"{choice_text(comparison.seen.made[place])} {comparison.when_seen}"
            runs = comparison.runs(place)
            place += comparison.offset
            return Breach(
                self.clause,
                self.kind,
                f"operation {place + 1} {seen}, and {expected}",
                self.name,
                program.cut(place + 1),
                expected=expected,
                seen=seen,
                invariant="" if self.kind is not None else self.clause,
                promise=self.promise,
                runs=runs,
            )
        return None

    def _first_difference(self, trial: PolicyTrial[P], comparison: Comparison) -> int | None:
        place = first_difference(comparison.expected, comparison.seen)
        if place is None:
            return None
        one, other = comparison.expected.made[place], comparison.seen.made[place]
        return None if self.forgives(trial, one, other) else place

    def _show(self, trial: PolicyTrial[P], breach: Breach) -> None:
        kept = trial.breaches[breach.clause, breach.kind]
        if kept.program is not None:
            program = self.shown(trial, kept.program)
            shown = evolve(kept, program=program, replayed=kept.program)
            trial.breaches[breach.clause, breach.kind] = shown


class ClaimedLaw(Law):
    """A law for those whose capabilities say so in the field `claim`.

    `part` is what the law is called among those that are not tried.
    """

    claim: ClassVar[str]
    part: ClassVar[str]

    @abstractmethod
    def claimed(self, capabilities: Capabilities) -> bool:
        """Whether it is promised."""

    @override
    def why_not(self, trial: PolicyTrial[P]) -> tuple[str, str] | None:
        if self.claimed(trial.capabilities):
            return None
        return self.part, f"not claimed ({self.claim})"
