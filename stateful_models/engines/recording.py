"""A policy that records what it is told, and fails when it is asked to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final, NamedTuple, TypeAlias, TypeVar

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext

T = TypeVar("T", bound="Answer")

METHODS: Final = {
    "get": "POL-1",
    "insert": "POL-1",
    "remove": "POL-1",
    "evict": "POL-2",
    "clear": "POL-6",
    "touch": "POL-7",
    "on_store_miss": "POL-7",
    "on_request_access": "POL-7",
    "on_request_finished": "POL-7",
    "mark_evictable": "POL-7",
    "mark_non_evictable": "POL-7",
}
"""The methods that a policy inside is called by, and the clause that one breaks which is lost."""


class InjectedError(Exception):
    """What the policy inside raises on purpose; a wrapper has no business with it."""


class Fault(NamedTuple):
    """The `number`-th call of `method`, counted from 1, raises."""

    method: str
    number: int


Keys: TypeAlias = tuple[OffloadKey, ...]
Argument: TypeAlias = (
    OffloadKey | Keys | tuple[Keys, ...] | frozenset[OffloadKey] | int | ChunkStatus | ReqContext
)
Answer: TypeAlias = ChunkStatus | list[tuple[OffloadKey, ChunkStatus]] | None


class Call(NamedTuple):
    """A call of a policy, its keys in tuples. A context is None where none was given."""

    method: str
    arguments: tuple[Argument | None, ...] = ()
    answer: Answer = None


class RecordingPolicy(CachePolicy):
    """Least recently used, as plain as can be, which records its calls and fails when it is told.

    What makes no sense (a key inserted twice, one removed that is not there) is taken as it comes,
    so that the call shows and not what comes of it.
    """

    def __init__(self, cache_capacity: int, fault: Fault | None = None) -> None:
        super().__init__(cache_capacity)
        self.calls: list[Call] = []
        self.raised: bool = False
        self.failed: bool = False
        """Whether it ever failed on purpose."""
        self.counts: dict[str, int] = dict.fromkeys(METHODS, 0)
        self._fault = fault
        self._chunks: dict[OffloadKey, ChunkStatus] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._record("get", (key,), lambda: self._chunks.get(key))

    @override
    def insert(
        self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext | None = None
    ) -> None:
        def insert() -> None:
            self._chunks[key] = chunk

        self._record("insert", (key, chunk, req_context), insert)

    @override
    def remove(self, key: OffloadKey) -> None:
        def remove() -> None:
            self._chunks.pop(key, None)

        self._record("remove", (key,), remove)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        touched = tuple(keys)
        self._record("touch", (touched, req_context), lambda: self._renew(touched))

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey], *more: object, **named: object
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        # Hosts of their own may give more, and wrappers hand it on.
        def evict() -> list[tuple[OffloadKey, ChunkStatus]] | None:
            idle = [k for k, c in self._chunks.items() if c.ref_cnt == 0 and k not in protected]
            return None if len(idle) < n else [(k, self._chunks.pop(k)) for k in idle[:n]]

        return self._record("evict", (n, frozenset(protected)), evict)

    @override
    def clear(self) -> None:
        self._record("clear", (), self._chunks.clear)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._record("on_store_miss", (tuple(keys), req_context), _nothing)

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._record("on_request_access", (tuple(keys), req_context), _nothing)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        groups = tuple(map(tuple, key_groups))
        inserted, reused = frozenset(insertion_only_keys), frozenset(reused_keys)

        def finish() -> None:
            for group in groups:
                self._renew(group)

        self._record("on_request_finished", (groups, inserted, reused, req_context), finish)

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self._record("mark_evictable", (key,), _nothing)

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._record("mark_non_evictable", (key,), _nothing)

    def drain(self) -> tuple[list[Call], bool]:
        """The calls since it was last asked, and whether one of them failed on purpose."""
        calls, raised = self.calls, self.raised
        self.calls, self.raised = [], False
        return calls, raised

    def _renew(self, keys: Sequence[OffloadKey]) -> None:
        for key in reversed(keys):
            if key in self._chunks:
                self._chunks[key] = self._chunks.pop(key)

    def _record(
        self, method: str, arguments: tuple[Argument | None, ...], act: Callable[[], T]
    ) -> T:
        self.counts[method] += 1
        if self._fault == (method, self.counts[method]):
            self.calls.append(Call(method, arguments))
            self.raised = self.failed = True
            raise InjectedError(f"{method} fails on purpose")
        answer = act()
        self.calls.append(Call(method, arguments, answer))
        return answer


def _nothing() -> None:
    return None
