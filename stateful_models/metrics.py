"""The names under which a CPU manager reports (MET-1)."""

from __future__ import annotations

from typing import Final

USAGE: Final = "vllm:kv_offload_cpu_cache_usage_perc"
WRITE_USAGE: Final = "vllm:kv_offload_cpu_cache_write_usage_perc"
READ_USAGE: Final = "vllm:kv_offload_cpu_cache_read_usage_perc"
ALLOCATIONS: Final = "vllm:kv_offload_cpu_allocation_size_count"
ALLOCATED: Final = "vllm:kv_offload_cpu_allocation_size_sum"
SKIPPED: Final = "vllm:kv_offload_stores_skipped"
