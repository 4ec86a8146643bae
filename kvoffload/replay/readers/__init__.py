"""Readers, one file a format."""

from kvoffload.replay.readers.bailian import BailianReader
from kvoffload.replay.readers.base import TraceFormat, TraceReader
from kvoffload.replay.readers.call_log import CallLogReader
from kvoffload.replay.readers.csv_rows import CsvLayout, CsvReader
from kvoffload.replay.readers.mooncake import MooncakeReader
from kvoffload.replay.readers.oracle_general import OracleGeneralReader

__all__ = [
    "BailianReader",
    "CallLogReader",
    "CsvLayout",
    "CsvReader",
    "MooncakeReader",
    "OracleGeneralReader",
    "TraceFormat",
    "TraceReader",
]
