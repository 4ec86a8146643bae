"""The specification of the CPU tier: how many chunks fit, and the manager for them."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import ClassVar

from typing_extensions import override

from kvoffload.canonical.pages import CanonicalKVCaches
from kvoffload.config import OffloadingConfig
from kvoffload.cpu.manager import CPUOffloadingManager
from kvoffload.cpu.metrics import cpu_metric_definitions
from kvoffload.errors import WorkerUnavailableError
from kvoffload.metrics import OffloadingMetricMetadata
from kvoffload.spec import OffloadingSpec, int_option, text_option
from kvoffload.worker import OffloadingWorker


class CPUOffloadingSpec(OffloadingSpec):
    """Chunks in host memory (SPECS-2, SPECS-4).

    Options in `extra_config`, beside those common to all: `cpu_bytes_to_use` (required, > 0,
    over all workers), `eviction_policy` ("lru"), `cache_policy_module_path`, `store_threshold`
    (0: no filter) and `max_tracker_size` (64000). Raises InvalidValueError for a missing or
    invalid one.

    An option of another name is taken for somebody else's: the connector keeps its own in the
    same mapping. So a misspelt one is not refused, and the default holds. `num_chunks` is how
    many chunks fit; it is 0, and every offer is refused, where `cpu_bytes_to_use` is less than
    one chunk.
    """

    BLOCK_SIZE_ALIGNMENT: ClassVar[int] = mmap.PAGESIZE

    @classmethod
    @override
    def build_metric_definitions(
        cls, extra_config: Mapping[str, object]
    ) -> dict[str, OffloadingMetricMetadata]:
        """What the manager's `get_stats` can hold, by name, as an exporter takes it (MET-1).

        The counter of skipped stores is among them only where `store_threshold`, the one option
        read, is at least 2. Raises InvalidValueError if that is invalid.
        """
        return cpu_metric_definitions(
            int_option(extra_config, "store_threshold", default=0, minimum=0)
        )

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        options = self.extra_config
        self.cpu_bytes_to_use: int = int_option(options, "cpu_bytes_to_use", default=0, minimum=1)
        self.eviction_policy: str = text_option(options, "eviction_policy", default="lru") or "lru"
        self.cache_policy_module_path: str | None = text_option(
            options, "cache_policy_module_path", default=None
        )
        self.store_threshold: int = int_option(options, "store_threshold", default=0, minimum=0)
        self.max_tracker_size: int = int_option(
            options, "max_tracker_size", default=64_000, minimum=0
        )
        # Nothing here depends on the rank, so every rank arrives at the same number (SPECS-4).
        payload = (
            config.worker_kv_bytes_per_block * config.parallel.world_size * self.blocks_per_chunk
        )
        self.kv_bytes_per_chunk: int = (
            -(-payload // self.BLOCK_SIZE_ALIGNMENT) * self.BLOCK_SIZE_ALIGNMENT
        )
        self.num_chunks: int = (
            self.cpu_bytes_to_use // self.kv_bytes_per_chunk if self.kv_bytes_per_chunk else 0
        )
        self._manager: CPUOffloadingManager | None = None
        self._worker: OffloadingWorker | None = None

    @override
    def get_manager(self) -> CPUOffloadingManager:
        if self._manager is None:
            self._manager = CPUOffloadingManager(
                num_chunks=self.num_chunks,
                cache_policy=self.eviction_policy,
                cache_policy_module_path=self.cache_policy_module_path,
                enable_events=self.kv_events_config.captures,
                store_threshold=self.store_threshold,
                max_tracker_size=self.max_tracker_size,
            )
        return self._manager

    @override
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            self._worker = self.create_worker(kv_caches)
        return self._worker

    def create_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Build the worker; `get_worker` calls it once. Override it to bring your own.

        Raises WorkerUnavailableError: this version of kvoffload has no copy worker.
        """
        raise WorkerUnavailableError(
            f"{type(self).__name__} has no worker: kvoffload does not move bytes in this version. "
            "Override create_worker to bring one"
        )
