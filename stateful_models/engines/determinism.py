"""Determinism: the same calls at the same readings of the clock make the same choices (POL-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import ClassVar, Final, TypeAlias, TypeVar

from typing_extensions import override

from kvoffload import CachePolicy
from stateful_models import operations as op
from stateful_models.contract import Kind
from stateful_models.engines.base import Breach, Engine, PolicyTrial
from stateful_models.engines.comparing import (
    DETERMINISM,
    Choices,
    choice_text,
    choices_of,
    first_difference,
    nudge,
    play_all,
)
from stateful_models.engines.runs import ComparedRun
from stateful_models.engines.samples import drawn_programs
from stateful_models.programs import Program

P = TypeVar("P", bound=CachePolicy)

Look: TypeAlias = Callable[[], Callable[[], Iterable[str]]]
"""Looks at what is outside the objects of a target; the answer tells in words what has changed
since."""


TIMES_AGAIN: Final = 3
"""How often it is tried whether chance, or what other runs left, explains a difference."""


class Determinism(Engine):
    """Plays each program twice in this process, each time on a new policy, and then once more
    beside another policy of the kind, that is told of other keys.

    `look` names the state outside the object that differs between one run and the next. The clock
    starts again for every run, so that what reads it reads the same; beside another policy, which
    may read it as well, no time passes.
    """

    name: ClassVar[str] = DETERMINISM
    clauses: ClassVar[tuple[str, ...]] = ("POL-5",)
    compares: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    def __init__(self, look: Look = lambda: lambda: (), durations: tuple[float, ...] = ()) -> None:
        super().__init__()
        self._look = look
        self._since_begun: Callable[[], Iterable[str]] = tuple
        self._durations = durations

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        self._since_begun = self._look()
        for program in self.paced(trial, programs_to_repeat(trial, self._durations)):
            with trial.unjudged():
                first = _choices(trial, program)
                suspects = [
                    broken_by
                    for broken_by in (self._again, self._beside)
                    if broken_by(trial, program, first) is not None
                ]
            if any(first.made.values()):
                trial.tried.add("POL-5")
            for broken_by in suspects:
                # A judged run ends where a clause is broken: what comes then is no matter of this.
                breach = broken_by(trial, program)
                if breach is not None:
                    self._report(trial, program, breach, broken_by)
                    return

    @override
    def broken_by(self, trial: PolicyTrial[P], program: Program) -> Breach | None:
        attempts = (
            broken_by(trial, program)
            for broken_by in (self._again, self._beside)
            # Chance, or what earlier runs left, may have it come out the same.
            for _ in range(TIMES_AGAIN)
        )
        return next((found for found in attempts if found is not None), None)

    def _report(
        self,
        trial: PolicyTrial[P],
        program: Program,
        breach: Breach,
        broken_by: Callable[[PolicyTrial[P], Program], Breach | None],
    ) -> None:
        # What is not the same without any reason needs none.
        for _ in range(TIMES_AGAIN):
            plainer = self._again(trial, program)
            if plainer is not None:
                breach, broken_by = plainer, self._again

        def recheck(shorter: Program) -> Breach | None:
            # Chance, or what earlier runs left, may have it come out the same.
            attempts = (broken_by(trial, shorter) for _ in range(TIMES_AGAIN))
            return next((found for found in attempts if found is not None), None)

        trial.found(breach, recheck)

    def _again(
        self, trial: PolicyTrial[P], program: Program, first: Choices | None = None
    ) -> Breach | None:
        return self._broken_by(trial, program, first, _choices, "when all was done again")

    def _beside(
        self, trial: PolicyTrial[P], program: Program, first: Choices | None = None
    ) -> Breach | None:
        timeless = program.with_operations(
            one for one in program.operations if not isinstance(one, op.AdvanceClock)
        )
        known = first if len(timeless) == len(program) else None
        return self._broken_by(trial, timeless, known, _choices_beside, "beside another policy")

    def _broken_by(
        self,
        trial: PolicyTrial[P],
        program: Program,
        first: Choices | None,
        play_again: Callable[[PolicyTrial[P], Program], Choices],
        when: str,
    ) -> Breach | None:
        if first is None:
            first = _choices(trial, program)
        again = play_again(trial, program)
        place = first_difference(first, again)
        if place is None:
            return None
        runs = (
            ComparedRun("the first time", first.played_to(place)),
            ComparedRun(when, again.played_to(place)),
        )
        outside = self._changed_outside(trial, program.cut(place + 1))
        expected, seen = choice_text(first.made[place]), choice_text(again.made[place])
        seen = f"{seen} {when}"
        if outside:
            seen = f"{seen}; meanwhile {', '.join(outside)}"
        return Breach(
            "POL-5",
            Kind.HOST,
            f"operation {place + 1} {expected}, and {seen}",
            self.name,
            program.cut(place + 1),
            expected=f"{expected} as the first time",
            seen=seen,
            runs=runs,
        )

    def _changed_outside(self, trial: PolicyTrial[P], program: Program) -> list[str]:
        """What runs change outside the object, in words.

        What one leaves behind may be what the one before left, so that some end before others; at
        worst it is what has changed since the first of all.
        """
        for end in range(len(program), 0, -1):
            before = self._look()
            _choices(trial, program.cut(end))
            nudge(trial)
            between = self._look()
            _choices(trial, program.cut(end))
            changed = list(dict.fromkeys((*before(), *between())))
            if changed:
                return changed
        return list(self._since_begun())


def programs_to_repeat(trial: PolicyTrial[P], durations: tuple[float, ...] = ()) -> list[Program]:
    """Programs whose choices should not depend on the run, nor on the process."""
    return drawn_programs(trial, trial.level.laws, "determinism", durations=durations)


def digest_of_choices(trial: PolicyTrial[P], programs: Iterable[Program]) -> str:
    """A digest of what is done in the programs and of who goes, to be compared over processes.

    What differs under another hash seed may be the order of the sets that the policy is given,
    `protected` among them: a difference is worth a word and no conviction (POL-5).
    """
    digest = sha256()
    for program in programs:
        for operation in program.operations:
            digest.update(str(operation).encode())
        for place, choice in sorted(_choices(trial, program).made.items()):
            victims = ["refused"] if choice is None else [key.hex() for key in sorted(choice)]
            digest.update(f"{place} {' '.join(victims)}\n".encode())
    return digest.hexdigest()


def _choices(trial: PolicyTrial[P], program: Program) -> Choices:
    return choices_of(play_all(trial.begin(program.capacity), program.operations))


def _choices_beside(trial: PolicyTrial[P], program: Program) -> Choices:
    """The choices while another policy gets the same calls in advance, with keys changed round."""
    universe = program.universe
    others = program.renamed(dict(zip(universe, universe[1:] + universe[:1], strict=True)))
    other = trial.begin(program.capacity)
    run = trial.begin(program.capacity)
    for operation, beside in zip(program.operations, others.operations, strict=True):
        other.play(beside)
        if not run.play(operation):
            break
    return choices_of(run)
