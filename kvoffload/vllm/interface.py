"""What is used of vLLM's own classes, as protocols: names and types, nothing that could be called.

vLLM's keys are `bytes`, made as those of kvoffload are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from kvoffload.transfers import BlockIDs

T = TypeVar("T")


class Chunk(Protocol):
    """`ChunkStatus` of a policy."""

    chunk_id: int
    ref_cnt: int

    @property
    def is_ready(self) -> bool:
        """Whether it can be read."""
        ...


class Context(Protocol):
    """`ReqContext`, which keeps what its manager and its policy know of the request."""

    req_id: str
    kv_transfer_params: dict[str, object] | None
    kv_hints: object
    load_tier_filter: object

    def __init__(self, req_id: str) -> None: ...

    def set_state(self, val: object) -> None:
        """Keep a value, one a type."""

    def get_state(self, cls: type[T]) -> T | None:
        """The value of this type."""

    def set_offload_key_position(self, key: bytes, end_token: int) -> None:
        """Say where a key ends."""

    def get_offload_key_position(self, key: bytes) -> int | None:
        """Where a key ends."""


class Policy(Protocol):
    """`CachePolicy`, as far as every version since ChunkStatus has it."""

    cache_capacity: int

    def __init__(self, cache_capacity: int) -> None: ...

    def get(self, key: bytes) -> Chunk | None:
        """The chunk of a resident key."""

    def insert(self, key: bytes, chunk: Chunk, req_context: Context) -> None:
        """Take in a chunk."""

    def remove(self, key: bytes) -> None:
        """Let go of a chunk whose store failed."""

    def touch(self, keys: Iterable[bytes], req_context: Context) -> None:
        """Refresh keys."""

    def evict(self, n: int, protected: set[bytes]) -> list[tuple[bytes, Chunk]] | None:
        """Give up n chunks, or none at all."""

    def clear(self) -> None:
        """Forget everything."""

    def on_store_miss(self, keys: Iterable[bytes], req_context: Context) -> None:
        """Keys of an offer are not resident."""

    def on_request_access(self, keys: Iterable[bytes], req_context: Context) -> None:
        """A request sees keys for the first time."""

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[bytes]],
        insertion_only_keys: set[bytes],
        reused_keys: set[bytes],
        req_context: Context,
    ) -> None:
        """A request is over."""

    def mark_evictable(self, key: bytes) -> None:
        """A chunk became idle."""

    def mark_non_evictable(self, key: bytes) -> None:
        """A chunk became pinned."""


class PolicyFactory(Protocol):
    """`CachePolicyFactory`, the class: its methods are class methods."""

    def register_cache_policy(self, name: str, module_path: str, class_name: str) -> None:
        """Make a policy known by a short name."""

    def get_cache_policy_cls(self, name: str, module_path: str | None = None) -> type[Policy]:
        """The class of this name."""
        ...


class Spec(Protocol):
    """`CPULoadStoreSpec`."""

    block_ids: BlockIDs


class StoreOutput(Protocol):
    """`PrepareStoreOutput`."""

    keys_to_store: list[bytes]
    store_spec: Spec
    evicted_keys: list[bytes]


class Event(Protocol):
    """`OffloadingEvent`."""

    keys: list[bytes]
    medium: Enum
    removed: bool
    locality: Enum | None
    ownership: str | None
    removal_expected: bool
    metadata_only: bool


class Stats(Protocol):
    """`OffloadingConnectorStats`."""

    def metric_sections(
        self,
    ) -> tuple[Mapping[str, str], Mapping[str, Mapping[tuple[str, ...], float | list[float]]]]:
        """The kind of each metric, and its values by labels; a histogram's is a list."""
        ...


class RequestAnswer(Protocol):
    """`RequestOffloadingContext`."""

    policy: Enum


class CPUManager(Protocol):
    """`CPUOffloadingManager`."""

    _policy: Policy
    counts: dict[bytes, int] | None

    def __init__(
        self,
        num_chunks: int,
        cache_policy: str = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
    ) -> None: ...

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held by callers over several calls."""
        ...

    def on_new_request(self, req_context: Context) -> RequestAnswer:
        """A request was first seen."""
        ...

    def lookup(self, key: bytes, req_context: Context) -> Enum:
        """Whether a chunk can be read."""
        ...

    def prepare_load(self, keys: Collection[bytes], req_context: Context) -> Spec:
        """Pin chunks."""
        ...

    def _prepare_load(
        self, keys: Collection[bytes], req_context: Context, *, record_access: bool
    ) -> Spec: ...

    def complete_load(self, keys: Collection[bytes], req_context: Context) -> None:
        """Unpin chunks."""

    def touch(self, keys: Collection[bytes], req_context: Context) -> None:
        """Refresh keys."""

    def prepare_store(self, keys: Collection[bytes], req_context: Context) -> StoreOutput | None:
        """Make room for an offer."""

    def complete_store(
        self, keys: Collection[bytes], req_context: Context, success: bool = True
    ) -> None:
        """A store is over."""

    def on_request_finished(self, req_context: Context) -> None:
        """A request is over."""

    def take_events(self) -> Iterable[Event]:
        """What happened since; told only while it is read."""
        ...

    def on_schedule_end(self, context: object) -> None:
        """A step is over."""

    def has_pending_work(self) -> bool:
        """Whether steps must go on."""
        ...

    def reset_cache(self) -> None:
        """Forget everything."""

    def on_reset_flushed(self) -> None:
        """Old transfers are reported."""

    def get_stats(self) -> Stats | None:
        """Figures since the last call."""

    def shutdown(self) -> None:
        """Let go of everything."""
