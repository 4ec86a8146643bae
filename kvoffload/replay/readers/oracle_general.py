"""libCacheSim's oracleGeneral: packed little-endian records of 24 bytes, one access each."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from kvoffload.replay.readers.base import TraceFormat, TraceReader
from kvoffload.replay.request import TraceRequest
from kvoffload.replay.streams import Source

RECORD = struct.Struct("<IQIq")


class OracleGeneralReader(TraceReader):
    """u32 time (s), u64 object id, u32 object size, i64 next access; an object is a block.

    Sizes and next accesses are not used: every chunk takes one slot, and nothing may look ahead.
    """

    format: ClassVar[TraceFormat] = TraceFormat.ORACLE_GENERAL
    block_tokens: int | None = None

    @override
    def read(self, source: Source) -> Iterator[TraceRequest]:
        unpack = RECORD.unpack
        for number, data in source.records(RECORD.size):
            if len(data) != RECORD.size:
                source.refuse(
                    f"record {number}", f"{len(data)} byte(s), a record has {RECORD.size}"
                )
                continue
            time, object_id, _, _ = unpack(data)
            yield TraceRequest(arrival=float(time), blocks=(object_id,))
