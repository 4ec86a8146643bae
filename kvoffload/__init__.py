"""kvoffload: the reference for KV-cache offloading in LLM serving.

The vocabulary, the interfaces of manager, worker and specification, and the CPU tier with its
cache policies. Everything public is imported from here.
"""

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
    ChunkNotFoundError,
    ChunkNotReadyError,
    DuplicatePolicyError,
    InvalidKeyError,
    InvalidValueError,
    InvariantError,
    KVOffloadError,
    MappingError,
    NotAPolicyError,
    NotPinnedError,
    PageNotReadyError,
    PolicyContractError,
    RequestFinishedError,
    TilingError,
    TraceError,
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

__version__ = "0.1.0"

__all__ = [
    "AttentionLayer",
    "BlockIDsLoadStoreSpec",
    "BlockTensor",
    "CPULoadStoreSpec",
    "CPUOffloadingManager",
    "CPUOffloadingSpec",
    "CachePolicy",
    "CachePolicyFactory",
    "CanonicalKVCacheRef",
    "CanonicalKVCacheTensor",
    "CanonicalKVCaches",
    "CanonicalPageMapping",
    "ChunkNotFoundError",
    "ChunkNotReadyError",
    "ChunkStatus",
    "CopyRun",
    "DirectRun",
    "DuplicatePolicyError",
    "Encoding",
    "GPULoadStoreSpec",
    "HeadShare",
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
    "NotAPolicyError",
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
    "OutstandingTransfer",
    "PackedLayers",
    "PageCopy",
    "PageNotReadyError",
    "PagePool",
    "PageStore",
    "PolicyContractError",
    "PrepareStoreOutput",
    "ReqContext",
    "RequestFinishedError",
    "RequestOffloadingContext",
    "Resharding",
    "ScheduleEndContext",
    "SingleLayer",
    "TierFilter",
    "TierMatcher",
    "TilingError",
    "TraceError",
    "TransferKind",
    "TransferResult",
    "UnknownPolicyError",
    "UnknownTicketError",
    "WorkerUnavailableError",
    "__version__",
    "canonical_kv_caches",
    "derive_mapping",
    "derive_mappings",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "layout_id",
    "make_offload_key",
    "normal_form",
    "order_request_keys",
    "recognise",
    "verify_tiling",
]
