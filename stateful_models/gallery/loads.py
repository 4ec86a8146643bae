"""Managers that are wrong about look-ups and loads."""

from __future__ import annotations

from collections.abc import Collection

from typing_extensions import override

from kvoffload import (
    ChunkNotFoundError,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    LookupResult,
    NotPinnedError,
    OffloadKey,
    ReqContext,
)


class Load1LeavesPins(CPUOffloadingManager):
    """A load that raises keeps the pins that it had taken before it found out."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        try:
            return super().prepare_load(keys, req_context, record_access=record_access)
        except ChunkNotFoundError:
            ready = [k for k in keys if self.lookup(k, req_context) is LookupResult.HIT]
            super().prepare_load(ready, req_context, record_access=False)
            raise


class Load2SwapsSlots(CPUOffloadingManager):
    """A load of several chunks names their slots in another order."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        spec = super().prepare_load(keys, req_context, record_access=record_access)
        return CPULoadStoreSpec(sorted(spec.block_ids.tolist()), spec.ticket)


class Load3ReleasesAtSubmit(CPUOffloadingManager):
    """Pins are released when the load is submitted, not when it is done."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        spec = super().prepare_load(keys, req_context, record_access=record_access)
        super().complete_load(keys, req_context, ticket=spec.ticket)
        return spec

    @override
    def complete_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        ticket: int | None = None,
    ) -> None:
        return None


class Load4ForgivesReleases(CPUOffloadingManager):
    """Releasing what is not held is taken for released."""

    @override
    def complete_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        ticket: int | None = None,
    ) -> None:
        try:
            super().complete_load(keys, req_context, ticket=ticket)
        except (ChunkNotFoundError, NotPinnedError):
            return


class Pin1NeverReleases(CPUOffloadingManager):
    """Finished loads keep their pins, and in the end nothing can be evicted any more."""

    @override
    def complete_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        ticket: int | None = None,
    ) -> None:
        return None


class Look1PendingIsHit(CPUOffloadingManager):
    """A chunk that is still being written is called readable."""

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        answer = super().lookup(key, req_context)
        return LookupResult.HIT if answer is LookupResult.HIT_PENDING else answer


class Look1AnswersFromMemory(CPUOffloadingManager):
    """What was found once is found for ever, though it may be gone by the time it is loaded."""

    _found: frozenset[OffloadKey] = frozenset()

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        answer = super().lookup(key, req_context)
        if answer is LookupResult.HIT:
            self._found |= {key}
        return LookupResult.HIT if key in self._found else answer
