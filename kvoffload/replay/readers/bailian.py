"""Qwen-Bailian traces: JSONL, seconds, 16-token blocks, conversations.

Their ids are hashes of a block's tokens. What a cache keeps depends on everything before them
too, so a block is numbered here by its id and its predecessor: equal numbers, equal prefixes. For
ids that stand for whole prefixes already this changes nothing but the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec
from typing_extensions import override

from kvoffload.replay.readers.base import TraceFormat, TraceReader
from kvoffload.replay.readers.jsonl import complaint, decode
from kvoffload.replay.request import ChatTurn, TraceRequest
from kvoffload.replay.streams import Source

NO_PREDECESSOR = -1


class _Line(msgspec.Struct):
    chat_id: int
    parent_chat_id: int
    timestamp: float
    turn: int
    type: str
    input_length: int
    output_length: int
    hash_ids: list[int]


class BailianReader(TraceReader):
    """`chat_id`, `parent_chat_id` (-1: none), `timestamp` (s), `turn`, `type`, `input_length`,
    `output_length`, `hash_ids` (16 tokens each)."""

    format: ClassVar[TraceFormat] = TraceFormat.BAILIAN
    block_tokens: int | None = 16

    @override
    def read(self, source: Source) -> Iterator[TraceRequest]:
        decoder = msgspec.json.Decoder(_Line)
        numbers: dict[tuple[int, int], int] = {}
        for number, text in source.lines():
            line = decode(source, number, text, decoder)
            if line is None:
                continue
            problem = complaint(
                line.timestamp, line.input_length, line.output_length, line.hash_ids, 16
            )
            if problem is not None:
                source.refuse(str(number), problem)
                continue
            blocks: list[int] = []
            before = NO_PREDECESSOR
            for block_id in line.hash_ids:
                before = numbers.setdefault((before, block_id), len(numbers))
                blocks.append(before)
            parent = line.parent_chat_id
            yield TraceRequest(
                arrival=line.timestamp,
                blocks=blocks,
                block_tokens=16,
                input_tokens=line.input_length,
                output_tokens=line.output_length,
                chat=ChatTurn(
                    chat_id=line.chat_id,
                    parent_chat_id=None if parent < 0 else parent,
                    turn=line.turn,
                    kind=line.type,
                ),
            )
