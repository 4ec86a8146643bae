"""Events: what a tier announces of its contents to routers and other listeners."""

from __future__ import annotations

from attrs import field, frozen

from kvoffload.keys import OffloadKey
from kvoffload.tiers import Locality, Medium
from kvoffload.validation import instance, optional_instance


@frozen
class OffloadingEvent:
    """`keys` were stored on `medium`, or removed from it (EVT-1, EVT-2).

    `ownership` names the secondary tier behind the event, None for the primary one.
    `removal_expected` marks a removal that the owner had announced beforehand.
    """

    keys: list[OffloadKey]
    medium: Medium = field(validator=instance(Medium))
    removed: bool = field(validator=instance(bool))
    locality: Locality | None = field(default=None, validator=optional_instance(Locality))
    ownership: str | None = field(default=None, validator=optional_instance(str))
    removal_expected: bool = field(default=False, validator=instance(bool))


@frozen
class OffloadingKVEventsConfig:
    """Which events a connector wants (SPECS-2).

    `enable_kv_cache_events` is the engine's own switch: without it nobody drains events, so
    nothing may be captured. `self_describing_kv_events` asks for stored events that carry
    hashes and tokens, and means nothing without the first.
    """

    enable_kv_cache_events: bool = field(validator=instance(bool))
    self_describing_kv_events: bool = field(validator=instance(bool))

    @property
    def captures(self) -> bool:
        """Whether events are to be kept at all."""
        return self.enable_kv_cache_events

    @property
    def captures_payloads(self) -> bool:
        """Whether stored events are to describe themselves: asked for, and events enabled."""
        return self.enable_kv_cache_events and self.self_describing_kv_events
