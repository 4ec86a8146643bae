"""A process of its own for each target: whatever it does to itself is told, and touches no other.

The parent starts a module with a request on its standard input and is sent messages, each a line
of bytes, on a pipe that the two have to themselves; what the target prints is kept apart. A
child that does not end in time is killed with all that it has started. For POSIX systems: on
others no descriptors can be handed on.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from math import inf
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Final, Self

from attrs import field, frozen

from kvoffload.errors import InvalidValueError, KVOffloadError
from stateful_models.trial.hang import LOAD
from stateful_models.trial.mark import Mark

__all__ = ["ChildChannel", "ChildEnd", "Ending", "NotAChildError", "run_child"]

KEPT_OUTPUT: Final = 64 * 1024
"""Bytes of standard output, and of standard error, that are kept: the last ones."""
GRACE_S: Final = 1.0
"""How long a child may take to end when it has said that it is done."""

_PR_SET_PDEATHSIG: Final = 1
_VARIABLE = "KVOFFLOAD_TRIAL_CHANNEL"
_MESSAGE, _DONE = b":", b"."
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_READ = 65_536
_POLL_S = 0.05
_LAST_WORDS_S = 0.25
_LEFTOVERS_S = 1.0


class NotAChildError(KVOffloadError):
    """A module that serves as the child of a trial was started by something else."""

    def __init__(self) -> None:
        super().__init__("this module is run by a trial, in a process of its own, and not by hand")


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
    """Run `python -m module` in a process of its own and tell how it ended.

    The child has this environment with `env` laid over it, this `sys.path`, and its hash seed.
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
    read_end, write_end = os.pipe()
    try:
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as page:
            mark = Mark.made_in(page.fileno())
            stdin.write(frames.nonce + b"\n" + request)
            stdin.seek(0)
            process = subprocess.Popen(
                [sys.executable, *_interpreter_options(), "-m", module],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(env, hash_seed, write_end, page.fileno()),
                pass_fds=(write_end, page.fileno()),
                start_new_session=True,
            )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    with _Child(process, read_end, frames, mark) as child:
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
            if frame[:1] == _DONE:
                self.done = True
            elif frame[:1] == _MESSAGE:
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

    def __init__(
        self, process: subprocess.Popen[bytes], messages: int, frames: _Frames, mark: Mark
    ) -> None:
        self._process = process
        self._frames = frames
        self._mark = mark
        self._stdout, self._stderr = _Tail(), _Tail()
        self._messages = messages
        self._selector = selectors.DefaultSelector()
        self._feeds: dict[int, Callable[[bytes], None]] = {messages: frames.feed}
        for stream, tail in ((process.stdout, self._stdout), (process.stderr, self._stderr)):
            if stream is not None:
                self._feeds[stream.fileno()] = tail.feed
        for descriptor in self._feeds:
            self._selector.register(descriptor, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._kill()
        self._selector.close()
        os.close(self._messages)
        # Closes the other two and waits for the process.
        self._process.__exit__(kind, error, traceback)

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
            self._process.send_signal(signal.SIGUSR1)
            self._listen_for(_LAST_WORDS_S, patience_s=_LAST_WORDS_S)
        ended_itself = self._process.poll()
        self._kill()
        self._process.wait()
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
            with suppress(subprocess.TimeoutExpired):
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

    def _kill(self) -> None:
        # The process leads its group; it may be gone and others of the group may not.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


class ChildChannel:
    """The child's side: what was asked, and a way to answer that no print gets into.

    Made before the target is imported, which then finds nothing of it: standard input is empty
    and the environment as the target's user has it. As a context manager it tells the parent
    that all is done, unless the block was left by an exception. Only the process that made it
    can answer: one that the target forked ends where it would.
    """

    def __init__(self, descriptor: int, mark: Mark, nonce: bytes, request: bytes) -> None:
        self._descriptor = descriptor
        self._mark = mark
        self._nonce = nonce
        self._request = request
        self._process = os.getpid()

    @classmethod
    def from_environment(cls) -> Self:
        """The channel to the parent that started this process with `run_child`.

        Raises NotAChildError when nobody did.
        """
        descriptors = os.environ.pop(_VARIABLE, None)
        if descriptors is None:
            raise NotAChildError
        descriptor, page = map(int, descriptors.split())
        _end_with_the_parent()
        nonce, _, request = sys.stdin.buffer.read().partition(b"\n")
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), sys.stdin.fileno())
        os.set_inheritable(descriptor, False)
        mark = Mark(page)
        os.close(page)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        return cls(descriptor, mark, nonce, request)

    def request(self) -> bytes:
        """What the parent asked."""
        return self._request

    def mark(self, text: bytes) -> None:
        """Mark what is being done, for the parent to read should this process not get over it."""
        self._mark.set(text)

    def send(self, message: bytes) -> None:
        """Send a message: one line. Raises InvalidValueError when it is more."""
        if b"\n" in message:
            raise InvalidValueError("message", message, "one line, without an end of line in it")
        self._write(_MESSAGE + message)

    def finish(self) -> None:
        """Tell that all is done: however the process ends now, the trial is over."""
        self._write(_DONE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()

    def _write(self, frame: bytes) -> None:
        if os.getpid() != self._process:
            os._exit(os.EX_OK)
        left = memoryview(b"".join((self._nonce, frame, b"\n")))
        while left:
            left = left[os.write(self._descriptor, left) :]


def _end_with_the_parent() -> None:
    """Let the system kill this process when its parent is gone, where it can: Linux."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have gone meanwhile, and then nobody tells.
    if os.getppid() != parent:
        os._exit(os.EX_OK)


def _interpreter_options() -> list[str]:
    # The path is the parent's, with no directory put before it; output is not held back, lest a
    # process that ends abruptly take it along; a crash tells where.
    return ["-P", "-u", "-X", "faulthandler", *["-O"] * sys.flags.optimize]


def _environment(env: Mapping[str, str], hash_seed: int, *descriptors: int) -> dict[str, str]:
    path = [os.path.abspath(place) for place in sys.path]
    asked = env.get("PYTHONPATH")
    return {
        **os.environ,
        **env,
        "PYTHONPATH": os.pathsep.join(path if asked is None else [asked, *path]),
        "PYTHONHASHSEED": str(hash_seed),
        _VARIABLE: " ".join(map(str, descriptors)),
    }


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return "of no name"
