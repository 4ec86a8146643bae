"""The best that any policy could do: an upper bound, and what it assumes.

Farthest next use with bypass, after L. Belady, "A study of replacement algorithms for a
virtual-storage computer", IBM Systems Journal 5(2), 1966. A chunk that is kept from one use to the
next saves one block, and takes one slot of the cache between the two requests: so each pair of
consecutive uses is an interval, and the question is how many intervals fit so that never more than
`capacity` overlap. To give up, whenever there are too many, those that end last is optimal.

Assumed: requests come one after the other, each transfer is instant, a block is stored or not at
each of its uses, nothing is pinned, and the future is known.

A prefix is only found from its head on. No use of a block comes without those of the blocks before
it, so an ancestor is never wanted later than what stands behind it; where both are wanted by the
same request the deeper one is given up first. What is kept is thus closed under ancestors, and
counting single blocks counts prefixes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import inf

import numpy as np

from kvoffload.judge.outcome import Outcome
from kvoffload.judge.workload import Workload


def best_possible(workload: Workload, capacity: int) -> Outcome:
    """What no policy of a CPU tier with so many chunks can exceed, in blocks and in tokens.

    In blocks it is reached. In tokens the last block of a prompt may be worth less than the
    others: such uses are counted as if they needed no slot, so that the bound holds; it can be
    missed by no more than their tokens. A use that the GPU serves saves nothing.
    """
    whole, _ = _kept(workload, capacity, partial_too=True)
    full, partial = _kept(workload, capacity, partial_too=False)
    tokens = [
        _full_tokens(workload, number) * blocks + rest
        for number, (blocks, rest) in enumerate(zip(full, partial, strict=True))
    ]
    return Outcome(np.array(whole, np.int64), np.array(tokens, np.int64))


def _full_tokens(workload: Workload, number: int) -> int:
    size = workload.requests[number].block_tokens
    return size if workload.has_tokens and size is not None else 1


def _kept(workload: Workload, capacity: int, *, partial_too: bool) -> tuple[list[int], list[int]]:
    """For each request the blocks that are found, and the tokens of partial ones left aside."""
    next_use, aside = _next_uses(workload, partial_too=partial_too)
    found = [0] * len(workload.requests)
    # What is kept, and for which request; in the heap the last and then the deepest comes first.
    kept: dict[int, float] = {}
    latest: list[tuple[float, int, int]] = []
    for number, request in enumerate(workload.requests):
        on_gpu = workload.gpu_hits[number]
        for depth, block in enumerate(request.blocks):
            is_kept = kept.pop(block, None) == number
            if is_kept and depth == on_gpu + found[number]:
                found[number] += 1
            wanted = next_use[number][depth]
            if wanted < inf:
                kept[block] = wanted
                heapq.heappush(latest, (-wanted, -depth, block))
        while len(kept) > capacity:
            wanted, _, block = heapq.heappop(latest)
            if kept.get(block) == -wanted:
                del kept[block]
    return found, aside


def _next_uses(workload: Workload, *, partial_too: bool) -> tuple[list[Sequence[float]], list[int]]:
    """For each block of each request, which request uses it next so that something is saved.

    Infinite if none does, or if the GPU serves that use: the block can be stored then anew.
    """
    first_use: dict[int, int] = {}
    for number, request in enumerate(workload.requests):
        for block in request.blocks:
            first_use.setdefault(block, number)
    aside = [0] * len(workload.requests)
    following: dict[int, float] = {}
    uses: list[Sequence[float]] = []
    for number in range(len(workload.requests) - 1, -1, -1):
        request = workload.requests[number]
        uses.append([following.get(block, inf) for block in request.blocks])
        for depth, block in enumerate(request.blocks):
            saved = workload.tokens_of(number, depth, depth + 1)
            if depth < workload.gpu_hits[number]:
                following[block] = inf
            elif saved < _full_tokens(workload, number) and not partial_too:
                following[block] = inf
                aside[number] += saved if first_use[block] < number else 0
            else:
                following[block] = number
    uses.reverse()
    return uses, aside
