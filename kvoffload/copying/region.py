"""One region of host memory for all ranks of a host: found by name, alive while a rank is.

The region is a file in /dev/shm that every rank maps. Its processes can be killed at any moment,
and nothing has to be done in time, because of three rules:

1. *Who lives is known by locks.* A rank holds the lock of its own number from before it is attached
   until it is detached, and the kernel drops the lock when its process ends. Whoever can lock all
   ranks at once knows that nobody is attached.
2. *A file has its name only when it is complete and held.* It is made without a name, filled, and
   locked by the rank that makes it; then it is linked to its name, which succeeds for one only.
3. *A name is removed only by somebody who holds all locks of the file that it names.* Nobody writes
   to a file because it is dead, and nobody shortens one.

What can meet:

- Two makers: one of them is first to give its file the name (rule 2); the other drops its own,
  which nobody has seen, and attaches to that. A maker that is killed leaves no name behind.
- A maker and a cleaner: the cleaner finds no name, or a file that is held.
- A cleaner and a rank that attaches: the rank has opened the file, the cleaner locks it, removes
  the name, and closes. The rank then gets its lock, looks whether the file still has its name, and
  begins anew as it has not. If the rank gets its lock first, the cleaner does not get all of them.
- Two cleaners: one has the locks, the other goes away. If it had opened the file before the first
  one closed it, it gets them too, and sees that the name is gone or another file's.
- Two ranks that detach at once: each gives up its own lock and tries for all of them after that, so
  the one that tries last gets them. If a third attaches between, it lives, and will be the last.
- A rank that attaches when the last one is killed: it has either seen somebody alive, as if it had
  come a moment earlier, or nobody, and then makes a new region. Either will do for a new engine,
  whose manager knows of no chunk. A manager outlives its chunks where the last rank goes: it has to
  be reset then.
- An engine that starts while an old rank of the same id is still ending: they have the same file.
  The new process of that rank waits for its lock, so the new engine is not complete, and moves
  nothing, before the old rank is gone. Hence a file for another number of ranks is none for it; it
  waits until that file's ranks are gone.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvoffload.copying.layout import Rows
from kvoffload.copying.locks import RankLocks, missing_support
from kvoffload.copying.memory import RowAreas
from kvoffload.copying.region_file import (
    HEADER_BYTES,
    MAX_RANKS,
    RegionHeader,
    give_name,
    has_room,
    is_named,
    note_process,
    noted_process,
    opened,
    own_files,
    region_error,
    region_path,
    reserve,
    unnamed_file,
)
from kvoffload.errors import (
    InvalidValueError,
    MemoryClosedError,
    NotARegionError,
    RegionBusyError,
    RegionError,
    RegionMismatchError,
    RegionSpaceError,
    RegionUnsupportedError,
)
from kvoffload.validation import require_int

if TYPE_CHECKING:
    from kvoffload.copying.memory import Bytes

DIRECTORY: Final = "/dev/shm"
PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.005


class SharedRegion:
    """The host memory of all ranks of `engine_id`, attached as one of them.

    `host` are the rows of every tensor, and `layout_id` says what else has to be the same for ranks
    that read each other's bytes; both, and `num_ranks`, are compared with those of the ranks that
    are attached already. All zeros when new. The first rank makes it, the last one to close it
    removes it, and regions of this user whose ranks are all dead are removed whenever one is made.

    Raises InvalidValueError for an empty engine id or a rank that there is not, RegionMismatchError
    where living ranks have another layout and RegionBusyError where one lives that has this number,
    each when they have not gone within `patience_s` seconds; RegionSpaceError where there is no
    room for the rows, NotARegionError where the name is taken by something else,
    RegionUnsupportedError where the system lacks what this takes: Linux, and `directory` on a file
    system in memory that this user may write to; and RegionError for whatever else it says.
    """

    def __init__(
        self,
        engine_id: str,
        host: Sequence[Rows],
        *,
        rank: int = 0,
        num_ranks: int = 1,
        layout_id: str = "",
        directory: str | Path = DIRECTORY,
        patience_s: float = PATIENCE_S,
    ) -> None:
        if not isinstance(engine_id, str) or not engine_id:
            raise InvalidValueError("engine_id", engine_id, "a name of its own to share memory by")
        require_int("num_ranks", num_ranks, 1, MAX_RANKS)
        require_int("rank", rank, 0, num_ranks - 1)
        if not isinstance(layout_id, str):
            raise InvalidValueError("layout_id", layout_id, "text")
        # No number is as large as none, and waiting for that would never end.
        if type(patience_s) not in (int, float) or not patience_s >= 0:
            raise InvalidValueError("patience_s", patience_s, "a number of seconds >= 0")
        self.engine_id = engine_id
        self.rank = rank
        self._areas = RowAreas.behind(host, HEADER_BYTES)
        self.header: RegionHeader = RegionHeader(
            self._areas.end, num_ranks, _digest(host, layout_id), os.getpid()
        )
        self._directory = Path(directory)
        self.path: Path = region_path(self._directory, engine_id)
        _require_support(self._directory, self.path)
        # Why the region that is there is none for this rank.
        self._refusal: RegionError | None = None
        self.created: bool = False
        """Whether this rank made the region."""
        self.removed: tuple[Path, ...] = remove_dead_regions(self._directory)
        """The dead regions that were removed on the way."""
        try:
            self._locks = self._attach(patience_s)
            # Once, whoever comes first: `close`, the end of the object, or that of the process.
            self._leave = weakref.finalize(self, _leave, self._locks, self.path)
            try:
                self._memory: mmap.mmap | None = self._map()
            except BaseException:
                self._leave()
                raise
        except OSError as error:
            raise region_error(self.path, error) from error

    @property
    def size_bytes(self) -> int:
        """Bytes of the file, in whole pages."""
        return self.header.size_bytes

    @property
    def attached_ranks(self) -> tuple[int, ...]:
        """The ranks that are attached and alive now; none once this one has been closed."""
        if not self._locks.is_open:
            return ()
        others = self._locks.held_by_others(self.header.num_ranks)
        return tuple(sorted({self.rank, *others}))

    def rows(self, tensor: int) -> Bytes:
        """The rows of a tensor, the same for all ranks, as `HostMemory.rows` says."""
        if self._memory is None:
            raise MemoryClosedError(f"{self.path}: rank {self.rank} has closed this region")
        return self._areas.view(self._memory, tensor)

    def close(self) -> None:
        """Detach, and remove the region if nobody else is attached. Twice is once."""
        self._memory = None
        self._leave()

    def _attach(self, patience_s: float) -> RankLocks:
        """Make the region or join it."""
        deadline = time.monotonic() + patience_s
        while True:
            locks = self._join() if os.path.lexists(self.path) else self._make()
            if locks is not None:
                return locks
            if time.monotonic() >= deadline:
                raise self._refusal or RegionBusyError(str(self.path), self._whose_rank())
            time.sleep(_POLL_S)

    def _make(self) -> RankLocks | None:
        """Make the region, unless somebody else comes first."""
        if not has_room(self._directory, self.size_bytes):
            if os.path.lexists(self.path):
                # Another rank has made it, and that is what the room went to.
                return None
            raise RegionSpaceError(
                str(self.path), f"no room for {self.size_bytes} bytes; lower cpu_bytes_to_use"
            )
        locks = RankLocks(unnamed_file(self._directory, self.path))
        try:
            os.ftruncate(locks.descriptor, self.size_bytes)
            os.pwrite(locks.descriptor, self.header.encoded(), 0)
            locks.try_rank(self.rank)
            give_name(locks.descriptor, self.path)
        except FileExistsError:
            locks.close()
            return None
        except BaseException:
            locks.close()
            raise
        self.created = True
        return locks

    def _join(self) -> RankLocks | None:
        """Attach to the region that is there; None if it went away, is dead, or is not for us."""
        self._refusal = None
        locks = opened(self.path)
        if locks is None:
            return None
        attached = False
        try:
            there = RegionHeader.read(locks.descriptor)
            if there is None:
                raise NotARegionError(
                    str(self.path), "is another user's, or no region of this version"
                )
            if _removed_if_dead(locks, self.path) or not locks.try_rank(self.rank):
                return None
            if not is_named(locks.descriptor, self.path):
                return None
            attached = there.agrees_with(self.header)
            if not attached:
                self._refusal = RegionMismatchError(
                    str(self.path),
                    f"living ranks of engine {self.engine_id!r} share {there.described}; rank "
                    f"{self.rank} has {self.header.described}",
                )
                _leave(locks, self.path)
        finally:
            if not attached:
                locks.close()
        return locks if attached else None

    def _map(self) -> mmap.mmap:
        """Map the file, every page of which is there from now on."""
        # Another open file than the one with the locks, which a mapping would keep open.
        descriptor = os.open(f"/proc/self/fd/{self._locks.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            note_process(descriptor, self.rank)
            reserve(descriptor, self.size_bytes, self.path)
            return mmap.mmap(descriptor, self.size_bytes)
        finally:
            os.close(descriptor)

    def _whose_rank(self) -> str:
        process = None
        locks = opened(self.path)
        if locks is not None:
            process = noted_process(locks.descriptor, self.rank)
            locks.close()
        who = "a process" if process is None else f"process {process}"
        return (
            f"rank {self.rank} of engine {self.engine_id!r} is attached already, by {who} that has "
            "not ended: is the id another engine's, too?"
        )


def remove_dead_regions(directory: str | Path = DIRECTORY) -> tuple[Path, ...]:
    """Remove the regions of this user that nobody is attached to; which ones.

    Those of the living are not touched, nor are files that are no regions of this version. What
    cannot be removed is left for others. Raises RegionError for a directory that cannot be read.
    """
    place = Path(directory)
    try:
        paths = list(own_files(place))
    except OSError as error:
        raise region_error(place, error) from error
    return tuple(path for path in paths if _is_removed(path))


def _is_removed(path: Path) -> bool:
    try:
        locks = opened(path)
    except (NotARegionError, OSError):
        return False
    if locks is None:
        return False
    try:
        is_region = RegionHeader.read(locks.descriptor) is not None
        return is_region and _removed_if_dead(locks, path)
    except OSError:
        # An engine that starts does not fail for what another one has left.
        return False
    finally:
        locks.close()


def _removed_if_dead(locks: RankLocks, path: Path) -> bool:
    """Remove the name of a file that nobody is attached to, by rule 3."""
    if not locks.try_all():
        return False
    try:
        is_it = is_named(locks.descriptor, path)
        if is_it:
            path.unlink()
    finally:
        locks.release()
    return is_it


def _leave(locks: RankLocks, path: Path) -> None:
    """Detach; the last one removes the name. After a fork there is nothing to do in the child."""
    if not locks.is_open:
        return
    try:
        locks.release()
        _removed_if_dead(locks, path)
    except PermissionError:
        # It stays, with nobody attached, for whoever may remove it.
        return
    finally:
        locks.close()


def _require_support(directory: Path, path: Path) -> None:
    missing = missing_support()
    if missing is None and not directory.is_dir():
        missing = f"no directory {directory}"
    if missing is None and not os.path.isdir("/proc/self/fd"):
        missing = "no /proc"
    if missing is not None:
        raise RegionUnsupportedError(str(path), f"memory cannot be shared here: {missing}")


def _digest(host: Sequence[Rows], layout_id: str) -> str:
    rows = [f"{one.num_rows}x{one.row_size_bytes}" for one in host]
    return sha256("\n".join([*rows, layout_id]).encode()).hexdigest()
