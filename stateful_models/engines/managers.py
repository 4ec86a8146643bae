"""The trial of a manager: what its engines need, when a clause counts as tried, and the engines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from random import Random
from typing import ClassVar, Final, Generic, TypeVar

from attrs import define, evolve, field
from typing_extensions import override

from kvoffload import OffloadingManager
from stateful_models import operations as op
from stateful_models.contract import Profile
from stateful_models.engines.base import AnyEngine, Breach, Trial
from stateful_models.engines.manager_drawing import (
    MANAGER_CAPACITIES,
    ManagerScheduler,
    draw_settings,
)
from stateful_models.engines.manager_predictions import predictions_for
from stateful_models.engines.manager_runs import (
    MakeManagerInvariants,
    ManagerRun,
    options_of,
    run_manager_program,
)
from stateful_models.engines.samples import MAX_EXAMPLES, examples
from stateful_models.manager_drivers import ManagerCapabilities, ManagerDriver
from stateful_models.programs import ManagerSettings, Program

M = TypeVar("M", bound=OffloadingManager)

MANAGER_SITUATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "KEY-2": ("refused key",),
    "TIER-3": ("request with a tier filter",),
    "REQ-3": ("request announced", "store", "load"),
    "SPECS-3": ("reset",),
    "LOOK-1": ("look-up answered MISS", "look-up answered HIT_PENDING", "look-up answered HIT"),
    "LOOK-2": ("look-up answered HIT", "offer told to the policy"),
    "LOAD-1": ("refused load", "load"),
    "LOAD-2": ("load of several", "key loaded twice at once"),
    "LOAD-3": ("eviction beside pins", "eviction beside pending chunks"),
    "LOAD-4": ("refused release", "load completed"),
    "LOAD-5": ("load", "offer of resident keys", "offer told to the policy"),
    "TOUCH-1": ("touch of a key that is not resident", "eviction"),
    "PIN-1": ("everything completed after loads",),
    "PIN-2": ("holdings listed",),
    "STORE-1": ("repetition in an offer", "store"),
    "STORE-2": ("offer of resident keys",),
    "STORE-3": ("skipped by the threshold", "admitted by the threshold"),
    "STORE-4": ("eviction", "eviction of several", "refused offer"),
    "STORE-5": ("eviction beside keys of the offer",),
    "STORE-6": ("refused offer", "offer told to the policy"),
    "STORE-7": ("eviction", "failed store", "reset"),
    "STORE-8": ("offer told to the policy", "eviction"),
    "STORE-9": ("offer with nothing to store",),
    "STORE-10": ("policy that errs",),
    "STORE-12": ("admitted by the threshold",),
    "DONE-1": ("store completed",),
    "DONE-2": ("failed store", "events delivered"),
    "DONE-3": ("doubled completion",),
    "DONE-4": ("doubled completion", "completion of an earlier generation", "unknown ticket"),
    "SLOT-1": ("eviction", "failed store", "reset with work in flight"),
    "GEN-1": ("reset with work in flight",),
    "GEN-2": ("request that goes on after a reset",),
    "FIN-1": ("finished request", "offer told to the policy"),
    "FIN-2": ("finished request refused",),
    "EVT-1": ("events delivered", "removal delivered", "reset after events were delivered"),
    "EVT-2": ("events delivered", "removal delivered"),
    "EVT-3": ("events delivered", "drain broken off"),
    "EVT-4": ("drain without events enabled", "backlog of many keys"),
    "EVT-5": ("reset after events were delivered",),
    "MET-1": ("figures under the documented names", "store", "load"),
    "MET-2": ("figures under the documented names", "store"),
    "POL-5": ("eviction",),
    "LRU-1": ("eviction", "eviction beside pins", "finished request"),
    "ARC-3": ("eviction", "eviction beside pins", "finished request"),
}
"""What must have come about before a clause counts as tried. What a mistake of the host leads to
does not come about under the profile vllm."""

OF_MISTAKES: Final = {
    "completion of an earlier generation",
    "doubled completion",
    "drain broken off",
    "finished request refused",
    "holdings listed",
    "policy that errs",
    "refused key",
    "refused load",
    "refused release",
    "repetition in an offer",
    "unknown ticket",
}
"""What a host comes to by mistake, or by calls that the field's managers do not have."""
OF_TAPS: Final = {"offer told to the policy", "policy that errs"}
"""What takes a policy of the trial's own."""
OF_THRESHOLDS: Final = {"skipped by the threshold", "admitted by the threshold"}
"""What takes a `store_threshold` of 2 or more."""

CLAIMED: Final = ("LRU-1", "ARC-3")
"""Clauses that only the differential judges."""


BY_LAWS: Final = ("EVT-4", "POL-5", "STORE-10")
"""Clauses that take more than any program of any host."""


@define
class ManagerTrial(Trial[ManagerDriver[M], MakeManagerInvariants, ManagerRun[M]], Generic[M]):
    """One manager on trial, which is held to its `capabilities`.

    Under the profile reference hosts make mistakes too.
    """

    capabilities: ManagerCapabilities = field(kw_only=True)
    _capacities: tuple[int, ...] = field(default=(), init=False)

    @override
    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.declined.update(self._beyond())

    def _beyond(self) -> Iterator[tuple[str, str]]:
        """The clauses that do not apply, and why."""
        able = self.capabilities
        for clause, situations in MANAGER_SITUATIONS.items():
            met = set(situations)
            if clause in CLAIMED and not able.reference:
                yield clause, "reference is not claimed"
            elif not self.mistakes and met & OF_MISTAKES:
                yield clause, "only a host that errs would show it"
            elif not able.tap and met & OF_TAPS:
                yield clause, "without tap what its policy is told is not seen"
            elif not able.events and clause.startswith("EVT-"):
                yield clause, "events are declined"
            elif not able.reuse_threshold and met & OF_THRESHOLDS:
                yield clause, "a store_threshold is declined"

    @property
    def mistakes(self) -> bool:
        """Whether hosts may make mistakes."""
        return self.profile is Profile.REFERENCE

    @property
    def capacities(self) -> tuple[int, ...]:
        """The numbers of chunks that it is tried with; of none only if it can be built so."""
        if not self._capacities:
            able: tuple[int, ...] = MANAGER_CAPACITIES
            policies = self.driver.policies
            settings = ManagerSettings(policy=policies[0] if policies else None)
            try:
                self.surroundings.build(lambda: self.driver.build(options_of(0, settings)))
            # Whatever it is: nobody asks for a cache of nothing.
            except Exception as error:
                self.note(f"not tried without any chunks: {type(error).__name__}: {error}")
                able = tuple(capacity for capacity in able if capacity)
            self._capacities = able
        return self._capacities

    @override
    def run(self, program: Program) -> ManagerRun[M]:
        """Play a program on a new manager, judged by invariants, and by the model if claimed."""
        self.count()
        return run_manager_program(
            self.driver,
            program,
            self.make_invariants,
            reference=self.capabilities.reference,
            surroundings=self.surroundings,
            reach=self.reach,
        )

    @override
    def plainer(self, program: Program) -> Iterator[Program]:
        settings = program.settings
        if settings is None:
            return
        for plainer in self._plainer(settings):
            yield evolve(program, settings=plainer)
            if plainer.store_threshold < settings.store_threshold:
                # An offer that only counted is then the one that stores.
                yield evolve(_offering_once(program), settings=plainer)

    def _plainer(self, settings: ManagerSettings) -> Iterator[ManagerSettings]:
        policies = self.driver.policies
        by_itself = not (settings.tapped or settings.fault or self.capabilities.reference)
        if settings.policy is not None and by_itself:
            yield evolve(settings, policy=None)
        if policies and settings.policy not in (None, policies[0]):
            yield evolve(settings, policy=policies[0])
        if settings.mistakes:
            yield evolve(settings, mistakes=False)
        if settings.tapped:
            yield evolve(settings, tapped=False)
        if settings.enable_events is not self.capabilities.events:
            yield evolve(settings, enable_events=self.capabilities.events)
        if settings.max_tracker_size is not None:
            yield evolve(settings, max_tracker_size=None)
        if settings.store_threshold != 1:
            yield evolve(settings, store_threshold=1)
        if settings.store_threshold > 2:
            yield evolve(settings, store_threshold=2)

    def draw(self, chance: Random, *, mistakes: bool | None = None) -> ManagerSettings:
        """Settings that the manager can be built with; `mistakes` None: where hosts make any."""
        able = self.capabilities
        return draw_settings(
            chance,
            self.driver.policies,
            mistakes=self.mistakes if mistakes is None else mistakes,
            events=able.events,
            reuse_threshold=able.reuse_threshold,
            tracker_size=able.tracker_size,
            tap=able.tap,
        )

    def begin(
        self, capacity: int, settings: ManagerSettings, *, watchful: bool, judged: bool = True
    ) -> ManagerRun[M]:
        """A run on a new manager, on which operations can be drawn."""
        self.count()
        predicted = judged and self.capabilities.reference
        return ManagerRun(
            self.driver,
            capacity,
            settings,
            self.make_invariants if judged else lambda options: (),
            watchful=watchful,
            surroundings=self.surroundings,
            reach=self.reach,
            predictions=predictions_for(capacity, settings) if predicted else None,
        )

    def has_tried(self, clauses: Iterable[str]) -> None:
        """Those of the clauses were tried whose situations all came about, unless it gave up."""
        if self.gave_up:
            return
        for clause in clauses:
            if clause in CLAIMED and not self.capabilities.reference:
                continue
            if not self.reach.missing(MANAGER_SITUATIONS.get(clause, ())):
                self.tried.add(clause)


def _offering_once(program: Program) -> Program:
    """The program without offers of which the next one has the same keys."""
    offers = [one for one in program.operations if isinstance(one, op.PrepareStore)]
    repeated = {id(one) for one, after in pairwise(offers) if set(one.keys) == set(after.keys)}
    return program.with_operations(one for one in program.operations if id(one) not in repeated)


class ManagerEngine(AnyEngine):
    """One way of trying a manager."""

    @abstractmethod
    def run(self, trial: ManagerTrial[M]) -> None:
        """Try the manager, and report to the trial."""

    def broken_by(self, trial: ManagerTrial[M], program: Program) -> Breach | None:
        """How the program breaks what one that `compares` judges; None if it does not."""
        return None


SHARE: Final = 2
"""A program of a manager is judged by more than one of a policy, so that half as many are drawn."""


class RandomManagerPrograms(ManagerEngine):
    """Draws programs, half of `level.programs`, and judges each by everything there is.

    `durations` are the spans of time that matter to the manager: none, and no time passes.
    """

    name: ClassVar[str] = "random"
    judges_all: ClassVar[bool] = True
    clauses: ClassVar[tuple[str, ...]] = tuple(
        clause for clause in MANAGER_SITUATIONS if clause not in BY_LAWS
    )

    def __init__(self, durations: tuple[float, ...] = ()) -> None:
        super().__init__()
        self._durations = durations

    @override
    def run(self, trial: ManagerTrial[M]) -> None:
        level = trial.level
        until = trial.now() + level.patience_s
        hints = examples(trial.driver.contexts(), MAX_EXAMPLES, trial.seed) or [None]
        called = trial.driver.host_events()
        events = [] if called is None else examples(called, MAX_EXAMPLES, trial.seed)
        count = level.programs // SHARE
        for number in range(count):
            trial.on_progress(self.name, number / count)
            if trial.is_over(until):
                trial.cut(self, number, count)
                break
            # A text as seed is hashed the same way everywhere.
            chance = Random(f"{trial.seed} {self.name} {number}")
            run = trial.begin(
                chance.choice(trial.capacities),
                trial.draw(chance),
                watchful=chance.random() < 0.3,
            )
            scheduler = ManagerScheduler(
                chance,
                run,
                hints=chance.choices(hints, k=4),
                events=chance.choices(events, k=6) if events else (),
                durations=self._durations,
            )
            if scheduler.play(chance.randint(5, level.length)):
                scheduler.drain()
            run.end()
            trial.judged(run, self.name)
        trial.has_tried(self.clauses)
