"""A policy under load: the calls that a manager makes to it, and nothing else of a manager.

What is measured is thus the policy's alone. The calls, their order and their arguments are those of
`CPUOffloadingManager` for requests that come one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from time import perf_counter_ns
from typing import ParamSpec, TypeVar

from kvoffload.errors import PolicyContractError
from kvoffload.judge.front import Front
from kvoffload.judge.visits import VisitMeter
from kvoffload.keys import OffloadKey, make_offload_key
from kvoffload.policies.base import CachePolicy, ChunkStatus
from kvoffload.policies.hooks import PolicyHooks
from kvoffload.requests import ReqContext

Q = ParamSpec("Q")
R = TypeVar("R")

HASH_BYTES = 16
BLOCK_TOKENS = 16


class Gauge:
    """What calls to a policy cost while it is `on`: their time, or their visits where `counts`.

    `running`: a call is being timed.
    """

    def __init__(self, meter: VisitMeter | None = None) -> None:
        self.on: bool = False
        self.counts: bool = False
        self.running: bool = False
        self.total: int = 0
        self._meter = meter or VisitMeter()

    def call(self, hook: Callable[Q, R], *args: Q.args, **kwargs: Q.kwargs) -> R:
        """Call, and add what it cost: nanoseconds, or visits."""
        if not self.on:
            return hook(*args, **kwargs)
        meter = self._meter
        if self.counts:
            before = meter.visits
            meter.counting = True
            try:
                return hook(*args, **kwargs)
            finally:
                meter.counting = False
                self.total += meter.visits - before
        self.running = True
        start = perf_counter_ns()
        try:
            return hook(*args, **kwargs)
        finally:
            self.total += perf_counter_ns() - start
            self.running = False

    def take(self) -> int:
        """What was added since the last time."""
        total, self.total = self.total, 0
        return total


class UnderLoad:
    """A policy with the chunks that are resident, at most `capacity`.

    A `Front` is told what such are told, and what it does is the policy's. What the policy raises
    passes through; PolicyContractError where it answers what it must not.
    """

    def __init__(
        self,
        policy: CachePolicy,
        capacity: int,
        *,
        make_key: Callable[[OffloadKey], OffloadKey] = lambda key: key,
        make_chunk: Callable[[int], ChunkStatus] = ChunkStatus,
        gauge: Gauge | None = None,
    ) -> None:
        self.capacity = capacity
        self.chunks: dict[OffloadKey, ChunkStatus] = {}
        self.refused: int = 0
        self.requests: int = 0
        self.gauge: Gauge = gauge or Gauge()
        self.policy = policy
        self.front: Front | None = policy if isinstance(policy, Front) else None
        self._hooks = PolicyHooks(policy)
        self._make_key = make_key
        self._make_chunk = make_chunk
        self._keys = 0
        # What is, or was last, in each slot; what is resident is found there without a search.
        self._by_slot: list[OffloadKey] = []
        self._free: list[int] = []
        self._random = Random(0)

    def new_keys(self, number: int) -> list[OffloadKey]:
        """Keys that were never seen. They look like hashes, and are the same in every run."""
        first = self._keys
        self._keys += number
        make = self._make_key
        # An odd factor makes each number another one in as many bits.
        factor, mask = 0x9E3779B97F4A7C15F39CC0605CEDC835, (1 << 8 * HASH_BYTES) - 1
        return [
            make(make_offload_key(((n + 1) * factor & mask).to_bytes(HASH_BYTES, "big"), 0))
            for n in range(first, self._keys)
        ]

    def begin(
        self, keys: Sequence[OffloadKey] = (), hints: Mapping[str, object] | None = None
    ) -> ReqContext:
        """A request with a prompt of these keys, that was sent with hints."""
        context = ReqContext(f"request-{self.requests}", None if hints is None else dict(hints))
        self.requests += 1
        if self.front is not None:
            self.gauge.call(self.front.request_started, context)
        for number, key in enumerate(keys, 1):
            context.set_offload_key_position(key, number * BLOCK_TOKENS)
        return context

    def look_up(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """A request looks for its keys, up to the first that is not resident."""
        front = self.front
        if front is None or not front.tells_lookups:
            return
        for key in keys:
            self.gauge.call(front.looked_up, key, key in self.chunks, context)
            if key not in self.chunks:
                return

    def being_read(self) -> list[OffloadKey]:
        """All that is pinned."""
        return [key for key, chunk in self.chunks.items() if chunk.ref_cnt > 0]

    def idle(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Those of the keys that are resident and being read by nobody."""
        chunks = self.chunks
        return [key for key in keys if key in chunks and chunks[key].ref_cnt == 0]

    def some(self, number: int) -> list[OffloadKey]:
        """Resident keys, up to so many, others each time; all of a full cache if as many."""
        slots = self._by_slot
        if not slots:
            return []
        start = self._random.randrange(len(slots))
        around = min(start, max(0, start + number - len(slots)))
        drawn = [*slots[start : start + number], *slots[:around]]
        return [key for key in drawn if key in self.chunks]

    def some_idle(self, number: int) -> list[OffloadKey]:
        """Those of `some` that are being read by nobody."""
        return self.idle(self.some(number))

    def pin(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """A load of resident, idle chunks begins."""
        hooks, chunks, call = self._hooks, self.chunks, self.gauge.call
        if self.front is not None:
            call(self.front.scheduled, list(keys), context)
        if hooks.mark_all_non_evictable is not None:
            call(hooks.mark_all_non_evictable, list(keys))
        for key in keys:
            chunks[key].ref_cnt += 1
        if hooks.on_request_access is not None:
            call(hooks.on_request_access, list(keys), context)

    def unpin(self, keys: Sequence[OffloadKey]) -> None:
        """A load ends; the chunks are idle again."""
        chunks = self.chunks
        for key in keys:
            chunks[key].ref_cnt -= 1
        if self._hooks.mark_all_evictable is not None:
            self.gauge.call(self._hooks.mark_all_evictable, list(keys))

    def announce(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """An offer of keys that are not resident: what a policy is told before room is made."""
        if self.front is not None:
            self.gauge.call(self.front.offered, list(keys), context)
        self.gauge.call(self._hooks.on_store_miss, list(keys), context)
        if self._hooks.on_request_access is not None:
            self.gauge.call(self._hooks.on_request_access, list(keys), context)

    def evict(self, number: int, offer: Sequence[OffloadKey]) -> list[OffloadKey] | None:
        """Have room made for an offer; None if the policy refuses."""
        answer = self.gauge.call(_evicted, self._hooks, number, set(offer))
        if answer is None:
            self.refused += 1
            return None
        victims = [key for key, _ in answer]
        chunks = [self.chunks.get(key) for key in victims]
        gone = [chunk for chunk in chunks if chunk is not None and chunk.ref_cnt == 0]
        more = self.front is not None and self.front.evicts_more and len(gone) > number
        if not (len(gone) == number or more) or len(set(victims)) != len(gone):
            what = f"{len(gone)} idle chunks among {len(victims)} victims, {number} were to go"
            raise PolicyContractError(self._hooks.name, "evict", "POL-2", what)
        for key in victims:
            del self.chunks[key]
        self._free += [chunk.chunk_id for chunk in gone]
        return victims

    def insert(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """The keys become resident, and their stores complete."""
        slots = self._free[: len(keys)]
        del self._free[: len(keys)]
        used = len(self._by_slot)
        slots += range(used, used + len(keys) - len(slots))
        for slot, key in zip(slots, keys, strict=True):
            if slot < used:
                self._by_slot[slot] = key
            else:
                self._by_slot.append(key)
        chunks = list(map(self._make_chunk, slots))
        self.gauge.call(self._hooks.insert_all, list(keys), list(chunks), context)
        self.chunks.update(zip(keys, chunks, strict=True))
        for chunk in chunks:
            chunk.ref_cnt = 0
        if self._hooks.mark_all_evictable is not None:
            self.gauge.call(self._hooks.mark_all_evictable, list(keys))

    def store(self, keys: Sequence[OffloadKey], context: ReqContext) -> bool:
        """Offer keys that are not resident; whether they were stored."""
        self.announce(keys, context)
        needed = len(self.chunks) + len(keys) - self.capacity
        if needed > 0 and self.evict(needed, keys) is None:
            return False
        self.insert(keys, context)
        return True

    def finish(
        self,
        context: ReqContext,
        inserted: Sequence[OffloadKey] = (),
        reused: Sequence[OffloadKey] = (),
    ) -> None:
        """The request ends. What it reused stands before what it inserted."""
        groups = ((*reused, *inserted),) if inserted or reused else ()
        self.gauge.call(
            self._hooks.on_request_finished, groups, set(inserted), set(reused), context
        )
        if self.front is not None:
            self.gauge.call(self.front.request_over, context)

    def serve(
        self,
        new: int,
        reused: Sequence[OffloadKey] = (),
        *,
        offered: Sequence[OffloadKey] = (),
        hints: Mapping[str, object] | None = None,
    ) -> bool:
        """A request from its beginning to its end: it loads what is resident and stores the rest.

        That is new keys, and others that are `offered` and not resident. Whether it could store.
        """
        prefix, fresh = self.idle(reused), [*offered, *self.new_keys(new)]
        context = self.begin([*prefix, *fresh], hints)
        stored = self.run(prefix, fresh, context)
        # A store that was refused was an access all the same, and no insertion.
        self.finish(context, fresh if stored else (), prefix)
        return stored

    def run(
        self, prefix: Sequence[OffloadKey], fresh: Sequence[OffloadKey], context: ReqContext
    ) -> bool:
        """What a request does but for its end: loads idle chunks and stores what is not resident.

        Whether it could store.
        """
        self.look_up([*prefix, *fresh], context)
        if prefix:
            self.pin(prefix, context)
            self.unpin(prefix)
        return not fresh or self.store(fresh, context)


def _evicted(
    hooks: PolicyHooks, number: int, protected: set[OffloadKey]
) -> list[tuple[OffloadKey, ChunkStatus]] | None:
    answer = hooks.evict(number, protected)
    # An answer may do its work only when it is read.
    return None if answer is None else list(answer)
