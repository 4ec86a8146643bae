"""One request of a trace, in units that no longer depend on the file it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen


@frozen
class ChatTurn:
    """Where a request stands in its conversation, for the formats that say so."""

    chat_id: int
    parent_chat_id: int | None
    turn: int
    kind: str


@frozen
class TraceRequest:
    """What arrived, and when.

    `arrival`: seconds since the trace's own zero. `blocks`: one number a block of the prompt, in
    prefix order; equal numbers mean equal blocks after equal prefixes. `block_tokens`: tokens a
    block, and `input_tokens`, `output_tokens`: tokens of prompt and answer; all three are None
    where the format knows accesses to blocks only. `hints`: what the client sent, where that was
    recorded; None: nothing. `recorded_hits`: how many of the blocks the engine found ready and
    reused, where it was an engine that recorded.
    """

    arrival: float
    blocks: Sequence[int]
    block_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    chat: ChatTurn | None = None
    hints: Mapping[str, object] | None = None
    recorded_hits: int | None = None

    def tokens_in(self, num_blocks: int) -> int:
        """Tokens in the first `num_blocks` blocks; 0 where the format has none.

        The last block of a prompt may be partial and counts as it is.
        """
        if self.block_tokens is None or self.input_tokens is None:
            return 0
        return min(num_blocks * self.block_tokens, self.input_tokens)

    def block_ends(self) -> range | list[int]:
        """For each block, where its tokens end in the prompt; empty without tokens."""
        size, total = self.block_tokens, self.input_tokens
        if size is None or total is None:
            return range(0)
        count = len(self.blocks)
        ends = range(size, size * count + 1, size)
        return ends if size * count <= total else [*ends[:-1], total]
