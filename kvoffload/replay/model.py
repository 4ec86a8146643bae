"""What time costs on the virtual clock."""

from __future__ import annotations

from attrs import field, frozen

from kvoffload.errors import InvalidValueError

PREFILL_RATE = 20_000.0
"""Tokens a second, a request: an 8B model on one recent accelerator, in round numbers."""
TRANSFER_RATE = 25e9
"""Bytes a second, a direction: PCIe 4.0 x16 as measured, in round numbers."""
PREFILL_BATCH = 8_192
"""Tokens of a prompt that one step computes at most, and that are offered at once."""
TOKEN_BYTES = 131_072
"""Keys and values of a token in an 8B model with grouped attention, 16-bit (32 layers x 8 heads
x 128 x 2 x 2 bytes); sizes a chunk unless its size is given."""
BARE_CHUNK_BYTES = 2 * 1024**2
"""A chunk where the trace knows no tokens: sixteen tokens of the same model."""


LARGEST = 1e100
"""Of rates and sizes; so many chunks of such a size still are a number that a float can hold."""


def _positive(_: object, attribute: object, value: float) -> None:
    if not 0 < value <= LARGEST:
        raise InvalidValueError(
            getattr(attribute, "name", "rate"), value, f"positive and at most {LARGEST:g}"
        )


@frozen
class CostModel:
    """Durations. Prefill takes its tokens over `prefill_rate`, each request as if alone. A
    transfer takes its chunks' bytes over `transfer_rate`; loads follow each other in one lane,
    stores in another. Raises InvalidValueError for a rate or size that is not positive or
    beyond LARGEST.
    """

    prefill_rate: float = field(default=PREFILL_RATE, validator=_positive)
    transfer_rate: float = field(default=TRANSFER_RATE, validator=_positive)
    chunk_bytes: int = field(default=BARE_CHUNK_BYTES, validator=_positive)

    def prefill_seconds(self, tokens: int) -> float:
        """To compute `tokens` tokens of a prompt."""
        return tokens / self.prefill_rate

    def transfer_seconds(self, chunks: int) -> float:
        """To move `chunks` chunks one way."""
        return chunks * self.chunk_bytes / self.transfer_rate

    def describe(self) -> str:
        """The model in one line."""
        return (
            f"prefill {self.prefill_rate:,.0f} tokens/s a request; chunks of "
            f"{_size(self.chunk_bytes)} move at {self.transfer_rate / 1e9:,g} GB/s, loads in one "
            "lane, stores in another"
        )


def default_chunk_bytes(block_tokens: int | None) -> int:
    """A chunk of one block of the trace, when its size is not given."""
    return BARE_CHUNK_BYTES if block_tokens is None else block_tokens * TOKEN_BYTES


def _size(count: int) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:,.6g} {unit}"
    return f"{count} bytes"
