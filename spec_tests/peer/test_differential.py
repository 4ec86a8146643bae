"""What is wrong with ours, or with the list of deviations, is found and shown as a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TypeAlias

import pytest

from kvoffload import (
    CachePolicy,
    ChunkStatus,
    CPUOffloadingManager,
    OffloadingStats,
    OffloadKey,
    ReqContext,
)
from kvoffload.cpu.event_log import EventLog
from kvoffload.cpu.metrics import READ_USAGE
from kvoffload.cpu.request_access import RequestAccess
from kvoffload.cpu.reuse_tracker import ReuseTracker
from kvoffload.cpu.slot_pool import SlotPool
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.ghosts import GhostList
from kvoffload.policies.lru import LRUCachePolicy
from kvoffload.requests import PerRequest
from kvoffload.vllm.control_plane import ControlPlane
from stateful_models.vllm.deviations import DEVIATIONS
from stateful_models.vllm.differential import Shard, run_shard

Victims: TypeAlias = "list[tuple[OffloadKey, ChunkStatus]] | None"
Patch: TypeAlias = "Callable[[pytest.MonkeyPatch], None]"

ENOUGH = 4_000
"""In so many operations each of the mistakes shows."""


def nothing(*_: object) -> None:
    return None


def victims_backwards(policy: type[CachePolicy]) -> Patch:
    evict = policy.evict

    def backwards(self: CachePolicy, n: int, protected: Set[OffloadKey]) -> Victims:
        victims = evict(self, n, protected)
        return None if victims is None else victims[::-1]

    return lambda patch: patch.setattr(policy, "evict", backwards)


def a_threshold_of_one_more(patch: pytest.MonkeyPatch) -> None:
    make = ReuseTracker.__init__

    def late(self: ReuseTracker, threshold: int, capacity: int) -> None:
        make(self, threshold + 1, capacity)

    patch.setattr(ReuseTracker, "__init__", late)


def a_tracker_of_one_more(patch: pytest.MonkeyPatch) -> None:
    make = ReuseTracker.__init__

    def roomy(self: ReuseTracker, threshold: int, capacity: int) -> None:
        make(self, threshold, capacity + 1)

    patch.setattr(ReuseTracker, "__init__", roomy)


def keys_of_events_backwards(patch: pytest.MonkeyPatch) -> None:
    stored = EventLog.stored

    def backwards(self: EventLog, keys: Sequence[OffloadKey]) -> None:
        stored(self, keys[::-1])

    patch.setattr(EventLog, "stored", backwards)


def removals_unannounced(patch: pytest.MonkeyPatch) -> None:
    removed = EventLog.removed

    def some(self: EventLog, keys: Sequence[OffloadKey]) -> None:
        removed(self, keys[:1])

    patch.setattr(EventLog, "removed", some)


def first_freed_first(patch: pytest.MonkeyPatch) -> None:
    free = SlotPool.free

    def backwards(self: SlotPool, slots: Sequence[int]) -> None:
        free(self, slots[::-1])

    patch.setattr(SlotPool, "free", backwards)


def a_gauge_off_by_a_millionth(patch: pytest.MonkeyPatch) -> None:
    get_stats = CPUOffloadingManager.get_stats

    def off(self: CPUOffloadingManager) -> OffloadingStats:
        stats = get_stats(self)
        stats.gauges[READ_USAGE, ()] += 1e-6
        return stats

    patch.setattr(CPUOffloadingManager, "get_stats", off)


def reuse_of_what_it_inserted(patch: pytest.MonkeyPatch) -> None:
    def reuse(self: RequestAccess, keys: Sequence[OffloadKey]) -> None:
        self.reused.update(keys)

    patch.setattr(RequestAccess, "reuse", reuse)


def positions_unheard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReqContext, "get_offload_key_position", nothing)
    patch.setattr(ReqContext, "get_offload_key_positions", nothing)


def misses_unheard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ARCCachePolicy, "on_store_miss", nothing)


def ghosts_without_end(patch: pytest.MonkeyPatch) -> None:
    extend = GhostList.extend

    def endless(self: GhostList, keys: Sequence[OffloadKey], limit: int) -> None:
        extend(self, keys, limit + 1)

    patch.setattr(GhostList, "extend", endless)


def records_of_before_a_reset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PerRequest, "clear", nothing)


MISTAKES: tuple[tuple[str, str, bool, Patch], ...] = (
    ("victims of LRU backwards", "lru", False, victims_backwards(LRUCachePolicy)),
    ("victims of ARC backwards", "arc", False, victims_backwards(ARCCachePolicy)),
    ("a threshold of one more", "lru", False, a_threshold_of_one_more),
    ("a tracker of one more", "lru", False, a_tracker_of_one_more),
    ("keys of events backwards", "arc", False, keys_of_events_backwards),
    ("removals unannounced", "lru", False, removals_unannounced),
    ("first freed first", "arc", False, first_freed_first),
    ("a gauge off by a millionth", "lru", False, a_gauge_off_by_a_millionth),
    ("reuse of what it inserted", "arc", False, reuse_of_what_it_inserted),
    ("reuse told of what it inserted", "lru", True, reuse_of_what_it_inserted),
    ("positions unheard", "lru", False, positions_unheard),
    ("misses unheard", "arc", False, misses_unheard),
    ("ghosts without end", "arc", False, ghosts_without_end),
    ("records of before a reset", "lru", False, records_of_before_a_reset),
)


@pytest.mark.parametrize(
    ("policy", "tapped", "patch"),
    [mistake[1:] for mistake in MISTAKES],
    ids=[mistake[0] for mistake in MISTAKES],
)
def test_a_mistake_of_ours_is_found(
    control_plane: ControlPlane,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    tapped: bool,
    patch: Patch,
) -> None:
    patch(monkeypatch)
    assert run_shard(control_plane, Shard(policy, ENOUGH, tapped=tapped), tries=0).differences


def test_without_one_nothing_is_found(control_plane: ControlPlane) -> None:
    tally = run_shard(control_plane, Shard("lru", ENOUGH))
    assert tally.differences == []
    assert tally.missed == []


@pytest.mark.parametrize(
    "left_out",
    [one.id for one in DEVIATIONS if one.id not in ("needless-evict", "folded-backlog")],
)
def test_an_unlisted_difference_is_found(control_plane: ControlPlane, left_out: str) -> None:
    others = [one for one in DEVIATIONS if one.id != left_out]
    assert run_shard(control_plane, Shard("lru", 2 * ENOUGH), others, tries=0).differences


def test_a_difference_is_shown_as_a_short_program(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_of_events_backwards(monkeypatch)
    shown = run_shard(control_plane, Shard("lru", ENOUGH)).differences[0].splitlines()
    assert shown == [
        "2 chunks, lru, events",
        "   1  prepare_store(r1, [a/0 b/0], attempt=1)",
        "   2  complete_store(r1, [a/0 b/0], attempt=1)",
        "   3  take_events()",
        "        ours    +[b/0 a/0]",
        "        vLLM's  +[a/0 b/0]",
    ]


def test_equal_shards_play_equal_programs(control_plane: ControlPlane) -> None:
    first, second = (run_shard(control_plane, Shard("arc", 500)) for _ in range(2))
    assert (first.operations, first.met) == (second.operations, second.met)
    assert run_shard(control_plane, Shard("arc", 500, seed=1)).met != first.met
