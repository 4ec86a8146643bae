"""LRFU, after D. Lee et al., "LRFU: A Spectrum of Policies that Subsumes the Least Recently Used
and Least Frequently Used Policies", IEEE Transactions on Computers 50(12), 2001."""

from __future__ import annotations

from collections.abc import Iterable, Set
from math import log2

from attrs import define
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.gallery.legal_policies.victims import Victims, idle


@define
class _Scored:
    chunk: ChunkStatus
    # Combined recency and frequency at the time of the last use.
    score: float
    used: int


class LRFU(CachePolicy):
    """A use is worth 1, and half of that after 1/`decay` further uses of anything.

    `decay` must be given, in [0, 1]: 0 is LFU, 1 is LRU. Raises ValueError for another.
    """

    def __init__(self, cache_capacity: int, *, decay: float) -> None:
        super().__init__(cache_capacity)
        if not 0.0 <= decay <= 1.0:
            raise ValueError(f"decay is {decay}, expected a number in [0, 1]")
        self._decay = decay
        self._scored: dict[OffloadKey, _Scored] = {}
        self._uses = 0

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        scored = self._scored.get(key)
        return None if scored is None else scored.chunk

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._uses += 1
        self._scored[key] = _Scored(chunk, 1.0, self._uses)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._scored.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            scored = self._scored.get(key)
            if scored is not None:
                self._uses += 1
                age = self._uses - scored.used
                scored.score = 1.0 + scored.score * 2.0 ** (-self._decay * age)
                scored.used = self._uses

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        pairs = ((key, scored.chunk) for key, scored in self._scored.items())
        victims = sorted(idle(pairs, protected), key=self._rank)[:n]
        if len(victims) < n:
            return None
        return [(key, self._scored.pop(key).chunk) for key in victims]

    @override
    def clear(self) -> None:
        self._scored.clear()
        self._uses = 0

    def _rank(self, key: OffloadKey) -> tuple[float, int]:
        # The logarithm of the score, referred to one moment for all: no score is too small for it.
        scored = self._scored[key]
        return log2(scored.score) + self._decay * scored.used, scored.used
