"""What CachePolicy consisted of, version by version: one class for each form of each method.

The base class of a version is made of those it had (`recipes`), so what several versions share is
written once. Each form has the parameters under the names that policies may use. `Shelf` is how
LRU and ARC say what they do; the second class of each pair offers it under vLLM's names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, Set
from typing import TypeAlias

from typing_extensions import override

from kvoffload.keys import OffloadKey
from kvoffload.vllm.standins.contexts import Positioned
from kvoffload.vllm.standins.status import SlotStatus

Victims: TypeAlias = list[tuple[OffloadKey, SlotStatus]]


class Built(ABC):  # noqa: B024 - its subclasses have the abstract methods
    """Whatever is built for a capacity."""

    def __init__(self, cache_capacity: int) -> None:
        return None


class BuiltAbstractly(Built):
    """Up to 0.26 every policy had to have a constructor of its own."""

    @abstractmethod
    @override
    def __init__(self, cache_capacity: int) -> None:
        """Take the number of chunks."""


class BuiltWithCapacity(Built):
    """Since 0.27 the base class keeps the capacity."""

    @override
    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.cache_capacity = cache_capacity


class Shelf(Built):
    """What LRU and ARC do, under names that no policy of somebody else has."""

    @abstractmethod
    def _standin_get(self, key: OffloadKey) -> SlotStatus | None:
        """The status of a resident key."""

    @abstractmethod
    def _standin_insert(
        self, key: OffloadKey, chunk: SlotStatus, req_context: Positioned | None
    ) -> None:
        """Take in a key; versions before 0.33 do not say for which request."""

    @abstractmethod
    def _standin_remove(self, key: OffloadKey) -> None:
        """Let go of a key whose store failed."""

    @abstractmethod
    def _standin_touch(self, keys: Iterable[OffloadKey]) -> None:
        """Count a use of keys, the last one first."""

    @abstractmethod
    def _standin_evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        """Give up n idle keys, or none."""

    @abstractmethod
    def _standin_clear(self) -> None:
        """Forget everything."""


class NamedByHash(ABC):
    """Version 0.19, whose keys were block hashes."""

    @abstractmethod
    def get(self, block_hash: OffloadKey) -> SlotStatus | None:
        """The status of a resident block."""

    @abstractmethod
    def remove(self, block_hash: OffloadKey) -> None:
        """Let go of a block whose store failed."""

    @abstractmethod
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        """Give up n blocks, or none at all."""


class ShelfByHash(Shelf, NamedByHash):
    """Keys are block hashes."""

    @override
    def get(self, block_hash: OffloadKey) -> SlotStatus | None:
        return self._standin_get(block_hash)

    @override
    def remove(self, block_hash: OffloadKey) -> None:
        self._standin_remove(block_hash)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self._standin_evict(n, protected)


class NamedByKey(ABC):
    """Versions since 0.20."""

    @abstractmethod
    def get(self, key: OffloadKey) -> SlotStatus | None:
        """The status of a resident key."""

    @abstractmethod
    def remove(self, key: OffloadKey) -> None:
        """Let go of a key whose store failed."""

    @abstractmethod
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        """Give up n keys, or none at all."""


class ShelfByKey(Shelf, NamedByKey):
    """Keys are offload keys."""

    @override
    def get(self, key: OffloadKey) -> SlotStatus | None:
        return self._standin_get(key)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._standin_remove(key)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self._standin_evict(n, protected)


class InsertsHash(ABC):
    """0.19."""

    @abstractmethod
    def insert(self, block_hash: OffloadKey, block: SlotStatus) -> None:
        """Take in a pending block."""


class ShelvesHash(Shelf, InsertsHash):
    """Insertion of 0.19."""

    @override
    def insert(self, block_hash: OffloadKey, block: SlotStatus) -> None:
        self._standin_insert(block_hash, block, None)


class InsertsBlock(ABC):
    """0.20 to 0.29."""

    @abstractmethod
    def insert(self, key: OffloadKey, block: SlotStatus) -> None:
        """Take in a pending block."""


class ShelvesBlock(Shelf, InsertsBlock):
    """Insertion of 0.20 to 0.29."""

    @override
    def insert(self, key: OffloadKey, block: SlotStatus) -> None:
        self._standin_insert(key, block, None)


class InsertsChunk(ABC):
    """0.30 to 0.32."""

    @abstractmethod
    def insert(self, key: OffloadKey, chunk: SlotStatus) -> None:
        """Take in a pending chunk."""


class ShelvesChunk(Shelf, InsertsChunk):
    """Insertion of 0.30 to 0.32."""

    @override
    def insert(self, key: OffloadKey, chunk: SlotStatus) -> None:
        self._standin_insert(key, chunk, None)


class InsertsForRequest(ABC):
    """Since 0.33."""

    @abstractmethod
    def insert(self, key: OffloadKey, chunk: SlotStatus, req_context: Positioned) -> None:
        """Take in a pending chunk that a request stores."""


class ShelvesForRequest(Shelf, InsertsForRequest):
    """Insertion since 0.33."""

    @override
    def insert(self, key: OffloadKey, chunk: SlotStatus, req_context: Positioned) -> None:
        self._standin_insert(key, chunk, req_context)


class TouchesHashes(ABC):
    """0.19."""

    @abstractmethod
    def touch(self, block_hashes: Iterable[OffloadKey]) -> None:
        """Count a use of blocks."""


class RenewsHashes(Shelf, TouchesHashes):
    """Uses of 0.19."""

    @override
    def touch(self, block_hashes: Iterable[OffloadKey]) -> None:
        self._standin_touch(block_hashes)


class TouchesKeys(ABC):
    """0.20 to 0.25."""

    @abstractmethod
    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """Count a use of keys."""


class RenewsKeys(Shelf, TouchesKeys):
    """Uses of 0.20 to 0.25."""

    @override
    def touch(self, keys: Iterable[OffloadKey]) -> None:
        self._standin_touch(keys)


class TouchesForRequest(ABC):
    """Since 0.26."""

    @abstractmethod
    def touch(self, keys: Iterable[OffloadKey], req_context: Positioned) -> None:
        """Count a use of keys by a request."""


class RenewsForRequest(Shelf, TouchesForRequest):
    """Uses since 0.26."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: Positioned) -> None:
        self._standin_touch(keys)


class Clears(ABC):
    """Since 0.22."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, pinned or not."""


class Empties(Shelf, Clears):
    """Resets since 0.22."""

    @override
    def clear(self) -> None:
        self._standin_clear()


class Marks:
    """Since 0.24."""

    def mark_evictable(self, key: OffloadKey) -> None:
        """A chunk became idle; nothing by default."""
        return None

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """A chunk is idle no more; nothing by default."""
        return None


class TellsRequests(TouchesForRequest):
    """Since 0.31. The defaults make of both hooks the touches that the scheduler made before."""

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: Positioned) -> None:
        """Keys that a request stores were not there; by default touched."""
        self.touch(keys, req_context)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: Positioned,
    ) -> None:
        """A request used these keys; by default each group is touched."""
        for group in key_groups:
            self.touch(group, req_context)


class TellsAccesses:
    """Since 0.33."""

    def on_request_access(self, keys: Iterable[OffloadKey], req_context: Positioned) -> None:
        """A request sees keys for the first time; nothing by default."""
        return None
