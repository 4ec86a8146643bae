"""The figures of the CPU tier (MET-1)."""

from __future__ import annotations

from typing import Final

from kvoffload.metrics import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)

USAGE: Final = "vllm:kv_offload_cpu_cache_usage_perc"
WRITE_USAGE: Final = "vllm:kv_offload_cpu_cache_write_usage_perc"
READ_USAGE: Final = "vllm:kv_offload_cpu_cache_read_usage_perc"
ALLOCATION_SIZE: Final = "vllm:kv_offload_cpu_allocation_size"
STORES_SKIPPED: Final = "vllm:kv_offload_stores_skipped"

ALLOCATION_BUCKETS: Final = tuple(float(4**i) for i in range(10))


def cpu_metric_definitions(store_threshold: int) -> dict[str, OffloadingMetricMetadata]:
    """Metrics of a manager with this threshold, by name."""
    definitions: dict[str, OffloadingMetricMetadata] = {
        USAGE: OffloadingGaugeMetadata(
            "Share of CPU chunks held by transfers in flight, 0 to 1. When it stays high, stores "
            "are refused for want of chunks that may be evicted."
        ),
        WRITE_USAGE: OffloadingGaugeMetadata(
            "Share of CPU chunks being written by stores that have not completed, 0 to 1."
        ),
        READ_USAGE: OffloadingGaugeMetadata(
            "Share of CPU chunks being read by loads that have not completed, 0 to 1."
        ),
        ALLOCATION_SIZE: OffloadingHistogramMetadata(
            "Chunks that an offer asked for, refused offers included.", buckets=ALLOCATION_BUCKETS
        ),
    }
    if store_threshold >= 2:
        definitions[STORES_SKIPPED] = OffloadingCounterMetadata(
            "Chunks not stored because they had not been offered often enough."
        )
    return definitions
