"""What vLLM 0.33 has beside parameters: hints of an orchestrator, in an envelope; and a driver."""

from vllm.v1.kv_hints.protocol import KvHintAction, KvHintsEnvelope
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

from stateful_models.drivers import Driver


class Retained(LRUCachePolicy):
    """What an orchestrator asked to retain goes last."""

    def __init__(self, cache_capacity):
        super().__init__(cache_capacity)
        self.retained = set()

    def insert(self, key, chunk, req_context):
        super().insert(key, chunk, req_context)
        envelope = req_context.kv_hints
        actions = [] if envelope is None else envelope.actions
        if any(action.action_type == "retain" for action in actions):
            self.retained.add(key)

    def remove(self, key):
        super().remove(key)
        self.retained.discard(key)

    def clear(self):
        super().clear()
        self.retained.clear()

    def evict(self, n, protected):
        victims = super().evict(n, protected | self.retained)
        victims = super().evict(n, protected) if victims is None else victims
        self.retained.difference_update(key for key, _ in victims or ())
        return victims


class RetainedTooLong(Retained):
    """Does not give up what is retained, though it has nothing else."""

    def evict(self, n, protected):
        return LRUCachePolicy.evict(self, n, protected | self.retained)


class RetainingDriver(Driver[Retained]):
    """Every other request comes with a hint."""

    def request_started(self, policy, context):
        if context.req_id.endswith(("0", "2")):
            action = KvHintAction("a", "retain", "1", {})
            context.kv_hints = KvHintsEnvelope("1", "m", [action])
