"""The call log: what a live manager or policy was called, written down and judged elsewhere.

JSONL in UTF-8, version 2. The first line is a header, every other one a call with what it
returned or raised. Keys and requests stand under pseudonyms, and what clients sent as names and
types.
"""

from __future__ import annotations

from kvoffload.replay.hints import HintOfType
from stateful_models.logs.errors import LogError, LogFullError, LogInUseError, NotLoggableError
from stateful_models.logs.lines import LoggedError
from stateful_models.logs.reader import LogReader
from stateful_models.logs.trial import LogReport, judge_log
from stateful_models.logs.writer import CallLog

__all__ = [
    "CallLog",
    "HintOfType",
    "LogError",
    "LogFullError",
    "LogInUseError",
    "LogReader",
    "LogReport",
    "LoggedError",
    "NotLoggableError",
    "judge_log",
]
