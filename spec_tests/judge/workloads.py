"""Small workloads drawn by Hypothesis: prompts that share prefixes, as those of a tree do."""

from __future__ import annotations

from hypothesis import strategies as st

from kvoffload.judge.workload import Workload
from kvoffload.replay import TraceRequest

BLOCK_TOKENS = 4


@st.composite
def prompts(draw: st.DrawFn, *, branches: int = 2, depth: int = 3) -> tuple[int, ...]:
    """A path from the root of a tree in which a node is the path to it, written as a number."""
    path: list[int] = []
    node = 0
    for _ in range(draw(st.integers(1, depth))):
        node = node * (branches + 1) + 1 + draw(st.integers(0, branches - 1))
        path.append(node)
    return tuple(path)


@st.composite
def workloads(
    draw: st.DrawFn, *, max_requests: int = 6, tokens: bool = True, max_gpu: int = 3
) -> Workload:
    """A workload of few requests, the last block of some prompts partial, behind a small GPU."""
    requests: list[TraceRequest] = []
    for number, blocks in enumerate(draw(st.lists(prompts(), min_size=1, max_size=max_requests))):
        missing = draw(st.integers(0, BLOCK_TOKENS - 1)) if tokens else 0
        requests.append(
            TraceRequest(
                float(number),
                blocks,
                BLOCK_TOKENS if tokens else None,
                len(blocks) * BLOCK_TOKENS - missing if tokens else None,
            )
        )
    return Workload.of(requests, draw(st.integers(0, max_gpu)))
