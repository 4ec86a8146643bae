"""Memory shared by the ranks of a host: found, held, and removed, however its processes end.

Regions are in a directory of their own inside /dev/shm, which is empty in the end.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvoffload.copying.layout import Rows
from kvoffload.copying.locks import RankLocks, missing_support
from kvoffload.copying.memory import PrivateMemory
from kvoffload.copying.region import SharedRegion, remove_dead_regions
from kvoffload.copying.region_file import HEADER_BYTES, MAX_RANKS, RegionHeader, region_path
from kvoffload.errors import (
    HostMemoryError,
    InvalidValueError,
    MemoryClosedError,
    NotARegionError,
    RegionBusyError,
    RegionError,
    RegionMismatchError,
    RegionSpaceError,
    RegionUnsupportedError,
)
from spec_tests.region_killed import killed_after, killed_at
from spec_tests.region_process import PATIENCE_S, ROOT, ROWS, RankProcess

SHARED_MEMORY = Path("/dev/shm")
PAGE = os.sysconf("SC_PAGESIZE")

pytestmark = pytest.mark.skipif(
    missing_support() is not None or not SHARED_MEMORY.is_dir(),
    reason=f"memory cannot be shared here: {missing_support() or 'no /dev/shm'}",
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in shared memory, in which nothing is left."""
    place = Path(tempfile.mkdtemp(prefix="test-of-regions-", dir=SHARED_MEMORY))
    try:
        yield place
        assert list(place.iterdir()) == []
    finally:
        for path in place.iterdir():
            path.unlink()
        place.rmdir()


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., RankProcess]]:
    """Start ranks in processes of their own; those that are left are killed."""
    with ExitStack() as stack:

        def start(
            engine_id: str = "engine",
            rank: int = 0,
            *,
            num_ranks: int = 4,
            patience_s: float = PATIENCE_S,
        ) -> RankProcess:
            one = RankProcess(place, engine_id, rank, num_ranks=num_ranks, patience_s=patience_s)
            stack.callback(one.kill)
            return one

        yield start
    remove_dead_regions(place)


def region(
    place: Path,
    engine_id: str = "engine",
    rank: int = 0,
    *,
    rows: list[Rows] = ROWS,
    num_ranks: int = 4,
    layout_id: str = "",
    patience_s: float = PATIENCE_S,
) -> SharedRegion:
    return SharedRegion(
        engine_id,
        rows,
        rank=rank,
        num_ranks=num_ranks,
        layout_id=layout_id,
        directory=place,
        patience_s=patience_s,
    )


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


# One region


def test_ranks_of_an_engine_have_the_same_bytes(place: Path) -> None:
    first, second = region(place), region(place, rank=3)
    assert (first.created, second.created) == (True, False)
    assert first.path == second.path
    for tensor, rows in enumerate(ROWS):
        view, other = first.rows(tensor), second.rows(tensor)
        assert view.shape == (rows.num_rows, rows.row_size_bytes)
        assert view.strides == (rows.row_size_bytes, 1)
        assert view.ctypes.data % PAGE == 0
        assert not view.any()
        view[:] = tensor + 1
        assert (other == tensor + 1).all()
        other[-1, -1] = 99
        assert first.rows(tensor)[-1, -1] == 99
    assert first.size_bytes == HEADER_BYTES + PAGE + 8 * 4096
    assert first.path.stat().st_size == first.size_bytes
    first.close()
    second.close()


def test_every_page_is_there_from_the_beginning(place: Path) -> None:
    one = region(place)
    assert one.path.stat().st_blocks * 512 >= one.size_bytes
    assert one.path.stat().st_mode & 0o777 == 0o600
    one.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_last_one_to_close_removes_the_region(place: Path, order: tuple[int, int]) -> None:
    both = [region(place, rank=rank) for rank in range(2)]
    first, last = (both[number] for number in order)
    first.close()
    first.close()
    assert last.path.exists()
    assert first.attached_ranks == ()
    assert last.attached_ranks == (order[1],)
    last.close()
    assert not last.path.exists()
    last.close()


def test_closing_twice_does_not_remove_what_came_after(place: Path) -> None:
    first = region(place)
    first.close()
    second = region(place)
    first.close()
    assert second.path.exists()
    assert second.attached_ranks == (0,)
    second.close()


def test_arrays_outlive_their_region(place: Path) -> None:
    one = region(place)
    rows = one.rows(1)
    rows[3] = 7
    one.close()
    assert rows[3].tolist() == [7] * 4096
    with pytest.raises(MemoryClosedError, match="rank 0 has closed"):
        one.rows(0)
    anew = region(place)
    assert not anew.rows(1).any()
    anew.close()


def test_a_region_that_is_forgotten_is_closed(place: Path) -> None:
    region(place)
    assert names(place) == []


def test_rows_are_asked_for_by_tensor(place: Path) -> None:
    one = region(place)
    for tensor in (-1, 2):
        with pytest.raises(InvalidValueError, match="tensor"):
            one.rows(tensor)
    one.close()


def test_a_region_may_have_no_rows(place: Path) -> None:
    one = region(place, rows=[Rows(0, 10)])
    assert one.rows(0).shape == (0, 10)
    one.close()
    region(place, rows=[]).close()


# Names


def test_every_engine_has_a_name_of_its_own(place: Path) -> None:
    long = "e" * 300
    ids = ["a", "A", "a/b", "a%2Fb", "a b", "..", ".", "\0", "é", "\ud800", long, long + "f", "+"]
    paths = [region_path(place, engine_id) for engine_id in ids]
    assert len(set(paths)) == len(ids)
    for path in paths:
        assert path.parent == place
        assert path.name.startswith(f"kvoffload-{os.geteuid()}-")
    regions = [region(place, engine_id) for engine_id in ids]
    assert all(one.created for one in regions)
    assert names(place) == sorted(path.name for path in paths)
    for one in regions:
        one.close()


def test_memory_is_not_shared_without_a_name(place: Path) -> None:
    with pytest.raises(InvalidValueError, match="engine_id"):
        region(place, "")


def test_ranks_are_those_that_there_are(place: Path) -> None:
    for rank, num_ranks in ((-1, 2), (2, 2), (0, 0), (0, MAX_RANKS + 1)):
        with pytest.raises(InvalidValueError, match="rank"):
            region(place, rank=rank, num_ranks=num_ranks)
    last = region(place, rank=MAX_RANKS - 1, num_ranks=MAX_RANKS)
    assert not any(view.any() for view in map(last.rows, range(2)))
    last.close()


# What does not fit


def test_another_size_or_layout_is_refused(place: Path) -> None:
    one = region(place, layout_id="heads first")
    one.rows(0)[:] = 5

    def other(
        rows: list[Rows] = ROWS, layout_id: str = "heads first", num_ranks: int = 4
    ) -> SharedRegion:
        return region(
            place, rank=1, rows=rows, layout_id=layout_id, num_ranks=num_ranks, patience_s=0
        )

    others: list[Callable[[], SharedRegion]] = [
        lambda: other([Rows(8, 100), Rows(9, 4096)]),
        # As many bytes, in other rows.
        lambda: other([Rows(100, 8), Rows(8, 4096)]),
        lambda: other(list(reversed(ROWS))),
        lambda: other(layout_id="tokens first"),
        lambda: other(num_ranks=5),
    ]
    for attach in others:
        with pytest.raises(RegionMismatchError, match="living ranks of engine 'engine'") as caught:
            attach()
        assert caught.value.path == str(one.path)
    assert one.attached_ranks == (0,)
    assert (one.rows(0) == 5).all()
    one.close()
    others[0]().close()


def test_a_rank_is_attached_once(place: Path, start: Callable[..., RankProcess]) -> None:
    one = region(place)
    with pytest.raises(RegionBusyError, match=f"rank 0 .*process {os.getpid()} "):
        region(place, patience_s=0)
    assert start(patience_s=0.01).said() == "RegionBusyError"
    assert region(place, rank=1).attached_ranks == (0, 1)
    one.close()


def test_a_rank_waits_for_its_predecessor(place: Path, start: Callable[..., RankProcess]) -> None:
    other, first = start(rank=1), start()
    said = {other.said(), first.said()}
    assert said == {"made 0", "joined 0"}
    successor = start()
    assert other.ask("write", 0, 2, 8) == "written"
    first.kill()
    assert successor.said() == "joined 0"
    assert successor.ask("read", 0, 2) == "8"


def test_an_engine_of_another_size_waits_for_the_old_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank of a killed engine is still ending while the next one starts."""
    old = region(place, rank=3)
    agrees = RegionHeader.agrees_with

    def interrupted(there: RegionHeader, other: RegionHeader) -> bool:
        monkeypatch.undo()
        found = agrees(there, other)
        old.close()
        return found

    monkeypatch.setattr(RegionHeader, "agrees_with", interrupted)
    new = region(place, num_ranks=2)
    assert new.created
    assert new.attached_ranks == (0,)
    new.close()


def test_what_is_no_region_is_left_alone(place: Path) -> None:
    path = region_path(place, "engine")
    whole = region(place, "model")
    good = whole.path.read_bytes()
    whole.close()
    another_kind, another_version = bytearray(good), bytearray(good)
    another_kind[0] += 1
    another_version[16] += 1
    contents = [b"", b"mine", bytes(another_kind), bytes(another_version), good[:-1], good + b"\0"]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(NotARegionError, match="no region of this version"):
            region(place)
        assert remove_dead_regions(place) == ()
        assert path.read_bytes() == content
        path.unlink()
    path.symlink_to(place / "elsewhere")
    with pytest.raises(NotARegionError, match="is a link"):
        region(place)
    assert remove_dead_regions(place) == ()
    path.unlink()
    path.mkdir()
    with pytest.raises(NotARegionError, match="not this user's to write"):
        region(place)
    assert remove_dead_regions(place) == ()
    path.rmdir()


def test_a_region_of_another_user_is_not_shared(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = region(place)
    path = other.path
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert region_path(place, "engine") != path
    assert remove_dead_regions(place) == ()
    taken = region_path(place, "engine")
    os.link(path, taken)
    with pytest.raises(NotARegionError, match="another user's"):
        region(place)
    assert remove_dead_regions(place) == ()
    taken.unlink()
    other.close()


@pytest.mark.parametrize(
    ("call", "number", "error"),
    [
        ("pwrite", errno.ENOSPC, RegionSpaceError),
        ("ftruncate", errno.EFBIG, RegionSpaceError),
        ("posix_fallocate", errno.EOPNOTSUPP, RegionUnsupportedError),
        ("open", errno.EACCES, RegionUnsupportedError),
        ("open", errno.EROFS, RegionUnsupportedError),
        ("open", errno.EMFILE, RegionError),
        ("scandir", errno.EACCES, RegionUnsupportedError),
        ("link", errno.EPERM, RegionUnsupportedError),
    ],
)
def test_whatever_the_system_says_has_a_name(
    place: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, error: type[RegionError]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    living = region(place, "living", rank=1)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(RegionError, match=re.escape(os.strerror(number))) as caught:
            region(place)
    assert type(caught.value) is error
    assert names(place) == [living.path.name]
    region(place).close()
    living.close()


def test_what_cannot_be_mapped_is_left(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr("kvoffload.copying.region.mmap.mmap", refuse)
        with pytest.raises(RegionSpaceError, match="Cannot allocate memory"):
            region(place)
    assert names(place) == []


def test_an_engine_starts_whatever_cannot_be_removed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    killed_after(lambda: region(place, "dead"))
    dead = region_path(place, "dead")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        one = region(place)
        assert one.removed == ()
        one.close()
        assert names(place) == sorted([dead.name, one.path.name])
    assert one.attached_ranks == ()
    assert set(remove_dead_regions(place)) == {dead, one.path}


@pytest.mark.parametrize("patience_s", [float("nan"), -1, "1", True, None])
def test_patience_is_a_number(place: Path, patience_s: float) -> None:
    one = region(place)
    with pytest.raises(InvalidValueError, match="patience_s"):
        region(place, patience_s=patience_s)
    one.close()


def test_names_are_text(place: Path) -> None:
    for name in (5, b"engine", None):
        with pytest.raises(InvalidValueError, match="engine_id"):
            region(place, name)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InvalidValueError, match="layout_id"):
        region(place, layout_id=7)  # type: ignore[arg-type]  # what is refused


def test_what_does_not_fit_into_memory_is_refused(place: Path) -> None:
    with pytest.raises(RegionSpaceError, match="no room for"):
        region(place, rows=[Rows(2**40, 2**20)])
    assert names(place) == []


def test_memory_that_is_gone_meanwhile_is_missed_in_time(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RegionSpaceError, match="no room for all"):
        region(place)
    assert names(place) == []


def test_a_system_that_cannot_share_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RegionUnsupportedError, match="no directory"):
        region(place / "missing")
    open_file = os.open

    def old(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return open_file(path, flags, mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", old)
        with pytest.raises(RegionUnsupportedError, match="without unnamed files"):
            region(place)
    monkeypatch.setattr("fcntl.F_OFD_SETLK", None)
    monkeypatch.delattr("fcntl.F_OFD_SETLK")
    with pytest.raises(RegionUnsupportedError, match="open-file-description locks") as caught:
        region(place)
    assert isinstance(caught.value, RegionError)


def test_no_descriptor_is_left_open(place: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    first = region(place)
    held = descriptors()
    refusals: list[Callable[[], SharedRegion]] = [
        lambda: region(place, patience_s=0),
        lambda: region(place, rank=1, layout_id="another", patience_s=0),
        lambda: region(place, "large", rows=[Rows(2**40, 2**20)]),
    ]
    for refused in refusals:
        with pytest.raises(RegionError):
            refused()
        assert descriptors() == held
    second = region(place, rank=1)
    first.close()
    second.close()
    _dead_region(place)
    assert len(remove_dead_regions(place)) == 1
    _dead_region(place)
    region(place).close()
    assert descriptors() == before


# Processes that end


def test_a_killed_rank_comes_back_to_its_living_engine(
    start: Callable[..., RankProcess],
) -> None:
    ranks = [start(rank=rank) for rank in range(3)]
    assert sorted(one.said() for one in ranks) == ["joined 0", "joined 0", "made 0"]
    assert ranks[0].ask("write", 0, 5, 55) == "written"
    assert ranks[1].ask("write", 0, 6, 66) == "written"
    ranks[1].kill()
    assert ranks[0].ask("ranks") == "0 2"
    again = start(rank=1)
    assert again.said() == "joined 0"
    assert again.ask("read", 0, 5) == "55"
    assert again.ask("read", 0, 6) == "66"
    assert ranks[2].ask("ranks") == "0 1 2"


def test_a_killed_engine_leaves_a_region_that_the_next_start_removes(
    place: Path, start: Callable[..., RankProcess]
) -> None:
    for again in ("engine", "another"):
        first = start()
        first.said()
        second = start(rank=1)
        assert second.said() == "joined 0"
        second.ask("write", 1, 0, 9)
        first.kill()
        second.kill()
        assert names(place) == [region_path(place, "engine").name]
        anew = region(place, again)
        assert anew.created
        assert anew.removed == (region_path(place, "engine"),)
        assert not anew.rows(1).any()
        assert names(place) == [anew.path.name]
        anew.close()


def test_living_engines_of_a_user_are_untouched(
    place: Path, start: Callable[..., RankProcess]
) -> None:
    living, dead = start("living"), start("dead")
    assert (living.said(), dead.said()) == ("made 0", "made 0")
    assert living.ask("write", 1, 4, 44) == "written"
    dead.kill()
    other = start("other")
    assert other.said() == "made 1"
    assert remove_dead_regions(place) == ()
    assert names(place) == sorted(region_path(place, one).name for one in ("living", "other"))
    assert living.ask("read", 1, 4) == "44"
    joined = region(place, "living", 1)
    assert joined.rows(1)[4].tolist() == [44] * 4096
    joined.close()
    assert other.ask("close") == "closed"
    assert names(place) == [region_path(place, "living").name]


def test_a_process_that_ends_without_closing_closes(
    place: Path, start: Callable[..., RankProcess]
) -> None:
    one = start()
    one.said()
    one.end()
    assert one.process.returncode == 0
    assert names(place) == []


def test_a_child_that_was_forked_keeps_nobody_alive(
    place: Path, start: Callable[..., RankProcess]
) -> None:
    one = start()
    one.said()
    child = int(one.ask("fork"))
    try:
        assert one.ask("ranks") == "0", "the child closed what is not its own"
        one.kill()
        os.kill(child, 0)
        assert remove_dead_regions(place) == (region_path(place, "engine"),)
    finally:
        os.kill(child, 9)


def test_starts_and_ends_that_race(place: Path) -> None:
    """Five ranks at once, then five others while those close or are killed, and cleaners."""
    done = subprocess.run(
        [sys.executable, "-m", "spec_tests.region_process", "race", str(place), "45"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=10 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:2] == ["rounds", "45"]
    # A third of the rounds begins with a file of the dead.
    assert int(words[words.index("anew") + 1]) >= 15


# Steps of the races, one after another


def test_a_rank_that_opened_a_file_of_the_dead_begins_anew(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look for the living and its own lock, all of them go, and one cleans."""
    first = region(place)
    first.rows(0)[:] = 1
    try_rank, others = RankLocks.try_rank, list[SharedRegion]()

    def interrupted(locks: RankLocks, rank: int) -> bool:
        if not others:
            others.append(first)
            first.close()
            others.append(region(place, rank=1))
        return try_rank(locks, rank)

    monkeypatch.setattr(RankLocks, "try_rank", interrupted)
    late = region(place, rank=2)
    assert late.path.exists()
    assert late.attached_ranks == (1, 2)
    others[1].rows(0)[:] = 3
    assert (late.rows(0) == 3).all()
    others[1].close()
    late.close()


def test_a_maker_that_comes_second_joins(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ftruncate, others = os.ftruncate, list[SharedRegion]()

    def interrupted(descriptor: int, length: int) -> None:
        monkeypatch.undo()
        ftruncate(descriptor, length)
        others.append(region(place, rank=1))

    # The other one is the first to give its file the name.
    monkeypatch.setattr(os, "ftruncate", interrupted)
    late = region(place)
    (first,) = others
    assert (first.created, late.created) == (True, False)
    late.rows(0)[:] = 4
    assert (first.rows(0) == 4).all()
    late.close()
    first.close()


def test_two_cleaners_remove_one_file_each(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second has opened the file of the dead, and the name is a living one's by then."""
    path = _dead_region(place)
    try_all, others = RankLocks.try_all, list[SharedRegion]()

    def interrupted(locks: RankLocks) -> bool:
        monkeypatch.undo()
        others.append(region(place))
        return try_all(locks)

    monkeypatch.setattr(RankLocks, "try_all", interrupted)
    assert remove_dead_regions(place) == ()
    (living,) = others
    assert living.removed == (path,)
    assert path.exists()
    assert region(place, rank=1).attached_ranks == (0, 1)
    living.close()


def _dead_region(place: Path) -> Path:
    one = RankProcess(place)
    assert one.said() == "made 0"
    one.kill()
    return region_path(place, "engine")


def test_two_that_detach_at_once_leave_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second goes when the first has found that it was not the last."""
    first, second = region(place), region(place, rank=1)
    try_all = RankLocks.try_all

    def interrupted(locks: RankLocks) -> bool:
        monkeypatch.undo()
        found = try_all(locks)
        second.close()
        return found

    monkeypatch.setattr(RankLocks, "try_all", interrupted)
    first.close()
    assert second.attached_ranks == ()
    assert names(place) == []


def test_there_is_room_for_one_of_two_makers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds no room, since the first has just taken it: then it joins."""
    others: list[SharedRegion] = []

    def full(directory: Path, size: int) -> bool:
        monkeypatch.undo()
        others.append(region(place))
        return False

    monkeypatch.setattr("kvoffload.copying.region.has_room", full)
    late = region(place, rank=1)
    assert not late.created
    assert late.attached_ranks == (0, 1)
    late.close()
    others[0].close()


# Locks


def test_locks_are_of_the_open_file_and_tell_who_holds_what(place: Path) -> None:
    path = place / "locked"
    path.touch()
    mine, yours, others = (RankLocks(os.open(path, os.O_RDWR)) for _ in range(3))
    for rank in (0, 1, 5, 900):
        assert mine.try_rank(rank)
    assert not yours.try_rank(5)
    assert yours.try_rank(4)
    assert not mine.try_all()
    assert not yours.try_all()
    assert list(yours.held_by_others(1000)) == [0, 1, 5, 900]
    assert list(yours.held_by_others(900)) == [0, 1, 5]
    assert list(mine.held_by_others(1000)) == [4]
    # The kernel names those first that were first to lock anything.
    assert others.try_rank(3)
    assert list(yours.held_by_others(1000)) == [0, 1, 3, 5, 900]
    others.close()
    mine.release()
    assert yours.try_all()
    assert list(mine.held_by_others(3)) == [0, 1, 2]
    yours.close()
    yours.close()
    assert mine.try_all()
    mine.close()
    with pytest.raises(MemoryClosedError):
        mine.try_all()
    path.unlink()


# Memory of one's own


def test_private_memory_is_rows_that_begin_with_a_page() -> None:
    memory = PrivateMemory([*ROWS, Rows(0, 3)])
    assert memory.size_bytes == PAGE + 8 * 4096
    for tensor, rows in enumerate(ROWS):
        view = memory.rows(tensor)
        assert view.shape == (rows.num_rows, rows.row_size_bytes)
        assert view.ctypes.data % PAGE == 0
        assert not view.any()
        view[:] = tensor + 1
    assert (memory.rows(0) == 1).all()
    assert (memory.rows(1) == 2).all()
    assert memory.rows(2).shape == (0, 3)
    kept = memory.rows(1)
    memory.close()
    memory.close()
    assert (kept == 2).all()
    with pytest.raises(MemoryClosedError):
        memory.rows(1)
    PrivateMemory([]).close()


@pytest.mark.parametrize("rows", [Rows(2**40, 2**20), Rows(2**60, 2**60)])
def test_more_memory_than_there_is_has_a_name(rows: Rows) -> None:
    with pytest.raises(HostMemoryError, match="lower cpu_bytes_to_use"):
        PrivateMemory([rows])


# Killed anywhere


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_rank_may_be_killed_at_every_line(place: Path, is_alone: bool, every: int) -> None:
    """It makes, joins or leaves a region, with what a dead engine left in the way."""
    living = None if is_alone else region(place)
    if living is not None:
        living.rows(1)[:] = 6

    def come_and_go() -> None:
        region(place, rank=1).close()

    line = 0
    while killed_at(line, come_and_go):
        line += every
        if line % 3 == 0:
            killed_after(lambda: region(place, "dead"))
        if living is not None:
            assert living.attached_ranks == (0,)
            assert (living.rows(1) == 6).all()
        again = region(place, rank=1)
        assert again.created is is_alone
        assert again.attached_ranks == ((1,) if is_alone else (0, 1))
        assert again.rows(1).any() == (not is_alone)
        assert names(place) == [again.path.name]
        again.close()
        assert names(place) == ([] if living is None else [living.path.name])
    assert line > 100
    remove_dead_regions(place)
    if living is not None:
        living.close()
