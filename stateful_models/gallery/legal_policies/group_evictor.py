"""Chunks that were stored for one request leave together."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import ClassVar

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.capabilities import Capabilities
from stateful_models.gallery.legal_policies.victims import Victims, idle


class GroupEvictor(CachePolicy):
    """Evicts all that may go of a group, the least recently used group first.

    So it gives more than it was asked for, unless the last group fits; a host must be told. What
    is pinned or protected stays, and with it its group.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        may_evict_more="chunks of one request leave together", key_blind=True
    )

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._groups: dict[str, dict[OffloadKey, ChunkStatus]] = {}
        self._group_of: dict[OffloadKey, str] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        group = self._group_of.get(key)
        return None if group is None else self._groups[group][key]

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        group = req_context.req_id
        self._groups.setdefault(group, {})[key] = chunk
        self._group_of[key] = group
        self._renew(group)

    @override
    def remove(self, key: OffloadKey) -> None:
        if key in self._group_of:
            self._take(key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        groups = [self._group_of[key] for key in keys if key in self._group_of]
        for group in reversed(dict.fromkeys(groups)):
            self._renew(group)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims: list[OffloadKey] = []
        for chunks in self._groups.values():
            if len(victims) >= n:
                break
            victims += idle(chunks.items(), protected)
        if len(victims) < n:
            return None
        return [(key, self._take(key)) for key in victims]

    @override
    def clear(self) -> None:
        self._groups.clear()
        self._group_of.clear()

    def _renew(self, group: str) -> None:
        self._groups[group] = self._groups.pop(group)

    def _take(self, key: OffloadKey) -> ChunkStatus:
        group = self._group_of.pop(key)
        chunk = self._groups[group].pop(key)
        if not self._groups[group]:
            del self._groups[group]
        return chunk
