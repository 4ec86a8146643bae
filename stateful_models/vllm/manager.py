"""vLLM's manager of the CPU tier, called as one of kvoffload's.

Everything is translated and nothing repaired: answers are vLLM's answers, exceptions vLLM's
exceptions, and what its calls leave undone stays undone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Final, cast

from typing_extensions import override

from kvoffload import (
    CachePolicy,
    CPULoadStoreSpec,
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadingStats,
    OffloadKey,
    OffloadPolicy,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    TierFilter,
)
from kvoffload.requests import PerRequest
from kvoffload.vllm import interface
from kvoffload.vllm.control_plane import ControlPlane, load_control_plane
from kvoffload.vllm.policies import HostedPolicy
from stateful_models.manager_drivers import ManagerCapabilities, ManagerDriver

CAPABILITIES: Final = ManagerCapabilities(tap=True)
"""Events, a reuse threshold, a size of its tracker, a policy that listens; and no tickets."""


class VLLMManager(OffloadingManager):
    """The `CPUOffloadingManager` of a vLLM, behind the interface of this project.

    A request has one context of vLLM's as long as its own context lives, for vLLM keeps what it
    knows of a request there. At every call that one is told the positions, parameters, tiers and
    hints that the request has by then; its hints are the `KvHintsEnvelope` of vLLM's that the
    request keeps as state (`ReqContext.set_state`).

    `cache_policy` is a name as vLLM takes it, or a class written against kvoffload.

    vLLM has events that only its connector reads, `metadata_only` ones, which announce nothing
    (EVT-1). They are not delivered; `take_metadata_only` gives those met by `take_events` so far.
    """

    manager_capabilities: ManagerCapabilities = CAPABILITIES

    def __init__(
        self,
        num_chunks: int,
        cache_policy: str | type[CachePolicy] = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
        *,
        control_plane: ControlPlane | None = None,
    ) -> None:
        self.control_plane: ControlPlane = control_plane or load_control_plane()
        self.manager: interface.CPUManager = self.control_plane.manager_class(
            num_chunks=num_chunks,
            cache_policy=cache_policy if isinstance(cache_policy, str) else "lru",
            cache_policy_module_path=cache_policy_module_path,
            enable_events=enable_events,
            store_threshold=store_threshold,
            max_tracker_size=max_tracker_size,
        )
        if not isinstance(cache_policy, str):
            hosted = type(cache_policy.__name__, (HostedPolicy,), {"policy_cls": cache_policy})
            # To vLLM keys are plain bytes, and chunks its own: they differ in their types alone.
            policy = cast("interface.Policy", hosted(num_chunks))
            # vLLM takes names; what the name leads to is kept here.
            self.manager._policy = policy  # pyright: ignore[reportPrivateUsage]
        self._contexts: PerRequest[interface.Context] = PerRequest()
        self._metadata_only: list[OffloadingEvent] = []

    @property
    def policy(self) -> interface.Policy:
        """vLLM's policy, or what stands for one of kvoffload's."""
        return self.manager._policy  # pyright: ignore[reportPrivateUsage]  # there is no other way

    @property
    @override
    def lock(self) -> AbstractContextManager[object]:
        return self.manager.lock

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        answer = self.manager.on_new_request(self.context_of(req_context))
        return RequestOffloadingContext(OffloadPolicy[answer.policy.name])

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult[self.manager.lookup(key, self.context_of(req_context)).name]

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        """As kvoffload's manager; an internal load is what vLLM's tiers make of its manager."""
        context = self.context_of(req_context)
        if record_access:
            return _spec_from(self.manager.prepare_load(keys, context))
        # What vLLM's own tiers call.
        internal = self.manager._prepare_load  # pyright: ignore[reportPrivateUsage]
        return _spec_from(internal(keys, context, record_access=False))

    # vLLM knows no tickets, and nobody is to think that this takes any.
    @override
    def complete_load(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> None:
        self.manager.complete_load(keys, self.context_of(req_context))

    @override
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.manager.touch(keys, self.context_of(req_context))

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = self.manager.prepare_store(keys, self.context_of(req_context))
        if output is None:
            return None
        return PrepareStoreOutput(
            _keys_from(output.keys_to_store),
            _spec_from(output.store_spec),
            _keys_from(output.evicted_keys),
        )

    @override
    def complete_store(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        self.manager.complete_store(keys, self.context_of(req_context), success)

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        self.manager.on_request_finished(self.context_of(req_context))

    @override
    def take_events(self) -> Iterator[OffloadingEvent]:
        """vLLM's events, taken as they are read, as vLLM's own are."""
        for event in self.manager.take_events():
            translated = _event_from(event)
            if event.metadata_only:
                self._metadata_only.append(translated)
            else:
                yield translated

    def take_metadata_only(self) -> list[OffloadingEvent]:
        """The events that `take_events` met and did not deliver, since this was last asked."""
        taken, self._metadata_only = self._metadata_only, []
        return taken

    @override
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        end = self.control_plane.schedule_end
        self.manager.on_schedule_end(end(context.new_req_ids, context.preempted_req_ids))

    @override
    def has_pending_work(self) -> bool:
        return self.manager.has_pending_work()

    @override
    def reset_cache(self) -> None:
        self.manager.reset_cache()

    @override
    def on_reset_flushed(self) -> None:
        self.manager.on_reset_flushed()

    @override
    def get_stats(self) -> OffloadingStats | None:
        stats = self.manager.get_stats()
        return None if stats is None else _stats_from(stats)

    @override
    def shutdown(self) -> None:
        self.manager.shutdown()

    def context_of(self, req_context: ReqContext) -> interface.Context:
        """vLLM's context of a request, told what the request's own says by now."""
        context = self._contexts.get(req_context)
        if context is None:
            context = self.control_plane.context_class(req_context.req_id)
            self._contexts.set(req_context, context)
        context.kv_transfer_params = req_context.kv_transfer_params
        context.load_tier_filter = self._tiers(req_context.load_tier_filter)
        context.kv_hints = req_context.get_state(self.control_plane.hints_envelope)
        for key, end in req_context.offload_key_positions.items():
            context.set_offload_key_position(key, end)
        return context

    def _tiers(self, wanted: TierFilter) -> object:
        plane = self.control_plane
        if wanted == TierFilter.ALL:
            # vLLM tells its own by identity.
            return plane.all_tiers
        return plane.tier_filter(
            tuple(
                plane.tier_matcher(
                    _same_name(plane.medium, matcher.medium),
                    _same_name(plane.locality, matcher.locality),
                )
                for matcher in wanted.matchers
            )
        )


class VLLMManagerDriver(ManagerDriver[VLLMManager]):
    """Builds vLLM's manager from a control plane, by default that of the installed vLLM.

    `arguments` go to its constructor. Raises a VLLMError where there is none to be had.
    """

    def __init__(
        self,
        control_plane: ControlPlane | Path | None = None,
        arguments: Mapping[str, object] | None = None,
        *,
        capabilities: ManagerCapabilities | None = None,
    ) -> None:
        plane = (
            control_plane
            if isinstance(control_plane, ControlPlane)
            else load_control_plane(control_plane)
        )
        self.control_plane: ControlPlane = plane
        given = {**(arguments or {}), "control_plane": plane}
        target: Callable[..., VLLMManager] = VLLMManager
        super().__init__(target, given, capabilities=capabilities)

    @override
    def judged(self, manager: VLLMManager) -> interface.CPUManager:
        return manager.manager

    @property
    @override
    def remarks(self) -> Sequence[str]:
        stood_in = self.control_plane.stood_in
        away = f", with empty modules in the place of {', '.join(stood_in)}" if stood_in else ""
        return (f"on trial is the CPUOffloadingManager of {self.control_plane}{away}",)


def _spec_from(spec: interface.Spec) -> CPULoadStoreSpec:
    return CPULoadStoreSpec(spec.block_ids)


def _keys_from(keys: list[bytes]) -> list[OffloadKey]:
    return [OffloadKey(key) for key in keys]


def _event_from(event: interface.Event) -> OffloadingEvent:
    return OffloadingEvent(
        _keys_from(event.keys),
        Medium[event.medium.name],
        event.removed,
        None if event.locality is None else Locality[event.locality.name],
        event.ownership,
        event.removal_expected,
    )


def _stats_from(stats: interface.Stats) -> OffloadingStats:
    translated = OffloadingStats()
    kinds, values = stats.metric_sections()
    for name, by_labels in values.items():
        kind = kinds[name]
        for labels, value in by_labels.items():
            if isinstance(value, list):
                for sample, times in Counter(value).items():
                    translated.observe_histogram(name, sample, labels, times=times)
            elif kind == "counter":
                translated.increase_counter(name, value, labels)
            else:
                translated.set_gauge(name, value, labels)
    return translated


def _same_name(enum: type[Enum], member: Enum | None) -> Enum | None:
    return None if member is None else enum[member.name]
