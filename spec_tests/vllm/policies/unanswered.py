"""A policy that needs a part of vLLM which has nothing to do with offloading."""

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy


class OfScheduler(LRUCachePolicy):
    """As vLLM's."""

    scheduler = Scheduler
