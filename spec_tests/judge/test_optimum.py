"""The optimum: reached by trying everything on tiny cases, and exceeded by no policy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload import CPUOffloadingManager
from kvoffload.judge.engine import Engine
from kvoffload.judge.optimum import best_possible
from kvoffload.judge.workload import Workload
from kvoffload.replay import TraceRequest
from spec_tests.judge.workloads import workloads

Worth = Callable[[int, int, int], int]


def by_trying_everything(workload: Workload, capacity: int, worth: Worth) -> int:
    """The most that can be had: every set of chunks that could be held after every request.

    `worth(number, start, stop)` is what it is worth to find these blocks of a request.
    """
    best = {frozenset[int](): 0}
    for number, request in enumerate(workload.requests):
        blocks, on_gpu = request.blocks, workload.gpu_hits[number]
        following: dict[frozenset[int], int] = {}
        for held, so_far in best.items():
            found = on_gpu
            while found < len(blocks) and blocks[found] in held:
                found += 1
            value = so_far + worth(number, on_gpu, found)
            could = sorted(held | set(blocks))
            for size in range(min(capacity, len(could)) + 1):
                for kept in map(frozenset, combinations(could, size)):
                    following[kept] = max(following.get(kept, 0), value)
        best = following
    return max(best.values())


@given(workloads(), st.integers(0, 4))
def test_in_blocks_it_is_what_trying_everything_finds(workload: Workload, capacity: int) -> None:
    tried = by_trying_everything(workload, capacity, lambda number, start, stop: stop - start)
    assert best_possible(workload, capacity).block_hits.sum() == tried


@given(workloads(), st.integers(0, 4))
def test_in_tokens_it_is_missed_by_partial_blocks_at_most(
    workload: Workload, capacity: int
) -> None:
    tried = by_trying_everything(workload, capacity, workload.tokens_of)
    bound = int(best_possible(workload, capacity).token_hits.sum())
    partial = sum((request.input_tokens or 0) % 4 for request in workload.requests)
    assert tried <= bound <= tried + partial


@given(workloads(max_requests=30), st.integers(0, 6), st.sampled_from(["lru", "arc"]))
def test_no_policy_exceeds_it(workload: Workload, capacity: int, policy: str) -> None:
    best = best_possible(workload, capacity)
    reached = Engine(CPUOffloadingManager(capacity, policy), workload).run()
    assert reached.block_hits.sum() <= best.block_hits.sum()
    assert reached.token_hits.sum() <= best.token_hits.sum()


@given(workloads(max_requests=30))
def test_a_cache_for_everything_reaches_it(workload: Workload) -> None:
    capacity = workload.distinct_blocks
    best = best_possible(workload, capacity)
    reached = Engine(CPUOffloadingManager(capacity, "lru"), workload).run()
    assert list(reached.block_hits) == list(best.block_hits)
    assert list(reached.token_hits) == list(best.token_hits)


def of_prompts(*prompts: str, gpu: int = 0) -> Workload:
    """Prompts as letters, a block each."""
    return Workload.of(
        [TraceRequest(float(n), [ord(c) for c in one]) for n, one in enumerate(prompts)], gpu
    )


@pytest.mark.parametrize(
    ("workload", "capacity", "hits"),
    [
        # Cyclic, the worst for LRU: one of two stays.
        (of_prompts("a", "b", "a", "b", "a"), 1, [0, 0, 1, 0, 1]),
        # What is never used again is bypassed.
        (of_prompts("a", "x", "y", "a"), 1, [0, 0, 0, 1]),
        # Of one request the head stays.
        (of_prompts("abc", "x", "abc"), 2, [0, 0, 2]),
        (of_prompts("ab", "ab"), 0, [0, 0]),
        # The GPU has it, so that keeping it saves nothing.
        (of_prompts("a", "a", gpu=1), 1, [0, 0]),
        # It is gone from the GPU at the third request only.
        (of_prompts("a", "a", "b", "a", gpu=1), 1, [0, 0, 0, 1]),
    ],
)
def test_what_it_keeps(workload: Workload, capacity: int, hits: list[int]) -> None:
    assert list(best_possible(workload, capacity).block_hits) == hits
