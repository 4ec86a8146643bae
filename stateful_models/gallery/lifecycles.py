"""Managers that lose track of requests, transfers or what their policy has done."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from typing_extensions import override

from kvoffload import (
    CPULoadStoreSpec,
    CPUOffloadingManager,
    LookupResult,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)
from kvoffload.cpu.open_transfers import OutstandingTransfer, TransferKind
from kvoffload.cpu.request_access import RequestAccess
from kvoffload.policies.lru import LRUCachePolicy
from kvoffload.requests import PerRequest


class Req3NeedsAnnouncement(CPUOffloadingManager):
    """Loads fail for requests that nobody announced."""

    _announced: frozenset[str] = frozenset()

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self._announced |= {req_context.req_id}
        return super().on_new_request(req_context)

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        if req_context.req_id not in self._announced:
            raise KeyError(req_context.req_id)
        return super().prepare_load(keys, req_context, record_access=record_access)


class Req3StumblesOverStrangers(CPUOffloadingManager):
    """The end of a request that did nothing here is an error."""

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        if self._accesses.get(req_context) is None:
            raise KeyError(req_context.req_id)
        super().on_request_finished(req_context)


class Tier3MindsTheFilter(CPUOffloadingManager):
    """A request that wants nothing of secondary tiers finds nothing in this one either."""

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        answer = super().lookup(key, req_context)
        allowed = req_context.load_tier_filter.allows(self.medium, None)
        return answer if allowed else LookupResult.MISS


class Pin2ListsLoadsOnly(CPUOffloadingManager):
    """Whoever cleans up after an abort is not told of the stores under way."""

    @override
    def outstanding(self, request_id: str) -> tuple[OutstandingTransfer, ...]:
        transfers = super().outstanding(request_id)
        return tuple(transfer for transfer in transfers if transfer.kind is TransferKind.LOAD)


class Gen2ListsOldTransfers(CPUOffloadingManager):
    """Transfers that a reset has ended stay with their requests, which wait for them for ever."""

    _requests: frozenset[str] = frozenset()
    _old: tuple[tuple[str, OutstandingTransfer], ...] = ()

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        self._requests |= {req_context.req_id}
        return super().prepare_store(keys, req_context)

    @override
    def outstanding(self, request_id: str) -> tuple[OutstandingTransfer, ...]:
        old = (transfer for owner, transfer in self._old if owner == request_id)
        return (*old, *super().outstanding(request_id))

    @override
    def reset_cache(self) -> None:
        self._old = tuple(
            (request_id, transfer)
            for request_id in self._requests
            for transfer in super(Gen2ListsOldTransfers, self).outstanding(request_id)
        )
        super().reset_cache()


class Gen2RequestsGoOn(CPUOffloadingManager):
    """What requests saw before a reset is still theirs after it."""

    @override
    def reset_cache(self) -> None:
        seen = self._accesses
        self._accesses = PerRequest[RequestAccess]()
        super().reset_cache()
        self._accesses = seen


class Done2PublishesThenDeletes(CPUOffloadingManager):
    """Cleaning up after a failed store makes it readable first, and says so to everybody."""

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        pending = [key for key in dict.fromkeys(keys) if not self._is_ready(key)]
        super().complete_store(keys, req_context, True, ticket=ticket)
        failed = [] if success else [key for key in pending if self._is_ready(key)]
        if failed:
            slots = [chunk.chunk_id for chunk in map(self._find, failed) if chunk is not None]
            self._policy.removed(failed)
            self._index.remove_idle(failed)
            self._pool.free(slots)
            if self._events is not None:
                self._events.removed(failed)

    def _is_ready(self, key: OffloadKey) -> bool:
        chunk = self._find(key)
        return chunk is not None and chunk.is_ready


class Done3SecondNoticePins(CPUOffloadingManager):
    """A second notice that a store is done starts a transfer that nobody will complete."""

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        done = [key for key in keys if self.lookup(key, req_context) is LookupResult.HIT]
        super().complete_store(keys, req_context, success, ticket=ticket)
        if success and done:
            super().prepare_load(done, req_context, record_access=False)


class Store10DiesWithItsPolicy(CPUOffloadingManager):
    """Once the policy has failed, not even a look-up works."""

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if self._policy.closed:
            self._policy.refuse("lookup")
        return super().lookup(key, req_context)


class FailsNowAndThen(LRUCachePolicy):
    """A policy that raises at the end of every tenth request."""

    _ends = 0

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        self._ends += 1
        if self._ends % 10 == 0:
            raise RuntimeError("out of luck")
        super().on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)
