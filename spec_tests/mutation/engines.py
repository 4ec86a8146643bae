"""The engines that judge mutants, the cheapest first. None of them is an example test."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from kvoffload import CPUOffloadingManager
from spec_tests.engines.backlog import try_backlogs
from spec_tests.engines.construction import try_construction
from spec_tests.engines.damage import try_damage
from spec_tests.engines.faults import try_faults
from spec_tests.engines.line_books import try_line_books
from spec_tests.engines.orders import try_growth, try_orders
from spec_tests.engines.protocol import try_protocol
from spec_tests.mutation.trial import Engine
from stateful_models.machines import (
    ARCManagerMachine,
    ARCPolicyMachine,
    LRUManagerMachine,
    LRUPolicyMachine,
    ManagerConfig,
)
from stateful_models.machines.trial import ManagerTrial
from stateful_models.models import ARCModel, LRUModel, PolicyModel
from stateful_models.roaming import Roaming
from stateful_models.workload import Workload

CAPACITIES: Final = (4, 6, 8, 12, 3, 2, 1, 0)


def try_manager(policy: str, seed: int) -> ManagerTrial:
    """A manager that must answer as its model does; small, and built in ways drawn by the seed."""
    chance = random.Random(seed)
    config = ManagerConfig(
        num_chunks=chance.choice(CAPACITIES),
        store_threshold=chance.choice((1, 1, 0, 2, 3)),
        enable_events=chance.random() < 0.8,
        max_tracker_size=chance.choice((64, 12, 3)),
    )
    manager = CPUOffloadingManager(
        config.num_chunks,
        policy,
        enable_events=config.enable_events,
        store_threshold=config.store_threshold,
        max_tracker_size=config.max_tracker_size,
    )
    capacity = config.num_chunks
    model: PolicyModel = ARCModel(capacity) if policy == "arc" else LRUModel(capacity)
    return ManagerTrial(manager, config, model)


def serve(seeds: range, rounds: int) -> None:
    """Prompts served as an engine serves them, each answer held against the model."""
    for seed in seeds:
        for policy in ("lru", "arc"):
            Workload(try_manager(policy, seed), seed=seed).run(rounds)


def roam(seeds: range, rounds: int) -> None:
    """Calls of every kind, each answer held against the model."""
    for seed in seeds:
        for policy in ("lru", "arc"):
            Roaming(try_manager(policy, seed), seed=seed, prompts=2 + seed % 3).run(rounds)


def machine(cls: type[RuleBasedStateMachine], examples: int, steps: int = 50) -> None:
    """A state machine, the same examples every time, and no search for a shorter failure."""
    run_state_machine_as_test(
        cls,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


MACHINES: Final[tuple[type[RuleBasedStateMachine], ...]] = (
    LRUPolicyMachine,
    ARCPolicyMachine,
    LRUManagerMachine,
    ARCManagerMachine,
)


def damage(seeds: range) -> None:
    """Damage to the books of managers that roam."""

    def managers() -> Iterator[tuple[CPUOffloadingManager, Callable[[], None]]]:
        for seed in seeds:
            for policy in ("lru", "arc"):
                trial = try_manager(policy, seed)
                roaming = Roaming(trial, seed=seed, prompts=2)
                if isinstance(trial.manager, CPUOffloadingManager):
                    yield trial.manager, partial(roaming.run, 20)

    try_damage(managers())


def engines() -> Iterator[Engine]:
    """All of them, the cheapest first: nearly every mutant ends in the first tenth of a second."""
    yield Engine("workload, short", lambda: serve(range(2), 40))
    yield Engine("roaming, short", lambda: roam(range(4), 60))
    yield Engine("orders, short", lambda: try_orders(range(12), 120))
    yield Engine("line books", try_line_books)
    yield Engine("construction", lambda: try_construction(range(20)))
    yield Engine("protocol, short", lambda: try_protocol(range(2), 60))
    yield Engine("faults, short", lambda: try_faults(range(1), 40, thorough=False))
    yield Engine("backlog", lambda: try_backlogs(range(3)))
    yield Engine("protocol", lambda: try_protocol(range(2, 6), 150))
    yield Engine("faults", lambda: try_faults(range(1, 4)))
    # Dearer than what follows, and kills what that does not.
    yield Engine("growth, short", lambda: try_growth(range(1), 3000))
    yield Engine("workload", lambda: serve(range(2, 10), 150))
    yield Engine("roaming", lambda: roam(range(4, 30), 150))
    yield Engine("damage", lambda: damage(range(24)))
    for cls in MACHINES:
        yield Engine(cls.__name__, partial(machine, cls, 20))
    yield Engine("growth", lambda: try_growth(range(1, 2), 3000))
    yield Engine("orders", lambda: try_orders(range(12, 72), 300))


ENGINES: Final = tuple(engines())
