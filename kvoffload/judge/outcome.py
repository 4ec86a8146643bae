"""What a policy was worth, request by request."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from kvoffload.judge.workload import Workload

Counts: TypeAlias = NDArray[np.int64]


@frozen(eq=False)
class Outcome:
    """What the CPU tier served of each request, behind the GPU tier if there is one.

    `block_hits[i]` blocks and `token_hits[i]` tokens of request i did not have to be computed
    because of it. `refused` offers were answered with None, `stored` chunks were written.
    """

    block_hits: Counts
    token_hits: Counts
    stored: int = 0
    refused: int = 0


@frozen(eq=False)
class Demand:
    """What was asked of the CPU tier, or could have been: the denominators of its ratios.

    All blocks and tokens of each request count, also those that the GPU serves: what a tier adds
    is a share of all that arrives.
    """

    blocks: Counts
    tokens: Counts = field(repr=False)

    @classmethod
    def of(cls, workload: Workload) -> Demand:
        """The demand of a workload. Tokens are blocks where the trace has none."""
        sizes = [len(request.blocks) for request in workload.requests]
        tokens = [
            size if not workload.has_tokens else request.input_tokens or 0
            for size, request in zip(sizes, workload.requests, strict=True)
        ]
        return cls(np.array(sizes, np.int64), np.array(tokens, np.int64))


def ratio(served: Counts, asked: Counts, after: int = 0) -> float:
    """The share that was served of what was asked by the requests after the first `after`."""
    total = int(asked[after:].sum())
    return int(served[after:].sum()) / total if total else 0.0
