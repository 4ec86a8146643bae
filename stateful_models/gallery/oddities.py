"""Managers that do legal things in odd ways: no clause that binds others may convict them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import ClassVar, Final

from attrs import frozen
from typing_extensions import override

from kvoffload import (
    ChunkNotFoundError,
    ChunkNotReadyError,
    ChunkStatus,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    LookupResult,
    NotPinnedError,
    OffloadingEvent,
    OffloadingStats,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    ScheduleEndContext,
)
from kvoffload.cpu.policy_guard import PolicyGuard
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.gallery.setups import Setup


class WithoutTickets(CPUOffloadingManager):
    """Gives no tickets, so that every completion is of the present."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        spec = super().prepare_load(keys, req_context, record_access=record_access)
        return CPULoadStoreSpec(spec.block_ids)

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None:
            return None
        return PrepareStoreOutput(output.keys_to_store, output.store_spec, output.evicted_keys)


class WithoutFigures(CPUOffloadingManager):
    """Reports nothing under the documented names."""

    @override
    def get_stats(self) -> OffloadingStats:
        super().get_stats()
        return OffloadingStats()


class SlotsFromTheTop(CPUOffloadingManager):
    """Hands out the highest slots first; only claimants owe ascending ones."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        spec = super().prepare_load(keys, req_context, record_access=record_access)
        return CPULoadStoreSpec(self._mirrored(spec), spec.ticket)

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None or not isinstance(output.store_spec, CPULoadStoreSpec):
            return output
        spec = CPULoadStoreSpec(self._mirrored(output.store_spec))
        return PrepareStoreOutput(output.keys_to_store, spec, output.evicted_keys, output.ticket)

    def _mirrored(self, spec: CPULoadStoreSpec) -> list[int]:
        return [self.num_chunks - 1 - slot for slot in spec.block_ids.tolist()]


class Asserts(CPUOffloadingManager):
    """Refuses misuse with assertions, as vLLM does, instead of named errors."""

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
        except (ChunkNotFoundError, ChunkNotReadyError) as error:
            raise AssertionError(str(error)) from error

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
        except (ChunkNotFoundError, NotPinnedError) as error:
            raise AssertionError(str(error)) from error


class TouchesInLookUps(CPUOffloadingManager):
    """Counts a look-up as a use, as some managers do."""

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        answer = super().lookup(key, req_context)
        if answer is LookupResult.HIT:
            super().touch([key], req_context)
        return answer


class CompletesInAnyOrder(CPUOffloadingManager):
    """Completed keys pass through a set on their way."""

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        super().complete_store(sorted(set(keys))[::-1], req_context, success, ticket=ticket)


class NewPolicyAtReset(CPUOffloadingManager):
    """Begins a generation with a new policy instead of clearing the old one."""

    @override
    def reset_cache(self) -> None:
        super().reset_cache()
        self._policy = PolicyGuard(type(self.policy), self.num_chunks, self._find)


@frozen
class _CleanUp(OffloadingEvent):
    """An event about nothing that listeners know."""

    metadata_only: bool = True


class AnnouncesCleanUp(CPUOffloadingManager):
    """Says of failed stores that they are gone, marked as vLLM 0.33 marks it."""

    _cleaned: tuple[OffloadKey, ...] = ()

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        super().complete_store(keys, req_context, success, ticket=ticket)
        self._cleaned += tuple(key for key in keys if self._find(key) is None)

    @override
    def take_events(self) -> list[OffloadingEvent]:
        cleaned, self._cleaned = list(self._cleaned), ()
        events = super().take_events()
        return [*events, _CleanUp(cleaned, self.medium, True)] if cleaned else events


class RefusesByDesign(CPUOffloadingManager):
    """Has a policy that now and then declines to make room, and says so."""


class DeclinesEverySecondTime(LRUCachePolicy):
    """A policy with an admission gate."""

    may_refuse: ClassVar[str | None] = "it lets only every second offer displace anything"
    _asked = 0

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        self._asked += 1
        return super().evict(n, protected) if self._asked % 2 else None


class WithExtraMethods(CPUOffloadingManager):
    """Has calls of its own, work of its own, and listens to the scheduler."""

    demoted: int = 0

    @override
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self.demote()

    @override
    def has_pending_work(self) -> bool:
        return self.demoted % 2 == 1

    def demote(self) -> None:
        """One step of what it does by the way."""
        self.demoted += 1


class FollowsEachChunk(CPUOffloadingManager):
    """Announces every chunk in an event of its own."""

    @override
    def take_events(self) -> list[OffloadingEvent]:
        return [
            OffloadingEvent([key], event.medium, event.removed)
            for event in super().take_events()
            for key in event.keys
        ]


ODD_SETUPS: Final[Mapping[type[CPUOffloadingManager], Setup]] = {
    RefusesByDesign: Setup(cache_policy=DeclinesEverySecondTime, may_refuse=True),
}
"""How to build those of these whose oddity is not in the class itself."""

ODDITIES: Final[Sequence[type[CPUOffloadingManager]]] = (
    WithoutTickets,
    WithoutFigures,
    SlotsFromTheTop,
    Asserts,
    TouchesInLookUps,
    CompletesInAnyOrder,
    NewPolicyAtReset,
    AnnouncesCleanUp,
    RefusesByDesign,
    WithExtraMethods,
    FollowsEachChunk,
)
"""All of these."""
