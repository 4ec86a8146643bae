"""Samples: programs and hints that depend on the seed of the trial alone.

They are the same in every process, whatever its hash seed, as long as the policy makes the same
choices there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Final, TypeVar

from attrs import evolve
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy
from typing_extensions import override

from kvoffload import CachePolicy
from stateful_models import operations as op
from stateful_models.drivers import Driver
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.drawing import CAPACITIES, Hints, Scheduler
from stateful_models.engines.runs import PolicyRun
from stateful_models.host_types import HostTypes
from stateful_models.hosts import HostProtocol
from stateful_models.programs import HostOperation, Program

P = TypeVar("P", bound=CachePolicy)
Q = TypeVar("Q", bound=CachePolicy)
T = TypeVar("T")

MAX_EXAMPLES: Final = 24
"""As many contexts and events are drawn from an author's strategies for all programs together."""

_UNCONCERNED: Final = (
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
    HealthCheck.nested_given,
    HealthCheck.too_slow,
)
"""An author's strategies are the author's."""


class BareDriver(Driver[P]):
    """Drives a policy that is not the author's, with none of the extra hooks, as `like` does."""

    def __init__(self, make: Callable[[int], P], like: Driver[Q]) -> None:
        super().__init__(make)
        self.host: HostProtocol = like.host
        self.types: HostTypes = like.types

    @override
    def build(self, capacity: int) -> P:
        return self.target(capacity)

    @override
    def perform_event(self, policy: P, event: op.HostEvent) -> None:
        """Nobody is told."""


class Reusing(Scheduler[P]):
    """Often plays a short request from its beginning to its end, so that keys come back a lot."""

    @override
    def _mixture(self) -> list[Callable[[], bool]]:
        return [*super()._mixture(), *[self._whole_request] * 30]

    @override
    def play(self, length: int) -> None:
        # A request is several operations.
        super().play(max(3, length // 2))

    def _whole_request(self) -> bool:
        request = self._request()
        keys = self._some(self._universe, 2)
        if not self._do(op.PrepareStore(request, keys)):
            return False
        stored = tuple(key for key in self._host.pending if key in keys)
        if stored and not self._do(op.CompleteStore(request, stored)):
            return False
        return self._do(op.FinishRequest(request))


def examples(strategy: SearchStrategy[T], most: int, number: int) -> list[T]:
    """At most so many examples, the same for the same `number`; fewer if there are no more."""
    found: list[T] = []

    @seed(number)
    @settings(
        max_examples=most,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=_UNCONCERNED,
    )
    @given(strategy)
    def collect(example: T) -> None:
        found.append(example)

    collect()
    return found[:most]


def example_hints(trial: PolicyTrial[P]) -> list[Mapping[str, object] | None]:
    """Hints that the driver says requests carry."""
    return examples(trial.driver.contexts(), MAX_EXAMPLES, trial.seed) or [None]


def example_events(trial: PolicyTrial[P]) -> list[op.HostEvent]:
    """Calls of extra hooks that the driver says its host makes."""
    events = trial.driver.host_events()
    return [] if events is None else examples(events, MAX_EXAMPLES, trial.seed)


def drawn_programs(
    trial: PolicyTrial[P],
    count: int,
    salt: str,
    *,
    durations: tuple[float, ...] = (),
    hinted: bool = True,
    eventful: bool = True,
    schedulers: Sequence[type[Scheduler[P]]] = (Scheduler, Reusing),
) -> list[Program]:
    """Programs that schedulers drew on the policy, taking turns; others for another `salt`.

    The n-th has the same capacity whatever the salt. Without `hinted` no request has hints,
    without `eventful` no extra hook is called. Nothing is judged, and no run is counted. They
    are fewer where calls do not return.
    """
    hints: list[Hints] = [*example_hints(trial)] if hinted else [None]
    events = example_events(trial) if eventful else []
    programs: list[Program] = []
    for number in range(count):
        # A text as seed is hashed the same way everywhere.
        capacity = Random(f"{trial.seed} {number}").choice(CAPACITIES)
        chance = Random(f"{trial.seed} {salt} {number}")
        run = PolicyRun(trial.driver, capacity, (), surroundings=trial.surroundings)
        drawing = schedulers[number % len(schedulers)](
            chance,
            run,
            hints=chance.choices(hints, k=4),
            events=chance.choices(events, k=6) if events else (),
            durations=durations,
        )
        drawing.play(chance.randint(5, trial.level.length))
        programs.append(run.program)
        if trial.gave_up:
            break
    return programs


def requests_of(operations: Iterable[HostOperation]) -> set[op.RequestId]:
    """The requests that the operations are for."""
    return {one.request for one in operations if isinstance(one, op.OfRequest)}


def for_requests(operation: HostOperation, prefix: str) -> HostOperation:
    """The operation for other requests: those whose ids begin with `prefix`."""
    if isinstance(operation, op.OfRequest):
        return evolve(operation, request=f"{prefix}{operation.request}")
    return operation
