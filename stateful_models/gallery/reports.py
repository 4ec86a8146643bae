"""Managers that are wrong about events and figures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from typing_extensions import override

from kvoffload import (
    CachePolicy,
    CPUOffloadingManager,
    Medium,
    OffloadingEvent,
    OffloadingStats,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)
from kvoffload.cpu.event_log import EventLog
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


class Evt1SilentOnReturn(CPUOffloadingManager):
    """What comes back after it was removed is not announced again."""

    _gone: frozenset[OffloadKey] = frozenset()

    @override
    def take_events(self) -> list[OffloadingEvent]:
        told: list[OffloadingEvent] = []
        for event in super().take_events():
            if event.removed:
                self._gone = self._gone.union(event.keys)
                told.append(event)
            elif keys := [key for key in event.keys if key not in self._gone]:
                told.append(OffloadingEvent(keys, event.medium, False))
        return told


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


class _UntilRead(list[OffloadingEvent]):
    """Events that count as delivered when the last of them was read."""

    def __init__(self, events: list[OffloadingEvent], delivered: Callable[[], None]) -> None:
        super().__init__(events)
        self._delivered = delivered

    @override
    def __iter__(self) -> Iterator[OffloadingEvent]:
        yield from super().__iter__()
        self._delivered()


class Evt3DeliversWhenRead(CPUOffloadingManager):
    """Events that were not read to the end come again."""

    _waiting: tuple[OffloadingEvent, ...] = ()

    @override
    def take_events(self) -> list[OffloadingEvent]:
        self._waiting += tuple(super().take_events())
        return _UntilRead(list(self._waiting), self._delivered)

    def _delivered(self) -> None:
        self._waiting = ()


class Evt4EventsThoughDisabled(CPUOffloadingManager):
    """Events are collected whether anybody wants them or not."""

    def __init__(
        self,
        num_chunks: int,
        cache_policy: str | type[CachePolicy] = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
    ) -> None:
        super().__init__(
            num_chunks,
            cache_policy,
            cache_policy_module_path,
            True,
            store_threshold,
            max_tracker_size,
        )


class _EndlessLog(EventLog):
    """Keeps whatever it is told."""

    @override
    def _fold(self) -> None:
        return None


class Evt4NeverFolds(CPUOffloadingManager):
    """Events that nobody takes pile up without end."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        if type(self._events) is EventLog:
            self._events = _EndlessLog(self.medium, self.num_chunks)
        return super().prepare_store(keys, req_context)


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


class Met1SkipsRefusals(CPUOffloadingManager):
    """An offer that is refused leaves no sample."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        before = self._allocation_sizes.copy()
        output = super().prepare_store(keys, req_context)
        if output is None:
            self._allocation_sizes = before
        return output


class Met1OneGaugeOnly(CPUOffloadingManager):
    """Of the shares that are read and written nothing is said."""

    @override
    def get_stats(self) -> OffloadingStats:
        shown = super().get_stats().reduce()
        stats = OffloadingStats()
        stats.set_gauge(USAGE, shown[USAGE])
        return stats


class Met2CountsFromTheStart(CPUOffloadingManager):
    """Counters and histograms tell everything since the beginning, every time."""

    _total: OffloadingStats | None = None

    @override
    def get_stats(self) -> OffloadingStats:
        total = OffloadingStats() if self._total is None else self._total
        self._total = total.merge(super().get_stats())
        return self._total


class Met2LosesAtReset(CPUOffloadingManager):
    """A reset drops the samples that nobody has collected."""

    @override
    def reset_cache(self) -> None:
        super().reset_cache()
        self._allocation_sizes.clear()
