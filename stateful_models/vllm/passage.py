"""The passage: stands between a watch and the policy, and knows what came of the last call.

Should the watch fail, before the policy was called or after, its host gets what the policy gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import TypeAlias

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext

Victims: TypeAlias = list[tuple[OffloadKey, ChunkStatus]]


class Passage(CachePolicy):
    """Has every hook of the interface, and passes it on to `policy` with the same arguments.

    Between `begin` and the end of a call, `called` says whether the policy was, `answer` what it
    returned, and `error` what it raised.
    """

    def __init__(self, policy: CachePolicy, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.policy = policy
        self.called: bool = False
        self.answer: object = None
        self.error: BaseException | None = None

    def begin(self) -> None:
        """A call begins; what is known of the last one is forgotten."""
        self.called, self.answer, self.error = False, None, None

    def _pass_on(self, hook: Callable[..., object], *arguments: object) -> None:
        self.called = True
        try:
            self.answer = hook(*arguments)
        except BaseException as error:
            self.error = error
            raise

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        # The most frequent call by far.
        self.called = True
        try:
            self.answer = answer = self.policy.get(key)
        except BaseException as error:
            self.error = error
            raise
        return answer

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._pass_on(self.policy.insert, key, chunk, req_context)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._pass_on(self.policy.remove, key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._pass_on(self.policy.touch, keys, req_context)

    @override
    def evict(self, n: int, protected: Set[OffloadKey], *more: object) -> Victims | None:
        self.called = True
        evict: Callable[..., Victims | None] = self.policy.evict
        try:
            self.answer = answer = evict(n, protected, *more)
        except BaseException as error:
            self.error = error
            raise
        return answer

    @override
    def clear(self) -> None:
        self._pass_on(self.policy.clear)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._pass_on(self.policy.on_store_miss, keys, req_context)

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._pass_on(self.policy.on_request_access, keys, req_context)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        hook = self.policy.on_request_finished
        self._pass_on(hook, key_groups, insertion_only_keys, reused_keys, req_context)

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self._pass_on(self.policy.mark_evictable, key)

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._pass_on(self.policy.mark_non_evictable, key)
