"""Figures of sessions, each against a plain recount on small workloads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload import CPUOffloadingManager, OffloadKey
from kvoffload.errors import InvalidValueError
from kvoffload.judge import sessions as sessions_module
from kvoffload.judge.engine import Engine
from kvoffload.judge.residency import History, ResidencyWatch
from kvoffload.judge.sessions import (
    BRANCHES,
    TURNS,
    Sessions,
    hits_by_turn,
    infinite,
    run_sessions,
    shared_heads,
    starved,
)
from kvoffload.judge.workload import Workload
from kvoffload.replay import ChatTurn, KeyTable, TraceRequest
from spec_tests.judge.test_optimum import of_prompts
from spec_tests.judge.workloads import workloads

Change = tuple[int, list[int], list[int]]


class Journal:
    """The cache as a set of blocks after each request, and all changes; by the engine's word."""

    def __init__(self, workload: Workload) -> None:
        self.held = [set[int]() for _ in range(len(workload.requests) + 1)]
        self.changes: list[Change] = []
        table = KeyTable()
        self._block = {table[b]: b for request in workload.requests for b in request.blocks}

    def __call__(
        self, number: int, stored: Sequence[OffloadKey], evicted: Sequence[OffloadKey]
    ) -> None:
        change = (number, [self._block[k] for k in stored], [self._block[k] for k in evicted])
        self.changes.append(change)
        for later in self.held[number + 1 :]:
            later.difference_update(change[2])
            later.update(change[1])


def both(
    workload: Workload, capacity: int, policy: str, after: int
) -> tuple[Journal, ResidencyWatch]:
    journal = Journal(workload)
    watch = ResidencyWatch(History.of(workload), after=after, samples=len(workload.requests))

    def changed(number: int, stored: Sequence[OffloadKey], evicted: Sequence[OffloadKey]) -> None:
        journal(number, stored, evicted)
        watch(number, stored, evicted)

    Engine(CPUOffloadingManager(capacity, policy), workload, changed=changed).run()
    return journal, watch


CASES = (workloads(max_requests=20), st.integers(1, 6), st.sampled_from(["lru", "arc"]))


@given(*CASES, st.integers(0, 4))
def test_stranded_chunks_are_those_behind_a_hole(
    workload: Workload, capacity: int, policy: str, after: int
) -> None:
    journal, watch = both(workload, capacity, policy, after)
    prefix = {r.blocks[n]: r.blocks[:n] for r in workload.requests for n in range(len(r.blocks))}
    found = watch.stranded()
    assert [one.requests for one in found.samples] == list(
        range(after + 1, len(workload.requests) + 1)
    )
    shares: list[float] = []
    for one in found.samples:
        held = journal.held[one.requests]
        behind = sum(any(b not in held for b in prefix[block]) for block in held)
        assert (one.resident, one.stranded) == (len(held), behind)
        if held:
            shares.append(behind / len(held))
    assert found.worst == max(shares, default=None)
    if shares:
        assert found.mean == pytest.approx(sum(shares) / len(shares))


@pytest.mark.parametrize(("gone", "stranded"), [("a", 2), ("b", 1), ("c", 0)])
def test_all_that_stands_behind_a_hole_is_stranded(gone: str, stranded: int) -> None:
    history = History.of(of_prompts("abc", "d"))
    watch = ResidencyWatch(history, samples=2)
    keys = dict(zip("abcd", history.place, strict=True))
    watch(0, [keys[name] for name in "abc"], [])
    watch(1, [keys["d"]], [keys[gone]])
    found = watch.stranded()
    assert [one.stranded for one in found.samples] == [0, stranded]
    assert found.worst == stranded / 3
    assert found.mean == stranded / 6


def test_samples_are_spread_over_what_comes_after_the_warm_up() -> None:
    workload = of_prompts(*(chr(97 + n % 3) for n in range(100)))
    watch = ResidencyWatch(History.of(workload), after=20, samples=4)
    Engine(CPUOffloadingManager(8), workload, changed=watch).run()
    assert [one.requests for one in watch.stranded().samples] == [40, 60, 80, 100]
    with pytest.raises(InvalidValueError, match="samples"):
        ResidencyWatch(History.of(workload), samples=0)


@given(*CASES, st.integers(0, 4), st.integers(1, 5))
def test_regret_is_found_by_looking_ahead(
    workload: Workload, capacity: int, policy: str, after: int, window: int
) -> None:
    journal, watch = both(workload, capacity, policy, after)
    evictions = [(n, block) for n, _, evicted in journal.changes for block in evicted if n >= after]
    regretted = 0
    for number, block in evictions:
        for later in range(number + 1, min(number + window + 1, len(workload.requests))):
            blocks, on_gpu = workload.requests[later].blocks, workload.gpu_hits[later]
            if block in blocks[on_gpu:]:
                regretted += 1
                break
            if any(n == later and block in stored for n, stored, _ in journal.changes):
                break
    found = watch.regret(window)
    assert (found.evicted, found.regretted) == (len(evictions), regretted)
    assert (found.share is None) == (not evictions)
    if found.share is not None:
        assert found.share.value == pytest.approx(regretted / len(evictions))


def test_an_eviction_is_regretted_within_its_window_only() -> None:
    workload = of_prompts("a", "b", "c", "a")
    watch = ResidencyWatch(History.of(workload))
    Engine(CPUOffloadingManager(1), workload, changed=watch).run()
    # "a" goes at request 1 and comes again two requests later; "b" and "c" never do.
    assert [watch.regret(window).regretted for window in (1, 2, 3)] == [0, 1, 1]


def test_what_the_gpu_brings_back_is_not_regretted() -> None:
    # "a" goes for "b", is served by the GPU and stored anew, and is then wanted and there.
    workload = Workload(of_prompts("a", "b", "a", "a").requests, [0, 0, 1, 0], has_tokens=False)
    watch = ResidencyWatch(History.of(workload))
    outcome = Engine(CPUOffloadingManager(1), workload, changed=watch).run()
    assert list(outcome.block_hits) == [0, 0, 0, 1]
    assert (watch.regret().evicted, watch.regret().regretted) == (2, 0)


@given(workloads(max_requests=20))
def test_a_cache_without_bound_is_the_engine_with_room_for_all(workload: Workload) -> None:
    engine = Engine(CPUOffloadingManager(workload.distinct_blocks), workload).run()
    assert list(infinite(workload).block_hits) == list(engine.block_hits)
    assert list(infinite(workload).token_hits) == list(engine.token_hits)


@given(*CASES, st.integers(0, 4))
def test_who_is_starved(workload: Workload, capacity: int, policy: str, after: int) -> None:
    outcome = Engine(CPUOffloadingManager(capacity, policy), workload).run()
    could = [
        number
        for number, (request, on_gpu) in enumerate(
            zip(workload.requests, workload.gpu_hits, strict=True)
        )
        if number >= after
        and on_gpu < len(request.blocks)
        and any(request.blocks[on_gpu] in one.blocks for one in workload.requests[:number])
    ]
    found = starved(workload, outcome, infinite(workload), after)
    assert found.of == len(could)
    assert found.starved == sum(outcome.block_hits[number] == 0 for number in could)
    assert (found.share is None) == (not could)


def test_a_shared_head_is_no_food() -> None:
    # Everybody has "s", so that it stays; of their own only those get something who were kept.
    own = "abcdefghij"
    assert len(own) > BRANCHES
    workload = of_prompts(*(f"s{c}" for c in own), "sa", "sj")
    heads = shared_heads(workload.requests)
    assert list(heads) == [1] * 12
    outcome = Engine(CPUOffloadingManager(4), workload).run()
    possible = infinite(workload)
    assert starved(workload, outcome, possible).starved == 0
    beyond = starved(workload, outcome, possible, heads=heads)
    assert (beyond.starved, beyond.of) == (1, 2)
    assert not shared_heads(of_prompts(*(f"s{c}" for c in own[:BRANCHES])).requests).any()


@given(*CASES, st.integers(0, 4))
def test_quantiles_by_turn(workload: Workload, capacity: int, policy: str, after: int) -> None:
    outcome = Engine(CPUOffloadingManager(capacity, policy), workload).run()
    sessions, possible = Sessions.of(workload.requests), infinite(workload)
    rows = {row.turn: row for row in hits_by_turn(sessions, outcome, possible, after)}
    by_turn: dict[int, list[int]] = {}
    for number in range(after, len(workload.requests)):
        turn = min(int(sessions.turn[number]), TURNS)
        by_turn.setdefault(turn, []).append(number)
    assert rows.keys() == by_turn.keys()
    for turn, numbers in by_turn.items():
        row = rows[turn]
        assert row.requests == len(numbers)
        assert row.and_later == (turn == TURNS)
        for share, value, hits in (
            (10, row.p10, outcome),
            (50, row.p50, outcome),
            (90, row.p90, outcome),
            (50, row.infinite_p50, possible),
        ):
            tokens = [int(hits.token_hits[n]) for n in numbers]
            enough = [t for t in tokens if 100 * sum(o <= t for o in tokens) >= share * len(tokens)]
            assert value == min(enough)


def test_turns_beyond_the_last_are_told_together() -> None:
    workload = of_prompts(*("abcdefghijkl"[: n + 1] for n in range(12)))
    outcome = Engine(CPUOffloadingManager(20), workload).run()
    rows = hits_by_turn(Sessions.of(workload.requests), outcome, infinite(workload))
    assert [(row.turn, row.requests) for row in rows] == [*((n, 1) for n in range(1, 8)), (8, 5)]
    assert [row.p50 for row in rows] == [0, 1, 2, 3, 4, 5, 6, 9]


def continued(*prompts: str) -> list[int]:
    return [int(n) for n in Sessions.of(of_prompts(*prompts).requests).previous]


@pytest.mark.parametrize(
    ("prompts", "previous"),
    [
        (("ab", "abc", "abcd"), [-1, 0, 1]),
        # A branch, and the same again.
        (("ab", "abc", "abd", "ab", "abe"), [-1, 0, 0, 0, 3]),
        # The longest, not the latest.
        (("abc", "a", "abcd"), [-1, -1, 0]),
        (("ab", "cd", "ef"), [-1, -1, -1]),
    ],
)
def test_what_continues_what(prompts: tuple[str, ...], previous: list[int]) -> None:
    assert continued(*prompts) == previous


@given(workloads(max_requests=20))
def test_inference_is_a_search_among_all_earlier_ones(workload: Workload) -> None:
    found = Sessions.of(workload.requests)
    expected: list[int] = []
    for number, request in enumerate(workload.requests):
        fitting: list[tuple[int, int]] = []
        for earlier, other in enumerate(workload.requests[:number]):
            size, tokens = other.block_tokens, other.input_tokens
            whole = tokens // size if size and tokens is not None else len(other.blocks)
            if whole and request.blocks[:whole] == other.blocks[:whole]:
                fitting.append((whole, earlier))
        expected.append(max(fitting)[1] if fitting else -1)
    assert list(found.previous) == expected
    for number, before in enumerate(expected):
        assert found.turn[number] == (1 if before < 0 else found.turn[before] + 1)
        assert found.session[number] == (number if before < 0 else found.session[before])


def test_a_prompt_that_is_a_shared_head_is_continued_by_none() -> None:
    own = "abcdefghij"
    assert continued("s", *(f"s{c}" for c in own), "sax") == [-1] * 11 + [1]


def test_only_whole_blocks_count() -> None:
    def ask(blocks: Sequence[int], tokens: int) -> TraceRequest:
        return TraceRequest(0.0, blocks, 4, tokens, 0)

    found = Sessions.of([ask([1, 2], 7), ask([1, 3], 8), ask([5], 3), ask([1, 3, 4], 9)])
    assert list(found.previous) == [-1, 0, -1, 1]
    assert list(found.turn) == [1, 2, 1, 3]
    assert list(found.session) == [0, 0, 2, 0]


def test_chats_say_it_themselves() -> None:
    def ask(chat: int, parent: int | None, turn: int) -> TraceRequest:
        return TraceRequest(0.0, [1], chat=ChatTurn(chat, parent, turn, "text"))

    asked = [ask(7, None, 1), ask(9, 4, 3), ask(8, 7, 2), ask(6, 7, 2), ask(5, 9, 4)]
    found = Sessions.of(asked)
    assert found.told
    assert list(found.previous) == [-1, -1, 0, 0, 1]
    assert list(found.session) == [0, 1, 0, 0, 1]
    assert list(found.turn) == [1, 3, 2, 2, 4]
    assert Sessions.of([ask(1, None, 10**30)]).turn[0] > 4
    # Where one says nothing, all are inferred.
    assert not Sessions.of([*asked, TraceRequest(0.0, [2])]).told


@given(workloads(max_requests=20), st.integers(0, 5), st.integers(0, 30))
def test_one_run_gives_value_and_sessions(workload: Workload, capacity: int, after: int) -> None:
    told = list[int]()
    run = run_sessions(
        CPUOffloadingManager(capacity), workload, after=after, window=3, proceed=told.append
    )
    alone = Engine(CPUOffloadingManager(capacity), workload).run()
    assert list(run.outcome.token_hits) == list(alone.token_hits)
    assert told[-1] == len(workload.requests)
    report, rest = run.report, range(after, len(workload.requests))
    assert report.requests == len(rest) == sum(row.requests for row in report.turns)
    previous = Sessions.of(workload.requests).previous
    assert report.continuing == sum(previous[n] != sessions_module.NOBODY for n in rest)
    assert report.regret.window == 3
    assert report.starved_beyond_heads.of <= report.starved.of
