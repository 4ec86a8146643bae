"""kvoffload: the reference for KV-cache offloading in LLM serving.

The vocabulary, the interfaces of manager, worker and specification, and the CPU tier with its
cache policies. Everything public is imported from here; what moves bytes, and what says which, is
found when it is asked for, so that a scheduler, which moves none, does not pay for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from kvoffload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from kvoffload.cpu.load_store import CPULoadStoreSpec
from kvoffload.cpu.manager import CPUOffloadingManager
from kvoffload.cpu.open_transfers import OutstandingTransfer, TransferKind
from kvoffload.cpu.spec import CPUOffloadingSpec
from kvoffload.errors import (
    BlockOutOfRangeError,
    ChunkNotFoundError,
    ChunkNotReadyError,
    DeviceClosedError,
    DeviceError,
    DoubledDestinationError,
    DuplicatePolicyError,
    HostMemoryError,
    InvalidKeyError,
    InvalidValueError,
    InvariantError,
    KVOffloadError,
    MappingError,
    MemoryClosedError,
    NotAPolicyError,
    NotARegionError,
    NotPinnedError,
    PageNotReadyError,
    PartialChunkError,
    PolicyContractError,
    RegionBusyError,
    RegionError,
    RegionMismatchError,
    RegionSpaceError,
    RegionUnsupportedError,
    RequestFinishedError,
    StreamDeadlockError,
    TilingError,
    TraceError,
    TransferCountError,
    TransferError,
    UnknownPolicyError,
    UnknownTicketError,
    WorkerUnavailableError,
)
from kvoffload.events import OffloadingEvent, OffloadingKVEventsConfig
from kvoffload.keys import (
    OffloadKey,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)
from kvoffload.lookup import LookupResult
from kvoffload.manager import OffloadingManager
from kvoffload.metrics import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
    OffloadingStats,
)
from kvoffload.policies.base import CachePolicy, ChunkStatus, order_request_keys
from kvoffload.policies.factory import CachePolicyFactory
from kvoffload.requests import (
    OffloadPolicy,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from kvoffload.spec import OffloadingSpec
from kvoffload.tiers import Locality, Medium, TierFilter, TierMatcher
from kvoffload.transfers import (
    BlockIDsLoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
    PrepareStoreOutput,
    TransferResult,
)
from kvoffload.worker import OffloadingWorker

if TYPE_CHECKING:
    from kvoffload.canonical.caches import canonical_kv_caches
    from kvoffload.canonical.derivation import derive_mapping, derive_mappings
    from kvoffload.canonical.identity import LayoutId, layout_id
    from kvoffload.canonical.layers import (
        AttentionLayer,
        Encoding,
        LatentLayer,
        Layer,
        OpaqueLayer,
        PackedLayers,
        SingleLayer,
    )
    from kvoffload.canonical.pages import (
        BlockTensor,
        CanonicalKVCacheRef,
        CanonicalKVCaches,
        CanonicalKVCacheTensor,
        CanonicalPageMapping,
        CopyRun,
    )
    from kvoffload.canonical.parallel import HeadShare, KVParallelConfig
    from kvoffload.canonical.pool import PagePool, PageStore
    from kvoffload.canonical.recognition import recognise
    from kvoffload.canonical.resharding import DirectRun, PageCopy, Resharding
    from kvoffload.canonical.runs import normal_form
    from kvoffload.canonical.tiling import verify_tiling
    from kvoffload.copying.cuda.paths import CopyPath, PathRule, PathTable
    from kvoffload.copying.device import CopyDevice
    from kvoffload.copying.graph import CopyGraph
    from kvoffload.copying.host import HostDevice
    from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
    from kvoffload.copying.memory import HostMemory, PrivateMemory
    from kvoffload.copying.ordered import OrderedDevice
    from kvoffload.copying.places import RowBytes, Side
    from kvoffload.copying.plans import CopyPlan, Direction, PagePlan, plan_load, plan_store
    from kvoffload.copying.races import Duty, Race, find_races
    from kvoffload.copying.region import SharedRegion, remove_dead_regions
    from kvoffload.copying.tensors import ArrayTensor
    from kvoffload.copying.worker import CopyWorker
    from kvoffload.cpu.worker import CPUOffloadingWorker

__version__ = "0.1.0"

__all__ = [
    "ArrayTensor",
    "AttentionLayer",
    "BlockIDsLoadStoreSpec",
    "BlockOutOfRangeError",
    "BlockTensor",
    "CPULoadStoreSpec",
    "CPUOffloadingManager",
    "CPUOffloadingSpec",
    "CPUOffloadingWorker",
    "CachePolicy",
    "CachePolicyFactory",
    "CanonicalKVCacheRef",
    "CanonicalKVCacheTensor",
    "CanonicalKVCaches",
    "CanonicalPageMapping",
    "ChunkNotFoundError",
    "ChunkNotReadyError",
    "ChunkStatus",
    "CopyDevice",
    "CopyGraph",
    "CopyLayout",
    "CopyPath",
    "CopyPlan",
    "CopyRun",
    "CopyWorker",
    "DeviceClosedError",
    "DeviceError",
    "DirectRun",
    "Direction",
    "DoubledDestinationError",
    "DuplicatePolicyError",
    "Duty",
    "Encoding",
    "GPULoadStoreSpec",
    "HeadShare",
    "HostDevice",
    "HostMemory",
    "HostMemoryError",
    "InvalidKeyError",
    "InvalidValueError",
    "InvariantError",
    "KVOffloadError",
    "KVParallelConfig",
    "LatentLayer",
    "Layer",
    "LayoutId",
    "LoadStoreSpec",
    "Locality",
    "LookupResult",
    "MappingError",
    "Medium",
    "MemoryClosedError",
    "NotAPolicyError",
    "NotARegionError",
    "NotPinnedError",
    "OffloadKey",
    "OffloadPolicy",
    "OffloadingCacheConfig",
    "OffloadingConfig",
    "OffloadingCounterMetadata",
    "OffloadingEvent",
    "OffloadingGaugeMetadata",
    "OffloadingGroupConfig",
    "OffloadingHistogramMetadata",
    "OffloadingKVEventsConfig",
    "OffloadingManager",
    "OffloadingMetricMetadata",
    "OffloadingModelConfig",
    "OffloadingParallelConfig",
    "OffloadingSpec",
    "OffloadingStats",
    "OffloadingWorker",
    "OpaqueLayer",
    "OrderedDevice",
    "OutstandingTransfer",
    "PackedLayers",
    "PageCopy",
    "PageNotReadyError",
    "PagePlan",
    "PagePool",
    "PageRuns",
    "PageStore",
    "PartialChunkError",
    "PathRule",
    "PathTable",
    "PolicyContractError",
    "PrepareStoreOutput",
    "PrivateMemory",
    "Race",
    "RegionBusyError",
    "RegionError",
    "RegionMismatchError",
    "RegionSpaceError",
    "RegionUnsupportedError",
    "ReqContext",
    "RequestFinishedError",
    "RequestOffloadingContext",
    "Resharding",
    "RowBytes",
    "Rows",
    "ScheduleEndContext",
    "SharedRegion",
    "Side",
    "SingleLayer",
    "StreamDeadlockError",
    "TierFilter",
    "TierMatcher",
    "TilingError",
    "TraceError",
    "TransferCountError",
    "TransferError",
    "TransferKind",
    "TransferResult",
    "UnknownPolicyError",
    "UnknownTicketError",
    "WorkerUnavailableError",
    "__version__",
    "canonical_kv_caches",
    "derive_mapping",
    "derive_mappings",
    "find_races",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "layout_id",
    "make_offload_key",
    "normal_form",
    "order_request_keys",
    "plan_load",
    "plan_store",
    "recognise",
    "remove_dead_regions",
    "verify_tiling",
]

_LATER: Final = {
    "canonical_kv_caches": "kvoffload.canonical.caches",
    "derive_mapping": "kvoffload.canonical.derivation",
    "derive_mappings": "kvoffload.canonical.derivation",
    "LayoutId": "kvoffload.canonical.identity",
    "layout_id": "kvoffload.canonical.identity",
    "AttentionLayer": "kvoffload.canonical.layers",
    "Encoding": "kvoffload.canonical.layers",
    "LatentLayer": "kvoffload.canonical.layers",
    "Layer": "kvoffload.canonical.layers",
    "OpaqueLayer": "kvoffload.canonical.layers",
    "PackedLayers": "kvoffload.canonical.layers",
    "SingleLayer": "kvoffload.canonical.layers",
    "BlockTensor": "kvoffload.canonical.pages",
    "CanonicalKVCacheRef": "kvoffload.canonical.pages",
    "CanonicalKVCaches": "kvoffload.canonical.pages",
    "CanonicalKVCacheTensor": "kvoffload.canonical.pages",
    "CanonicalPageMapping": "kvoffload.canonical.pages",
    "CopyRun": "kvoffload.canonical.pages",
    "HeadShare": "kvoffload.canonical.parallel",
    "KVParallelConfig": "kvoffload.canonical.parallel",
    "PagePool": "kvoffload.canonical.pool",
    "PageStore": "kvoffload.canonical.pool",
    "recognise": "kvoffload.canonical.recognition",
    "DirectRun": "kvoffload.canonical.resharding",
    "PageCopy": "kvoffload.canonical.resharding",
    "Resharding": "kvoffload.canonical.resharding",
    "normal_form": "kvoffload.canonical.runs",
    "verify_tiling": "kvoffload.canonical.tiling",
    "CopyPath": "kvoffload.copying.cuda.paths",
    "PathRule": "kvoffload.copying.cuda.paths",
    "PathTable": "kvoffload.copying.cuda.paths",
    "CopyDevice": "kvoffload.copying.device",
    "CopyGraph": "kvoffload.copying.graph",
    "HostDevice": "kvoffload.copying.host",
    "CopyLayout": "kvoffload.copying.layout",
    "PageRuns": "kvoffload.copying.layout",
    "Rows": "kvoffload.copying.layout",
    "HostMemory": "kvoffload.copying.memory",
    "PrivateMemory": "kvoffload.copying.memory",
    "OrderedDevice": "kvoffload.copying.ordered",
    "RowBytes": "kvoffload.copying.places",
    "Side": "kvoffload.copying.places",
    "CopyPlan": "kvoffload.copying.plans",
    "Direction": "kvoffload.copying.plans",
    "PagePlan": "kvoffload.copying.plans",
    "plan_load": "kvoffload.copying.plans",
    "plan_store": "kvoffload.copying.plans",
    "Duty": "kvoffload.copying.races",
    "Race": "kvoffload.copying.races",
    "find_races": "kvoffload.copying.races",
    "SharedRegion": "kvoffload.copying.region",
    "remove_dead_regions": "kvoffload.copying.region",
    "ArrayTensor": "kvoffload.copying.tensors",
    "CopyWorker": "kvoffload.copying.worker",
    "CPUOffloadingWorker": "kvoffload.cpu.worker",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """What moves bytes and describes pages, imported when it is first asked for (PEP 562)."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
