"""The specification of the CPU tier: how many chunks fit, and the manager for them."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from kvoffload.canonical.pages import CanonicalKVCaches
from kvoffload.canonical.parallel import KVParallelConfig
from kvoffload.config import OffloadingConfig
from kvoffload.cpu.manager import CPUOffloadingManager
from kvoffload.cpu.metrics import cpu_metric_definitions
from kvoffload.errors import InvalidValueError, WorkerUnavailableError
from kvoffload.metrics import OffloadingMetricMetadata
from kvoffload.spec import OffloadingSpec, int_option, text_option
from kvoffload.worker import OffloadingWorker

if TYPE_CHECKING:
    from kvoffload.copying.layout import CopyLayout
    from kvoffload.copying.memory import HostMemory


class CPUOffloadingSpec(OffloadingSpec):
    """Chunks in host memory (SPECS-2, SPECS-4).

    Options in `extra_config`, beside those common to all: `cpu_bytes_to_use` (required, > 0,
    over all workers), `eviction_policy` ("lru"), `cache_policy_module_path`, `store_threshold`
    (0: no filter) and `max_tracker_size` (64000); of the worker, `copy_device` ("host"),
    `copy_threads` (1) and `host_memory` ("private", and "shared" with `canonical_layout`).
    Raises InvalidValueError for a missing or invalid one.

    An option of another name is taken for somebody else's: the connector keeps its own in the
    same mapping. So a misspelt one is not refused, and the default holds. `num_chunks` is how
    many chunks fit; it is 0, and every offer is refused, where `cpu_bytes_to_use` is less than
    one chunk.
    """

    BLOCK_SIZE_ALIGNMENT: ClassVar[int] = mmap.PAGESIZE
    REGION_DIRECTORY: ClassVar[str] = "/dev/shm"
    """Where regions of shared memory are: on a file system in memory."""
    REGION_PATIENCE_S: ClassVar[float] = 30.0
    """How long a rank waits for those of an earlier start of its engine to end."""

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
        self.copy_device: str = _choice(options, "copy_device", ("host", "cuda"), "host")
        self.copy_threads: int = int_option(options, "copy_threads", default=1, minimum=1)
        self.host_memory: str = _host_memory(config)
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

        Raises WorkerUnavailableError for caches on a GPU without torch or a GPU, DeviceError where
        it cannot read host memory, MappingError
        for caches or ranks that the layout does not fit, InvalidValueError where this worker has
        more bytes a block than `worker_kv_bytes_per_block` says (SPECS-4), and a RegionError where
        memory cannot be shared.
        """
        # The scheduler's process has no worker, and starts without what copies.
        from kvoffload.cpu.worker import host_worker

        if not isinstance(kv_caches, CanonicalKVCaches):
            raise InvalidValueError("kv_caches", kv_caches, "CanonicalKVCaches")
        if self.copy_device == "cuda" and find_spec("torch") is None:
            raise WorkerUnavailableError(
                "copy_device 'cuda' needs torch: pip install 'kvoffload[torch]'"
            )
        layout = self._layout(kv_caches)
        memory = self._memory(kv_caches, layout)
        try:
            if self.copy_device == "cuda":
                return _cuda_worker(kv_caches, layout, memory)
            return host_worker(kv_caches, layout, memory, copy_threads=self.copy_threads)
        except BaseException:
            memory.close()
            raise

    def _layout(self, kv_caches: CanonicalKVCaches) -> CopyLayout:
        """Where this worker's bytes go. It has to fit into what every rank reckons with."""
        from kvoffload.copying.layout import CopyLayout

        parallel = self.config.parallel
        num_slots, factor = self.num_chunks, self.blocks_per_chunk
        if self.config.canonical_layout:
            # Refuses ranks that are not tp x pcp: stages of a pipeline have other layers, and
            # would write them into the same places.
            KVParallelConfig.from_offloading(parallel, block_size=1)
            layout = CopyLayout.canonical_of(
                kv_caches, num_slots=num_slots, blocks_per_chunk=factor
            )
            workers = parallel.world_size
        else:
            layout = CopyLayout.direct(kv_caches, num_slots=num_slots, blocks_per_chunk=factor)
            workers = 1
        used = {page.tensor for group in layout.groups for page in group}
        needed = sum(layout.host[tensor].row_size_bytes for tensor in used)
        if needed > self.config.worker_kv_bytes_per_block * workers:
            raise InvalidValueError(
                "worker_kv_bytes_per_block",
                self.config.worker_kv_bytes_per_block,
                f"the most that any worker has, on every rank: rank {parallel.rank} of "
                f"{parallel.world_size} has layers of {-(-needed // workers)} bytes a block",
            )
        return layout

    def _memory(self, kv_caches: CanonicalKVCaches, layout: CopyLayout) -> HostMemory:
        if self.host_memory == "private":
            from kvoffload.copying.memory import PrivateMemory

            return PrivateMemory(layout.host)
        from kvoffload.copying.region import SharedRegion

        parallel, engine = self.config.parallel, self.config.engine_id
        if engine and parallel.data_parallel_size > 1:
            # Replicas have their own blocks, and may have one id.
            engine = f"{engine}/dp{parallel.data_parallel_index}"
        return SharedRegion(
            engine,
            layout.host,
            rank=parallel.rank,
            num_ranks=parallel.world_size,
            layout_id=self._layout_id(kv_caches),
            directory=self.REGION_DIRECTORY,
            patience_s=self.REGION_PATIENCE_S,
        )

    def _layout_id(self, kv_caches: CanonicalKVCaches) -> str:
        """What ranks have to agree on beyond the sizes of rows, to read each other's bytes."""
        config = self.config
        tensors = [[ref.tensor_idx for ref in group] for group in kv_caches.group_data_refs]
        names = [(group.tokens_per_block, group.layer_names) for group in config.groups]
        split = config.parallel.tp_size, config.parallel.dcp_size, config.parallel.pcp_size
        return repr(
            (config.model, config.kv_cache_layout, self.blocks_per_chunk, names, tensors, split)
        )


def _cuda_worker(
    kv_caches: CanonicalKVCaches, layout: CopyLayout, memory: HostMemory
) -> OffloadingWorker:
    # torch takes its time to import, and is not there for everybody.
    from kvoffload.copying.cuda.worker import PinnedMemory, cuda_device, require_cuda
    from kvoffload.cpu.worker import CPUOffloadingWorker

    require_cuda()
    pinned = PinnedMemory(memory, len(layout.host))
    try:
        return CPUOffloadingWorker(layout, cuda_device(kv_caches, layout, pinned), pinned)
    except BaseException:
        pinned.close()
        raise


def _choice(options: Mapping[str, object], name: str, choices: tuple[str, ...], usual: str) -> str:
    value = text_option(options, name, default=None) or usual
    if value not in choices:
        raise InvalidValueError(name, value, f"one of {', '.join(choices)}")
    return value


def _host_memory(config: OffloadingConfig) -> str:
    """Private or shared: where each rank keeps its own bytes, or all keep them together."""
    canonical, alone = config.canonical_layout, config.parallel.world_size == 1
    usual = "shared" if canonical else "private"
    chosen = _choice(config.extra_config, "host_memory", ("private", "shared"), usual)
    if chosen == "shared" and not canonical:
        raise InvalidValueError(
            "host_memory", chosen, '"private" without canonical_layout: ranks have other bytes'
        )
    if chosen == "private" and canonical and not alone:
        raise InvalidValueError(
            "host_memory", chosen, '"shared" with canonical_layout: a page is of several ranks'
        )
    return chosen
