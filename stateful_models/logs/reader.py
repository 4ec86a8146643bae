"""Reading a call log: a header, then step after step, and never more than a line in memory."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

import msgspec

from kvoffload.replay.readers.call_log import READABLE_LOGS
from stateful_models.logs.errors import LogError
from stateful_models.logs.lines import Header, error_of
from stateful_models.logs.manager_lines import ManagerCall, ManagerLine, told_of
from stateful_models.logs.policy_lines import PolicyLine
from stateful_models.monitor import Setup
from stateful_models.steps import Step

GZIP_MAGIC: Final = b"\x1f\x8b"
# Lists within lists, thousands deep, are more than the decoder follows.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
# What the values of a line, each of its type, may still be together: no key, no class.
SENSELESS: Final = (ValueError, TypeError)


class _Version(msgspec.Struct):
    kvoffload_log: int


class LogReader:
    """The steps of the log at `path`, read once, in order.

    `setup` is what was watched, `header` all that the first line says. After each step, `time` is
    when it was over, in seconds from the beginning of the log, None where the log does not say.
    After the last step, `cut` says whether the log ends in the middle of a line or of a compressed
    stream, as that of a process that was killed does: what came then is not known.

    Raises LogError for what is no log, is of another version, or cannot be read, with the line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        self.cut: bool = False
        self.steps: int = 0
        self.time: float | None = None
        try:
            self._file: BinaryIO = self.path.open("rb")
        except OSError as error:
            raise LogError(f"{self.path}: {error.strerror or error}") from error
        try:
            self._stream = _decompressed(self._file)
            self._numbered = self._lines()
            self.header: Header = self._read_header()
            self.setup: Setup = self.header.setup()
        except ValueError as error:
            self._file.close()
            raise LogError(f"{self.path}:1: {error}") from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __iter__(self) -> Iterator[Step]:
        decoder: msgspec.json.Decoder[ManagerLine | PolicyLine]
        if self.setup.kind == "manager":
            decoder = msgspec.json.Decoder(ManagerLine)
        else:
            decoder = msgspec.json.Decoder(PolicyLine)
        for number, text in self._numbered:
            try:
                line = decoder.decode(text)
            except UNREADABLE as error:
                if not text.endswith(b"\n"):
                    self.cut = True
                    return
                raise LogError(f"{self.path}:{number}: no line of a call log: {error}") from error
            self.steps += 1
            try:
                step = _step_of(self.steps, line)
            except SENSELESS as error:
                raise LogError(f"{self.path}:{number}: {error}") from error
            self.time = line.time
            yield step

    def _read_header(self) -> Header:
        text = next(self._numbered, (1, b""))[1]
        if not text.endswith(b"\n"):
            raise LogError(f"{self.path}:1: the log ends before its header does")
        try:
            version = msgspec.json.decode(text, type=_Version).kvoffload_log
            if version in READABLE_LOGS:
                return msgspec.json.decode(text, type=Header)
        except UNREADABLE as error:
            raise LogError(f"{self.path}:1: no header of a call log: {error}") from error
        read = " and ".join(map(str, READABLE_LOGS))
        raise LogError(f"{self.path}:1: the log is of version {version}; these are read: {read}")

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Numbered from 1, with their ends."""
        number = 0
        try:
            for line in self._stream:
                number += 1
                yield number, line
        except EOFError:
            # The compressed stream of a process that was killed just ends.
            self.cut = True
        except (OSError, zlib.error) as error:
            raise LogError(f"{self.path}:{number + 1}: cannot read on: {error}") from error


def _decompressed(file: BinaryIO) -> Iterable[bytes]:
    magic = file.read(len(GZIP_MAGIC))
    file.seek(0)
    # Without a reader around it, which would lose the lines before a stream that just ends.
    return gzip.GzipFile(fileobj=file) if magic == GZIP_MAGIC else file


def _step_of(number: int, line: ManagerLine | PolicyLine) -> Step:
    told = told_of(line.told) if isinstance(line, ManagerCall) else None
    return Step(number, line.operation(), line.result(), error_of(line.error), line.visible(), told)
