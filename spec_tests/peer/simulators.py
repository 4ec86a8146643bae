"""`python -m spec_tests.peer.simulators`: policies against libCacheSim's, request by request.

On plain traces, where a request is one block: whether it is found has to agree each time. What our
optimum finds has to be at least what Belady's algorithm finds there, which cannot pass a block by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np

from kvoffload import CPUOffloadingManager
from kvoffload.judge.engine import Engine
from kvoffload.judge.optimum import best_possible
from kvoffload.judge.workload import Workload
from kvoffload.replay import TraceRequest

REQUESTS: Final = 50_000
OBJECTS: Final = 5_000
CAPACITIES: Final = (10, 100, 500, 2_000)
SKEWS: Final = (0.8, 1.1)
AGREEING: Final = {"lru": "LRU", "sieve": "Sieve"}


def zipf(skew: float, seed: int) -> list[int]:
    """Objects, the most popular most often."""
    weights = 1 / np.arange(1, OBJECTS + 1) ** skew
    drawn = np.random.default_rng(seed).choice(OBJECTS, REQUESTS, p=weights / weights.sum())
    return [int(each) for each in drawn]


def simulated(simulator: Any, name: str, objects: Sequence[int], capacity: int) -> list[bool]:
    """What a cache of libCacheSim finds; its types are its own."""
    following: dict[int, int] = {}
    next_uses: list[int] = []
    never = 2**62
    for time in range(len(objects) - 1, -1, -1):
        next_uses.append(following.get(objects[time], never))
        following[objects[time]] = time
    next_uses.reverse()
    make: Callable[..., Any] = getattr(simulator, name)
    cache = make(cache_size=capacity)
    found: list[bool] = []
    for time, each in enumerate(objects):
        request = simulator.Request(obj_id=each, clock_time=time, next_access_vtime=next_uses[time])
        found.append(bool(cache.get(request)))
    return found


def main() -> None:
    """Print a line a comparison. Raises SystemExit with 1 where one disagrees."""
    simulator = import_module("libcachesim")
    agrees = True
    for skew in SKEWS:
        objects = zipf(skew, seed=1)
        workload = Workload.of([TraceRequest(float(i), [each]) for i, each in enumerate(objects)])
        for capacity in CAPACITIES:
            for policy, name in AGREEING.items():
                ours = Engine(CPUOffloadingManager(capacity, policy), workload).run().block_hits
                theirs = simulated(simulator, name, objects, capacity)
                differing = int((ours != np.array(theirs)).sum())
                agrees = agrees and not differing
                print(
                    f"{policy} {skew} {capacity:,}: {int(ours.sum()):,} hits of {REQUESTS:,}, "
                    f"{differing} requests differ"
                )
            best = int(best_possible(workload, capacity).block_hits.sum())
            belady = sum(simulated(simulator, "Belady", objects, capacity))
            agrees = agrees and best >= belady
            print(f"optimum {skew} {capacity:,}: {best:,} hits, Belady's {belady:,}")
    if not agrees:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
