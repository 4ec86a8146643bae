"""Processes for the tests of shared regions: ranks that can be killed, and starts that race.

`python -m spec_tests.region_process rank ...` is one rank: it attaches, says how it went, and does
what it reads from its standard input. `... race DIRECTORY ROUNDS` forks ranks and lets them go at
once, round after round; it ends with an error where what they report does not fit together.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, ClassVar, NoReturn

# Before any fork: each child would have to import it otherwise.
import numpy as np

from kvoffload.copying.layout import Rows
from kvoffload.copying.region import SharedRegion, remove_dead_regions
from kvoffload.errors import KVOffloadError

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 60.0
"""Nobody waits that long in a test that passes."""
ROWS = [Rows(8, 100), Rows(8, 4096)]
RACERS = 5


class RankProcess:
    """A rank in a process of its own."""

    def __init__(
        self,
        directory: Path,
        engine_id: str = "engine",
        rank: int = 0,
        *,
        num_ranks: int = 4,
        patience_s: float = PATIENCE_S,
    ) -> None:
        arguments = ["rank", str(directory), engine_id, str(rank), str(num_ranks), str(patience_s)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spec_tests.region_process", *arguments],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def said(self) -> str:
        """The next line that it says."""
        out = self._pipe(self.process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            assert selector.select(PATIENCE_S), "it says nothing"
        return out.readline().strip()

    def ask(self, *words: object) -> str:
        """Let it do something, and say how it went."""
        into = self._pipe(self.process.stdin)
        into.write(" ".join(map(str, words)) + "\n")
        into.flush()
        return self.said()

    def kill(self) -> None:
        """End it as the kernel does where memory is short."""
        self.process.kill()
        self.end()

    def end(self) -> None:
        """Let it come to its end without another word."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(PATIENCE_S)

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def _say(*words: object) -> None:
    print(*words, flush=True)


def _be_a_rank(directory: str, engine_id: str, rank: str, num_ranks: str, patience_s: str) -> None:
    try:
        region = SharedRegion(
            engine_id,
            ROWS,
            rank=int(rank),
            num_ranks=int(num_ranks),
            directory=directory,
            patience_s=float(patience_s),
        )
    except KVOffloadError as error:
        _say(type(error).__name__)
        return
    _say("made" if region.created else "joined", len(region.removed))
    for line in sys.stdin:
        match line.split():
            case ["write", tensor, row, value]:
                region.rows(int(tensor))[int(row)] = int(value)
                _say("written")
            case ["read", tensor, row]:
                _say(*np.unique(region.rows(int(tensor))[int(row)]))
            case ["ranks"]:
                _say(*region.attached_ranks)
            case ["close"]:
                region.close()
                _say("closed")
            case ["fork"]:
                _fork(region)
            case _:
                raise ValueError(line)


def _fork(region: SharedRegion) -> None:
    """A child that outlives this process, keeps bytes, and tries to close what is not its own."""
    read, write = os.pipe()
    rows = region.rows(0)
    child = os.fork()
    if child == 0:
        region.close()
        os.write(write, bytes(rows[0, :1]))
        os.close(write)
        signal.pause()
        os._exit(0)
    os.read(read, 1)
    _say(child)


class _Racer:
    """A forked process that does one thing when told to, reports, and goes when told to."""

    # This process's ends of all pipes, which no child may keep open.
    own_ends: ClassVar[set[int]] = set()

    def __init__(self, act: Callable[[], str]) -> None:
        go, self._go = os.pipe()
        self._reports, reports = os.pipe()
        self.own_ends.update((self._go, self._reports))
        self.child = os.fork()
        if self.child == 0:
            for end in self.own_ends:
                os.close(end)
            _race(act, go, reports)
        os.close(go)
        os.close(reports)

    def go(self) -> None:
        os.write(self._go, b"g")

    def report(self) -> list[str]:
        words = os.read(self._reports, 4096).decode().split()
        if not words:
            raise RuntimeError("a racer ended before its report")
        return words

    def kill(self) -> None:
        os.kill(self.child, signal.SIGKILL)

    def leave(self) -> None:
        """Let it go on to its end, and see that it was a good one."""
        self._close(self._go)

    def ended(self, *, killed: bool = False) -> None:
        self._close(self._reports)
        if killed:
            self._close(self._go)
        status = os.waitpid(self.child, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        if code != (-signal.SIGKILL if killed else 0):
            raise RuntimeError(f"a racer ended with {code}")

    def _close(self, end: int) -> None:
        self.own_ends.remove(end)
        os.close(end)


def _race(act: Callable[[], str], go: int, reports: int) -> NoReturn:
    code = 1
    try:
        os.read(go, 1)
        os.write(reports, act().encode())
        os.read(go, 1)
        _held.clear()
        code = 0
    finally:
        # Nothing of the parent's ends here.
        os._exit(code)


_held: list[_Closing] = []


class _Closing:
    def __init__(self, region: SharedRegion) -> None:
        self._region = region

    def __del__(self) -> None:
        self._region.close()


def _attached(directory: Path, rank: int) -> Callable[[], str]:
    def attach() -> str:
        region = SharedRegion("engine", ROWS, rank=rank, num_ranks=2 * RACERS, directory=directory)
        _held.append(_Closing(region))
        region.rows(0)[rank % 8] = rank + 1
        return f"{int(region.created)} {os.stat(region.path).st_ino}"

    return attach


def _cleaner(directory: Path) -> Callable[[], str]:
    def clean() -> str:
        return str(sum(len(remove_dead_regions(directory)) for _ in range(20)))

    return clean


def _require_one_region(reports: list[list[str]]) -> None:
    if len({file for _, file in reports}) != 1:
        raise RuntimeError(f"several files: {reports}")
    if sum(int(created) for created, _ in reports) > 1:
        raise RuntimeError(f"several makers: {reports}")


def _run_races(directory: Path, rounds: int) -> None:
    """One half of the ranks comes at once, and then the other while the first goes.

    Meanwhile others clean. The first half closes, or is killed, or is dead before the second
    comes: then the file of the dead is found by all at once.
    """
    made_anew = cleaned = 0
    for number in range(rounds):
        killed, dead_before = number % 3 > 0, number % 3 == 2
        first = [_Racer(_attached(directory, rank)) for rank in range(RACERS)]
        second = [_Racer(_attached(directory, RACERS + rank)) for rank in range(RACERS)]
        cleaners = [_Racer(_cleaner(directory)) for _ in range(2)]
        for racer in first:
            racer.go()
        _require_one_region([racer.report() for racer in first])
        going = [racer.kill if killed else racer.leave for racer in first]
        if dead_before:
            for go in going:
                go()
            for racer in first:
                racer.ended(killed=True)
            going = []
        for racer in [*cleaners, *second]:
            racer.go()
        for go in going:
            go()
        reports = [racer.report() for racer in second]
        _require_one_region(reports)
        made_anew += sum(int(created) for created, _ in reports)
        cleaned += sum(int(racer.report()[0]) for racer in cleaners)
        if not dead_before:
            for racer in first:
                racer.ended(killed=killed)
        for racer in [*cleaners, *second]:
            racer.leave()
            racer.ended()
        if left := list(directory.iterdir()):
            raise RuntimeError(f"round {number} left {left}")
    _say("rounds", rounds, "made anew", made_anew, "cleaned", cleaned)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rank", directory, engine_id, rank, num_ranks, patience_s]:
            _be_a_rank(directory, engine_id, rank, num_ranks, patience_s)
        case ["race", directory, rounds]:
            _run_races(Path(directory), int(rounds))
        case unknown:
            raise SystemExit(f"unknown: {unknown}")
