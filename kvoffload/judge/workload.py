"""The traffic that a policy is judged by: a trace as the CPU tier sees it, request by request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from kvoffload.errors import TraceError
from kvoffload.replay.request import TraceRequest


@frozen
class Workload:
    """A trace held in memory, with what a GPU tier in front of the CPU tier answers.

    `requests` in order of arrival. `gpu_hits[i]` blocks at the head of request i are found on the
    GPU, which no CPU policy changes: what is there follows from the requests alone. Each request
    is over before the next one begins.
    """

    requests: Sequence[TraceRequest]
    gpu_hits: Sequence[int]
    has_tokens: bool
    """Whether every request says how many tokens it has."""

    @classmethod
    def of(cls, requests: Iterable[TraceRequest], gpu_chunks: int = 0) -> Workload:
        """A trace behind a GPU cache of so many chunks; 0 for none.

        Raises TraceError if there is no request, or one has the same block twice.
        """
        held = tuple(requests)
        if not held:
            raise TraceError("a trace without requests: there is nothing to judge by")
        for number, request in enumerate(held):
            if len(set(request.blocks)) < len(request.blocks):
                raise TraceError(f"request {number} has a block twice, which no prefix has")
        gpu = GPUCache(gpu_chunks)
        has_tokens = all(request.input_tokens is not None for request in held)
        return cls(held, [gpu.serve(request.blocks) for request in held], has_tokens)

    @property
    def distinct_blocks(self) -> int:
        """The working set: with so many chunks nothing ever has to go."""
        return len({block for request in self.requests for block in request.blocks})

    def recorded_hints(self, number: int) -> Mapping[str, object] | None:
        """The hints that the trace itself has of a request."""
        return self.requests[number].hints

    def tokens_of(self, number: int, start: int, stop: int) -> int:
        """Tokens in the blocks from `start` to `stop` of a request; blocks where it has none."""
        request = self.requests[number]
        if not self.has_tokens:
            return stop - start
        return request.tokens_in(stop) - request.tokens_in(start)


class GPUCache:
    """The prefix cache of an engine: an LRU of whole prefixes that holds all it computes.

    At the end of a request its blocks are freed tail first, as vLLM frees them, so that of one
    request the tail goes before the head. A prompt that is larger than the cache keeps its head.
    """

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        # Oldest first.
        self._resident: dict[int, None] = {}

    def serve(self, blocks: Sequence[int]) -> int:
        """How many blocks of the prompt are found, from its head on; then all of them are there."""
        resident = self._resident
        hits = 0
        while hits < len(blocks) and blocks[hits] in resident:
            hits += 1
        for block in reversed(blocks[: self._chunks]):
            resident.pop(block, None)
            resident[block] = None
        while len(resident) > self._chunks:
            del resident[next(iter(resident))]
        return hits
