"""Random programs, drawn by Hypothesis."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Final, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from typing_extensions import override

from kvoffload import CachePolicy
from stateful_models import operations as op
from stateful_models.engines.base import Engine, PolicyTrial
from stateful_models.engines.drawing import CAPACITIES, Hints, Scheduler
from stateful_models.engines.samples import example_events, example_hints

P = TypeVar("P", bound=CachePolicy)


_NO_EVENTS: Final[SearchStrategy[list[op.HostEvent]]] = st.just([])


WATCHFUL: Final = 0.2
"""The share of programs in which every key is looked up after each operation, and not at the end
alone, which takes three times as many calls."""
CHURNING: Final = 0.25
"""The share of programs with more keys than a cache of `CHURNED` chunks could ever hold."""
CHURNED: Final = (1, 2, 2, 3, 4)
CROWDING: Final = 0.15
"""The share of programs in which many requests with different hints are alive at once."""
CROWDED: Final = (4, 5, 4, 6, 8)


class _EnoughError(KeyboardInterrupt):
    """The time is up. Hypothesis hands on nothing but interrupts without trying them again."""


class RandomPrograms(Engine):
    """Draws programs, `level.programs` in number, and judges each by all invariants.

    `durations` are the spans of time that matter to the policy: none, and no time passes.
    """

    name: ClassVar[str] = "random"
    judges_all: ClassVar[bool] = True
    clauses: ClassVar[tuple[str, ...]] = (
        "POL-1",
        "POL-2",
        "POL-3",
        "POL-6",
        "POL-7",
        "TOUCH-1",
    )

    def __init__(self, durations: tuple[float, ...] = ()) -> None:
        super().__init__()
        self._durations = durations

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        level = trial.level
        until = trial.now() + level.patience_s
        done = 0
        hints = trial.driver.contexts()
        events = trial.driver.host_events()
        # As different as they come: what is drawn for a program is often the same twice.
        many = list({repr(one): one for one in example_hints(trial)}.values())
        all_events = example_events(trial)

        def one_program(number: int, carried: list[Hints], called: list[op.HostEvent]) -> None:
            # What a policy answers may differ from one run to the next, so that nothing may be
            # drawn from Hypothesis in view of it.
            chance = Random(number)
            kind = chance.random()
            churn, crowded = kind < CHURNING, kind > 1 - CROWDING
            usual = CHURNED if churn else CAPACITIES
            run = trial.begin(
                chance.choice(CROWDED if crowded else usual), watchful=chance.random() < WATCHFUL
            )
            scheduler = Scheduler(
                chance,
                run,
                hints=chance.sample(many, len(many)) if crowded else carried,
                events=all_events if crowded else called,
                durations=self._durations,
                churn=churn,
                crowded=crowded,
            )
            scheduler.play(chance.randint(5, level.length))
            run.end()
            trial.judged(run, self.name)

        @seed(trial.seed)
        @settings(
            max_examples=level.programs,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=[
                HealthCheck.data_too_large,
                HealthCheck.filter_too_much,
                HealthCheck.large_base_example,
                HealthCheck.too_slow,
            ],
        )
        @given(
            st.integers(0, 2**63),
            st.lists(hints, min_size=4, max_size=4),
            _NO_EVENTS if events is None else st.lists(events, min_size=6, max_size=6),
        )
        def programs(number: int, carried: list[Hints], called: list[op.HostEvent]) -> None:
            nonlocal done
            if trial.is_over(until):
                raise _EnoughError
            trial.on_progress(self.name, done / level.programs)
            one_program(number, carried, called)
            done += 1

        try:
            programs()
        except _EnoughError:
            trial.cut(self, done, level.programs)
        if not trial.gave_up:
            trial.tried.update(self.clauses)
