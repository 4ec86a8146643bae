"""Least recently used, by request rather than by transfer (LRU-1, LRU-2).

What a request uses it uses as a whole: its keys leave tail first, because a prefix without its
head is worth nothing. While a request runs, what it sees stands at the moment of its first
access; when it has finished, at the moment of its end. When its transfers complete plays no
part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from typing_extensions import override

from kvoffload.errors import InvalidValueError, InvariantError
from kvoffload.keys import OffloadKey, values_at
from kvoffload.policies.base import CachePolicy, ChunkStatus, order_request_keys
from kvoffload.policies.parking import Node
from kvoffload.policies.recency import RecencyList, Run
from kvoffload.requests import PerRequest, ReqContext


def _ascending_ends(keys: Sequence[OffloadKey], req_context: ReqContext) -> list[int] | None:
    """The end of every key, if all are known and each is larger than the one before."""
    ends = req_context.get_offload_key_positions(keys)
    if ends is None or len(set(ends)) < len(ends) or ends != sorted(ends):
        return None
    return ends


class LRUCachePolicy(CachePolicy):
    """Victims go by (number of the last use, -end), lowest first, ties by key bytes (LRU-1).

    The list is that order: a use moves keys to its newest end, a running request's stand in its
    run. Every operation costs a constant for each key (POL-8), and pins never matter (POL-9).
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._nodes: dict[OffloadKey, Node] = {}
        self._order = RecencyList()
        self._runs: PerRequest[Run] = PerRequest()

    @override
    def clear(self) -> None:
        self._nodes.clear()
        self._order.clear()
        self._runs.clear()

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        node = self._nodes.get(key)
        return None if node is None else node.chunk

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        nodes = self._nodes
        if key in nodes:
            raise InvalidValueError("key", key, "a key that is not resident")
        end = req_context.get_offload_key_position(key)
        if end is None:
            nodes[key] = node = Node(key, chunk)
            self._order.append(node)
        else:
            nodes[key] = node = Node(key, chunk, end)
            self._order.insert_into_run(self._run_of(req_context), node)

    @override
    def insert_all(
        self,
        keys: Sequence[OffloadKey],
        chunks: Sequence[ChunkStatus],
        req_context: ReqContext,
    ) -> None:
        ends = _ascending_ends(keys, req_context)
        if ends is None or not self._nodes.keys().isdisjoint(keys):
            super().insert_all(keys, chunks, req_context)
            return
        nodes = self._order.extend_run(self._run_of(req_context), keys, chunks, ends)
        self._nodes.update(zip(keys, nodes, strict=True))

    @override
    def remove(self, key: OffloadKey) -> None:
        node = self._nodes.pop(key, None)
        if node is not None:
            self._order.detach(node)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        nodes = self._resident(keys)
        nodes.reverse()
        self._order.renew(nodes)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        # A key that is not resident has no place in the order.
        return None

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        keys = list(keys)
        run = self._run_of(req_context)
        number = run.number
        if self._nodes.keys().isdisjoint(keys):
            # An offer of new keys, mostly.
            return
        nodes = self._mostly_resident(keys)
        if self._order.is_newest(run) and len(nodes) == len(keys):
            ends = _ascending_ends(keys, req_context)
            if ends is not None:
                for node, end in zip(nodes, ends, strict=True):
                    node.end = end
                nodes.reverse()
                self._order.join_run(run, nodes)
                return
        get_end = req_context.get_offload_key_position
        joining: list[tuple[int, OffloadKey, Node]] = []
        for node in nodes:
            position = get_end(node.key)
            if position is None or node.number > number:
                continue
            if node.number < number or position < node.end:
                node.end = position
                joining.append((-position, node.key, node))
        if joining:
            joining.sort()
            self._order.join_run(run, [node for _, _, node in joining])

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        nodes = self._mostly_resident(order_request_keys(key_groups, req_context))
        nodes.reverse()
        self._order.renew(nodes)

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        taken = self._order.sweep(n, protected)
        if len(taken) < n:
            self._order.restore(taken)
            return None
        nodes = self._nodes
        victims = [(node.key, node.chunk) for node in taken]
        for key, _ in victims:
            del nodes[key]
        self._order.let_go(taken)
        return victims

    @override
    def mark_all_evictable(self, keys: Sequence[OffloadKey]) -> None:
        if self._order.parking:
            self._order.parking.release_all(self._resident(keys))

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        if self._order.parking:
            node = self._nodes.get(key)
            if node is not None:
                self._order.parking.release(node)

    def check(self) -> None:
        """Raise InvariantError unless every resident key is in the order exactly once."""
        if any(key != node.key for key, node in self._nodes.items()):
            raise InvariantError(f"LRU: a node under another key in {self._nodes}")
        self._order.check(set(self._nodes.values()))

    def _resident(self, keys: Iterable[OffloadKey]) -> list[Node]:
        """The nodes of those of `keys` that are resident, in order."""
        return list(filter(None, map(self._nodes.get, keys)))

    def _mostly_resident(self, keys: Sequence[OffloadKey]) -> list[Node]:
        """The same, in one call for all where every key is resident."""
        try:
            return values_at(self._nodes, keys)
        except KeyError:
            return self._resident(keys)

    def _run_of(self, req_context: ReqContext) -> Run:
        """The request's run; it takes a number when it first accesses anything."""
        run = self._runs.get(req_context)
        if run is None:
            run = self._order.begin_run()
            self._runs.set(req_context, run)
        return run
