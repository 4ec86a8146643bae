"""Locks on the ranks of a file, which tell who lives.

Linux's open-file-description locks: they belong to the open file, so that several ranks may live in
one process, and the kernel drops them when its last descriptor is gone, however a process ended.
They hold between containers too, where process ids mean nothing.
"""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Iterator
from typing import Final

from kvoffload.errors import MemoryClosedError

# struct flock of 64-bit Linux: type, whence, start, length (0: to the end of all), process.
_FLOCK: Final = struct.Struct("hhqqi0q")
_EVERYTHING: Final = 0


def missing_support() -> str | None:
    """What this system lacks for such locks, None where it lacks nothing."""
    try:
        import fcntl
    except ImportError:
        return "no fcntl"
    return None if hasattr(fcntl, "F_OFD_SETLK") else "no open-file-description locks"


class RankLocks:
    """Byte r stands for rank r; the descriptor, opened to write, is this object's from now on.

    A process forked from this one does not inherit what is locked: its copy is closed at once.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _open.add(self)

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed, nor come here by a fork."""
        return self._descriptor is not None

    @property
    def descriptor(self) -> int:
        """That of the file. Raises MemoryClosedError once it has been closed."""
        if self._descriptor is None:
            raise MemoryClosedError("these locks have been closed")
        return self._descriptor

    def try_rank(self, rank: int) -> bool:
        """Lock a rank, unless somebody else holds it."""
        return self._try(rank, 1)

    def try_all(self) -> bool:
        """Lock all ranks there could be, unless somebody else holds any."""
        return self._try(0, _EVERYTHING)

    def release(self) -> None:
        """Unlock everything."""
        import fcntl

        self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, _EVERYTHING)

    def held_by_others(self, end: int) -> Iterator[int]:
        """Ranks below `end` that somebody else holds, in order."""
        return self._held(0, end)

    def close(self) -> None:
        """Unlock everything and close the descriptor. Twice is once."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _held(self, start: int, end: int) -> Iterator[int]:
        import fcntl

        if start >= end:
            return
        # Of several that are in the way the kernel names any one.
        kind, _, first, length, _ = self._call(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, end - start)
        if kind == fcntl.F_UNLCK:
            return
        behind = end if length == _EVERYTHING else min(end, first + length)
        yield from self._held(start, first)
        yield from range(max(start, first), behind)
        yield from self._held(behind, end)

    def _try(self, start: int, length: int) -> bool:
        import fcntl

        try:
            self._call(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, start, length)
        except BlockingIOError:
            return False
        return True

    def _call(
        self, command: int, kind: int, start: int, length: int
    ) -> tuple[int, int, int, int, int]:
        import fcntl

        asked = _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
        answer: tuple[int, int, int, int, int] = _FLOCK.unpack(
            fcntl.fcntl(self.descriptor, command, asked)
        )
        return answer


_open: Final = weakref.WeakSet[RankLocks]()


def _close_inherited() -> None:
    """In a child that was forked: it must not keep alive what its parent holds."""
    for locks in list(_open):
        locks.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
