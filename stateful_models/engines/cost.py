"""Cost: visits counted, not timed, of policies that say what evicting costs (POL-8).

A visit is a read of a chunk's `ref_cnt`, or a hash or comparison of a key, during `evict`. Every
program is one that a scheduler with a large cache and many readers comes to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, TypeVar

from attrs import define, field, frozen
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey
from kvoffload.judge.visits import CountedKey, VisitMeter, counted_chunk
from kvoffload.wording import counted
from stateful_models import operations as op
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import Breach, Engine, PolicyTrial
from stateful_models.engines.cost_programs import FEW, SCENARIOS, pinned_cold_end
from stateful_models.engines.runs import PolicyRun, Surroundings
from stateful_models.policy_subject import PolicySubject
from stateful_models.programs import Program
from stateful_models.steps import BadAnswerError, Result, Step, Victim, Victims

P = TypeVar("P", bound=CachePolicy)

VISITS_FOR_A_CHANGE: Final = 8
GROWTH: Final = 4
"""Cost is compared with that in a cache of so many times fewer chunks."""
SMALLEST: Final = 8


@define
class Meter(VisitMeter):
    """Knows besides how often a chunk was met since it was pinned."""

    call: int = 0
    # In which eviction a chunk was met last, and in how many since it was pinned, by its slot.
    last_met: dict[int, int] = field(factory=dict)
    met: dict[int, int] = field(factory=dict)

    @override
    def meet(self, slot: int) -> None:
        super().meet(slot)
        if self.last_met.get(slot) != self.call:
            self.last_met[slot] = self.call
            self.met[slot] = self.met.get(slot, 0) + 1


@frozen
class Eviction:
    """One call of `evict`: what it visited, and what it was asked and gave."""

    visits: int
    asked: int
    protected: int
    given: int
    resident: int
    pinned: int

    @property
    def rate(self) -> float:
        """Visits for each chunk that was asked for or protected."""
        return self.visits / max(1, self.asked + self.protected)

    def __str__(self) -> str:
        protected = f", {self.protected:,} protected" if self.protected > 1 else ""
        refused = "" if self.given else ", in vain"
        return (
            f"{counted(self.visits, 'visit')} for {counted(self.asked, 'chunk')} of "
            f"{self.resident:,}, {self.pinned:,} of them pinned{protected}{refused}"
        )


class _MeteredSubject(PolicySubject[P]):
    """Counts what `evict` visits, and what changed since the run began."""

    def __init__(
        self, policy: P, driver: Driver[P], surroundings: Surroundings, *, count_keys: bool
    ) -> None:
        self.meter = Meter()
        self.changes = 0
        self.evictions: list[Eviction] = []
        self.pinned: set[OffloadKey] = set()
        self.twice: OffloadKey | None = None
        super().__init__(
            policy,
            driver,
            advance_clock=surroundings.advance,
            make_hints=surroundings.make_hints,
        )
        # A class of its own, so that no other run's keys are counted here.
        self._key_class = type("CountedKey", (CountedKey,), {"meter": self.meter})
        self._counts_keys = count_keys
        self._chunk_class = counted_chunk(driver.types.chunk, driver.types.slot, self.meter)
        self._keys: dict[OffloadKey, OffloadKey] = {}

    def key(self, key: OffloadKey) -> OffloadKey:
        """The key that is counted, the same object each time, in place of a plain one."""
        if not self._counts_keys:
            return key
        if key not in self._keys:
            self._keys[key] = OffloadKey(self._key_class(key))
        return self._keys[key]

    @override
    def perform(self, operation: op.Operation) -> Step:
        self._change(operation)
        if not isinstance(operation, op.Evict):
            return super().perform(operation)
        result: Result = None
        error: BaseException | None = None
        try:
            result = self._counted_evict(operation)
        except (Exception, SystemExit) as raised:
            error = raised
        return Step(0, operation, result, error)

    @override
    def make_chunk(self, slot: int) -> ChunkStatus:
        self.meter.met.pop(slot, None)
        return self._chunk_class(slot)

    def _counted_evict(self, operation: op.Evict) -> Victims | None:
        meter, before = self.meter, self.meter.visits
        context, protected = self.contexts.of(operation.request or ""), set(operation.protected)
        meter.call += 1
        meter.counting = True
        try:
            answer = self.driver.evict(self.policy, operation.count, protected, context)
            # An answer may do its work only when it is read.
            pairs = None if answer is None else list(answer)
        finally:
            meter.counting = False
        self.evictions.append(
            Eviction(
                meter.visits - before,
                operation.count,
                len(operation.protected),
                0 if pairs is None else len(pairs),
                len(self.chunks),
                len(self.pinned),
            )
        )
        if self.twice is None and self.pinned:
            self.twice = next((k for k in self.pinned if self._met(k) > 1), None)
        if pairs is None:
            return None
        try:
            given = [key for key, _ in pairs]
        except (TypeError, ValueError) as raised:
            raise BadAnswerError(f"{pairs!r:.200}: {raised}") from raised
        victims: list[Victim] = []
        for key in given:
            self._check_victim(key, operation)
            victims.append(Victim(key, self._slot_of(key)))
            del self.chunks[key]
        self.changes += len(victims)
        return Victims(tuple(victims))

    def _check_victim(self, key: OffloadKey, evict: op.Evict) -> None:
        """Raise BadAnswerError where no host could go on with such a victim."""
        chunk = self.chunks.get(key)
        if chunk is None:
            raise BadAnswerError(f"the victim {_name(key)}, which is not resident")
        if chunk.ref_cnt:
            state = "pending" if chunk.ref_cnt < 0 else "pinned"
            raise BadAnswerError(f"the victim {_name(key)}, which is {state}")
        if key in evict.protected:
            raise BadAnswerError(f"the victim {_name(key)}, which is protected")

    def _met(self, key: OffloadKey) -> int:
        return self.meter.met.get(self._slot_of(key), 0)

    def _slot_of(self, key: OffloadKey) -> int:
        slot: int = getattr(self.chunks[key], self.driver.types.slot)
        return slot

    def _change(self, operation: op.Operation) -> None:
        match operation:
            case op.Insert():
                self.changes += 1
            case op.MarkEvictable(key):
                self.changes += 1
                self.pinned.discard(key)
            case op.MarkNonEvictable(key):
                self.changes += 1
                self.pinned.add(key)
                self.meter.met.pop(self._slot_of(key), None)
            case op.TouchKeys(_, keys) | op.StoreMiss(_, keys) | op.RequestAccess(_, keys):
                self._use(keys)
            case op.RequestFinished(_, groups):
                self._use([key for group in groups for key in group])
            case op.Clear():
                self.pinned.clear()
            case _:
                pass

    def _use(self, keys: Sequence[OffloadKey]) -> None:
        """A use gives a chunk another place, pinned or not, and there it may be met anew."""
        self.changes += len(keys)
        for key in keys:
            if key in self.chunks:
                self.meter.met.pop(self._slot_of(key), None)


def _name(key: OffloadKey) -> str:
    # A key that is counted is not shown as its bytes are.
    return op.key_text(OffloadKey(bytes(key)))


@frozen
class Bill:
    """What a program's evictions cost. `failed`: what the policy did that ended it too early."""

    evictions: tuple[Eviction, ...]
    broken: str | None
    victims: tuple[tuple[OffloadKey, ...] | None, ...]
    failed: str | None = None

    @property
    def worst(self) -> Eviction | None:
        """The eviction with the most visits for what it was asked."""
        return max(self.evictions, key=lambda one: one.rate, default=None)

    @property
    def mean(self) -> float:
        """Visits of an eviction on average."""
        return sum(one.visits for one in self.evictions) / max(1, len(self.evictions))


def bill(trial: PolicyTrial[P], program: Program, *, count_keys: bool = True) -> Bill:
    """Play a program on a new policy, and count.

    It is `broken` at the first eviction after which more was visited in all than POL-8 allows,
    or which met a pinned chunk a second time.
    """
    run = PolicyRun(trial.driver, program.capacity, (), surroundings=trial.surroundings)
    subject = _MeteredSubject(run.policy, trial.driver, trial.surroundings, count_keys=count_keys)
    run.subject = subject
    broken: str | None = None
    protected = 0
    names = {key: subject.key(key) for key in program.universe}
    for operation in program.renamed(names).operations:
        calls = len(subject.evictions)
        goes_on = run.play(operation)
        for eviction in subject.evictions[calls:]:
            protected += eviction.protected
            allowed = VISITS_FOR_A_CHANGE * subject.changes + protected
            if broken is None and subject.meter.visits > allowed:
                broken = (
                    f"{len(subject.evictions):,} evictions made {subject.meter.visits:,} visits, "
                    f"the last {eviction}; for {subject.changes:,} changes and {protected:,} "
                    f"protected keys {allowed:,} are allowed"
                )
        if broken is None and subject.twice is not None:
            broken = (
                f"{op.key_text(subject.twice)} was pinned all the while, and two evictions looked "
                "at it: what is pinned is gone through again each time"
            )
        if not goes_on:
            break
    failed = next((s.error for played in run.played for s in played.steps if s.error), None)
    return Bill(
        tuple(subject.evictions),
        broken,
        tuple(
            None if keys is None else tuple(OffloadKey(bytes(key)) for key in keys)
            for keys in run.victims
        ),
        None if failed is None else _failure(failed),
    )


def _failure(error: BaseException) -> str:
    if isinstance(error, BadAnswerError):
        return f"broke POL-2: evict answered {error}"
    return f"raised {type(error).__name__}: {error}"


class Cost(Engine):
    """Counts visits in a cache of `level.cost_capacity` chunks, and in a smaller one."""

    name: ClassVar[str] = "cost"
    clauses: ClassVar[tuple[str, ...]] = ("POL-8",)
    compares: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        claimed = trial.capabilities.cost
        if not claimed:
            trial.declined["POL-8"] = "cost is not claimed; what evictions visit is only noted"
        count_keys = self._can_count_keys(trial)
        until = trial.now() + trial.level.patience_s
        large, small = trial.level.cost_capacity, trial.level.cost_capacity // GROWTH
        worst: tuple[Eviction, float, float] | None = None
        for number, scenario in enumerate(SCENARIOS):
            trial.on_progress(self.name, number / len(SCENARIOS))
            if trial.is_over(until):
                trial.cut(self, number, len(SCENARIOS), "scenarios")
                break
            trial.programs += 2
            bills = [bill(trial, scenario(n), count_keys=count_keys) for n in (small, large)]
            failed = next((one.failed for one in bills if one.failed), None)
            if failed is not None:
                trial.note(f"{self.name}: not counted, as the policy {failed}")
                return
            if claimed and any(one.evictions for one in bills):
                trial.tried.add("POL-8")
                for capacity, one in zip((small, large), bills, strict=True):
                    if one.broken is not None:
                        self._report(trial, scenario, capacity, count_keys)
                        break
            dearest, before = bills[1].worst, bills[0].worst
            if dearest is not None and before is not None:
                if worst is None or dearest.rate > worst[0].rate:
                    worst = dearest, dearest.visits / max(1, before.visits), bills[1].mean
        if worst is not None:
            trial.note(
                f"worst eviction: {worst[0]}. That is {worst[1]:.1f} times what it takes in a "
                f"cache of 1/{GROWTH} of the chunks; on average an eviction of that program makes "
                f"{counted(round(worst[2]), 'visit')}"
            )

    def _can_count_keys(self, trial: PolicyTrial[P]) -> bool:
        program = pinned_cold_end(FEW)
        trial.programs += 2
        plain = bill(trial, program, count_keys=False)
        counted = bill(trial, program)
        if plain.victims == counted.victims and plain.failed == counted.failed:
            return True
        trial.note(
            f"{self.name}: with keys that are counted the policy does something else, so only "
            "reads of ref_cnt are"
        )
        return False

    @override
    def broken_by(self, trial: PolicyTrial[P], program: Program) -> Breach | None:
        return self._over(trial, program, count_keys=self._can_count_keys(trial))

    def _over(self, trial: PolicyTrial[P], program: Program, *, count_keys: bool) -> Breach | None:
        broken = bill(trial, program, count_keys=count_keys).broken
        if broken is None:
            return None
        return Breach("POL-8", Kind.CLAIM, broken, self.name, program)

    def _report(
        self,
        trial: PolicyTrial[P],
        scenario: Callable[[int], Program],
        capacity: int,
        count_keys: bool,
    ) -> None:
        """Report a breach, at the smallest capacity that shows it."""

        def recheck(program: Program) -> Breach | None:
            return self._over(trial, program, count_keys=count_keys)

        smaller = SMALLEST
        while smaller < capacity:
            breach = recheck(scenario(smaller))
            if breach is not None:
                trial.found(breach, recheck)
                return
            smaller *= 2
        breach = recheck(scenario(capacity))
        if breach is not None:
            trial.found(breach)
