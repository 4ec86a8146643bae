"""Policies that hold what is known, so that what is measured can be computed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence, Set
from typing import NoReturn

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from kvoffload.judge.blame import HostFailedError
from kvoffload.judge.hints import RequestFuture
from spec_tests.judge.cost_policies import Oldest


class KeepsKeys(Oldest):
    """Every key that was ever stored, in a list."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.ever: list[OffloadKey] = []

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.ever.append(key)


class KeepsHashes(KeepsKeys):
    """The block hashes of keys, each in bytes of its own."""

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(OffloadKey(key[:-4]), chunk, req_context)
        self.chunks[key] = self.chunks.pop(OffloadKey(key[:-4]))


class KeepsGhosts(Oldest):
    """Twice as many keys that are gone as fit, the last to go."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.gone: OrderedDict[OffloadKey, None] = OrderedDict()

    @override
    def taken(
        self, victims: list[tuple[OffloadKey, ChunkStatus]], n: int
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        taken = super().taken(victims, n)
        for key, _ in taken or ():
            self.gone[key] = None
        while len(self.gone) > 2 * self.cache_capacity:
            self.gone.popitem(last=False)
        return taken

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.gone.pop(key, None)


class KeepsRequests(Oldest):
    """The names of all requests that stored something."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.names: list[str] = []

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        self.names.append(req_context.req_id)


class KeepsSessions(Oldest):
    """What it is told of each session, which nobody takes away again."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.sessions: list[object] = []
        self.last: object = None

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        session = (req_context.kv_transfer_params or {})["session_id"]
        if session != self.last:
            self.sessions.append(session)
        self.last = session


class Notes:
    """What is known of a request: 1,000 bytes, and 64 references."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data: list[bytes | None] = [bytes(1_000 - 33), *([None] * 63)]


class KeepsNotes(Oldest):
    """A note on each request that goes on, in a table of its own."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.notes: dict[str, Notes] = {}

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.notes.setdefault(req_context.req_id, Notes())

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        del self.notes[req_context.req_id]


class NotesInContexts(Oldest):
    """The same note in the context of the request."""

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        if req_context.get_state(Notes) is None:
            req_context.set_state(Notes())


class TiresOfSessions(Oldest):
    """Raises when a session has a second turn."""

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        if (req_context.kv_transfer_params or {})["turn"] == 2:
            raise RuntimeError("not again")


def no_hints(future: RequestFuture) -> NoReturn:
    """In place of what says how hints look: it fails."""
    raise HostFailedError(f"no hints for request {future.request}")
