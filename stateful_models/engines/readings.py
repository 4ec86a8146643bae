"""How keys are handed to hooks: as an iterator, which can be gone through only once (POL-7), or in
a list that the host uses again (POL-5)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, TypeAlias, TypeVar

from attrs import evolve
from typing_extensions import override

from kvoffload import CachePolicy, OffloadKey
from stateful_models.contract import Kind
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.comparing import Comparison, Law, choices_of, play_all
from stateful_models.programs import Program

P = TypeVar("P", bound=CachePolicy)

MakeKeys: TypeAlias = Callable[[Sequence[OffloadKey]], Iterable[OffloadKey]]


class HandedOtherwise(Law):
    """The same choices are made however keys are handed, by default each time in a new list.

    `usually` and `otherwise` tell the two ways apart, as the end of a sentence.
    """

    usually: ClassVar[str]
    otherwise: ClassVar[str]

    @abstractmethod
    def make_keys(self) -> MakeKeys:
        """How keys are handed in one run."""

    @override
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        expected = choices_of(play_all(trial.begin(program.capacity), program.operations))
        surroundings = evolve(trial.surroundings, make_keys=self.make_keys())
        run = trial.begin(program.capacity, surroundings=surroundings)
        seen = choices_of(play_all(run, program.operations))
        if any(seen.made.values()):
            trial.reach.note(self.situation)
        yield Comparison(expected, seen, self.usually, self.otherwise)


class SingleReadings(HandedOtherwise):
    """Keys come as a list or as an iterator: advice."""

    name: ClassVar[str] = "law of single readings"
    clauses: ClassVar[tuple[str, ...]] = ("POL-7",)
    clause: ClassVar[str] = "POL-7"
    kind: ClassVar[Kind | None] = Kind.ADVICE
    situation: ClassVar[str] = "keys handed as an iterator"
    usually: ClassVar[str] = "with keys as lists"
    otherwise: ClassVar[str] = "with keys as iterators"

    @override
    def make_keys(self) -> MakeKeys:
        return iter


class LentLists(HandedOtherwise):
    """The host may use its lists again: what is lent is not kept."""

    name: ClassVar[str] = "law of lent lists"
    clauses: ClassVar[tuple[str, ...]] = ("POL-5",)
    clause: ClassVar[str] = "POL-5"
    kind: ClassVar[Kind | None] = Kind.HOST
    situation: ClassVar[str] = "keys in lists that are used again"
    usually: ClassVar[str] = "where lists are the policy's"
    otherwise: ClassVar[str] = "where the host uses its lists again"

    @override
    def make_keys(self) -> MakeKeys:
        lent: list[OffloadKey] = []

        def lend(keys: Sequence[OffloadKey]) -> list[OffloadKey]:
            lent[:] = keys
            return lent

        return lend
