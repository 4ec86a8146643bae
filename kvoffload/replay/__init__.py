"""Replay of real traffic: trace readers, the driver on its virtual clock, and reports."""

from kvoffload.replay.capacity import Capacity, parse_bytes
from kvoffload.replay.counts import Counts
from kvoffload.replay.driver import Replay
from kvoffload.replay.keys import KeyTable
from kvoffload.replay.model import CostModel, default_chunk_bytes
from kvoffload.replay.readers import CsvLayout, TraceFormat, TraceReader
from kvoffload.replay.report import Judgement, Report, Setting, make_report, to_json
from kvoffload.replay.request import ChatTurn, TraceRequest
from kvoffload.replay.trace import SAMPLE, Survey, Trace, TraceReading, survey

__all__ = [
    "SAMPLE",
    "Capacity",
    "ChatTurn",
    "CostModel",
    "Counts",
    "CsvLayout",
    "Judgement",
    "KeyTable",
    "Replay",
    "Report",
    "Setting",
    "Survey",
    "Trace",
    "TraceFormat",
    "TraceReader",
    "TraceReading",
    "TraceRequest",
    "default_chunk_bytes",
    "make_report",
    "parse_bytes",
    "survey",
    "to_json",
]
