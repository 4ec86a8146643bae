"""Opening a trace: plain, gzip or Zstandard, told apart by its first bytes and never whole in
memory."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from typing_extensions import override

from kvoffload.errors import TraceError

if TYPE_CHECKING:
    from typing_extensions import Buffer

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some editors begin a file of text with it; it is part of no line."""
CHUNK_BYTES = 1 << 18
SKIP_HINT = "--skip-bad-lines leaves such out"
# What a decompressor raises for a damaged or cut stream, beside the ZstdError of _ZstdStream.
DAMAGED = (OSError, EOFError, zlib.error)


class Source:
    """The bytes of one trace, and what becomes of those that make no sense.

    Iterate `lines()` or `records(size)` once. A reader reports what it cannot use to `refuse`,
    which raises TraceError, or counts in `skipped` when told to skip.
    """

    def __init__(
        self,
        path: Path,
        file: BinaryIO,
        stream: BinaryIO,
        unbuffered: Iterable[bytes],
        *,
        skip_bad: bool = False,
    ) -> None:
        self.path = path
        self.skipped: int = 0
        self._file = file
        self._stream = stream
        self._unbuffered = unbuffered
        self._skip_bad = skip_bad

    def refuse(self, place: str, why: str) -> None:
        """What stands at `place` is unusable. Raises TraceError unless such are skipped."""
        if not self._skip_bad:
            raise TraceError(f"{self.path}:{place}: {why} ({SKIP_HINT})")
        self.skipped += 1

    def lines(self, *, may_be_cut: bool = False, ahead: bool = True) -> Iterator[tuple[int, bytes]]:
        """Numbered from 1, without their ends; blank ones are left out.

        With `may_be_cut`, what comes after the last end of a line is left out too, and a compressed
        stream may just end, as that of a process that was killed. Not reading `ahead` gives all
        lines before such an end, and is slower. Raises TraceError when the stream is damaged; that
        cannot be skipped.
        """
        number = 0
        # Where a stream just ends, the buffer around it would lose what came before.
        stream = self._stream if ahead else self._unbuffered
        try:
            for line in stream:
                number += 1
                if may_be_cut and not line.endswith(b"\n"):
                    return
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK)
                line = line.strip()
                if line:
                    yield number, line
        except DAMAGED as error:
            if may_be_cut and isinstance(error, EOFError):
                return
            raise TraceError(f"{self.path}:{number + 1}: cannot read on: {error}") from error

    def records(self, size: int) -> Iterator[tuple[int, bytes]]:
        """Pieces of `size` bytes, numbered from 1; the last may be shorter.

        Raises TraceError as `lines` does.
        """
        number = 0
        step = size * (CHUNK_BYTES // size)
        try:
            while data := self._stream.read(step):
                for start in range(0, len(data), size):
                    number += 1
                    yield number, data[start : start + size]
        except DAMAGED as error:
            raise TraceError(f"{self.path}:record {number + 1}: cannot read on: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        # A GzipFile leaves open what it was given.
        self._file.close()


def open_source(path: Path, *, skip_bad: bool = False) -> Source:
    """Open `path` for reading, decompressing what its first bytes say is compressed.

    Raises TraceError when there is no such file, when it is no regular file (a trace is read
    more than once), or when nothing installed reads Zstandard.
    """
    try:
        if path.exists() and not path.is_file():
            raise TraceError(f"{path}: not a regular file; a trace is read more than once")
        file = path.open("rb")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    try:
        magic = file.read(len(ZSTD_MAGIC))
        file.seek(0)
        stream: BinaryIO = file
        unbuffered: Iterable[bytes] = file
        if magic.startswith(GZIP_MAGIC):
            unbuffered = zipped = gzip.GzipFile(fileobj=file)
            stream = io.BufferedReader(zipped, CHUNK_BYTES)
        elif magic == ZSTD_MAGIC:
            zstd = _ZstdStream(file, _zstd_decompressor(path))
            unbuffered = stream = io.BufferedReader(zstd, CHUNK_BYTES)
    except BaseException:
        file.close()
        raise
    return Source(path, file, stream, unbuffered, skip_bad=skip_bad)


class _Frame(Protocol):
    """One Zstandard frame being decompressed; both libraries offer this much."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class _ZstdStream(io.RawIOBase):
    """Reads frame after frame.

    The libraries' own readers end silently where a file was cut; a trace must not shrink unseen.
    """

    def __init__(
        self, file: BinaryIO, new_frame: tuple[Callable[[], _Frame], type[Exception]]
    ) -> None:
        self._file = file
        self._new_frame, self._damaged = new_frame
        self._frame: _Frame | None = None
        self._ready = b""

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        while not self._ready:
            if not self._decompress_more():
                return 0
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _decompress_more(self) -> bool:
        """Decompress one piece of the file; False at its end."""
        data = b""
        if self._frame is not None and self._frame.eof:
            data, self._frame = self._frame.unused_data, None
        data = data or self._file.read(CHUNK_BYTES)
        if not data:
            if self._frame is not None:
                raise EOFError("the compressed stream ends early")
            return False
        if self._frame is None:
            self._frame = self._new_frame()
        try:
            self._ready = self._frame.decompress(data)
        except self._damaged as error:
            raise OSError(f"damaged Zstandard data: {error}") from error
        return True


def _zstd_decompressor(path: Path) -> tuple[Callable[[], _Frame], type[Exception]]:
    """What starts a new frame, and what it raises for damaged data."""
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.ZstdDecompressor, zstd.ZstdError
    try:
        import zstandard
    except ImportError:
        raise TraceError(
            f"{path}: reading Zstandard needs the package zstandard: pip install 'kvoffload[zstd]'"
        ) from None
    return lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError
