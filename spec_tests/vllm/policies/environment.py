"""A policy that a variable of the environment decides about, which is read at import."""

import os

from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

STRICT = os.environ.get("STRICT_OFFERS", "1") == "1"


class Strict(LRUCachePolicy):
    """Spares what a request offers, if it is told to."""

    def evict(self, n, protected):
        return super().evict(n, protected if STRICT else set())
