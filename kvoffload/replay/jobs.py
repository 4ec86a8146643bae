"""What is under way during a replay: running requests, and transfers."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from attrs import define, field

from kvoffload.keys import OffloadKey
from kvoffload.replay.request import TraceRequest
from kvoffload.requests import OffloadPolicy, ReqContext


@define(eq=False)
class Running:
    """A request from its arrival to the end of its prefill.

    `number` counts requests in order of arrival. `blockers`: stores it waits for before it is
    admitted. `wanted`: ranges of its prompt that are not stored yet, head first, the first of
    them offered `offers` times. `lookups`: walks of its prefix so far that ended in an answer
    that no store of this replay explains.
    """

    number: int
    trace: TraceRequest
    context: ReqContext
    keys: list[OffloadKey]
    policy: OffloadPolicy
    blockers: set[StoreJob] = field(factory=set)
    wanted: deque[Range] = field(factory=deque)
    offers: int = 0
    lookups: int = 0


@define(eq=False)
class Range:
    """The part of a prompt that one step of the prefill computes, offered at once.

    `store` is its transfer once the manager has taken it; that begins when it is `computed`.
    """

    keys: list[OffloadKey]
    computed: bool = False
    store: StoreJob | None = None


@define(eq=False)
class LoadJob:
    """Chunks on their way to the GPU, pinned until they are there."""

    keys: list[OffloadKey]
    context: ReqContext
    ticket: int | None
    generation: int


@define(eq=False)
class StoreJob:
    """Chunks on their way from the GPU, pending until they are there."""

    keys: list[OffloadKey]
    context: ReqContext
    ticket: int | None
    generation: int
    success: bool = True
    waiters: list[Running] = field(factory=list)


@define(eq=False)
class Reset:
    """The cache is reset."""


@define(eq=False)
class Tick:
    """Nothing but the next step."""


Event: TypeAlias = LoadJob | StoreJob | Reset | Range | Running | Tick
"""What the clock can bring; a Range was computed, a Running one has finished its prefill."""
