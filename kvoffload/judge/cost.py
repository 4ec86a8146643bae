"""What the calls of a policy cost, in seconds and in visits, and how that grows with the cache.

A scheduler waits for every one of these calls, so the dearest counts as much as the usual one. A
cache of each size is filled with idle chunks, a quarter of which were used again; then each kind of
call is made many times, on another state each time: between two of them a request is served. First
visits are counted, on the same calls always, then calls are timed, with no counting in the way.
Caches of the processor are as those requests leave them, which is warm.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Final

from attrs import frozen

from kvoffload.cpu.manager import CPUOffloadingManager
from kvoffload.errors import InvalidValueError
from kvoffload.judge.blame import spare_the_policy
from kvoffload.judge.call_cost import CallCost, Growth, Measure, Point, Spread, growth_of
from kvoffload.judge.front import Front
from kvoffload.judge.own_process import Failed, run_in_own_process
from kvoffload.judge.under_load import Gauge, UnderLoad
from kvoffload.judge.visits import SwitchedClasses
from kvoffload.keys import OffloadKey
from kvoffload.policies.base import CachePolicy

SIZES: Final = (10_000, 100_000, 1_000_000)
BUDGET_S: Final = 60.0
BATCH: Final = 64
REQUEST_KEYS: Final = 2_000
CALLS: Final = 1_000
FEWEST: Final = 3
"""So many calls are made however long they take: one that is dear once is not the usual one."""
DISTURBANCE: Final = 16
"""Chunks that the request between two calls uses."""
MakePolicy = Callable[[int], CachePolicy]
"""Makes the policy of a cache of so many chunks. Picklable, where it is measured elsewhere."""
_FITTED: Final[tuple[tuple[Measure, Point], ...]] = (
    ("visits", "p50"),
    ("visits", "worst"),
    # The worst in seconds is what the machine did besides as much as what the policy did.
    ("seconds", "p50"),
)


@frozen
class LeftOut:
    """Calls that were not measured with `size` chunks in the cache, and why."""

    size: int
    calls: tuple[str, ...]
    why: str


@frozen
class CostReport:
    """What the calls of a policy cost. `problem`: how the policy failed, and with how many chunks.

    `costs` by size ascending. Within `budget_s` seconds all was measured but what is `left_out`.
    """

    sizes: tuple[int, ...]
    budget_s: float
    costs: tuple[CallCost, ...]
    growth: tuple[Growth, ...]
    left_out: tuple[LeftOut, ...] = ()
    problem: str = ""

    def of(self, call: str) -> tuple[CallCost, ...]:
        """The costs of one kind of call, by size."""
        return tuple(cost for cost in self.costs if cost.call == call)


@frozen
class _Plan:
    """What is measured, in words that another process is told."""

    make_policy: MakePolicy
    sizes: tuple[int, ...]
    budget_s: float
    batch: int
    request_keys: int
    calls: int

    @property
    def kinds(self) -> tuple[_Kind, ...]:
        return (
            _Kind("evict(1)", 200, CALLS, lambda load: _store(load, 1)),
            _Kind(f"evict({self.batch})", 50, 200, lambda load: _store(load, self.batch)),
            _Kind(
                f"request of {self.request_keys:,} keys",
                10,
                30,
                lambda load: _request(load, self.request_keys),
            ),
            # The last, since everything is pinned from then on.
            _Kind("refusal", 50, 200, _refuse, _pin_everything),
        )


@frozen
class _Kind:
    """A kind of call: how often it is counted and timed at most, and how it is made once."""

    name: str
    counted: int
    timed: int
    make: Callable[[UnderLoad], None]
    prepare: Callable[[UnderLoad], None] = lambda load: None
    """What comes before the first call, when they are counted and when they are timed."""


def measure_cost(
    make_policy: MakePolicy,
    sizes: Sequence[int] = SIZES,
    budget_s: float = BUDGET_S,
    *,
    batch: int = BATCH,
    request_keys: int = REQUEST_KEYS,
    calls: int = CALLS,
    own_process: bool = True,
) -> CostReport:
    """Measure `evict(1)`, `evict(batch)`, a request of `request_keys` keys, and a refusal.

    None of them more often than `calls` times, counted or timed.

    In a process of its own, which is started anew and is ended when `budget_s` seconds have passed,
    whatever the policy is doing; `make_policy` must be picklable for that. Otherwise here, where a
    call that takes too long is waited for. Smaller sizes come first. A policy that fails is no
    error here: `problem` tells of it.

    Raises InvalidValueError for no size, or one that is less than twice a batch or a request;
    HostFailedError where what calls the policy fails.
    """
    ordered = tuple(sorted(set(sizes)))
    least = 2 * max(batch, request_keys, DISTURBANCE)
    if not ordered or ordered[0] < least:
        raise InvalidValueError("sizes", tuple(sizes), f"one or more, each at least {least}")
    plan = _Plan(make_policy, ordered, budget_s, batch, request_keys, calls)
    costs: list[CallCost] = []
    left_out: list[LeftOut] = []
    problem = ""
    over = f"the {round(budget_s, 1):g} s for it were over"
    answers = run_in_own_process(_measured, plan, budget_s) if own_process else _measured(plan)
    for answer in answers:
        if isinstance(answer, CallCost):
            costs.append(answer)
        elif isinstance(answer, LeftOut):
            left_out.append(answer)
        else:
            problem = answer.why
    told = {(cost.call, cost.size) for cost in costs}
    told |= {(call, one.size) for one in left_out for call in one.calls}
    for size in ordered:
        left = tuple(kind.name for kind in plan.kinds if (kind.name, size) not in told)
        if left:
            left_out.append(LeftOut(size, left, problem or over))
    left_out.sort(key=lambda one: one.size)
    growth = tuple(
        growth_of(tuple(cost for cost in costs if cost.call == kind.name), measure, of)
        for kind in plan.kinds
        if any(cost.call == kind.name for cost in costs)
        for measure, of in _FITTED
    )
    return CostReport(ordered, budget_s, tuple(costs), growth, tuple(left_out), problem)


def policy_in(make_manager: Callable[[int], CPUOffloadingManager], capacity: int) -> CachePolicy:
    """The policy of a manager of so many chunks; `partial(policy_in, make)` makes policies."""
    return make_manager(capacity).policy


def _measured(plan: _Plan) -> Iterator[CallCost | LeftOut | Failed]:
    """Each cost as soon as it is known; if the policy fails, how, and then nothing more."""
    started = perf_counter()
    filling_s, filled = 0.0, 0
    # What each kind of call may take to be counted, and to be timed.
    share_s = plan.budget_s / (2 * len(plan.sizes) * len(plan.kinds))
    for size in plan.sizes:
        left_s = plan.budget_s - (perf_counter() - started)
        expected_s = filling_s * size / filled if filled else 0.0
        if expected_s > left_s:
            why = f"to fill it would take {expected_s:.0f} s, and {max(0.0, left_s):.0f} s are left"
            yield LeftOut(size, tuple(kind.name for kind in plan.kinds), why)
            continue
        try:
            begun = perf_counter()
            classes = SwitchedClasses()
            load = _filled(plan, size, classes)
            filling_s, filled = perf_counter() - begun, size
            for kind in plan.kinds:
                yield _cost(load, kind, plan.calls, classes, share_s)
        except Exception as error:
            spare_the_policy(error)
            yield Failed(f"with {size:,} chunks it raised {type(error).__name__}: {error}")
            return
        # The next cache is not to be there beside this one.
        del load, classes
        gc.collect()


def _filled(plan: _Plan, size: int, classes: SwitchedClasses) -> UnderLoad:
    """A full cache, of which a quarter was used again by later requests."""
    policy = plan.make_policy(size)
    if isinstance(policy, Front) and policy.chunk is not None:
        policy.chunk = classes.chunks_like(policy.chunk, policy.slot)
    load = UnderLoad(
        policy,
        size,
        make_key=lambda key: OffloadKey(classes.key_class(key)),
        make_chunk=classes.chunk_class,
        gauge=Gauge(classes.meter),
    )
    number = 0
    while len(load.chunks) < size:
        new = min(plan.request_keys, size - len(load.chunks))
        reused = load.some_idle(plan.request_keys) if number % 4 == 3 else ()
        load.serve(new, reused)
        number += 1
    return load


def _cost(
    load: UnderLoad, kind: _Kind, most: int, classes: SwitchedClasses, share_s: float
) -> CallCost:
    refused = load.refused
    classes.switch(True)
    try:
        load.gauge.counts = True
        visits, _ = _repeated(load, kind, min(most, kind.counted), share_s)
    finally:
        load.gauge.counts = False
        classes.switch(False)
    nanoseconds, collections = _repeated(load, kind, min(most, kind.timed), share_s)
    return CallCost(
        kind.name,
        load.capacity,
        Spread.of([one / 1e9 for one in nanoseconds]),
        Spread.of(visits),
        load.refused - refused,
        collections,
    )


def _repeated(load: UnderLoad, kind: _Kind, times: int, share_s: float) -> tuple[list[int], int]:
    """What each of so many calls cost, or of as many as there is time for; how often gc ran."""
    costs: list[int] = []
    collections = 0

    def collecting(phase: str, info: dict[str, int]) -> None:
        nonlocal collections
        if phase == "start" and load.gauge.running:
            collections += 1

    gc.callbacks.append(collecting)
    kind.prepare(load)
    until = perf_counter() + share_s
    try:
        while len(costs) < times and (len(costs) < FEWEST or perf_counter() < until):
            kind.make(load)
            costs.append(load.gauge.take())
    finally:
        gc.callbacks.remove(collecting)
    return costs, collections


def _store(load: UnderLoad, number: int) -> None:
    """Room is made for a request's new chunks: the call to `evict` is measured."""
    _disturb(load)
    keys = load.new_keys(number)
    context = load.begin(keys)
    load.look_up(keys, context)
    load.announce(keys, context)
    load.gauge.on = True
    victims = load.evict(number, keys)
    load.gauge.on = False
    stored = victims is not None
    if stored:
        load.insert(keys, context)
    load.finish(context, keys if stored else ())


def _request(load: UnderLoad, number: int) -> None:
    """A request finds half of its keys and stores the rest: all that it does is measured."""
    _disturb(load)
    reused = load.some_idle(number // 2)
    load.gauge.on = True
    load.serve(number - number // 2, reused)
    load.gauge.on = False


def _refuse(load: UnderLoad) -> None:
    """Everything is being read, so that nothing can go: the call to `evict` is measured."""
    # One reader gives way to another, of other chunks each time.
    released = load.some(DISTURBANCE)
    load.unpin(released)
    load.pin(released, load.begin())
    load.gauge.on = True
    load.evict(1, load.new_keys(1))
    load.gauge.on = False


def _pin_everything(load: UnderLoad) -> None:
    """Readers of all there is begin, and none that read before goes on."""
    load.unpin(load.being_read())
    load.pin(load.some_idle(load.capacity), load.begin())


def _disturb(load: UnderLoad) -> None:
    """A request uses some chunks again, others each time."""
    load.serve(0, load.some_idle(DISTURBANCE))
