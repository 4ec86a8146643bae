"""Trials of tiny policies by one law."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from spec_tests.tiny_policies import (
    Fifo,
    HandClock,
    trial_of,
)
from stateful_models.capabilities import Capabilities
from stateful_models.drivers import Driver
from stateful_models.engines.base import Breach, PolicyTrial
from stateful_models.engines.claims import CapacityInclusion, Renaming
from stateful_models.engines.comparing import Law
from stateful_models.engines.completions import Reinsertion, ReleaseOrder
from stateful_models.engines.laws import AskedInVain, ClearedIsNew
from stateful_models.hosts import PROTOCOLS, HostProtocol

HOST_LAWS: tuple[type[Law], ...] = (AskedInVain, ClearedIsNew)
CLAIMED: tuple[type[Law], ...] = (Reinsertion, ReleaseOrder, Renaming, CapacityInclusion)
BLIND = Capabilities(key_blind=True, fresh_reinsertion=True, release_order=True)
NAMES = [host.name for host in PROTOCOLS]
Make = Callable[..., CachePolicy]


class RemembersUses(Fifo):
    """What was stored most often goes last, whatever was cleared in between."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.uses: dict[OffloadKey, int] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.uses[key] = self.uses.get(key, 0) + 1

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return sorted(idle, key=self.uses.__getitem__)[:n]


def held(
    law: Law,
    target: Make,
    capabilities: Capabilities | None = None,
    host: HostProtocol = PROTOCOLS[0],
    clock: HandClock | None = None,
) -> PolicyTrial[CachePolicy]:
    """The trial of a policy by one law."""
    driver = Driver(target)
    driver.host = host
    trial = trial_of(
        driver,
        driver.capabilities if capabilities is None else capabilities,
        surroundings=(HandClock() if clock is None else clock).surroundings,
    )
    law.run(trial)
    return trial


def broken(law: Law, target: Make, capabilities: Capabilities | None = None) -> Breach:
    """The one breach that a law finds."""
    trial = held(law, target, capabilities)
    (breach,) = trial.breaches.values()
    assert law.clause in trial.tried
    assert breach.program is not None
    assert breach.engine == law.name
    return breach
