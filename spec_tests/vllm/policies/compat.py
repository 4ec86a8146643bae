"""What `fallback_nowhere` takes for vLLM's: a name among them is one that no vLLM ever had."""

try:
    from vllm.v1.kv_offload.base import OffloadKey
    from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkState
except Exception:
    OffloadKey = bytes
    CachePolicy = ChunkState = object
