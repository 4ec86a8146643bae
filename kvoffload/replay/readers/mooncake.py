"""Mooncake traces: JSONL, milliseconds, 512-token blocks, ids that stand for whole prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec
from typing_extensions import override

from kvoffload.replay.readers.base import TraceFormat, TraceReader
from kvoffload.replay.readers.jsonl import complaint, decode
from kvoffload.replay.request import TraceRequest
from kvoffload.replay.streams import Source


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    # Only to notice a line of the other format, whose timestamps are seconds.
    chat_id: object = msgspec.UNSET


class MooncakeReader(TraceReader):
    """`timestamp` (ms), `input_length`, `output_length`, `hash_ids` (512 tokens each)."""

    format: ClassVar[TraceFormat] = TraceFormat.MOONCAKE
    block_tokens: int | None = 512

    @override
    def read(self, source: Source) -> Iterator[TraceRequest]:
        decoder = msgspec.json.Decoder(_Line)
        for number, text in source.lines():
            line = decode(source, number, text, decoder)
            if line is None:
                continue
            problem = complaint(
                line.timestamp, line.input_length, line.output_length, line.hash_ids, 512
            )
            if line.chat_id is not msgspec.UNSET:
                problem = "a Qwen-Bailian request (it has chat_id) in a Mooncake trace"
            if problem is not None:
                source.refuse(str(number), problem)
                continue
            yield TraceRequest(
                arrival=line.timestamp / 1000,
                blocks=line.hash_ids,
                block_tokens=512,
                input_tokens=line.input_length,
                output_tokens=line.output_length,
            )
