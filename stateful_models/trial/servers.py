"""Fork servers as a trial uses them: lent for one child each, and kept for the next trial."""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Final

from kvoffload.errors import KVOffloadError
from stateful_models.trial.fork_server import NUMBER, READY, Descriptors, Order, received

__all__ = ["KEPT", "SERVERS", "Child", "ForkServer", "ServerEndedError", "ServerPool"]

KEPT: Final = 4
"""How many servers at most are kept while nobody uses them: those that were used last."""

_MODULE: Final = "stateful_models.trial.fork_server"


class ServerEndedError(KVOffloadError):
    """A fork server has ended and can fork nothing."""

    def __init__(self, printed: str) -> None:
        super().__init__(f"the process that forks those of trials has ended: {printed}")


class Child:
    """A process that a server has forked, and how it ended. `pid` is its number."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control
        self._status: int | None = None

    def poll(self) -> int | None:
        """The exit status, that of the signal below 0; None while the process runs."""
        return self.wait(0)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The same, after waiting that long; as long as it runs if no time is given."""
        if self._status is None and _readable(self._control, timeout_s):
            status = _number(self._control)
            # With the server, the system ends its children.
            self._status = -signal.SIGKILL if status is None else status
        return self._status

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and all that it has started, which may be there when itself is not."""
        self.signal(signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class ForkServer:
    """A process that has imported a module, and forks a child that runs it whenever asked.

    It has the environment that is given, and ends with this process, or when it is closed.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self.module = module
        self.environment = environment
        self._child: Child | None = None
        self._in_step = True
        self._control, theirs = socket.socketpair()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - read when the server has ended
        self._ready = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *_options(), "-m", _MODULE, module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def is_ready(self, within_s: float) -> bool:
        """Whether all is imported by then, and nothing else asked for."""
        if not self._ready and _readable(self._control, within_s):
            with suppress(ConnectionError):
                self._ready = self._control.recv(len(READY)) == READY
        return self._ready

    def has_ended(self) -> int | None:
        """Its exit status, if it has ended; that of a signal below 0."""
        return self._process.poll()

    def printed(self) -> str:
        """What it has printed: why it ended, if it has."""
        self._printed.seek(0)
        return self._printed.read().decode(errors="replace")

    def fork(self, order: Order, descriptors: Descriptors) -> Child:
        """Start a child, which has these files open. There may be one at a time."""
        packed = pickle.dumps(tuple(order))
        # Whoever is interrupted from here on does not know what was said.
        self._in_step = False
        pid = None
        with suppress(ConnectionError):
            socket.send_fds(self._control, [NUMBER.pack(len(packed))], descriptors)
            self._control.sendall(packed)
            pid = _number(self._control)
        if pid is None:
            self._process.wait()
            raise ServerEndedError(self.printed())
        self._child = Child(pid, self._control)
        self._in_step = True
        return self._child

    def is_free(self) -> bool:
        """Whether it can fork another child."""
        over = self._child is None or self._child.poll() is not None
        return self._in_step and over and self.has_ended() is None

    def close(self) -> None:
        """End it, and its child."""
        self._control.close()
        self._printed.close()
        self._process.kill()
        self._process.wait()


class ServerPool:
    """Servers that nobody uses, the last that was used at the end: `KEPT` at most.

    Threads may share one. What a fork of this process finds in it, it forgets.
    """

    def __init__(self) -> None:
        self.idle: list[ForkServer] = []
        self._others: list[ForkServer] = []
        self._lock = Lock()

    @contextmanager
    def lent(self, module: str, environment: Mapping[str, str]) -> Generator[ForkServer]:
        """A server of this module and environment, for nobody else meanwhile."""
        server = self._taken(module, environment) or ForkServer(module, environment)
        try:
            yield server
        finally:
            if server.is_free():
                self._put_back(server)
            else:
                server.close()

    def close(self) -> None:
        """End those that nobody uses."""
        with self._lock:
            surplus = self.idle[:]
            self.idle.clear()
        for server in surplus:
            server.close()

    def forget(self) -> None:
        """Leave them to the process that this one was forked from: two that speak at once on the
        sockets that they share are understood by none."""
        self._lock = Lock()
        # What is thrown away would be closed.
        self._others += self.idle
        self.idle.clear()

    def _taken(self, module: str, environment: Mapping[str, str]) -> ForkServer | None:
        with self._lock:
            for server in reversed(self.idle):
                if server.module == module and server.environment == environment:
                    self.idle.remove(server)
                    if server.has_ended() is None:
                        return server
                    server.close()
        return None

    def _put_back(self, server: ForkServer) -> None:
        with self._lock:
            self.idle.append(server)
            surplus = self.idle[:-KEPT]
            del self.idle[:-KEPT]
        for each in surplus:
            each.close()


SERVERS: Final = ServerPool()
"""Those of this process."""
atexit.register(SERVERS.close)
os.register_at_fork(after_in_child=SERVERS.forget)


def _readable(control: socket.socket, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def _number(control: socket.socket) -> int | None:
    """The next number that comes; None if none does, for the other side has ended."""
    with suppress(ConnectionError):
        packed = received(control, NUMBER.size)
        if packed is not None:
            (number,) = NUMBER.unpack(packed)
            return int(number)
    return None


def _options() -> list[str]:
    # The path is the parent's, with no directory put before it; output is not held back, lest a
    # process that ends abruptly take it along; a crash tells where.
    return ["-P", "-u", "-X", "faulthandler", *["-O"] * sys.flags.optimize]
