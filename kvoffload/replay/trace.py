"""A trace: a file, its format, and what is in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType

from attrs import frozen

from kvoffload.errors import TraceError
from kvoffload.replay.readers import (
    BailianReader,
    CallLogReader,
    CsvLayout,
    CsvReader,
    MooncakeReader,
    OracleGeneralReader,
    TraceFormat,
    TraceReader,
)
from kvoffload.replay.readers.jsonl import detect
from kvoffload.replay.request import TraceRequest
from kvoffload.replay.streams import open_source

SAMPLE = Path(__file__).parent / "data" / "mooncake_conversation_1000.jsonl.gz"
"""The first 1,000 requests of Mooncake's conversation trace; its licence note lies beside it."""


class Trace:
    """A trace file. Each `open()` reads it again, a request at a time.

    Without `trace_format` the JSONL formats are told apart by their fields; the others are read
    only when named. `limit` keeps the first so many requests. Raises TraceError for a file that
    cannot be opened or, without a format, recognised.
    """

    def __init__(
        self,
        path: Path,
        trace_format: TraceFormat | None = None,
        *,
        skip_bad: bool = False,
        limit: int | None = None,
        csv_layout: CsvLayout | None = None,
        csv_delimiter: str = ",",
    ) -> None:
        self.path = path
        self.skip_bad = skip_bad
        self.limit = limit
        self.format: TraceFormat = self._detect() if trace_format is None else trace_format
        self.reader: TraceReader = self._make_reader(csv_layout, csv_delimiter)

    def open(self) -> TraceReading:
        """Begin to read; use it in a `with` statement. Raises TraceError as `iter` on it may."""
        return TraceReading(self)

    def _detect(self) -> TraceFormat:
        source = open_source(self.path, skip_bad=self.skip_bad)
        try:
            return detect(source)
        finally:
            source.close()

    def _make_reader(self, csv_layout: CsvLayout | None, csv_delimiter: str) -> TraceReader:
        match self.format:
            case TraceFormat.MOONCAKE:
                return MooncakeReader()
            case TraceFormat.BAILIAN:
                return BailianReader()
            case TraceFormat.ORACLE_GENERAL:
                return OracleGeneralReader()
            case TraceFormat.CSV:
                return CsvReader(csv_layout, csv_delimiter)
            case TraceFormat.CALL_LOG:
                source = open_source(self.path, skip_bad=self.skip_bad)
                try:
                    return CallLogReader.of(source)
                finally:
                    source.close()


class TraceReading:
    """One pass over a trace: an iterator of TraceRequest, closed with its `with` statement."""

    def __init__(self, trace: Trace) -> None:
        self._source = open_source(trace.path, skip_bad=trace.skip_bad)
        # No file has more than `islice` counts.
        limit = None if trace.limit is None else min(trace.limit, sys.maxsize)
        self._requests = islice(trace.reader.read(self._source), limit)

    @property
    def skipped(self) -> int:
        """Bad lines counted and left out so far."""
        return self._source.skipped

    def __iter__(self) -> Iterator[TraceRequest]:
        return self._requests

    def __enter__(self) -> TraceReading:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._source.close()


@frozen
class Survey:
    """What a trace holds, counted in one pass; an infinite cache is judged by it.

    `requests` counts accesses where the format has no requests. `tokens` and `block_tokens` are
    None where it has no tokens. `last_arrival` is in seconds. `recorded_hits`: how many blocks the
    engine reused that recorded the trace, of the `recorded_blocks` of requests that finished; None
    where no engine did.
    """

    requests: int
    blocks: int
    distinct_blocks: int
    block_tokens: int | None
    tokens: int | None
    last_arrival: float
    skipped_lines: int
    recorded_hits: int | None = None
    recorded_blocks: int = 0

    @property
    def has_tokens(self) -> bool:
        return self.block_tokens is not None

    @property
    def max_block_hit_ratio(self) -> float:
        """Share of the accesses whose block was accessed before: no cache can do better."""
        return (self.blocks - self.distinct_blocks) / self.blocks if self.blocks else 0.0


def survey(trace: Trace) -> Survey:
    """Count what `trace` holds. Memory grows with its distinct blocks.

    Raises TraceError for a bad line (unless they are skipped) and for a trace without blocks.
    """
    requests = blocks = tokens = recorded_blocks = 0
    recorded_hits: int | None = None
    last_arrival = 0.0
    seen: set[int] = set()
    with trace.open() as reading:
        for request in reading:
            requests += 1
            blocks += len(request.blocks)
            tokens += request.input_tokens or 0
            last_arrival = max(last_arrival, request.arrival)
            seen.update(request.blocks)
            if request.recorded_hits is not None:
                recorded_hits = (recorded_hits or 0) + request.recorded_hits
                recorded_blocks += len(request.blocks)
        skipped = reading.skipped
    if not blocks:
        raise TraceError(f"{trace.path}: nothing to replay, {requests} request(s) without blocks")
    block_tokens = trace.reader.block_tokens
    return Survey(
        requests=requests,
        blocks=blocks,
        distinct_blocks=len(seen),
        block_tokens=block_tokens,
        tokens=None if block_tokens is None else tokens,
        last_arrival=last_arrival,
        skipped_lines=skipped,
        recorded_hits=recorded_hits,
        recorded_blocks=recorded_blocks,
    )
