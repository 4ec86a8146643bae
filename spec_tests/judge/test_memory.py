"""What policies hold: where it can be computed, it comes out right."""

from __future__ import annotations

from collections import Counter, OrderedDict
from sys import getsizeof

import pytest

from kvoffload import CachePolicy
from kvoffload.errors import InvalidValueError
from kvoffload.judge.blame import HostFailedError
from kvoffload.judge.held import LIVE, LONGEST, size_of
from kvoffload.judge.memory import CAPACITIES, MemoryReport, measure_memory
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from kvoffload.policies.parking import Node
from spec_tests.judge.cost_policies import EndsWhenLarge, Oldest, OneTooFew
from spec_tests.judge.memory_policies import (
    KeepsGhosts,
    KeepsHashes,
    KeepsKeys,
    KeepsNotes,
    KeepsRequests,
    KeepsSessions,
    Notes,
    NotesInContexts,
    TiresOfSessions,
    no_hints,
)

SIZE = 256
LONG_S = 10_000.0
"""Nothing here takes so long: everything is measured, the same in every run."""
KEY = getsizeof(bytes(20))
HASH = getsizeof(bytes(16))
REFERENCE = 8
NAME = getsizeof("request-1000")


def measured(policy: type[CachePolicy], *sizes: int) -> MemoryReport:
    report = measure_memory(
        policy, sizes or (SIZE,), LONG_S, request_keys=32, sessions=64, own_process=False
    )
    assert not report.problem
    assert report.left_out == ()
    return report


def table(entries: int) -> int:
    """The bytes by which a dict of so many entries is larger than an empty one."""
    return getsizeof(dict.fromkeys(range(entries))) - getsizeof({})


@pytest.mark.parametrize("size", [SIZE, 4 * SIZE])
def test_a_resident_chunk_is_what_is_held_beside_it_and_its_key(size: int) -> None:
    (full,) = measured(Oldest, size).full
    assert full.size == size
    assert full.full - full.empty == table(size)
    assert full.a_chunk == table(size) / size


def test_a_chunk_of_lru_is_a_node_its_end_and_a_place_in_a_table() -> None:
    (full,) = measured(LRUCachePolicy).full
    ends = [16 * number for number in range(1, 33)]
    # Python makes the small ones once.
    numbers = SIZE // len(ends) * sum(getsizeof(end) for end in ends if end > 256)
    nodes = SIZE * getsizeof(Node.__new__(Node))
    # And what the last requests leave until the next eviction.
    assert full.full - full.empty == pytest.approx(nodes + numbers + table(SIZE), rel=0.05)


def test_all_sizes_are_told_the_smallest_first() -> None:
    report = measured(Oldest, 512, SIZE)
    assert [one.size for one in report.full] == [SIZE, 512]
    assert report.keys is not None
    assert report.keys.size == SIZE


def test_who_keeps_nothing_of_what_is_gone() -> None:
    for policy in (Oldest, LRUCachePolicy):
        report = measured(policy)
        assert report.keys is not None
        assert report.sessions is not None
        assert report.ghosts is not None
        for churn, passed in ((report.keys, CAPACITIES * SIZE), (report.sessions, 64)):
            assert (churn.passed, churn.grows, churn.each) == (passed, False, 0.0)
        assert report.sessions.before == report.sessions.after == report.sessions.most
        assert (report.ghosts.number, report.ghosts.a_ghost) == (0, None)


@pytest.mark.parametrize(("policy", "own"), [(KeepsKeys, KEY), (KeepsHashes, HASH)])
def test_who_keeps_every_key_grows_by_it(policy: type[CachePolicy], own: int) -> None:
    report = measured(policy)
    assert report.keys is not None
    assert report.ghosts is not None
    assert report.sessions is not None
    assert report.keys.grows
    assert report.keys.passed == LONGEST * CAPACITIES * SIZE
    # All new keys, and half as many that come back.
    copies = 1.0 if policy is KeepsKeys else 1.5
    each = copies * own + 1.5 * REFERENCE
    assert report.keys.each == pytest.approx(each, rel=0.03)
    assert report.ghosts.number == report.keys.passed
    assert report.ghosts.a_ghost == pytest.approx(each, rel=0.05)
    assert report.sessions.grows


@pytest.mark.parametrize("policy", [KeepsGhosts, ARCCachePolicy])
def test_ghosts_come_to_an_end(policy: type[CachePolicy]) -> None:
    report = measured(policy)
    assert report.keys is not None
    assert report.ghosts is not None
    assert not report.keys.grows
    assert 1.9 * SIZE <= report.ghosts.number <= 2.1 * SIZE
    assert report.ghosts.a_ghost is not None
    assert report.ghosts.bytes_more == report.keys.after - report.keys.before
    assert report.ghosts.bytes_more > report.ghosts.number * KEY
    assert report.ghosts.a_chunk == report.ghosts.bytes_more / SIZE


def test_a_ghost_is_one_while_a_live_request_has_its_key() -> None:
    live = measured(KeepsGhosts).live
    assert live is not None
    # As many come as go.
    assert abs(live.each) < REFERENCE


def test_a_ghost_in_a_table_is_its_key_and_an_entry() -> None:
    ghosts = measured(KeepsGhosts).ghosts
    assert ghosts is not None
    some: OrderedDict[int, None] = OrderedDict.fromkeys(range(ghosts.number))
    entries = getsizeof(some) - table(0)
    own = ghosts.number * KEY
    # Tables through which much has passed have more room.
    assert own + entries <= ghosts.bytes_more <= own + 2 * (entries + table(SIZE))


def test_names_of_sessions_and_requests_that_are_over() -> None:
    for policy, kept in ((KeepsSessions, 1), (KeepsRequests, 2)):
        report = measured(policy)
        assert report.keys is not None
        assert report.sessions is not None
        assert not report.keys.grows
        assert report.sessions.grows
        assert report.sessions.each == pytest.approx(kept * (NAME + REFERENCE), rel=0.05)


@pytest.mark.parametrize("policy", [KeepsNotes, NotesInContexts])
def test_a_note_on_each_live_request(policy: type[CachePolicy]) -> None:
    report = measured(policy)
    assert report.live is not None
    assert report.sessions is not None
    note = Notes()
    own = getsizeof(note) + getsizeof(note.data) + getsizeof(note.data[0])
    names = {str(number): None for number in range(LIVE)}
    entry = getsizeof(names) / LIVE if policy is KeepsNotes else 0
    assert report.live.requests == LIVE
    assert report.live.each == pytest.approx(own + entry, abs=1)
    assert report.sessions.before == report.sessions.after


def test_attributes_without_a_dict_are_a_reference_each() -> None:
    assert size_of(Two()) == getsizeof(Two()) + 2 * REFERENCE
    plain: list[object] = [[1, 2], {"a": 1}, Notes(), Counter("a")]
    assert list(map(size_of, plain)) == list(map(getsizeof, plain))


class Two:
    def __init__(self) -> None:
        self.one: None = None
        self.other: None = None


def test_what_is_told_of_a_session_is_told_of_each_turn() -> None:
    report = measure_memory(
        TiresOfSessions, (SIZE,), LONG_S, request_keys=32, sessions=64, own_process=False
    )
    assert report.problem == (
        "with 256 chunks, when sessions passed through, it raised RuntimeError: not again"
    )
    assert report.keys is not None
    assert report.sessions is None
    assert report.left_out == ("a live request", "a dead session")


def test_a_policy_that_fails_is_told() -> None:
    report = measure_memory(OneTooFew, (SIZE,), LONG_S, request_keys=32, own_process=False)
    assert "POL-2" in report.problem
    assert "when keys passed through" in report.problem
    assert [one.size for one in report.full] == [SIZE]


def test_a_policy_that_ends_its_process_is_told() -> None:
    report = measure_memory(EndsWhenLarge, (SIZE,), LONG_S, request_keys=32)
    assert report.problem == "its process ended by itself, with exit code 3"
    assert [one.size for one in report.full] == [SIZE]
    assert report.left_out[0] == "churn of keys"


def test_what_fails_in_place_of_the_policy_is_raised_out_of_its_process() -> None:
    with pytest.raises(HostFailedError, match="no hints for request 0"):
        measure_memory(KeepsGhosts, (SIZE,), LONG_S, request_keys=32, hints_for=no_hints)


def test_in_a_process_of_its_own_the_figures_are_the_same() -> None:
    there = measure_memory(KeepsGhosts, (SIZE,), LONG_S, request_keys=32, sessions=64)
    here = measured(KeepsGhosts)
    # What an object's own dict takes depends on what was made of its class before.
    assert (there.ghosts, there.live) == (here.ghosts, here.live)


def test_what_cannot_be_measured() -> None:
    with pytest.raises(InvalidValueError, match="picklable"):
        measure_memory(lambda capacity: Oldest(capacity), (SIZE,), request_keys=32)
    for sizes in ((), (63, 128)):
        with pytest.raises(InvalidValueError, match="at least 64"):
            measure_memory(Oldest, sizes, request_keys=32)
