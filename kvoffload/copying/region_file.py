"""The file of a shared region: its name, its header, and what is done with it."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

from attrs import frozen

from kvoffload.copying.locks import RankLocks
from kvoffload.errors import (
    NotARegionError,
    RegionError,
    RegionSpaceError,
    RegionUnsupportedError,
)

HEADER_BYTES: Final = 65536
"""Before the first row: a multiple of every page size in use."""

MAGIC: Final = b"kvoffload region"
VERSION: Final = 1
LONGEST_NAME: Final = 120
# Magic, version, ranks, bytes of the file, layout, the process that made it.
_FIELDS: Final = struct.Struct("<16sIIQ64sQ")
# Behind the fields: for each rank the process that attached last, for messages.
_PROCESSES_AT: Final = 4096
_PROCESS: Final = struct.Struct("<Q")
MAX_RANKS: Final = (HEADER_BYTES - _PROCESSES_AT) // _PROCESS.size


@frozen
class RegionHeader:
    """What all ranks of a region have to agree on, and which process made it.

    `layout` is a digest of up to 64 letters. No process id decides anything: ids are used again,
    and mean nothing in another container. Who lives is known by its lock.
    """

    size_bytes: int
    num_ranks: int
    layout: str
    creator: int

    def encoded(self) -> bytes:
        """The bytes at the beginning of the file."""
        return _FIELDS.pack(
            MAGIC, VERSION, self.num_ranks, self.size_bytes, self.layout.encode(), self.creator
        )

    @classmethod
    def read(cls, descriptor: int) -> RegionHeader | None:
        """The header of an open file; None if it is no region of this version and this user."""
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return None
        begin = os.pread(descriptor, _FIELDS.size, 0)
        if len(begin) < _FIELDS.size:
            return None
        magic, version, num_ranks, size_bytes, layout, creator = _FIELDS.unpack(begin)
        if magic != MAGIC or version != VERSION or size_bytes != found.st_size:
            return None
        return cls(size_bytes, num_ranks, layout.rstrip(b"\0").decode("ascii", "replace"), creator)

    def agrees_with(self, other: RegionHeader) -> bool:
        """Whether ranks with these headers can share a region."""
        return (self.size_bytes, self.num_ranks, self.layout) == (
            other.size_bytes,
            other.num_ranks,
            other.layout,
        )

    @property
    def described(self) -> str:
        """For messages."""
        return f"{self.size_bytes} bytes for {self.num_ranks} ranks, layout {self.layout[:12]}"


def region_error(path: Path, error: OSError) -> RegionError:
    """What the system says when a region is made or joined, by name."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG):
        return RegionSpaceError(str(path), f"no room ({error}); lower cpu_bytes_to_use")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP):
        return RegionUnsupportedError(str(path), f"memory cannot be shared here: {error}")
    return RegionError(str(path), str(error))


def note_process(descriptor: int, rank: int) -> None:
    """Write down that this process has attached as `rank`."""
    place = _PROCESSES_AT + rank * _PROCESS.size
    os.pwrite(descriptor, _PROCESS.pack(os.getpid()), place)


def noted_process(descriptor: int, rank: int) -> int | None:
    """The process that attached last as `rank`, by its own id; None where none did."""
    found = os.pread(descriptor, _PROCESS.size, _PROCESSES_AT + rank * _PROCESS.size)
    process: int = _PROCESS.unpack(found)[0]
    return process or None


def region_path(directory: Path, engine_id: str) -> Path:
    """The file of an engine's region: of this user, and of no other engine.

    Letters that do not belong into names are encoded; an id too long for a name is cut and has
    its digest behind a plus sign, which no encoded id contains.
    """
    raw = engine_id.encode("utf-8", "surrogatepass")
    name = quote(raw, safe="")
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}+{sha256(raw).hexdigest()[:32]}"
    return directory / (_prefix() + name)


def own_files(directory: Path) -> Iterator[Path]:
    """The files in `directory` whose names are those of regions of this user."""
    prefix = _prefix()
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(prefix)]
    for name in sorted(names):
        yield directory / name


def is_named(descriptor: int, path: Path) -> bool:
    """Whether `path` is the name of the open file, and not of another or of none."""
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def opened(path: Path) -> RankLocks | None:
    """The file of that name, None where there is none. Raises NotARegionError as it says."""
    try:
        return RankLocks(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))
    except FileNotFoundError:
        return None
    except (PermissionError, IsADirectoryError) as error:
        raise NotARegionError(str(path), "is not this user's to write") from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise NotARegionError(str(path), "is a link") from error


def unnamed_file(directory: Path, path: Path) -> int:
    """A new file without a name, for that of a region. Raises RegionUnsupportedError."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
        raise RegionUnsupportedError(
            str(path), f"{directory} is on a file system without unnamed files"
        ) from error


def give_name(descriptor: int, path: Path) -> None:
    """Link an unnamed file to its name. Raises FileExistsError if there is such a name."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a directory given, Python lets the kernel follow the link that /proc shows.
        os.link(
            f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=directory, follow_symlinks=True
        )
    finally:
        os.close(directory)


def has_room(directory: Path, size: int) -> bool:
    """Whether so many bytes could be had now."""
    found = os.statvfs(directory)
    # One without a limit says that it has no blocks.
    return found.f_blocks == 0 or found.f_bavail * found.f_frsize >= size


def reserve(descriptor: int, size: int, path: Path) -> None:
    """Have every page of the file, so that writing to it never finds that there is no room.

    Only then can that be told: a process that writes to a page that cannot be had is killed.
    """
    # Units of 512 bytes, whatever the file system's own are.
    if os.fstat(descriptor).st_blocks * 512 >= size:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise RegionSpaceError(
            str(path), f"no room for all of its {size} bytes; lower cpu_bytes_to_use"
        ) from error


def _prefix() -> str:
    return f"kvoffload-{os.geteuid()}-"
