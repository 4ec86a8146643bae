"""The traffic that managers are measured with: shared prefixes, unique tails, a full cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from attrs import frozen

from kvoffload import OffloadKey

BLOCK_TOKENS = 16
ZIPF_EXPONENT = 1.2
MIN_PREFIXES = 16
CHUNKS_PER_PREFIX = 64
PREFIX_BLOCKS = (16, 96)
TAIL_BLOCKS = (4, 32)
"""Bounds of a length, the upper one excluded."""


@frozen
class Workload:
    """Keys of each request, head of the prompt first, and those that fill the cache before."""

    requests: list[list[OffloadKey]]
    fill: list[OffloadKey]

    @property
    def blocks(self) -> int:
        return sum(map(len, self.requests))


def num_prefixes(capacity: int) -> int:
    """How many prefixes requests share: together too large for the cache."""
    return max(MIN_PREFIXES, capacity // CHUNKS_PER_PREFIX)


def make_workload(
    make_key: Callable[[bytes, int], OffloadKey], requests: int, capacity: int, *, seed: int = 7
) -> Workload:
    """The same traffic for the same arguments.

    The rank of a request's prefix is drawn from Zipf's law, what lies beyond the last rank
    counting as the last. How much of the prefix it takes, and its tail, are drawn evenly.
    """
    random = np.random.default_rng(seed)
    last = num_prefixes(capacity) - 1
    ranks = np.minimum(random.zipf(ZIPF_EXPONENT, size=requests) - 1, last).tolist()
    prefix_blocks = random.integers(*PREFIX_BLOCKS, size=requests).tolist()
    tail_blocks = random.integers(*TAIL_BLOCKS, size=requests).tolist()

    shared: dict[tuple[int, int], OffloadKey] = {}

    def key(*name: object) -> OffloadKey:
        return make_key(hashlib.sha256(repr(name).encode()).digest(), 0)

    def shared_key(rank: int, index: int) -> OffloadKey:
        known = shared.get((rank, index))
        if known is None:
            known = shared[rank, index] = key("prefix", rank, index)
        return known

    made: list[list[OffloadKey]] = []
    for number, (rank, prefix, tail) in enumerate(
        zip(ranks, prefix_blocks, tail_blocks, strict=True)
    ):
        keys = [shared_key(rank, index) for index in range(prefix)]
        keys += [key("tail", number, index) for index in range(tail)]
        made.append(keys)
    fill = [make_key(b"fill" + index.to_bytes(28, "big"), 0) for index in range(capacity)]
    return Workload(made, fill)
