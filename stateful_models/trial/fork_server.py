"""A process that has imported what every trial needs, and forks a child for each.

Most of a short trial's time goes into starting Python and importing; that is done once here, and a
target sees nothing of it: this process imports no target, runs one thread, and forks anew for
each. A child is as if `python -m` had started it: in a session of its own, with its own streams,
and ended by whatever it leaves its `main` with.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Final, NamedTuple

from kvoffload.errors import KVOffloadError
from stateful_models.trial.channel import ChildChannel, end_with_the_parent
from stateful_models.trial.mark import Mark

__all__ = ["NUMBER", "READY", "Descriptors", "NotAServerError", "Order", "received"]

READY: Final = b"!"
NUMBER: Final = struct.Struct("!q")
"""How a size, the number of a process, or its exit status goes through the socket."""


class NotAServerError(KVOffloadError):
    """This module was started by something else than a trial."""

    def __init__(self) -> None:
        super().__init__("this module is run by trials, to fork their processes, and not by hand")


class Descriptors(NamedTuple):
    """The open files of a child: where it runs, what it prints, answers and marks."""

    directory: int
    stdout: int
    stderr: int
    messages: int
    page: int


class Order(NamedTuple):
    """What a child is started with, beside its open files."""

    nonce: bytes
    request: bytes


def main() -> None:
    """Import the module that is named first, and serve on the socket that is named second."""
    try:
        name, descriptor = sys.argv[1], int(sys.argv[2])
    except (IndexError, ValueError):
        raise NotAServerError from None
    module = importlib.import_module(name)
    sys.argv[:] = [module.__file__ or name]
    # What is imported stays, and need not be looked at whenever garbage is collected: else each
    # child would copy all the memory that it shares.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as control:
        channel = _serve(control)
    # Here a child goes on, the others have ended.
    module.main(channel)


def _serve(control: socket.socket) -> ChildChannel:
    """Fork whenever asked, and tell how that ended; returns in each child."""
    control.set_inheritable(False)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    control.sendall(READY)
    while True:
        order, descriptors = _received(control)
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(woken)
            os.close(wake)
            return _begun(order, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        control.sendall(NUMBER.pack(pid))
        control.sendall(NUMBER.pack(_waited(pid, control, woken)))


def _begun(order: Order, descriptors: Descriptors) -> ChildChannel:
    os.setsid()
    end_with_the_parent()
    os.fchdir(descriptors.directory)
    os.dup2(descriptors.stdout, sys.stdout.fileno())
    os.dup2(descriptors.stderr, sys.stderr.fileno())
    mark = Mark(descriptors.page)
    os.set_inheritable(descriptors.messages, False)
    for descriptor in (*descriptors[:3], descriptors.page):
        os.close(descriptor)
    # How it is asked where it is.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    return ChildChannel(descriptors.messages, mark, order.nonce, order.request)


def _received(control: socket.socket) -> tuple[Order, Descriptors]:
    """What is asked next; ends the process when nobody asks any more."""
    size, descriptors, _, _ = socket.recv_fds(control, NUMBER.size, len(Descriptors._fields))
    rest = received(control, NUMBER.size - len(size)) if size else None
    order = None if rest is None else received(control, *NUMBER.unpack(size + rest))
    if order is None:
        os._exit(os.EX_OK)
    return Order(*pickle.loads(order)), Descriptors(*descriptors)


def received(control: socket.socket, size: int) -> bytes | None:
    """So many bytes, as they come; None if the other side has ended before."""
    got = bytearray()
    while len(got) < size:
        part = control.recv(size - len(got))
        if not part:
            return None
        got += part
    return bytes(got)


def _waited(pid: int, control: socket.socket, woken: int) -> int:
    """The exit status of a child, when it has ended. Nothing is asked meanwhile: what comes then
    is the end of whoever asks, and the child's with it."""
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            for key, _ in selector.select():
                if key.fd == woken:
                    os.read(woken, 64)
                else:
                    _kill(pid)
                    os._exit(os.EX_OK)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    # It may not have come to have a group of its own.
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
