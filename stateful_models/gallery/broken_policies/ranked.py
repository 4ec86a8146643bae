"""LRU as the contract has it (LRU-1, LRU-2): what broken ones start from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from weakref import WeakKeyDictionary

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.broken_policies.base import Plain, Victims


def prefix_order(
    key_groups: Sequence[Sequence[OffloadKey]], req_context: ReqContext
) -> list[OffloadKey]:
    """The keys of all groups by position if each has one, else group after group."""
    keys = [key for group in key_groups for key in group]
    ends = {key: req_context.get_offload_key_position(key) for key in keys}
    if None in ends.values():
        return keys
    return sorted(keys, key=lambda key: ends[key] or 0)


class Ranked(Plain):
    """Every key has a rank, (number of the last use, minus its end); the lowest goes first."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.uses: int = 0
        self.ranks: dict[OffloadKey, tuple[int, int]] = {}
        self.numbers: WeakKeyDictionary[ReqContext, int] = WeakKeyDictionary()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        end = req_context.get_offload_key_position(key)
        if end is None:
            self.ranks[key] = (self.next_use(), 0)
        else:
            self.ranks[key] = (self.number_of(req_context), -end)

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self.ranks.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            if key in self.ranks:
                self.ranks[key] = (self.next_use(), 0)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        return None

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        number = self.number_of(req_context)
        for key in keys:
            end = req_context.get_offload_key_position(key)
            if end is not None and key in self.ranks:
                self.ranks[key] = max(self.ranks[key], (number, -end))

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        self.touch(prefix_order(key_groups, req_context), req_context)

    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return sorted(super().candidates(protected), key=lambda key: (self.ranks[key], key))

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        for key in victims:
            del self.ranks[key]
        return super().take(victims)

    @override
    def clear(self) -> None:
        super().clear()
        self.uses = 0
        self.ranks.clear()
        self.numbers = WeakKeyDictionary()

    def next_use(self) -> int:
        """The next number of the one counter."""
        self.uses += 1
        return self.uses

    def number_of(self, req_context: ReqContext) -> int:
        """The number of a request, taken when it first uses anything."""
        if req_context not in self.numbers:
            self.numbers[req_context] = self.next_use()
        return self.numbers[req_context]
