"""What the JSONL formats share: which one a file is, decoding a line, checking its numbers."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from kvoffload.errors import TraceError
from kvoffload.replay.capacity import in_short
from kvoffload.replay.readers.base import MAX_NUMBER, TraceFormat
from kvoffload.replay.streams import Source

LineT = TypeVar("LineT")
MAX_BLOCK_ID = 2**64 - 1
# Lists within lists, thousands deep, are more than the decoder follows.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Fields(msgspec.Struct):
    """Which of the telling fields a line has; their values do not matter here."""

    hash_ids: object = msgspec.UNSET
    timestamp: object = msgspec.UNSET
    chat_id: object = msgspec.UNSET
    kvoffload_log: object = msgspec.UNSET


_FIELDS_DECODER = msgspec.json.Decoder(_Fields)


def detect(source: Source) -> TraceFormat:
    """Tell the JSONL formats apart by the fields of the first line that is one of them.

    Raises TraceError when no line is.
    """
    why = "the file has no lines"
    for number, line in source.lines(ahead=False):
        try:
            fields = _FIELDS_DECODER.decode(line)
        except UNREADABLE as error:
            why = f"the JSON of this line is no object: {error}"
        else:
            if fields.kvoffload_log is not msgspec.UNSET:
                return TraceFormat.CALL_LOG
            if fields.hash_ids is not msgspec.UNSET and fields.timestamp is not msgspec.UNSET:
                chat = fields.chat_id is not msgspec.UNSET
                return TraceFormat.BAILIAN if chat else TraceFormat.MOONCAKE
            why = (
                "neither a Mooncake nor a Qwen-Bailian request (no hash_ids or no timestamp), "
                "nor the header of a call log"
            )
        source.refuse(str(number), f"{why}; oracleGeneral and csv are read when --format says so")
    raise TraceError(f"{source.path}: no request found: {why}")


def decode(
    source: Source, number: int, line: bytes, decoder: msgspec.json.Decoder[LineT]
) -> LineT | None:
    """The line as its typed struct, or None after it was refused."""
    try:
        return decoder.decode(line)
    except UNREADABLE as error:
        source.refuse(str(number), f"the JSON of this line cannot be read: {error}")
        return None


def complaint(
    timestamp: float, input_length: int, output_length: int, ids: list[int], block_tokens: int
) -> str | None:
    """What is wrong with the numbers of a request, or None.

    Fewer ids than blocks are accepted: the tokens they leave out are computed, never cached.
    """
    if not 0 <= timestamp <= MAX_NUMBER:
        return f"timestamp must be in [0, 2**53], got {timestamp!r}"
    if not (0 <= input_length <= MAX_NUMBER and 0 <= output_length <= MAX_NUMBER):
        got = f"{in_short(input_length)} and {in_short(output_length)}"
        return f"lengths must be in [0, 2**53], got {got}"
    if ids and not (min(ids) >= 0 and max(ids) <= MAX_BLOCK_ID):
        return f"hash_ids must be in [0, 2**64), got {in_short(min(ids))} to {in_short(max(ids))}"
    blocks = -(-input_length // block_tokens)
    if len(ids) > blocks:
        return (
            f"{len(ids)} hash_ids, but {input_length} tokens fill only {blocks} block(s) "
            f"of {block_tokens}"
        )
    return None
