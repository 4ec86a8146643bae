"""What every trace reader is: a format by name, and requests out of a source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum
from typing import ClassVar

from kvoffload.replay.request import TraceRequest
from kvoffload.replay.streams import Source

MAX_NUMBER = 2**53
"""Of times and tokens: up to here a float, and with it the clock, holds every whole number."""


class TraceFormat(Enum):
    """The formats that can be read, by the names their authors use."""

    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    ORACLE_GENERAL = "oracleGeneral"
    CSV = "csv"
    CALL_LOG = "callLog"


class TraceReader(ABC):
    """Turns one source into requests, a request at a time.

    `block_tokens` is the block size of the format, or of the trace, None where no tokens are
    known; most such formats have accesses to blocks rather than requests, and figures of requests
    and tokens are then unknown.
    """

    format: ClassVar[TraceFormat]
    block_tokens: int | None

    @abstractmethod
    def read(self, source: Source) -> Iterator[TraceRequest]:
        """Yield the requests of `source` in file order.

        What cannot be read goes to `source.refuse`: TraceError, or counted and left out.
        """
