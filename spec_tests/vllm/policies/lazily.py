"""Policies that ask for more of vLLM when they are called."""

from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy


class Lazily(LRUCachePolicy):
    """Needs the scheduler to evict."""

    def evict(self, n, protected):
        from vllm.v1.core.sched import scheduler

        return super().evict(n, protected) if scheduler else None


class LazilyIfThere(LRUCachePolicy):
    """Would rather have the scheduler to evict."""

    def evict(self, n, protected):
        try:
            from vllm.v1.core.sched import scheduler
        except ImportError:
            scheduler = None
        return super().evict(n, protected) if scheduler is None else None
