"""Managers that are wrong about events and figures."""

from __future__ import annotations

from collections.abc import Collection

from typing_extensions import override

from kvoffload import (
    CPUOffloadingManager,
    Medium,
    OffloadingEvent,
    OffloadingStats,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)
from stateful_models.metrics import USAGE


class Evt1NoRemovals(CPUOffloadingManager):
    """Evictions are not announced."""

    @override
    def take_events(self) -> list[OffloadingEvent]:
        return [event for event in super().take_events() if not event.removed]


class Evt1AnnouncesAtPrepare(CPUOffloadingManager):
    """Stores are announced when they begin: those that fail never come true."""

    _begun: tuple[OffloadKey, ...] = ()

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is not None:
            self._begun += tuple(output.keys_to_store)
        return output

    @override
    def take_events(self) -> list[OffloadingEvent]:
        removals = [event for event in super().take_events() if event.removed]
        begun, self._begun = list(self._begun), ()
        return removals + ([OffloadingEvent(begun, Medium.CPU, False)] if begun else [])


class Evt2RemovalsFirst(CPUOffloadingManager):
    """Events are sorted by kind."""

    @override
    def take_events(self) -> list[OffloadingEvent]:
        return sorted(super().take_events(), key=lambda event: not event.removed)


class Evt2EmptyEvents(CPUOffloadingManager):
    """Every drain ends with an event of nothing."""

    @override
    def take_events(self) -> list[OffloadingEvent]:
        return [*super().take_events(), OffloadingEvent([], Medium.CPU, False)]


class Evt5SilentReset(CPUOffloadingManager):
    """A reset takes nothing back that was announced."""

    @override
    def reset_cache(self) -> None:
        super().reset_cache()
        super().take_events()


class Met1GaugeDrifts(CPUOffloadingManager):
    """Failed stores stay in the usage for ever."""

    _failed = 0

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
        self._failed += 0 if success else len(keys)

    @override
    def get_stats(self) -> OffloadingStats:
        stats = super().get_stats()
        shown = stats.reduce().get(USAGE, 0.0)
        stats.set_gauge(USAGE, shown + self._failed / max(1, self.num_chunks))
        return stats


class Met2CountsFromTheStart(CPUOffloadingManager):
    """Counters and histograms tell everything since the beginning, every time."""

    _total: OffloadingStats | None = None

    @override
    def get_stats(self) -> OffloadingStats:
        total = OffloadingStats() if self._total is None else self._total
        self._total = total.merge(super().get_stats())
        return self._total
