"""Writing a call log: an observer of a watched manager or policy, a line for every step."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterable
from contextlib import suppress
from errno import EIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Protocol

import msgspec

from stateful_models.logs.errors import LogInUseError, NotLoggableError
from stateful_models.logs.lines import Line, error_line, header_of
from stateful_models.logs.pseudonyms import Pseudonyms
from stateful_models.logs.scribe import manager_line, policy_line, told_lines
from stateful_models.monitor import Setup
from stateful_models.operations import Operation, RequestId, ScheduleEnd
from stateful_models.steps import Step

RANDOM_SALT_BYTES: Final = 16
BUFFER_BYTES: Final = 1 << 16


class _Layer(Protocol):
    def flush(self) -> object: ...

    def close(self) -> object: ...


class CallLog:
    """Writes the calls of one watched subject, with keys and requests under pseudonyms.

    Made by `to`, and given to `watch` among the `observers`. Lines are buffered: `flush` writes
    out what there is, `close` ends the log. What is called after that is not written.

    Where a line cannot be written, for want of room or memory, the log ends before it or in the
    middle of it: what would follow a gap could not be judged.
    """

    def __init__(
        self,
        file: BinaryIO,
        names: Pseudonyms,
        *,
        host: str | None,
        hints: bool,
        below: tuple[_Layer, ...] | None = None,
    ) -> None:
        self._file = file
        # What `file` writes into, from the top; None: the file is somebody else's to close.
        self._below = below
        self._names = names
        self._host = host
        self._hints = hints
        self._encode = msgspec.json.Encoder().encode
        self._setup: Setup | None = None
        self._closed = False
        # A line failed; `torn`: while it was being written, so that the buffers are in doubt.
        self._ended = False
        self._torn = False

    @classmethod
    def to(
        cls,
        target: str | os.PathLike[str] | BinaryIO,
        *,
        salt: bytes | None = None,
        host: str | None = None,
        hints: bool = False,
    ) -> CallLog:
        """A log into a new file, compressed if its name ends in `.gz`, or into an open one.

        `salt`: 8 to 64 bytes, the same for all logs in which a key is to have one name; without
        it each log has its own, which nobody knows. `host`: who makes the calls, in a few words.
        `hints`: what clients sent is written as it is, and what exceptions quote too; otherwise
        only the names and JSON types.

        Raises InvalidValueError for another salt, FileExistsError if the file is there (no log
        is ever overwritten), and OSError.
        """
        names = Pseudonyms(os.urandom(RANDOM_SALT_BYTES) if salt is None else salt)
        if not isinstance(target, (str, os.PathLike)):
            return cls(target, names, host=host, hints=hints)
        path = Path(target)
        file = path.open("xb", buffering=BUFFER_BYTES)
        if path.suffix != ".gz":
            return cls(file, names, host=host, hints=hints, below=())
        # No time and no name inside, so that the same calls make the same file.
        zipped = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
        buffered = io.BufferedWriter(zipped, BUFFER_BYTES)
        return cls(buffered, names, host=host, hints=hints, below=(zipped, file))

    def begin(self, setup: Setup) -> None:
        """Write the header. Raises LogInUseError if there is one already."""
        if self._setup is not None:
            raise LogInUseError("a call log is for one subject, and this one has its subject")
        self._setup = setup
        try:
            self._write(header_of(setup, self._names, self._host, hints=self._hints))
        except BaseException:
            self._ended = True
            raise

    def observe(self, step: Step) -> None:
        """Write a line. Raises NotLoggableError for what no host calls on such a subject."""
        if self._closed or self._ended:
            return
        try:
            line = self._line_of(step)
            if step.error is not None:
                requests = _requests_of(step.operation)
                line.error = error_line(step.error, self._names, requests, quotes=self._hints)
            line.generation, line.stale_completions = step.visible
            self._write(line)
        except NotLoggableError:
            raise
        except BaseException:
            self._ended = True
            raise

    def flush(self) -> None:
        """Write out what is buffered: a process that is killed after this has lost nothing."""
        if not (self._closed or self._torn):
            for file in (self._file, *(self._below or ())):
                file.flush()

    def close(self) -> None:
        """End the log. A file that was given open stays open."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        if self._below is None:
            return
        if self._torn:
            # From below: what is written twice into a compressed stream spoils what is before it.
            for file in (*reversed(self._below), self._file):
                with suppress(Exception):
                    file.close()
            return
        for file in (self._file, *self._below):
            file.close()

    def __enter__(self) -> CallLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _line_of(self, step: Step) -> Line:
        line: Line | None
        if self._setup is not None and self._setup.kind == "policy":
            line = policy_line(step, self._names, hints=self._hints)
        else:
            called = manager_line(step, self._names, hints=self._hints)
            if called is not None:
                called.told = told_lines(step.told, self._names)
            line = called
        if line is None:
            raise NotLoggableError(f"{step.operation} has no place in a call log")
        return line

    def _write(self, line: msgspec.Struct) -> None:
        data = self._encode(line) + b"\n"
        try:
            # A file without a buffer may take a part of it.
            while data:
                written = self._file.write(data)
                if not written:
                    raise OSError(EIO, "nothing of a line was written")
                data = data[written:]
        except BaseException:
            self._torn = True
            raise


def _requests_of(operation: Operation) -> Iterable[RequestId]:
    """The requests that an exception out of this call may name."""
    if isinstance(operation, ScheduleEnd):
        return (*operation.new, *operation.preempted)
    request: object = getattr(operation, "request", None)
    return (request,) if isinstance(request, str) else ()
