"""Writing a call log: an observer of a watched manager or policy, a line for every step."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from errno import EIO
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Protocol

import msgspec

from stateful_models.logs.errors import LogFullError, LogInUseError, NotLoggableError
from stateful_models.logs.lines import Hints, Line, error_line, header_of
from stateful_models.logs.pseudonyms import Pseudonyms
from stateful_models.logs.scribe import manager_line, policy_line, told_lines
from stateful_models.monitor import Setup
from stateful_models.operations import Operation, RequestId, ScheduleEnd
from stateful_models.steps import Step

RANDOM_SALT_BYTES: Final = 16
BUFFER_BYTES: Final = 1 << 16
FLUSH_SECONDS: Final = 1.0
"""How long lines that have times stay in the buffer, at most, while others follow."""
TIME_DIGITS: Final = 6


class _File(Protocol):
    def flush(self) -> object: ...

    def close(self) -> object: ...

    def tell(self) -> int: ...

    def fileno(self) -> int: ...


class CallLog:
    """Writes the calls of one watched subject, with keys and requests under pseudonyms.

    Made by `to`, and given to `watch` among the `observers`. Lines are buffered: `flush` writes
    out what there is, `close` ends the log. What is called after that is not written.

    Where a line cannot be written, for want of room or memory, the log ends before it or in the
    middle of it: what would follow a gap could not be judged. A log with a limit ends before the
    line that would exceed it.
    """

    def __init__(
        self,
        file: BinaryIO,
        names: Pseudonyms,
        *,
        host: str | None,
        hints: Hints,
        below: tuple[_File, ...] | None = None,
        clock: Callable[[], float] | None = None,
        limit: int | None = None,
    ) -> None:
        self._file = file
        # What `file` writes into, from the top; None: the file is somebody else's to close.
        self._below = below
        self._names = names
        self._host = host
        self._hints: Hints = hints
        self._clock = clock
        self._begun = 0.0 if clock is None else clock()
        self._flushed = self._begun
        self._limit = limit
        # Bytes of lines, and at how many the size of a compressed file is looked at.
        self._bytes = 0
        self._look_at = BUFFER_BYTES
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
        hints: bool | Collection[str] = False,
        clock: Callable[[], float] | None = None,
        limit: int | None = None,
    ) -> CallLog:
        """A log into a new file, compressed if its name ends in `.gz`, or into an open one.

        `salt`: 8 to 64 bytes, the same for all logs in which a key is to have one name; without
        it each log has its own, which nobody knows. `host`: who makes the calls, in a few words.
        `hints`: what clients sent is written as it is, and what exceptions quote too; otherwise
        only the names and JSON types. With names, those fields are written as they are, and nothing
        of others. `clock`, in seconds: each line says when it was written, counted from now, and
        what is buffered goes out once a second; without it equal calls make equal files. `limit`:
        how many bytes the file may have; of a compressed one, about.

        Raises InvalidValueError for another salt, FileExistsError if the file is there (no log
        is ever overwritten), and OSError.
        """
        names = Pseudonyms(os.urandom(RANDOM_SALT_BYTES) if salt is None else salt)
        written: Hints = hints if isinstance(hints, bool) else frozenset(hints)
        make = partial(cls, names=names, host=host, hints=written, clock=clock, limit=limit)
        if not isinstance(target, (str, os.PathLike)):
            return make(target)
        path = Path(target)
        file = path.open("xb", buffering=BUFFER_BYTES)
        if path.suffix != ".gz":
            return make(file, below=())
        # No time and no name inside, so that the same calls make the same file.
        zipped = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
        buffered = io.BufferedWriter(zipped, BUFFER_BYTES)
        return make(buffered, below=(zipped, file))

    def begin(self, setup: Setup) -> None:
        """Write the header. Raises LogInUseError if there is one already."""
        if self._setup is not None:
            raise LogInUseError("a call log is for one subject, and this one has its subject")
        self._setup = setup
        try:
            timed = self._clock is not None
            self._write(header_of(setup, self._names, self._host, hints=self._hints, timed=timed))
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
                quotes = self._hints is True
                line.error = error_line(step.error, self._names, requests, quotes=quotes)
            line.generation, line.stale_completions = step.visible
            if self._clock is None:
                self._write(line)
            else:
                now = self._clock()
                line.time = round(now - self._begun, TIME_DIGITS)
                self._write(line)
                if now - self._flushed >= FLUSH_SECONDS:
                    self._flushed = now
                    self.flush()
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

    def abandon(self) -> None:
        """In a forked process: leave the file, and what is buffered for it, to the other."""
        if self._closed or self._below is None:
            return
        self._closed = True
        # Buffers are written when they go. This process has a descriptor of its own for the file.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (self._file, *self._below)[-1].fileno())
        os.close(nowhere)

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
        if self._limit is not None:
            self._check_room(self._limit, len(data))
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

    def _check_room(self, limit: int, more: int) -> None:
        """Raise LogFullError if so many bytes would be too many."""
        size = self._bytes = self._bytes + more
        if self._below:
            # How many bytes lines become is known only when they are compressed.
            if size < self._look_at:
                return
            self._look_at = size + BUFFER_BYTES
            size = self._below[-1].tell()
        if size > limit:
            raise LogFullError(f"the log has reached its limit of {limit:,} bytes")


def _requests_of(operation: Operation) -> Iterable[RequestId]:
    """The requests that an exception out of this call may name."""
    if isinstance(operation, ScheduleEnd):
        return (*operation.new, *operation.preempted)
    request: object = getattr(operation, "request", None)
    return (request,) if isinstance(request, str) else ()
