"""How keys are handed to hooks: as an iterator, which can be gone through only once (POL-7), or in
a list that the host uses again (POL-5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeVar

from attrs import evolve
from typing_extensions import override

from kvoffload import CachePolicy, OffloadKey
from stateful_models.contract import Kind
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.comparing import Comparison, Law, begin, choices_of, play_all
from stateful_models.engines.samples import drawn_programs
from stateful_models.programs import Program

P = TypeVar("P", bound=CachePolicy)


class SingleReadings(Law):
    """The same choices are made whether keys come as a list or as an iterator: advice."""

    name: ClassVar[str] = "law of single readings"
    clauses: ClassVar[tuple[str, ...]] = ("POL-7",)
    clause: ClassVar[str] = "POL-7"
    kind: ClassVar[Kind | None] = Kind.ADVICE
    situation: ClassVar[str] = "keys handed as an iterator"

    @override
    def programs(self, trial: PolicyTrial[P]) -> list[Program]:
        return drawn_programs(trial, trial.level.laws, self.name, durations=self.durations)

    @override
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        expected = choices_of(play_all(begin(trial, program.capacity), program.operations))
        once = begin(
            trial, program.capacity, surroundings=evolve(trial.surroundings, make_keys=iter)
        )
        seen = choices_of(play_all(once, program.operations))
        if any(seen.made.values()):
            trial.reach.note(self.situation)
        yield Comparison(expected, seen, "with keys as lists", "with keys as iterators")


class LentLists(Law):
    """The same choices are made when the host uses its lists again: what is lent is not kept."""

    name: ClassVar[str] = "law of lent lists"
    clauses: ClassVar[tuple[str, ...]] = ("POL-5",)
    clause: ClassVar[str] = "POL-5"
    kind: ClassVar[Kind | None] = Kind.HOST
    situation: ClassVar[str] = "keys in lists that are used again"

    @override
    def programs(self, trial: PolicyTrial[P]) -> list[Program]:
        return drawn_programs(trial, trial.level.laws, self.name, durations=self.durations)

    @override
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        expected = choices_of(play_all(begin(trial, program.capacity), program.operations))
        lent = begin(
            trial, program.capacity, surroundings=evolve(trial.surroundings, make_keys=_Lender())
        )
        seen = choices_of(play_all(lent, program.operations))
        if any(seen.made.values()):
            trial.reach.note(self.situation)
        yield Comparison(
            expected, seen, "where lists are the policy's", "where the host uses its lists again"
        )


class _Lender:
    """Gives keys in a list, the same one every time."""

    def __init__(self) -> None:
        self._lent: list[OffloadKey] = []

    def __call__(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        self._lent[:] = keys
        return self._lent
