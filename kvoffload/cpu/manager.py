"""The manager of the CPU tier.

Everything that a call may change is owned by a part with a name of its own: the slots by a
`SlotPool`, residency by a `ResidencyIndex`, what is in flight by `OpenTransfers`, what a request
has seen by its `RequestAccess`, offers counted for admission by a `ReuseTracker`, what was
announced by an `EventLog`, and the order of eviction by the policy behind its `PolicyGuard`.
This file has the calls: each checks first, asks the policy next, and changes the books last, so
that whatever is raised on the way, nothing is lost or half done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from typing_extensions import override

from kvoffload.cpu import metrics
from kvoffload.cpu.event_log import EventLog
from kvoffload.cpu.load_store import CPULoadStoreSpec
from kvoffload.cpu.open_transfers import (
    OpenTransfers,
    OutstandingTransfer,
    Transfer,
    TransferKind,
)
from kvoffload.cpu.policy_guard import PolicyGuard
from kvoffload.cpu.request_access import RequestAccess
from kvoffload.cpu.residency import ResidencyIndex
from kvoffload.cpu.reuse_tracker import ReuseTracker
from kvoffload.cpu.slot_pool import SlotPool
from kvoffload.errors import (
    ChunkNotFoundError,
    ChunkNotReadyError,
    InvariantError,
    RequestFinishedError,
)
from kvoffload.events import OffloadingEvent
from kvoffload.keys import OffloadKey, are_bytes, check_key, check_keys
from kvoffload.lookup import LookupResult
from kvoffload.manager import OffloadingManager
from kvoffload.metrics import OffloadingStats
from kvoffload.policies.base import CachePolicy, ChunkStatus
from kvoffload.policies.factory import CachePolicyFactory, check_policy_cls
from kvoffload.requests import PerRequest, ReqContext, RequestOffloadingContext
from kvoffload.tiers import Medium
from kvoffload.transfers import PrepareStoreOutput
from kvoffload.validation import require_bool, require_int

# Reading a member of an enum costs as much as the rest of a look-up.
MISS, HIT, HIT_PENDING = LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING
LOAD, STORE = TransferKind.LOAD, TransferKind.STORE
OFFLOAD_BLOCKS = RequestOffloadingContext()


class CPUOffloadingManager(OffloadingManager):
    """Keeps `num_chunks` chunks in CPU memory, in the order of a pluggable cache policy.

    `cache_policy` is a registered name ("lru", "arc"), the name of a class in the module
    `cache_policy_module_path`, or a class. A chunk is stored from its `store_threshold`-th offer
    on, offers being remembered for `max_tracker_size` keys. With `enable_events`, `take_events`
    tells what became loadable and what left.

    Raises InvalidValueError, UnknownPolicyError or NotAPolicyError for arguments that cannot be
    served. Calls raise InvalidKeyError (a ValueError) for what is no key; PolicyContractError
    when the policy breaks its contract, and from then on, until `reset_cache`, for every call
    that would need it (STORE-10).
    """

    medium: Medium = Medium.CPU
    guard_cls: type[PolicyGuard] = PolicyGuard
    """What is believed of the policy; for hosts that sign another contract with theirs."""

    def __init__(
        self,
        num_chunks: int,
        cache_policy: str | type[CachePolicy] = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
    ) -> None:
        self.num_chunks: int = require_int("num_chunks", num_chunks, 0)
        self.store_threshold: int = require_int("store_threshold", store_threshold, 0)
        self.max_tracker_size: int = require_int("max_tracker_size", max_tracker_size, 0)
        policy_cls = (
            CachePolicyFactory.get_cache_policy_cls(cache_policy, cache_policy_module_path)
            if isinstance(cache_policy, str)
            else check_policy_cls(cache_policy)
        )
        self._index = ResidencyIndex()
        self._find = self._index.get
        self._policy = self.guard_cls(policy_cls, num_chunks, self._find)
        self._pool = SlotPool(num_chunks)
        self._transfers = OpenTransfers()
        self._tracker = (
            ReuseTracker(store_threshold, max_tracker_size) if store_threshold >= 2 else None
        )
        require_bool("enable_events", enable_events)
        self._events = EventLog(self.medium, num_chunks) if enable_events else None
        self.generation: int = 0
        self.stale_completions: int = 0
        self._accesses: PerRequest[RequestAccess] = PerRequest()
        self._suffixes: set[bytes] = set()
        self._allocation_sizes: defaultdict[int, int] = defaultdict(int)
        self._stores_skipped = 0

    # Requests

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        if self._policy.closed:
            self._policy.refuse("on_new_request")
        self._access_of(req_context)
        return OFFLOAD_BLOCKS

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        """Tell the policy what the request saw, once (FIN-1). Unknown requests are ignored."""
        if self._policy.closed:
            self._policy.refuse("on_request_finished")
        access = self._accesses.get(req_context)
        if access is None or access.finished:
            return
        self._policy.observe_finish(
            access.key_groups(req_context),
            access.inserted - access.reused,
            access.reused,
            req_context,
        )
        access.finished = True

    @property
    def policy(self) -> CachePolicy:
        """The policy that orders the chunks; a new one after a reset from a broken one."""
        return self._policy.policy

    def outstanding(self, request_id: str) -> tuple[OutstandingTransfer, ...]:
        """The transfers that a request has not completed, oldest first (PIN-2).

        After an abort, completing them under their tickets releases everything.
        """
        return self._transfers.outstanding(request_id)

    # Look-up and load

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """MISS, HIT_PENDING or HIT; changes nothing (LOOK-1, LOOK-2)."""
        if type(key) is not bytes:
            check_key(key)
        # A bound method of another object is called faster by a name of its own.
        find = self._find
        chunk = find(key)
        if chunk is None:
            check_key(key)
            return MISS
        return HIT if chunk.ref_cnt >= 0 else HIT_PENDING

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        """Pin every occurrence of every key, or raise and pin nothing (LOAD-1, LOAD-2).

        `block_ids[i]` of the answer is the slot of `keys[i]`. With `record_access=False` the
        transfer is an internal one, and no access by the request (LOAD-5). Raises
        ChunkNotFoundError, ChunkNotReadyError or RequestFinishedError (FIN-2).
        """
        if self._policy.closed:
            self._policy.refuse("prepare_load")
        request_id = req_context.req_id
        listed, chunks = self._resident("prepare_load", keys)
        refs = [chunk.ref_cnt for chunk in chunks]
        if -1 in refs:
            raise ChunkNotReadyError("prepare_load", listed[refs.index(-1)])
        # An internal transfer leaves no trace on the request, which may be unknown (LOAD-5).
        access = self._access_of(req_context) if record_access else None
        if access is not None and access.finished:
            self._refuse_unseen("prepare_load", access, req_context, listed)

        self._policy.leave_idle(listed, chunks)
        self._index.pin(chunks)
        if access is not None:
            try:
                self._see(access, listed, req_context)
            except BaseException:
                self._index.unpin(listed, chunks)
                raise
            access.reuse(listed)
        ticket = self._transfers.open(LOAD, request_id, listed, chunks)
        return CPULoadStoreSpec.of_slots([chunk.chunk_id for chunk in chunks], ticket)

    @override
    def complete_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        ticket: int | None = None,
    ) -> None:
        """Release a pin for each occurrence, or raise and release none (LOAD-4).

        Under a ticket, only what that load still holds is released; anything else counts as a
        stale completion (DONE-4). Without one, the pins are those of the request's oldest load
        of just these keys, else of its oldest loads of each, else of anybody's. Raises
        ChunkNotFoundError, NotPinnedError or UnknownTicketError.
        """
        transfer, listed, chunks = self._completed("complete_load", LOAD, keys, req_context, ticket)
        became_idle = self._index.unpin(listed, chunks)
        try:
            self._policy.became_idle(became_idle)
        except BaseException:
            self._index.pin(chunks)
            raise
        self._close(transfer, LOAD, listed, req_context)

    @override
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Refresh keys in the policy's order; unknown ones are harmless (TOUCH-1)."""
        if self._policy.closed:
            self._policy.refuse("touch")
        self._policy.touch(check_keys(keys), req_context)

    # Store

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Admit, make room and reserve slots for those of an offer that are not resident.

        None when too few idle chunks are left outside the offer, or when a policy that may
        refuse does (STORE-4, STORE-6); nothing resident has then changed. Raises
        RequestFinishedError (FIN-2).
        """
        if self._policy.closed:
            self._policy.refuse("prepare_store")
        offer = check_keys(keys)
        distinct = set(offer)
        if len(distinct) < len(offer):
            offer = list(dict.fromkeys(offer))
        absent: list[OffloadKey] = offer
        ready: list[OffloadKey] = []
        idle_in_offer = 0
        if not self._index.is_disjoint(offer):
            absent = []
            for key, chunk in zip(offer, map(self._find, offer), strict=True):
                if chunk is None:
                    absent.append(key)
                elif chunk.ref_cnt >= 0:
                    ready.append(key)
                    if chunk.ref_cnt == 0:
                        idle_in_offer += 1
        access = self._access_of(req_context)
        if access.finished:
            would_admit = absent if self._tracker is None else self._tracker.would_admit(absent)
            self._refuse_unseen("prepare_store", access, req_context, ready + would_admit)

        admitted = absent
        tracker = self._tracker
        if tracker is not None:
            tracker.record(offer)
            admitted = tracker.admits(absent)
            self._stores_skipped += len(absent) - len(admitted)
        # The set of the offer serves where all of it is admitted, as it mostly is.
        missed = distinct if len(admitted) == len(offer) else set(admitted)
        self._observe_offer(offer, admitted, missed, ready, access, req_context)
        if not admitted:
            ticket = self._transfers.open(STORE, req_context.req_id, [], [])
            return PrepareStoreOutput([], CPULoadStoreSpec.of_slots([]), [], ticket)

        self._allocation_sizes[len(admitted)] += 1
        evicted: list[OffloadKey] = []
        freed: list[int] = []
        needed = len(admitted) - self._pool.num_free
        if needed > 0:
            if needed > self._index.num_idle - idle_in_offer:
                return None
            victims = self._policy.evict(needed, distinct)
            if victims is None:
                return None
            evicted, chunks = victims
            freed = [chunk.chunk_id for chunk in chunks]
        output = self._insert(admitted, evicted, freed, req_context)
        access.inserted |= missed
        return output

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        """Keys that are pending become ready, or leave; others are ignored (DONE-1 to DONE-3).

        Under a ticket, only what that store still holds is completed; anything else counts as
        a stale completion (DONE-4). Raises UnknownTicketError.
        """
        require_bool("success", success)
        transfer, pending, chunks = self._completed(
            "complete_store", STORE, keys, req_context, ticket
        )
        if success:
            self._index.make_ready(chunks)
            try:
                self._policy.became_idle(pending)
            except BaseException:
                self._index.make_pending(chunks)
                raise
            if self._events is not None:
                self._events.stored(pending)
        else:
            self._policy.removed(pending)
            self._index.remove_pending(pending)
            self._pool.free([chunk.chunk_id for chunk in chunks])
        self._close(transfer, STORE, pending, req_context)

    # Everything else

    @override
    def take_events(self) -> list[OffloadingEvent]:
        """What became ready and what left since the last call, in order (EVT-1 to EVT-5)."""
        return [] if self._events is None else self._events.take()

    @override
    def reset_cache(self) -> None:
        """Forget every chunk whatever its pins, and begin a generation (GEN-1, GEN-2)."""
        if self._policy.running is not None:
            self._policy.refuse("reset_cache")
        self._policy.reset()
        self._index.clear()
        self._pool.clear()
        self._transfers.clear()
        if self._tracker is not None:
            self._tracker.clear()
        if self._events is not None:
            self._events.reset()
        self._accesses.clear()
        self._suffixes = set()
        self.generation += 1

    @override
    def get_stats(self) -> OffloadingStats:
        """Gauges of the moment, and what was observed since the last call (MET-1, MET-2)."""
        index = self._index
        stats = OffloadingStats()
        slots = self.num_chunks or 1
        stats.set_gauge(metrics.USAGE, (index.num_pinned + index.num_pending) / slots)
        stats.set_gauge(metrics.WRITE_USAGE, index.num_pending / slots)
        stats.set_gauge(metrics.READ_USAGE, index.num_pinned / slots)
        for size, times in self._allocation_sizes.items():
            stats.observe_histogram(metrics.ALLOCATION_SIZE, size, times=times)
        self._allocation_sizes.clear()
        if self._tracker is not None:
            stats.increase_counter(metrics.STORES_SKIPPED, self._stores_skipped)
            self._stores_skipped = 0
        return stats

    def check(self) -> None:
        """Raise InvariantError if any of the books contradicts itself or another (SLOT-1)."""
        index = self._index
        chunks = dict(index.items())
        index.check()
        self._transfers.check()
        self._pool.check({chunk.chunk_id for chunk in chunks.values()}, len(chunks))
        pins = {key: chunk.ref_cnt for key, chunk in chunks.items() if chunk.ref_cnt > 0}
        if pins != self._transfers.held_counts(LOAD):
            raise InvariantError(
                f"manager: pins {pins}, loads hold {self._transfers.held_counts(LOAD)}"
            )
        pending = {key: 1 for key, chunk in chunks.items() if chunk.ref_cnt < 0}
        if pending != self._transfers.held_counts(STORE):
            raise InvariantError(
                f"manager: pending {pending}, stores hold {self._transfers.held_counts(STORE)}"
            )
        if self._tracker is not None:
            self._tracker.check()
        if self._events is not None:
            self._events.check()
        self._policy.check()

    # Parts of the calls above

    def _access_of(self, req_context: ReqContext) -> RequestAccess:
        access = self._accesses.get(req_context)
        if access is None:
            access = RequestAccess(self._suffixes)
            self._accesses.set(req_context, access)
        return access

    def _resident(
        self, call: str, keys: Collection[OffloadKey]
    ) -> tuple[list[OffloadKey], list[ChunkStatus]]:
        """The keys as a list of our own, and their chunks. Raises ChunkNotFoundError."""
        listed = list(keys)
        if not are_bytes(listed):
            check_keys(listed)
        # Bytes that are resident are a valid key, which saves checking more.
        chunks = self._index.chunks_of(listed)
        if chunks is None:
            check_keys(listed)
            raise ChunkNotFoundError(call, next(key for key in listed if self._find(key) is None))
        return listed, chunks

    def _refuse_unseen(
        self, call: str, access: RequestAccess, req_context: ReqContext, keys: list[OffloadKey]
    ) -> None:
        """Raise if a finished request would see one of the keys for the first time (FIN-2)."""
        first_seen = access.unseen(keys)
        if first_seen:
            raise RequestFinishedError(call, req_context.req_id, next(iter(first_seen)))

    def _see(self, access: RequestAccess, keys: list[OffloadKey], req_context: ReqContext) -> None:
        """The request sees the keys; the policy is told which of them for the first time."""
        if self._policy.observes_access:
            first_seen = access.unseen(keys)
            if first_seen:
                self._policy.observe_access(first_seen, req_context)
                access.see(first_seen)
        else:
            access.see(dict.fromkeys(keys))

    def _observe_offer(
        self,
        offer: list[OffloadKey],
        admitted: list[OffloadKey],
        missed: set[OffloadKey],
        ready: list[OffloadKey],
        access: RequestAccess,
        req_context: ReqContext,
    ) -> None:
        """Tell the policy of misses and first accesses, whatever comes of the offer (STORE-8)."""
        if len(admitted) == len(offer):
            seen = admitted
        elif len(ready) == len(offer):
            seen = ready
        else:
            either = missed.union(ready)
            seen = [key for key in offer if key in either]
        told = access.missed
        first_missed = [key for key in admitted if key not in told] if told else admitted
        if first_missed:
            self._policy.observe_misses(first_missed, req_context)
        self._see(access, seen, req_context)
        if missed:
            access.miss(missed)
        if ready:
            access.reuse(ready)

    def _insert(
        self,
        admitted: list[OffloadKey],
        evicted: list[OffloadKey],
        freed: list[int],
        req_context: ReqContext,
    ) -> PrepareStoreOutput:
        """Put the admitted keys into free slots and those of the victims, pending."""
        slots = self._pool.preview(len(admitted), freed)
        chunks = list(map(ChunkStatus, slots))
        self._policy.insert(admitted, chunks, req_context)
        if evicted:
            self._index.remove_idle(evicted)
            if self._events is not None:
                self._events.removed(evicted)
        self._pool.take(len(admitted), freed)
        self._index.add_pending(admitted, chunks)
        # The caller gets lists of its own: it may do with them what it likes.
        ticket = self._transfers.open(STORE, req_context.req_id, admitted, chunks)
        return PrepareStoreOutput(list(admitted), CPULoadStoreSpec.of_slots(slots), evicted, ticket)

    def _completed(
        self,
        call: str,
        kind: TransferKind,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        ticket: int | None,
    ) -> tuple[Transfer | None, list[OffloadKey], list[ChunkStatus]]:
        """What a completion is about: its transfer where one is known, the keys, their chunks.

        Under a ticket these are the keys that its transfer still holds; a completion of any
        others counts as stale (DONE-4). Without one, all keys of a load, and those of a store
        that are pending.
        """
        if self._policy.running is not None:
            self._policy.refuse(call)
        listed = list(keys)
        transfers = self._transfers
        if ticket is None:
            transfer = transfers.find_whole(kind, req_context.req_id, listed)
            whole = transfer
        else:
            transfer = transfers.find_ticket(call, ticket, kind)
            whole = transfer if transfer is not None and transfer.is_whole(listed) else None
        if whole is not None:
            return whole, whole.keys, whole.chunks

        check_keys(listed)
        if ticket is not None:
            held = [] if transfer is None else transfer.held_of(listed)
            if len(held) < len(listed):
                self.stale_completions += 1
            listed = held
        if kind is LOAD:
            return (transfer, *self._resident(call, listed))
        pending = {
            key: chunk
            for key, chunk in zip(listed, map(self._find, listed), strict=True)
            if chunk is not None and chunk.ref_cnt < 0
        }
        return transfer, list(pending), list(pending.values())

    def _close(
        self,
        transfer: Transfer | None,
        kind: TransferKind,
        keys: list[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        """The transfer lets go of `keys`; where none is known, whoever holds them does."""
        if transfer is None:
            self._transfers.close(kind, req_context.req_id, keys)
        elif transfer.keys is keys:
            self._transfers.close_whole(transfer)
        else:
            self._transfers.close_part(transfer, keys)
