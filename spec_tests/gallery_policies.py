"""The kit on its own gallery of policies, in a process with a virtual clock.

`python -m spec_tests.gallery_policies broken|legal SHARD SHARDS` writes a line of JSON for each: of
a broken policy whether it was convicted of its mistake, and after how many programs; of a legal
one what it was convicted of, which must be nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import asdict, evolve, frozen

from kvoffload import CachePolicy
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
FOR_THE_LEGAL: Final[Level] = evolve(
    QUICK, programs=120, laws=8, depth=3, churn=800, cost_capacity=64, patience_s=20.0
)
"""A part of level quick, so that the tests end soon; all of it is for the night."""


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
    kind, shard, shards = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    clock = VirtualClock()
    clock.install()
    with Alarm() as alarm:
        for tried in (_broken if kind == "broken" else _legal)(clock, alarm, shard, shards):
            print(json.dumps(asdict(tried)), flush=True)


def _broken(clock: VirtualClock, alarm: Alarm, shard: int, shards: int) -> Iterator[Tried]:
    # Only now: some bind the clock when they are imported.
    from stateful_models.gallery.policies import BROKEN_POLICIES, GalleryDriver

    for policy_cls, exhibit in list(BROKEN_POLICIES.items())[shard::shards]:
        part = CLAUSES[exhibit.clause].part(exhibit.kind)
        if (exhibit.clause, part.kind) == OF_PROCESSES:
            continue
        wanted = (exhibit.clause, part.kind)
        trial, skipped = _try(GalleryDriver(policy_cls), clock, alarm, FOR_THE_BROKEN, wanted)
        breach = trial.breaches.get(wanted)
        yield Tried(
            policy_cls.__name__,
            breach is not None,
            skipped + (trial.programs if breach is None else breach.programs),
            _told(trial),
        )


def _legal(clock: VirtualClock, alarm: Alarm, shard: int, shards: int) -> Iterator[Tried]:
    from stateful_models.gallery.policies import LEGAL_POLICIES, GalleryDriver

    for name, legal in list(LEGAL_POLICIES.items())[shard::shards]:
        trial, _ = _try(GalleryDriver(legal.factory), clock, alarm, FOR_THE_LEGAL, None)
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
