"""Sessions: clients say which conversation a request belongs to, and how much it matters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from math import isfinite
from typing import Final

from attrs import define, frozen
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle

LONGEST_NAME: Final = 64
HIGHEST: Final = 8


@frozen
class _Hints:
    """What a client said, as far as it makes sense."""

    session: str | None
    priority: float
    last_turn: bool


def _read_hints(req_context: ReqContext) -> _Hints:
    """The hints of a request. Whatever is missing or malformed counts as not said."""
    sent = req_context.kv_transfer_params
    if not isinstance(sent, dict):
        return _Hints(None, 0, False)
    session, priority = sent.get("session_id"), sent.get("priority")
    if type(session) is not str or not 0 < len(session) <= LONGEST_NAME:
        session = None
    # A bool is no priority; an int may be too large to become a float.
    if type(priority) is int or (type(priority) is float and isfinite(priority)):
        priority = float(min(max(priority, -HIGHEST), HIGHEST))
    else:
        priority = 0.0
    return _Hints(session, priority, sent.get("last_turn") is True)


@define
class _Kept:
    chunk: ChunkStatus
    session: str | None
    priority: float
    used: int


@define
class _Session:
    """A session as long as any of its chunks is resident."""

    used: int
    num_chunks: int = 0
    over: bool = False


class Sessions(CachePolicy):
    """First go sessions that are over, then by priority, then the session used least recently.

    A chunk belongs to the session that stored it. One without a session is one of its own, and
    without any hints this is plain LRU.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._kept: dict[OffloadKey, _Kept] = {}
        self._sessions: dict[str, _Session] = {}
        self._uses = 0

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        kept = self._kept.get(key)
        return None if kept is None else kept.chunk

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        hints = _read_hints(req_context)
        self._uses += 1
        self._kept[key] = _Kept(chunk, hints.session, hints.priority, self._uses)
        if hints.session is not None:
            session = self._sessions.setdefault(hints.session, _Session(self._uses))
            session.num_chunks += 1
            session.used = self._uses
            session.over = False

    @override
    def remove(self, key: OffloadKey) -> None:
        if key in self._kept:
            self._take(key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            kept = self._kept.get(key)
            if kept is not None:
                self._uses += 1
                kept.used = self._uses
                if kept.session is not None:
                    self._sessions[kept.session].used = self._uses

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        # A session that goes on is not over, whatever was said before.
        session = self._session_of(_read_hints(req_context))
        if session is not None:
            session.over = False

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        super().on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)
        hints = _read_hints(req_context)
        session = self._session_of(hints)
        if session is not None and hints.last_turn:
            session.over = True

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        pairs = ((key, kept.chunk) for key, kept in self._kept.items())
        victims = sorted(idle(pairs, protected), key=self._rank)[:n]
        if len(victims) < n:
            return None
        return [(key, self._take(key)) for key in victims]

    @override
    def clear(self) -> None:
        self._kept.clear()
        self._sessions.clear()
        self._uses = 0

    def _session_of(self, hints: _Hints) -> _Session | None:
        return None if hints.session is None else self._sessions.get(hints.session)

    def _rank(self, key: OffloadKey) -> tuple[bool, float, int, int]:
        kept = self._kept[key]
        if kept.session is None:
            return True, kept.priority, kept.used, kept.used
        session = self._sessions[kept.session]
        return not session.over, kept.priority, session.used, kept.used

    def _take(self, key: OffloadKey) -> ChunkStatus:
        kept = self._kept.pop(key)
        if kept.session is not None:
            session = self._sessions[kept.session]
            session.num_chunks -= 1
            if not session.num_chunks:
                del self._sessions[kept.session]
        return kept.chunk
