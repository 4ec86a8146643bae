"""The calls of the manager to its policy: which, in which order, with which arguments.

For a policy of any shape the calls of an operation must be those that the model of the manager
makes to the model of a policy, as far as a policy of this shape is told of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import groupby

from kvoffload import CachePolicy, ChunkStatus, ReqContext, make_offload_key
from spec_tests.engines.compared import Compared
from spec_tests.engines.fifo import Call
from spec_tests.engines.shapes import SHAPES, Native, Plain, Shape
from stateful_models import operations as op
from stateful_models.machines import ManagerConfig
from stateful_models.roaming import Roaming
from stateful_models.steps import Step


class ProtocolTrial:
    """A manager over a policy of one shape; performs operations and compares the calls."""

    def __init__(self, shape: Shape, config: ManagerConfig) -> None:
        self.shape = shape
        self.compared = Compared(shape.policy, config, refuses=shape.refuses)

    def perform(self, operation: op.Operation) -> Step:
        """Perform an operation; raises AssertionError for wrong answers and wrong calls."""
        step = self.compared.perform(operation)
        policy: object = self.compared.manager.policy
        if not isinstance(policy, self.shape.policy):
            raise AssertionError(f"the policy is {policy!r}, expected a {self.shape.policy}")
        calls = self.compared.order.log
        expected = list(self._expected(calls))
        # A batch of none tells nothing.
        called = [call for call in policy.log if call != ("mark_all_evictable", ())]
        calls.clear()
        policy.log.clear()
        if called != expected:
            raise AssertionError(f"{step}\n called {called}\n not    {expected}")
        return step

    def _expected(self, calls: Iterable[Call]) -> Iterator[Call]:
        for (name, request), run in groupby(calls, key=_batch):
            batch = list(run)
            if self.shape.batches and name in ("insert", "mark_evictable"):
                keys = tuple(call[-1] for call in batch)
                whose = (request,) if name == "insert" else ()
                yield ("insert_all" if whose else "mark_all_evictable", *whose, keys)
            else:
                for call in batch:
                    yield from self._told(*call)

    def _told(self, name: object, *arguments: object) -> Iterator[Call]:
        """What a policy of this shape is told of a call: without a hook, its default."""
        match name, arguments:
            case "insert", (request, key):
                yield name, request if self.shape.inserts else None, key
            case "touch", (request, keys):
                yield name, request if self.shape.touches else None, keys
            case "on_store_miss", (request, keys) if not self.shape.hooks:
                yield from self._told("touch", request, keys)
            case "on_request_finished", (request, tuple() as groups, _, _) if not self.shape.hooks:
                per_group: tuple[object, ...] = groups
                for keys in per_group:
                    yield from self._told("touch", request, keys)
            case "on_request_access" | "mark_evictable" | "mark_non_evictable", _:
                if self.shape.hooks:
                    yield name, *arguments
            case _:
                yield name, *arguments


def _batch(call: Call) -> tuple[object, object]:
    return call[0], call[1] if call[0] == "insert" else None


def try_protocol(seeds: Iterable[int], rounds: int) -> None:
    """Roam over a manager with policies of every shape. Raises AssertionError."""
    try_defaults()
    for seed in seeds:
        chance = random.Random(seed)
        for shape in SHAPES:
            config = ManagerConfig(
                num_chunks=chance.choice((4, 6, 8, 3)),
                store_threshold=chance.choice((1, 1, 2)),
                enable_events=True,
                max_tracker_size=64,
            )
            Roaming(ProtocolTrial(shape, config), seed=seed, prompts=2).run(rounds)


def try_defaults() -> None:
    """What a host that calls the interface directly gets of a policy without hooks of its own."""
    context, keys = ReqContext("r"), [make_offload_key(b"%d" % n, n % 2) for n in range(3)]
    chunks = [ChunkStatus(n) for n in range(3)]
    plain: CachePolicy = Plain(cache_capacity=3)
    if not isinstance(plain, Plain) or plain.cache_capacity != 3:
        raise AssertionError("another capacity")
    plain.insert_all(keys, chunks, context)
    plain.on_store_miss(tuple(keys), context)
    plain.on_request_access(keys, context)
    plain.mark_evictable(keys[0])
    plain.mark_non_evictable(keys[0])
    plain.on_request_finished([tuple(keys[:2]), tuple(keys[2:])], set(), set(), context)
    touches = [tuple(keys), tuple(keys[:2]), tuple(keys[2:])]
    expected = [
        *[("insert", "r", key) for key in keys],
        *[("touch", "r", touched) for touched in touches],
    ]
    inserted = [plain.get(key) for key in keys]
    native = Native(cache_capacity=3)
    native.mark_all_evictable(keys)
    marked = [("mark_evictable", key) for key in keys]
    if plain.log != expected or native.log != marked or inserted != chunks:
        raise AssertionError(f"{plain.log}, {native.log}, {inserted}")
    # With nothing at all.
    plain.insert_all([], [], context)
    plain.mark_all_evictable(keys)
    if plain.log != expected or plain.may_refuse is not None:
        raise AssertionError(f"{plain.log}")
