"""Derived from the LRU of vLLM 0.24 to 0.29, with whose blocks it deals itself."""

from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy


class NewestStays(LRUCachePolicy):
    """The block that was used last stays as long as there is another."""

    def evict(self, n, protected):
        spared = set(list(self.blocks)[-1:])
        victims = super().evict(n, protected | spared)
        return super().evict(n, protected) if victims is None else victims


class IdleIsEnough(LRUCachePolicy):
    """Takes what is idle, whoever asked for it."""

    def evict(self, n, protected):
        idle = list(self.evictable_blocks)[:n]
        if len(idle) < n:
            return None
        victims = [(key, self.get(key)) for key in idle]
        for key in idle:
            self.remove(key)
        return victims
