"""The kit on its own gallery of policies, in a process with a virtual clock.

`python -m spec_tests.gallery_policies broken|legal lot|all SHARD SHARDS` writes a line of JSON for
each, or for those that the lot fell on: of a broken policy whether it was convicted of its mistake,
and after how many programs; of a legal one what it was convicted of, which must be nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import asdict, evolve, frozen

from kvoffload import CachePolicy
from spec_tests.lots import drawn_of
from stateful_models.contract import CLAUSES, Kind, Profile
from stateful_models.drivers import Driver
from stateful_models.engines.base import Demand, PolicyTrial
from stateful_models.engines.random import RandomPrograms
from stateful_models.engines.runs import Surroundings
from stateful_models.engines.suites import policy_engines
from stateful_models.invariants import Invariant, PolicyBooks, policy_invariants
from stateful_models.levels import QUICK, Level
from stateful_models.trial.clock import VirtualClock, draws_around, durations_used, real_monotonic
from stateful_models.trial.hang import Alarm
from stateful_models.trial.hint_names import HintNames
from stateful_models.trial.leaks import OutsideState

FOR_THE_BROKEN: Final[Level] = evolve(QUICK, shrinking=0, patience_s=20.0)
FOR_THE_LEGAL: Final[Mapping[str, Level]] = {
    "lot": evolve(QUICK, programs=120, laws=8, churn=800, cost_capacity=64, patience_s=20.0),
    "all": evolve(QUICK, patience_s=60.0),
}
"""A part of level quick for those that are drawn, so that the tests end soon; for all, which is for
the night, the whole of it."""

OF_THE_BROKEN: Final = 5
"""Of those that break the same demand one of so many is drawn, at least one: a third of all."""
OF_THE_LEGAL: Final = 4

OF_PROCESSES: Final = ("POL-5", Kind.ADVICE)
"""What only shows when processes are compared."""


class _EnoughError(BaseException):
    """What was to be found was found."""


@frozen
class Tried:
    """What came of one policy."""

    name: str
    convicted: bool
    programs: int
    breaches: tuple[str, ...]
    seconds: float = 0.0


def main() -> None:
    """Try a shard of the gallery."""
    kind, part, shard, shards = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    clock = VirtualClock()
    clock.install()
    with Alarm() as alarm:
        for tried in (_broken if kind == "broken" else _legal)(clock, alarm, part, shard, shards):
            print(json.dumps(asdict(tried)), flush=True)


def _broken(
    clock: VirtualClock, alarm: Alarm, part: str, shard: int, shards: int
) -> Iterator[Tried]:
    # Only now: some bind the clock when they are imported.
    from stateful_models.gallery.policies import BROKEN_POLICIES, GalleryDriver

    demands: dict[type[CachePolicy], Demand] = {
        policy_cls: (exhibit.clause, CLAUSES[exhibit.clause].part(exhibit.kind).kind)
        for policy_cls, exhibit in BROKEN_POLICIES.items()
    }
    drawn = {
        name
        for demand in set(demands.values())
        for name in drawn_of(
            [policy_cls.__name__ for policy_cls, one in demands.items() if one == demand],
            one_of=OF_THE_BROKEN,
        )
    }
    chosen = [
        (policy_cls, wanted)
        for policy_cls, wanted in demands.items()
        if wanted != OF_PROCESSES and (part == "all" or policy_cls.__name__ in drawn)
    ]
    for policy_cls, wanted in chosen[shard::shards]:
        trial, skipped = _try(GalleryDriver(policy_cls), clock, alarm, FOR_THE_BROKEN, wanted)
        breach = trial.breaches.get(wanted)
        yield Tried(
            policy_cls.__name__,
            breach is not None,
            skipped + (trial.programs if breach is None else breach.programs),
            _told(trial),
        )


def _legal(
    clock: VirtualClock, alarm: Alarm, part: str, shard: int, shards: int
) -> Iterator[Tried]:
    from stateful_models.gallery.policies import LEGAL_POLICIES, GalleryDriver

    drawn = drawn_of(LEGAL_POLICIES, one_of=OF_THE_LEGAL)
    chosen = list(LEGAL_POLICIES) if part == "all" else drawn
    for name in chosen[shard::shards]:
        driver = GalleryDriver(LEGAL_POLICIES[name].factory)
        trial, _ = _try(driver, clock, alarm, FOR_THE_LEGAL[part], None)
        convicting = [
            demand
            for demand in trial.breaches
            if demand[0] not in CLAUSES or CLAUSES[demand[0]].part(demand[1]).convicts(Profile.VLLM)
        ]
        yield Tried(name, bool(convicting), trial.programs, _told(trial))


def _told(trial: PolicyTrial[CachePolicy]) -> tuple[str, ...]:
    return tuple(f"{breach.clause}: {breach.message}" for breach in trial.breaches.values())


def _try(
    driver: Driver[CachePolicy],
    clock: VirtualClock,
    alarm: Alarm,
    level: Level,
    wanted: Demand | None,
) -> tuple[PolicyTrial[CachePolicy], int]:
    """The trial, and how many programs a whole one would have played before it had to."""
    names = HintNames()
    sample = driver.build(4)
    spans = draws_around(durations_used(driver.target, sample, slept=clock.slept))

    def make_invariants(capacity: int) -> Sequence[Invariant[PolicyBooks]]:
        return policy_invariants(driver.capabilities, capacity, driver.host)

    def proceed(engine: str, share: float) -> None:
        if wanted in trial.breaches:
            raise _EnoughError

    trial: PolicyTrial[CachePolicy] = PolicyTrial(
        driver,
        make_invariants,
        capabilities=driver.capabilities,
        level=level,
        surroundings=Surroundings(
            restart=clock.reset,
            advance=clock.advance,
            make_hints=lambda hints: names.record(dict(hints)),
            patience_s=1.0,
            alarm=alarm,
        ),
        on_progress=proceed,
        now=real_monotonic,
    )

    def look() -> OutsideState:
        return OutsideState(driver.target, type(sample))

    by_invariants = {clause for one in make_invariants(1) for clause in one.clauses}
    engines = policy_engines(spans, names, lambda: look().changed_since)
    if wanted is not None:
        # As where one clause is asked for: what judges only others would find only others.
        engines = [one for one in engines if wanted[0] in one.judged(by_invariants)]
        if wanted[0] == "POL-6":
            # Laws go first: they soon see that it is as if something had been, or had not been,
            # where random programs are all played in vain.
            engines.sort(key=lambda one: not (one.compares and wanted[0] in one.clauses))
    left = engines[:]
    try:
        for engine in engines:
            left.remove(engine)
            engine.run(trial)
            proceed(engine.name, 1.0)
    except _EnoughError:
        pass
    # What a whole trial plays first counts all the same.
    skipped = level.programs if any(isinstance(one, RandomPrograms) for one in left) else 0
    return trial, skipped


if __name__ == "__main__":
    main()
