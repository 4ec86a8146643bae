"""libCacheSim's CSV: one access a row, with the time in seconds and the object's id."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from typing import ClassVar

from attrs import frozen
from typing_extensions import override

from kvoffload.errors import InvalidValueError, TraceError
from kvoffload.replay.capacity import in_short
from kvoffload.replay.readers.base import MAX_NUMBER, TraceFormat, TraceReader
from kvoffload.replay.request import TraceRequest
from kvoffload.replay.streams import Source

TIME_NAMES = frozenset({"time", "timestamp", "clock_time", "real_time", "ts"})
ID_NAMES = frozenset({"id", "obj_id", "object_id", "obj", "object", "key", "lbn"})

# More columns than this are in no row, and thousands of digits could not be converted.
_COLUMN = re.compile(r"[0-9]{1,9}")


@frozen
class CsvLayout:
    """Where a row has what: columns counted from 1, as libCacheSim counts them."""

    time_column: int
    id_column: int

    @classmethod
    def parse(cls, text: str) -> CsvLayout:
        """Read `time-col=1,obj-id-col=2`, libCacheSim's own words.

        Raises InvalidValueError for anything else.
        """
        columns: dict[str, int] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            if _COLUMN.fullmatch(value.strip()) is None or int(value) < 1:
                break
            columns[name.strip()] = int(value)
        if set(columns) != {"time-col", "obj-id-col"} or len(text.split(",")) != 2:
            raise InvalidValueError(
                "csv columns", in_short(text), "time-col=N,obj-id-col=M, from 1"
            )
        return cls(columns["time-col"], columns["obj-id-col"])


class CsvReader(TraceReader):
    """Columns by `layout`; without one by the names in the header row, else time first, id next.

    Ids are any text. The first row is a header if its time column is no number.
    """

    format: ClassVar[TraceFormat] = TraceFormat.CSV
    block_tokens: int | None = None

    def __init__(self, layout: CsvLayout | None = None, delimiter: str = ",") -> None:
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise InvalidValueError("delimiter", delimiter, "one character, no quote or line end")
        self._layout = layout
        self._delimiter = delimiter

    @override
    def read(self, source: Source) -> Iterator[TraceRequest]:
        layout = self._layout or CsvLayout(1, 2)
        numbers: dict[str, int] = {}
        first = True
        for number, line in source.lines():
            row = self._split(source, number, line)
            if row is None:
                continue
            if first:
                first = False
                if not _is_number(row[min(layout.time_column, len(row)) - 1]):
                    layout = self._layout or self._from_header(source, number, row)
                    continue
            request = _access(source, number, row, layout, numbers)
            if request is not None:
                yield request

    def _split(self, source: Source, number: int, line: bytes) -> list[str] | None:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            source.refuse(str(number), str(error))
            return None
        if '"' not in text:
            return text.split(self._delimiter)
        try:
            return next(csv.reader([text], delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            source.refuse(str(number), str(error))
            return None

    def _from_header(self, source: Source, number: int, row: list[str]) -> CsvLayout:
        names = [name.strip().lstrip("#").strip().lower() for name in row]
        times = [at for at, name in enumerate(names, 1) if name in TIME_NAMES]
        ids = [at for at, name in enumerate(names, 1) if name in ID_NAMES]
        if len(times) != 1 or len(ids) != 1:
            raise TraceError(
                f"{source.path}:{number}: the header {row} does not say which column is the "
                "time and which the object id; use --csv-columns time-col=N,obj-id-col=M"
            )
        return CsvLayout(times[0], ids[0])


def _access(
    source: Source, number: int, row: list[str], layout: CsvLayout, numbers: dict[str, int]
) -> TraceRequest | None:
    needed = max(layout.time_column, layout.id_column)
    if len(row) < needed:
        source.refuse(str(number), f"{len(row)} column(s), needs {needed}")
        return None
    time_text, object_id = row[layout.time_column - 1], row[layout.id_column - 1].strip()
    if not _is_number(time_text) or not 0 <= float(time_text) <= MAX_NUMBER:
        source.refuse(
            str(number), f"time must be seconds, not negative, up to 2**53, got {time_text!r}"
        )
        return None
    if not object_id:
        source.refuse(str(number), "the object id is empty")
        return None
    block = numbers.setdefault(object_id, len(numbers))
    return TraceRequest(arrival=float(time_text), blocks=(block,))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
