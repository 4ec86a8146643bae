"""Events that nobody takes for long: the backlog is shortened, and adds up to the same (EVT-4)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from kvoffload import make_offload_key
from kvoffload.errors import InvariantError
from spec_tests.engines.compared import Compared
from spec_tests.engines.shapes import Native
from stateful_models import operations as op
from stateful_models.machines import ManagerConfig
from stateful_models.steps import Delivered, Stored

KEYS: Final = tuple(make_offload_key(b"k%d" % n, n % 2) for n in range(12))
BOUND_FLOOR: Final = 1024
BOUND_PER_SLOT: Final = 4
"""How long a backlog may become: the floor, and so many keys for each slot."""


def hoard(seed: int, offers: int) -> None:
    """Store and evict with nobody taking the events until the end. Raises AssertionError."""
    chance = random.Random(seed)
    capacity = chance.choice((3, 4, 6))
    config = ManagerConfig(
        num_chunks=capacity, store_threshold=0, enable_events=True, max_tracker_size=64
    )
    compared = Compared(Native, config)
    bound = BOUND_FLOOR + BOUND_PER_SLOT * capacity
    # Something that consumers believe before, and something that stays to the end.
    for made in range(offers):
        keys = tuple(chance.sample(KEYS, chance.randint(1, min(3, capacity))))
        result = compared.perform(op.PrepareStore(f"r{made}", keys, made)).result
        if isinstance(result, Stored) and result.keys:
            success = chance.random() < 0.95
            compared.perform(op.CompleteStore(f"r{made}", result.keys, success, made))
        if made == 2:
            compared.perform(op.TakeEvents())
        # All are over, so the model need not remember them.
        compared.model.holds.clear()
        if made % 16 == 0:
            try:
                compared.manager.check()
            except InvariantError as broken:
                raise AssertionError(str(broken)) from broken
    told = compared.perform(op.TakeEvents()).result
    if not isinstance(told, Delivered):
        raise AssertionError(f"{told} instead of events")
    keys_told = sum(len(event.keys) for event in told.events)
    if keys_told > bound:
        raise AssertionError(f"a backlog of {keys_told} keys, at most {bound} wanted")
    if offers > bound and keys_told == 0:
        raise AssertionError("nothing is left of the events")
    for key in KEYS:
        compared.perform(op.Lookup("last", key))
    compared.perform(op.Reset())
    compared.perform(op.TakeEvents())
    compared.manager.check()


def fill(seed: int) -> None:
    """A backlog of just the length that is still kept in full. Raises AssertionError."""
    chance = random.Random(seed)
    capacity = chance.choice((1, 3))
    bound = BOUND_FLOOR + BOUND_PER_SLOT * capacity
    config = ManagerConfig(
        num_chunks=capacity, store_threshold=0, enable_events=True, max_tracker_size=64
    )
    compared = Compared(Native, config, exact_backlog=bound)
    keys_told = made = 0
    while keys_told < bound:
        made += 1
        absent = [key for key in KEYS if key not in compared.model.slots]
        store = op.PrepareStore("r", (chance.choice(absent),), made)
        result = compared.perform(store).result
        if not isinstance(result, Stored):
            raise AssertionError(f"{store} was refused")
        keys_told += len(result.evicted)
        if keys_told < bound:
            compared.perform(op.CompleteStore("r", result.keys, True, made))
            keys_told += 1
        compared.model.holds.clear()
    compared.manager.check()
    # The model demands each of them, as it would not of a longer one.
    compared.perform(op.TakeEvents())


def try_backlogs(seeds: Iterable[int], offers: int = 450) -> None:
    """Backlogs of several seeds. Raises AssertionError."""
    for seed in seeds:
        hoard(seed, offers)
        fill(seed)
