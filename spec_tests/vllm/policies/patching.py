"""A module that puts its policy into vLLM's table when it is imported: there is no other way."""

from vllm.v1.kv_offload.cpu import manager
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy


class PatchedIn(LRUCachePolicy):
    """As vLLM's, under a name of its own."""


manager._CACHE_POLICIES["patched_in"] = PatchedIn
