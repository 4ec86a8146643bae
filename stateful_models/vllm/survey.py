"""The child process that says what a policy is in every version of vLLM.

Each version is looked at in a fork of its own, before anything of the author's or of vLLM's is
imported; what takes long to import is imported once, here. For POSIX systems, as all trials are.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from time import monotonic
from typing import Final

import msgspec
from attrs import evolve

from kvoffload.vllm.versions import VERSIONS
from stateful_models.loading import describe
from stateful_models.trial.channel import ChildChannel
from stateful_models.trial.portability import INSTALLED, Obstacle, Portability
from stateful_models.trial.request import Request, decode_request
from stateful_models.vllm.probe import probe

AT_ONCE: Final = 2
PATIENCE_S: Final = 90.0
"""Real seconds that one version may take."""
_READ: Final = 65_536


def main(channel: ChildChannel) -> None:
    """Send a row for each version, as they come."""
    with channel:
        request = decode_request(channel.request())
        with redirect_stdout(sys.stderr):
            for row in survey(request):
                channel.send(msgspec.json.encode(row))


def versions_for(request: Request) -> Sequence[str]:
    """What is looked at, the newest first; what is installed only if that is asked for."""
    installed = [INSTALLED] if request.vllm == INSTALLED else []
    return [*installed, *(each.name for each in VERSIONS)]


def survey(request: Request) -> Iterator[Portability]:
    """A row for each version, as they come."""
    waiting = list(versions_for(request))
    with selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            while waiting and len(selector.get_map()) < AT_ONCE:
                begun = _Fork(evolve(request, vllm=waiting.pop(0)))
                selector.register(begun.pipe, selectors.EVENT_READ, begun)
            ready = {key.data for key, _ in selector.select(timeout=1.0)}
            for key in list(selector.get_map().values()):
                fork: _Fork = key.data
                if (fork in ready and not fork.read()) or fork.is_late():
                    selector.unregister(fork.pipe)
                    yield fork.row()


class _Fork:
    """A process that looks at one version and writes a row into a pipe."""

    def __init__(self, request: Request) -> None:
        self._version = request.vllm or ""
        self._until = monotonic() + PATIENCE_S
        self._data: list[bytes] = []
        self.pipe, end = os.pipe()
        self._process = os.fork()
        if not self._process:
            _answer_and_end(request, end)
        os.close(end)

    def read(self) -> bool:
        """Take in what came; whether more may come."""
        data = os.read(self.pipe, _READ)
        self._data.append(data)
        return bool(data)

    def is_late(self) -> bool:
        """Whether it takes too long."""
        return monotonic() > self._until

    def row(self) -> Portability:
        """What it found, or how it ended."""
        late = self.is_late()
        if late:
            os.kill(self._process, signal.SIGKILL)
        _, status = os.waitpid(self._process, 0)
        os.close(self.pipe)
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(b"".join(self._data), type=Portability)
        code = os.waitstatus_to_exitcode(status)
        how = "does not return" if late else f"ends the process with status {code}"
        what = Obstacle(kind="import", what=f"importing, building or calling it {how}")
        return Portability(version=self._version, obstacles=(what,))


def _answer_and_end(request: Request, pipe: int) -> None:
    status = 1
    try:
        data = memoryview(msgspec.json.encode(_row(request)))
        while data:
            data = data[os.write(pipe, data) :]
        status = 0
    finally:
        # What the parent would do at its end is none of its affairs.
        os._exit(status)


def _row(request: Request) -> Portability:
    try:
        return probe(request)
    # An exit too, or an interruption: the author's code may raise anything.
    except BaseException as error:
        what = Obstacle(kind="import", what=f"looking at it raised {describe(error)}")
        return Portability(version=request.vllm or "", obstacles=(what,))
