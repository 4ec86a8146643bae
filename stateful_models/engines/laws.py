"""Laws: two programs that must come to the same victims, whatever these are.

No oracle is needed to hold a policy to a law, so these hold for any policy, and those of
`completions.py` and `claims.py` for any that claims them in its capabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import ClassVar, TypeVar

from attrs import evolve
from typing_extensions import override

from kvoffload import CachePolicy
from stateful_models import operations as op
from stateful_models.contract import Kind
from stateful_models.drivers import authored
from stateful_models.engines.base import Breach, PolicyTrial
from stateful_models.engines.comparing import (
    Choice,
    Choices,
    Comparison,
    Law,
    choices_of,
    play_all,
)
from stateful_models.engines.drawing import Scheduler
from stateful_models.engines.runs import ComparedRun, PolicyRun, Surroundings, place_of
from stateful_models.engines.samples import BareDriver, drawn_programs, for_requests, requests_of
from stateful_models.programs import HostOperation, Program

P = TypeVar("P", bound=CachePolicy)


class AskedInVain(Law):
    """A failed eviction leaves later choices as if the policy had not been asked (POL-2)."""

    name: ClassVar[str] = "law of failed evictions"
    clauses: ClassVar[tuple[str, ...]] = ("POL-2",)
    clause: ClassVar[str] = "POL-2"
    kind: ClassVar[Kind | None] = Kind.HOST
    situation: ClassVar[str] = "eviction after a refused one"

    @override
    def programs(self, trial: PolicyTrial[P]) -> list[Program]:
        return drawn_programs(
            trial,
            trial.level.laws,
            self.name,
            durations=self.durations,
            schedulers=(_OffersInVain,),
        )

    @override
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        asked = choices_of(play_all(trial.begin(program.capacity), program.operations))
        refused = [place for place, choice in asked.made.items() if choice is None]
        if not refused or not any(
            choice for place, choice in asked.made.items() if place > refused[0]
        ):
            return
        trial.reach.note(self.situation)
        spared = trial.begin(program.capacity, asks_in_vain=False)
        yield Comparison(
            choices_of(play_all(spared, program.operations)),
            asked,
            "had it not been asked in vain",
            "after an eviction that failed",
        )

    @override
    def forgives(self, trial: PolicyTrial[P], expected: Choice, seen: Choice) -> bool:
        # Why a policy refuses is its own affair, and may be how often it was asked.
        refused = expected is None or seen is None
        return refused and trial.capabilities.may_refuse is not None


class _OffersInVain(Scheduler[P]):
    """Often offers so many idle keys that what is left of them is one too few."""

    @override
    def _mixture(self) -> list[Callable[[], bool]]:
        return [*super()._mixture(), *[self._offer_in_vain] * 6]


class ClearedIsNew(Law):
    """After `clear` a policy behaves as a new one does (POL-6), at the same readings of clocks.

    A new one is as old as the one that was cleared, or as the clearing: either will do. Extra
    hooks may tell a policy what no reset takes back, so that before it none is called. What breaks
    a clause after a reset, and on a new policy does not, breaks this law too; so that what other
    engines found is played again.
    """

    name: ClassVar[str] = "law of clearing"
    clauses: ClassVar[tuple[str, ...]] = ("POL-6",)
    clause: ClassVar[str] = "POL-6"
    kind: ClassVar[Kind | None] = Kind.HOST
    situation: ClassVar[str] = "eviction after a reset, as by a new policy"

    @override
    def why_not(self, trial: PolicyTrial[P]) -> tuple[str, str] | None:
        if trial.driver.host.clears:
            return None
        return self.clause, f"{trial.driver.host.name} does not clear its policy"

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        found = [breach for breach in trial.breaches.values() if breach.clause != self.clause]
        super().run(trial)
        for breach in found:
            if self.why_not(trial) is not None or (self.clause, self.kind) in trial.breaches:
                return
            if breach.program is not None:
                again = self._broken_after(trial, breach.program)
                if again is not None:
                    trial.found(again, lambda shorter: self._broken_after(trial, shorter))

    @override
    def broken_by(self, trial: PolicyTrial[P], program: Program, times: int = 2) -> Breach | None:
        found = super().broken_by(trial, program, times)
        return self._broken_after(trial, program) if found is None else found

    def _broken_after(self, trial: PolicyTrial[P], program: Program) -> Breach | None:
        """How it breaks a clause after its last reset that it keeps when it is new."""
        start = 1 + max(
            (n for n, one in enumerate(program.operations) if _is_reset(one)), default=-1
        )
        before = program.operations[: max(0, start - 1)]
        told = any(name == "request_started" for name, _ in authored(trial.driver))
        if not before or any(isinstance(one, op.HostEvent) or told for one in before):
            return None
        run = trial.run(program)
        early = {
            (each.clause, each.kind)
            for each in run.violations
            if place_of(each, run.played) < start
        }
        first = next(
            (each for each in run.violations if (each.clause, each.kind) not in early), None
        )
        if first is None:
            return None
        end = place_of(first, run.played) + 1
        # What a request is does not depend on the policy, nor does what time it is.
        known = [
            one
            for one in before
            if isinstance(one, (op.NewRequest, op.SetPositions, op.AdvanceClock))
        ]
        after = program.operations[start:end]
        new = run
        for others in ([*known, op.AdvanceClock(1.0)], known):
            new = trial.run(program.with_operations([*others, *after]))
            if any(
                (each.clause, each.kind) == (first.clause, first.kind) for each in new.violations
            ):
                return None
        return Breach(
            self.clause,
            self.kind,
            f"after a reset {first.message} ({first.clause})",
            self.name,
            program.cut(end),
            expected="nothing of the kind, as when the policy is new",
            seen=f"{first.message} ({first.clause}), after a reset",
            runs=(
                ComparedRun("as a new policy", new.played, 1 + start - len(known)),
                ComparedRun("after a reset", run.played[:end]),
            ),
        )

    @override
    def programs(self, trial: PolicyTrial[P]) -> list[Program]:
        drawn = drawn_programs(trial, trial.level.laws, self.name, durations=self.durations)
        chance = Random(f"{trial.seed} {self.name}")
        # Few of them need what was learnt before. Of keys and hints most is learnt where the same
        # come again, but not together, so that each is also joined with itself.
        return [
            _joined(before, after, chance)
            for number, before in enumerate(drawn)
            for after in (
                before.with_operations(tuple(_dealt_anew(before.operations, chance))),
                *(drawn[(number + later) % len(drawn)] for later in (1, 2)),
            )
        ]

    @override
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        operations = program.operations
        start = 1 + max((n for n, one in enumerate(operations) if _is_reset(one)), default=-1)
        before, after = operations[: max(0, start - 1)], operations[start:]
        # A new policy has seen nothing of a request that was there before the reset: neither its
        # hints, where it was announced, nor what it has used.
        if not before or not after or not requests_of(before).isdisjoint(requests_of(after)):
            return
        seconds = 1.0 + sum(one.seconds for one in before if isinstance(one, op.AdvanceClock))
        expected = self._new(trial, program.capacity, after, seconds, born=seconds)
        if not any(expected.made.values()):
            return
        run = play_all(trial.begin(program.capacity), before)
        _set_clock(trial.surroundings, seconds)
        run.play(op.Reset())
        _set_clock(trial.surroundings, seconds + 1.0)
        seen = choices_of(play_all(run, after), start)
        if seen.end <= min(expected.made):
            return
        trial.reach.note(self.situation)
        comparison = Comparison(expected, seen, "as a new policy", "after a reset", start)
        if self._first_difference(trial, comparison) is not None:
            older = self._new(trial, program.capacity, after, seconds, born=0.0)
            if self._first_difference(trial, comparison._replace(expected=older)) is None:
                return
        yield comparison

    def _new(
        self,
        trial: PolicyTrial[P],
        capacity: int,
        operations: Iterable[HostOperation],
        seconds: float,
        born: float,
    ) -> Choices:
        """What a policy chooses that was new at `born`, for operations that begin a second after
        `seconds`."""
        clock = trial.surroundings
        at_birth = evolve(clock, restart=lambda: _set_clock(clock, born))
        run = trial.begin(capacity, surroundings=at_birth)
        _set_clock(clock, seconds + 1.0)
        return choices_of(play_all(run, operations))


def _set_clock(clock: Surroundings, seconds: float) -> None:
    clock.restart()
    clock.advance(seconds)


def _is_reset(operation: HostOperation) -> bool:
    return isinstance(operation, op.Reset)


def _dealt_anew(operations: Sequence[HostOperation], chance: Random) -> Iterator[HostOperation]:
    """The operations, of whose requests none, some or all have hints: those of any of them."""
    dealt = [one.hints for one in operations if isinstance(one, op.NewRequest)]
    share = chance.choice((0.0, 0.5, 1.0))
    for operation in operations:
        if not isinstance(operation, op.NewRequest):
            yield operation
        elif chance.random() < share:
            yield evolve(operation, hints=chance.choice(dealt))


def _joined(before: Program, after: Program, chance: Random) -> Program:
    """One program, a reset, and another for other requests, up to a reset of its own."""
    first = [one for one in before.operations if not isinstance(one, op.HostEvent)]
    if chance.random() < 0.5:
        # Else all that was in flight has ended.
        del first[chance.randint(0, len(first)) :]
    second: list[HostOperation] = []
    for operation in after.operations:
        if _is_reset(operation):
            break
        second.append(for_requests(operation, "q."))
    return before.with_operations([*first, op.Reset(), *second])


class WithoutHints(Law):
    """Where no request has hints, a policy equals the one that it names as its base."""

    name: ClassVar[str] = "law of no hints"
    clauses: ClassVar[tuple[str, ...]] = ("without hints",)
    clause: ClassVar[str] = "without hints"
    kind: ClassVar[Kind | None] = None
    situation: ClassVar[str] = "eviction where no request has hints"
    promise: ClassVar[str] = "Where no request has hints it equals the policy that it names."

    @override
    def why_not(self, trial: PolicyTrial[P]) -> tuple[str, str] | None:
        if trial.capabilities.without_hints is None:
            return self.clause, "not claimed (without_hints)"
        return None

    @override
    def programs(self, trial: PolicyTrial[P]) -> list[Program]:
        return drawn_programs(
            trial,
            trial.level.laws,
            self.name,
            durations=self.durations,
            hinted=False,
            eventful=False,
        )

    @override
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        base = trial.capabilities.without_hints
        if base is None:
            return
        seen = choices_of(play_all(trial.begin(program.capacity), program.operations))
        if not any(seen.made.values()):
            return
        trial.reach.note(self.situation)
        plain = PolicyRun(
            BareDriver(base, trial.driver),
            program.capacity,
            (),
            surroundings=trial.surroundings,
        )
        expected = choices_of(play_all(plain, program.operations))
        yield Comparison(expected, seen, "as the policy that it equals", "without any hints")
