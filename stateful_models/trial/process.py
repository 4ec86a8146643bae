"""A process of its own for each target: whatever it does to itself is told, and touches no other.

The parent has a child forked, hands it a request and is sent messages, each a line of bytes, on a
pipe that the two have to themselves; what the target prints is kept apart. A child that does not
end in time is killed with all that it has started. For POSIX systems: on others there is no fork.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from enum import Enum
from math import inf
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Final, Self

from attrs import field, frozen

from kvoffload.errors import InvalidValueError
from stateful_models.trial.channel import DONE, MESSAGE
from stateful_models.trial.fork_server import Descriptors, Order
from stateful_models.trial.hang import LOAD
from stateful_models.trial.mark import Mark
from stateful_models.trial.servers import SERVERS, ForkServer, ServerEndedError

__all__ = ["ChildEnd", "Ending", "run_child"]

KEPT_OUTPUT: Final = 64 * 1024
"""Bytes of standard output, and of standard error, that are kept: the last ones."""
GRACE_S: Final = 1.0
"""How long a child may take to end when it has said that it is done."""

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_READ = 65_536
_POLL_S = 0.05
_LAST_WORDS_S = 0.25
_LEFTOVERS_S = 1.0


class Ending(Enum):
    """How a child ended; the values are how a report says it."""

    WELL = "ended"
    """It said that it was done."""
    EXITED = "exited"
    """The process ended before the trial had, with a status of its own choosing."""
    KILLED = "was killed by a signal"
    """A signal ended it that was not ours."""
    DID_NOT_RETURN = "did not return"
    """Time was up."""


@frozen
class ChildEnd:
    """What became of a child.

    `status` is the exit status and `signal` the number of the signal that ended the process, where
    there is one. `last_message` is the last that was sent, None if there was none. `stdout` and
    `stderr` are the last 64 KiB of what was printed, `mark` what it had marked last.
    """

    kind: Ending
    status: int | None
    signal: int | None
    last_message: bytes | None
    stdout: str = field(repr=False)
    stderr: str = field(repr=False)
    mark: bytes = b""

    def __str__(self) -> str:
        """In words: `exited with status 3 before the trial was over`."""
        match self.kind:
            case Ending.EXITED:
                return f"exited with status {self.status} before the trial was over"
            case Ending.KILLED:
                return f"was killed by signal {self.signal} ({_signal_name(self.signal)})"
            case Ending.WELL | Ending.DID_NOT_RETURN:
                return str(self.kind.value)


def run_child(
    module: str,
    request: bytes,
    *,
    env: Mapping[str, str],
    hash_seed: int,
    timeout_s: float,
    on_message: Callable[[bytes], None],
    poll: Callable[[], object] = lambda: None,
    patience: Callable[[bytes], float] = lambda mark: inf,
) -> ChildEnd:
    """Run `module.main(channel)` in a process of its own and tell how it ended.

    The module is imported, with what it imports, once for many children: in a process that has
    this environment with `env` laid over it, this `sys.path`, and the hash seed.
    `on_message` is called here with each message as it arrives. No more than `timeout_s` seconds
    after the start the process group is killed, or once a mark has stood while the process worked
    for more than the seconds of `patience` with it, or for `LOAD` times as many seconds in all.
    Whatever is raised here meanwhile, Ctrl-C too, kills it as well and goes on; so does what `poll`
    raises, which is called every few hundredths of a second. A process that left the group is not
    found again.

    Raises InvalidValueError for a hash seed outside 0 to 2**32 - 1 or a time that is not positive.
    """
    if not 0 <= hash_seed < 2**32:
        raise InvalidValueError("hash_seed", hash_seed, "from 0 to 4294967295")
    if not timeout_s > 0:
        raise InvalidValueError("timeout_s", timeout_s, "positive")
    deadline = monotonic() + timeout_s
    frames = _Frames(secrets.token_hex(16).encode(), on_message)
    with SERVERS.lent(module, _environment(env, hash_seed)) as server:
        while not server.is_ready(within_s=_POLL_S):
            poll()
            if server.has_ended() is not None:
                return _ended(server)
            if monotonic() >= deadline:
                printed = server.printed()
                server.close()
                return ChildEnd(Ending.DID_NOT_RETURN, None, None, None, "", printed)
        try:
            child = _Child(server, frames, request)
        except ServerEndedError:
            return _ended(server)
        with child:
            in_time = child.listen_until(deadline, poll, patience)
            return child.end(in_time)


class _Frames:
    """Takes messages out of what comes through the pipe; what lacks the nonce is no message."""

    def __init__(self, nonce: bytes, on_message: Callable[[bytes], None]) -> None:
        self.nonce = nonce
        self.done = False
        self.last: bytes | None = None
        self._on_message = on_message
        self._begun: list[bytes] = []

    def feed(self, data: bytes) -> None:
        self._begun.append(data)
        if b"\n" not in data:
            return
        *lines, rest = b"".join(self._begun).split(b"\n")
        self._begun = [rest]
        for line in lines:
            # Not at its beginning, if somebody else has written to the pipe.
            _, found, frame = line.rpartition(self.nonce)
            if not found:
                continue
            if frame[:1] == DONE:
                self.done = True
            elif frame[:1] == MESSAGE:
                self.last = frame[1:]
                self._on_message(self.last)


class _Tail:
    """The last bytes of a stream."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._size = 0

    def feed(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        while self._size - len(self._parts[0]) >= KEPT_OUTPUT:
            self._size -= len(self._parts.popleft())

    def text(self) -> str:
        return b"".join(self._parts)[-KEPT_OUTPUT:].decode(errors="replace")


class _Child:
    """A running child and its three streams; leaving the block leaves nothing running."""

    def __init__(self, server: ForkServer, frames: _Frames, request: bytes) -> None:
        """Raises ServerEndedError if the server has ended."""
        self._frames = frames
        self._stdout, self._stderr = _Tail(), _Tail()
        self._selector = selectors.DefaultSelector()
        self._feeds: dict[int, Callable[[bytes], None]] = {}
        with ExitStack() as ours, ExitStack() as theirs:
            ours.enter_context(self._selector)

            def pipe(feed: Callable[[bytes], None]) -> int:
                read, write = os.pipe()
                ours.callback(os.close, read)
                theirs.callback(os.close, write)
                self._feeds[read] = feed
                self._selector.register(read, selectors.EVENT_READ)
                return write

            directory = os.open(os.curdir, os.O_RDONLY)
            theirs.callback(os.close, directory)
            page = theirs.enter_context(tempfile.TemporaryFile()).fileno()
            self._mark = Mark.made_in(page)
            descriptors = Descriptors(
                directory,
                stdout=pipe(self._stdout.feed),
                stderr=pipe(self._stderr.feed),
                messages=pipe(frames.feed),
                page=page,
            )
            self._process = server.fork(Order(frames.nonce, request), descriptors)
            self._open = ours.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(_LEFTOVERS_S)
        self._open.close()

    def listen_until(
        self,
        deadline: float,
        poll: Callable[[], object],
        patience: Callable[[bytes], float],
    ) -> bool:
        """Pass on what comes until the process has ended; whether it was over in time."""
        leaving = False
        turn, since, worked = self._mark.turn(), monotonic(), self._worked()
        while self._process.poll() is None:
            poll()
            now = monotonic()
            if turn != self._mark.turn():
                turn, since, worked = self._mark.turn(), now, self._worked()
            else:
                limit = patience(self._mark.get())
                if self._worked() - worked > limit or now - since > LOAD * limit:
                    deadline = now
            if self._frames.done and not leaving:
                leaving = True
                deadline = min(deadline, now + GRACE_S)
            if now >= deadline:
                return self._frames.done
            self._listen(min(deadline - now, _POLL_S))
        return True

    def end(self, in_time: bool) -> ChildEnd:
        """Kill what is left and tell what became of the process."""
        if not in_time:
            # Its answer is where it is: a traceback of each thread, on standard error.
            self._process.signal(signal.SIGUSR1)
            self._listen_for(_LAST_WORDS_S, patience_s=_LAST_WORDS_S)
        ended_itself = self._process.poll()
        self._process.kill()
        self._process.wait(_LEFTOVERS_S)
        self._listen_for(_LEFTOVERS_S, patience_s=0)
        if self._frames.done:
            kind = Ending.WELL
        elif ended_itself is None or not in_time:
            kind = Ending.DID_NOT_RETURN
            ended_itself = None
        else:
            kind = Ending.KILLED if ended_itself < 0 else Ending.EXITED
        return ChildEnd(
            kind,
            status=None if ended_itself is None or ended_itself < 0 else ended_itself,
            signal=None if ended_itself is None or ended_itself >= 0 else -ended_itself,
            last_message=self._frames.last,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            mark=self._mark.get(),
        )

    def _worked(self) -> float:
        """Seconds that the process has used of a processor; 0 where the system does not tell."""
        try:
            told = Path(f"/proc/{self._process.pid}/stat").read_bytes()
        except OSError:
            return 0.0
        # The 14th and 15th of all, of which two come before what is split; one may have brackets.
        figures = told.rpartition(b")")[2].split()
        return sum(map(int, figures[11:13])) / _TICKS_A_SECOND

    def _listen(self, seconds: float) -> bool:
        """Pass on what comes within the time; whether anything did."""
        if not self._selector.get_map():
            self._process.wait(seconds)
            return False
        ready = self._selector.select(seconds)
        for key, _ in ready:
            data = os.read(key.fd, _READ)
            if data:
                self._feeds[key.fd](data)
            else:
                self._selector.unregister(key.fd)
        return bool(ready)

    def _listen_for(self, seconds: float, *, patience_s: float) -> None:
        """Pass on what comes, no longer than that, until nothing has come for a while."""
        until = monotonic() + seconds
        while self._selector.get_map() and monotonic() < until and self._listen(patience_s):
            pass


def _ended(server: ForkServer) -> ChildEnd:
    """What became of a child whose server has ended before there was one."""
    status = server.has_ended() or 0
    return ChildEnd(
        Ending.KILLED if status < 0 else Ending.EXITED,
        status=None if status < 0 else status,
        signal=-status if status < 0 else None,
        last_message=None,
        stdout="",
        stderr=server.printed()[-KEPT_OUTPUT:],
    )


def _environment(env: Mapping[str, str], hash_seed: int) -> dict[str, str]:
    path = [os.path.abspath(place) for place in sys.path]
    asked = env.get("PYTHONPATH")
    environment = {
        **os.environ,
        **env,
        "PYTHONPATH": os.pathsep.join(path if asked is None else [asked, *path]),
        "PYTHONHASHSEED": str(hash_seed),
    }
    # Another one for each test, so that none could use the server of another.
    environment.pop("PYTEST_CURRENT_TEST", None)
    return environment


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return "of no name"
