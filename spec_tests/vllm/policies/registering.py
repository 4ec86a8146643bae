"""A module that registers its policy when it is imported, and a registry of its own."""

from collections.abc import Callable

from shelf import Shelf
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy
from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory

SCORERS: dict[str, Callable[[int], int]] = {}
SHARED: list[int] = []


def scorer(function: Callable[[int], int]) -> Callable[[int], int]:
    """Keep a function under its name."""
    SCORERS[function.__name__] = function
    return function


@scorer
def oldest(age: int) -> int:
    return age


class Scored(CachePolicy):
    """By what a function of the registry says of the age."""

    def __init__(self, cache_capacity: int, by: str = "oldest") -> None:
        super().__init__(cache_capacity)
        self.shelf = Shelf()
        self.score = SCORERS[by]

    def get(self, key):
        return self.shelf.held.get(key)

    def insert(self, key, chunk, req_context):
        self.shelf.held[key] = chunk

    def remove(self, key):
        del self.shelf.held[key]

    def touch(self, keys, req_context):
        self.shelf.renew(keys)

    def evict(self, n, protected):
        idle = self.shelf.idle(protected)
        if len(idle) < n:
            return None
        ages = {key: age for age, key in enumerate(idle)}
        idle.sort(key=lambda key: self.score(ages[key]))
        return self.shelf.take(idle[:n])

    def clear(self):
        self.shelf.held.clear()


class ScoredByAll(Scored):
    """All policies of the process share what they have seen."""

    def evict(self, n, protected):
        SHARED.append(n)
        idle = self.shelf.idle(protected)
        if len(idle) < n:
            return None
        return self.shelf.take(idle[-n:] if len(SHARED) % 2 else idle[:n])


CachePolicyFactory.register_cache_policy("scored", __name__, "Scored")
