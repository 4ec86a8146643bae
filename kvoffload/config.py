"""Configuration: what an engine tells an offloading specification about itself.

Frozen values, checked when built, grouped by subject: KV-cache groups, model, cache geometry,
parallelism. Field names follow vLLM's `OffloadingConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from kvoffload.errors import InvalidValueError
from kvoffload.validation import (
    each_instance,
    instance,
    int_at_least,
    optional_instance,
    optional_int_at_least,
)


@frozen
class OffloadingGroupConfig:
    """One KV-cache group.

    `tokens_per_block` counts the tokens of a block over all context-parallel workers.
    `group_id` is its index in the engine's own list. `sliding_window_size_in_chunks` is how
    many chunks of a request the group needs, None when attention reaches back to the start.
    """

    tokens_per_block: int = field(validator=int_at_least(1))
    layer_names: tuple[str, ...] = field(
        default=(), converter=tuple[str, ...], validator=each_instance(str)
    )
    group_id: int = field(default=0, validator=int_at_least(0))
    sliding_window_size_in_chunks: int | None = field(
        default=None, validator=optional_int_at_least(1)
    )


@frozen
class OffloadingModelConfig:
    """The model: its name, the data type of its KV cache, its longest request (0: unknown)."""

    name: str = field(validator=instance(str))
    dtype: str = field(validator=instance(str))
    max_model_len: int = field(default=0, validator=int_at_least(0))


@frozen
class OffloadingCacheConfig:
    """Geometry: tokens under one block hash, and blocks offloaded together as one chunk."""

    tokens_per_hash: int = field(validator=int_at_least(1))
    blocks_per_chunk: int = field(default=1, validator=int_at_least(1))


@frozen
class OffloadingParallelConfig:
    """How the engine is spread over workers, and which of them this one is.

    `rank` counts in [0, world_size), 0 on the scheduler's side. Sizes: tensor, pipeline,
    prefill-context and decode-context parallel. `is_parallelism_agnostic` says that the bytes
    persisted for a block are the same under any of them.
    """

    rank: int = field(default=0, validator=int_at_least(0))
    world_size: int = field(default=1, validator=int_at_least(1))
    tp_size: int = field(default=1, validator=int_at_least(1))
    pp_size: int = field(default=1, validator=int_at_least(1))
    pcp_size: int = field(default=1, validator=int_at_least(1))
    dcp_size: int = field(default=1, validator=int_at_least(1))
    data_parallel_index: int = field(default=0, validator=int_at_least(0))
    data_parallel_size: int = field(default=1, validator=int_at_least(1))
    data_parallel_rank_local: int | None = field(default=None, validator=optional_int_at_least(0))
    is_parallelism_agnostic: bool = field(default=False, validator=instance(bool))

    def __attrs_post_init__(self) -> None:
        if self.rank >= self.world_size:
            raise InvalidValueError("rank", self.rank, f"below world_size ({self.world_size})")
        if self.data_parallel_index >= self.data_parallel_size:
            raise InvalidValueError(
                "data_parallel_index",
                self.data_parallel_index,
                f"below data_parallel_size ({self.data_parallel_size})",
            )


@frozen
class OffloadingConfig:
    """All that an `OffloadingSpec` is built from.

    `worker_kv_bytes_per_block` is the most that any worker stores for a block, the same on every
    rank, whatever layers it has itself (SPECS-4). `extra_config` is the operator's own mapping: a
    specification reads its options from it and checks them itself.
    """

    groups: tuple[OffloadingGroupConfig, ...] = field(
        converter=tuple[OffloadingGroupConfig, ...], validator=each_instance(OffloadingGroupConfig)
    )
    worker_kv_bytes_per_block: int = field(validator=int_at_least(0))
    enable_kv_cache_events: bool = field(validator=instance(bool))
    extra_config: Mapping[str, object] = field(validator=instance(Mapping))
    engine_id: str = field(validator=instance(str))
    model: OffloadingModelConfig = field(validator=instance(OffloadingModelConfig))
    cache: OffloadingCacheConfig = field(validator=instance(OffloadingCacheConfig))
    parallel: OffloadingParallelConfig = field(validator=instance(OffloadingParallelConfig))
    replicated_layout: bool = field(default=False, validator=instance(bool))
    canonical_layout: bool = field(default=False, validator=instance(bool))
    kv_cache_layout: str | None = field(default=None, validator=optional_instance(str))
