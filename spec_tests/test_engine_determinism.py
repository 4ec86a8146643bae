"""Determinism: what else than its calls decides for a policy (POL-5)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from random import Random
from typing import ClassVar

import pytest
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.lots import by_lot
from spec_tests.tiny_policies import LEGAL, Expiring, Fifo, HandClock, Mru, trial_of
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import Breach
from stateful_models.engines.determinism import (
    Determinism,
    Look,
    digest_of_choices,
    programs_to_repeat,
)
from stateful_models.hosts import PROTOCOLS, HostProtocol

Make = Callable[..., CachePolicy]


def breaches(target: Make, look: Look | None = None, seed: int = 0) -> list[Breach]:
    trial = trial_of(Driver(target), seed=seed)
    engine = Determinism() if look is None else Determinism(look)
    engine.run(trial)
    assert "POL-5" in trial.tried
    return list(trial.breaches.values())


class Unseeded(Fifo):
    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._random = Random()

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return self._random.sample(idle, n)


class Counting(Fifo):
    """Every third eviction of all objects together takes the newest."""

    evictions: ClassVar[list[int]] = [0]

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        self.evictions[0] += 1
        return idle[::-1][:n] if self.evictions[0] % 3 == 0 else idle[:n]


class Favourites(Fifo):
    """What any object saw last goes last, but a new object begins with none."""

    favourites: ClassVar[set[OffloadKey]] = set()

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.favourites.clear()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.favourites.clear()
        self.favourites.add(key)

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return sorted(idle, key=self.favourites.__contains__)[:n]


class Addresses(Fifo):
    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return sorted(idle, key=lambda key: id(self.chunks[key]))[:n]


@pytest.mark.clause("POL-5")
@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Unseeded, "when all was done again"),
        (Counting, "evicted"),
        (Favourites, "beside another policy"),
        (Addresses, "evicted"),
    ],
)
def test_what_else_decides_is_found(target: type[Fifo], words: str) -> None:
    (breach,) = breaches(target)
    assert (breach.clause, breach.kind) == ("POL-5", Kind.HOST)
    assert words in breach.message
    assert breach.program is not None
    assert len(breach.program) <= 8


def test_state_outside_the_object_is_named() -> None:
    def look() -> Callable[[], list[str]]:
        before = Counting.evictions[0]

        def changed() -> list[str]:
            return ["the counter changed"] if Counting.evictions[0] != before else []

        return changed

    (breach,) = breaches(Counting, look)
    assert breach.message.endswith("; meanwhile the counter changed")
    assert breach.seen.endswith("; meanwhile the counter changed")
    (silent,) = breaches(Unseeded, look)
    assert "meanwhile" not in silent.message


@pytest.mark.parametrize("target", [*LEGAL, LRUCachePolicy, ARCCachePolicy])
@pytest.mark.parametrize("seed", by_lot([0, 1], one_of=2))
def test_policies_that_are_merely_odd_are_acquitted(target: type[CachePolicy], seed: int) -> None:
    assert not breaches(target, seed=seed)


@pytest.mark.parametrize("host", PROTOCOLS, ids=[host.name for host in PROTOCOLS])
def test_so_they_are_under_any_host(host: HostProtocol) -> None:
    driver = Driver(Mru)
    driver.host = host
    trial = trial_of(driver)
    Determinism().run(trial)
    assert not trial.breaches


def test_a_policy_may_read_the_clock_which_starts_again_for_each_run() -> None:
    clock = HandClock()

    def expiring(cache_capacity: int) -> Expiring:
        return Expiring(cache_capacity, clock)

    trial = trial_of(Driver(expiring), surroundings=clock.surroundings)
    Determinism(durations=(5.0, 10.0, 10.01, 60.0)).run(trial)
    assert not trial.breaches
    assert trial.reach["passing of time"]


def test_what_else_decides_may_show_only_when_time_passes() -> None:
    clock = HandClock()

    class Later(Counting):
        @override
        def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
            return super().choose(n, idle) if clock() > 3.0 else idle[:n]

    trial = trial_of(Driver(Later), surroundings=clock.surroundings)
    Determinism(durations=(5.0,)).run(trial)
    assert list(trial.breaches) == [("POL-5", Kind.HOST)]


class NeverEvicts(Fifo):
    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        raise RuntimeError


def test_what_never_evicts_was_not_tried() -> None:
    trial = trial_of(Driver(NeverEvicts))
    Determinism().run(trial)
    assert not trial.tried


def digest(target: Make, seed: int = 0) -> str:
    trial = trial_of(Driver(target), seed=seed)
    return digest_of_choices(trial, programs_to_repeat(trial)[:12])


def test_the_digest_tells_choices_apart() -> None:
    assert digest(Mru) == digest(Mru)
    assert digest(Mru) != digest(Fifo)
    assert digest(Mru) != digest(Mru, seed=1)


class BySet(Fifo):
    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return list(set(idle))[:n]


@pytest.mark.clause("POL-5")
def test_digests_differ_between_processes_only_where_hashes_decide() -> None:
    code = (
        "from spec_tests.test_engine_determinism import *\n"
        "print(digest(BySet), digest(Mru), digest(LRUCachePolicy))"
    )

    def digests(hash_seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.getcwd()}
        answer = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return answer.stdout.split()

    (by_set, *others), (by_set_too, *others_too) = digests("1"), digests("2")
    assert by_set != by_set_too
    assert others == others_too
    assert digests("1")[0] == by_set
