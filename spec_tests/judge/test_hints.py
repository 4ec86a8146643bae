"""Hints from the future, and what becomes of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from pathlib import Path

import numpy as np
import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, CPUOffloadingManager, OffloadKey, ReqContext
from kvoffload.errors import InvalidValueError
from kvoffload.judge.generator import Traffic, synthesize
from kvoffload.judge.hints import (
    HintGiver,
    HintKind,
    HintReport,
    HintRun,
    Raised,
    RequestFuture,
    ablate,
    common_hints,
    futures_of,
    report_of,
    run_kind,
)
from kvoffload.judge.outcome import Demand, Outcome, ratio
from kvoffload.judge.sessions import Sessions
from kvoffload.judge.workload import Workload
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.judge.workloads import workloads
from stateful_models.drivers import COMMON_HINTS, Driver
from stateful_models.engines.hints import hostile_values

CAPACITY = 40
DOCS = Path(__file__).resolve().parents[2] / "docs"


class Hinted(LRUCachePolicy):
    """LRU, but what a last turn stored goes first; bears whatever it is sent."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.closed: dict[OffloadKey, None] = {}

    def is_last(self, params: Mapping[str, object]) -> bool:
        return params.get("last_turn") is True

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        if self.is_last(req_context.kv_transfer_params or {}):
            self.closed[key] = None

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        first: list[tuple[OffloadKey, ChunkStatus]] = []
        # Tail first, as they came head first.
        for key in reversed(list(self.closed)):
            chunk = self.get(key)
            if len(first) < n and chunk is not None and not chunk.ref_cnt and key not in protected:
                first.append((key, chunk))
        for key, _ in first:
            self.remove(key)
        rest = super().evict(n - len(first), protected) if len(first) < n else []
        assert rest is not None
        for key, _ in (*first, *rest):
            self.closed.pop(key, None)
        return [*first, *rest]


class Credulous(Hinted):
    """Expects that a last turn is a bool, and a turn a number, if it is told."""

    @override
    def is_last(self, params: Mapping[str, object]) -> bool:
        turn, last = params.get("turn", 1), params.get("last_turn", False)
        if not isinstance(turn, int | float) or not isinstance(last, bool):
            raise TypeError(f"turn {str(turn)[:20]}")
        return last


class Demanding(Hinted):
    """Cannot be without."""

    @override
    def is_last(self, params: Mapping[str, object]) -> bool:
        return params["last_turn"] is True


WORKLOAD = Workload.of(synthesize(Traffic(sessions=60, session_gap=20.0), 4, 512))


def report(policy: type[CachePolicy], driver: Driver[Hinted] | None = None) -> HintReport:
    return ablate(
        lambda chunks: CPUOffloadingManager(chunks, policy),
        CAPACITY,
        WORKLOAD,
        base="lru",
        make_base=CPUOffloadingManager,
        hints_for=common_hints if driver is None else driver.hints_for,
        hostile=hostile_values,
        after=20,
    )


def figures(found: HintReport) -> dict[HintKind, float]:
    return {one.kind: one.over_none.value for one in found.kinds if one.over_none is not None}


@given(workloads(max_requests=20))
def test_the_future_is_what_comes(workload: Workload) -> None:
    requests = workload.requests
    previous = [int(n) for n in Sessions.of(requests).previous]

    def left(number: int) -> int:
        return max(
            (1 + left(n) for n, before in enumerate(previous) if before == number), default=0
        )

    for number, future in enumerate(futures_of(workload)):
        children = [n for n, before in enumerate(previous) if before == number]
        assert future.request == number
        assert future.turns_left == left(number)
        assert future.last_turn == (not children)
        assert future.priority == bool(children)
        gap = requests[children[0]].arrival - requests[number].arrival if children else None
        assert future.expected_gap == gap
        later = [one.blocks for one in requests[number + 1 :]]
        blocks = requests[number].blocks
        assert future.reused_blocks == max(
            (n for n in range(len(blocks) + 1) if any(b[:n] == blocks[:n] for b in later)),
            default=0,
        )
        beginning = number
        while previous[beginning] >= 0:
            beginning = previous[beginning]
        assert future.session_id == f"session-{beginning}"


def test_the_documents_name_all_that_a_future_has() -> None:
    known = [each.name for each in fields(RequestFuture)]
    known += [name for name, value in vars(RequestFuture).items() if isinstance(value, property)]
    told = (
        (DOCS / "judge-sessions.md").read_text("utf-8").partition("What a `RequestFuture` has:")[2]
    )
    listed = re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE)
    assert sorted(listed) == sorted(known)
    drivers = (DOCS / "drivers.md").read_text("utf-8").splitlines()
    (line,) = (line for line in drivers if line.startswith("| `hints_for(future)`"))
    assert {*re.findall(r"`(\w+)`", line)} == {*known, "future"} - {"request"}


def test_common_hints_have_the_names_that_drivers_know() -> None:
    names = {name for example in COMMON_HINTS for name in example or ()}
    for future in futures_of(WORKLOAD):
        hints = common_hints(future)
        assert names | {"turn"} <= hints.keys()
        assert Driver(Hinted).hints_for(future) == hints
        assert ("expected_gap" in hints) == (not future.last_turn)


@given(st.integers(2, 40), st.integers(0, 100))
def test_wrong_hints_are_another_request_s(requests: int, seed: int) -> None:
    futures = futures_of(Workload(WORKLOAD.requests[:requests], [0] * requests, has_tokens=True))
    marked: dict[HintKind, list[object]] = {}
    for kind in (HintKind.TRUE, HintKind.FIFTH_WRONG, HintKind.ALL_WRONG):
        giver = HintGiver(futures, kind, hints_for=lambda f: {"of": f.request}, seed=seed)
        given_out = [giver(number) for number in range(requests)]
        marked[kind] = [hints["of"] for hints in given_out if hints is not None]
        # Nothing is made up and nothing lost.
        assert sorted(map(str, marked[kind])) == sorted(map(str, range(requests)))
    wrong = {kind: sum(of != n for n, of in enumerate(given)) for kind, given in marked.items()}
    assert wrong[HintKind.TRUE] == 0
    assert wrong[HintKind.ALL_WRONG] == requests
    assert wrong[HintKind.FIFTH_WRONG] == max(-(-requests // 5), 2)
    none = HintGiver(futures, HintKind.NONE)
    assert [none(n) for n in range(requests)] == [None] * requests


def test_every_malformed_value_meets_every_name() -> None:
    futures = [futures_of(WORKLOAD)[0]] * 200

    def hints_for(future: RequestFuture) -> Mapping[str, object]:
        return {"a": "true", "b": "true"}

    giver = HintGiver(futures, HintKind.MALFORMED, hints_for=hints_for, hostile=lambda: [1, None])
    met = {str(giver(number)) for number in range(200)}
    assert met == {
        *("{'b': 'true'}", "{'a': 1, 'b': 'true'}", "{'a': None, 'b': 'true'}"),
        *("{'a': 'true'}", "{'a': 'true', 'b': 1}", "{'a': 'true', 'b': None}"),
    }
    with pytest.raises(InvalidValueError, match="values"):
        HintGiver(futures, HintKind.MALFORMED, values=[])


def test_what_hints_do_to_a_policy_that_reads_them() -> None:
    found = report(Hinted)
    assert [one.kind for one in found.kinds] == list(HintKind)
    assert found.reads_hints
    assert found.equals_base
    assert found.unlike_base == 0
    assert found.over_base is not None
    assert (found.over_base.value, found.over_base.low, found.over_base.high) == (0, 0, 0)
    worth = figures(found)
    assert worth[HintKind.NONE] == 0
    assert worth[HintKind.TRUE] > worth[HintKind.FIFTH_WRONG] > worth[HintKind.ALL_WRONG]
    lows = [one.over_none.low for one in found.kinds[2:] if one.over_none is not None]
    assert found.costs_at_most == max(0.0, *(-low for low in lows if low is not None))
    assert not any(one.raised for one in found.kinds)


def test_a_policy_that_reads_none_is_not_moved_by_them() -> None:
    found = report(LRUCachePolicy)
    assert found.reads_hints is False
    assert found.equals_base
    assert set(figures(found).values()) == {0.0}
    assert found.costs_at_most == 0


def test_figures_are_differences_of_ratios() -> None:
    found = report(Hinted)
    demand = Demand.of(WORKLOAD)
    lone = run_kind(
        lambda chunks: CPUOffloadingManager(chunks, Hinted), CAPACITY, WORKLOAD, HintKind.TRUE
    ).outcome
    base = run_kind(CPUOffloadingManager, CAPACITY, WORKLOAD, HintKind.NONE).outcome
    assert lone is not None
    assert base is not None
    true = found.kinds[1]
    assert true.value is not None
    assert true.over_none is not None
    assert true.value.value == pytest.approx(ratio(lone.token_hits, demand.tokens, 20))
    assert true.over_none.value == pytest.approx(
        ratio(lone.token_hits, demand.tokens, 20) - ratio(base.token_hits, demand.tokens, 20)
    )


def test_values_on_which_a_policy_raises_are_told_and_the_run_goes_on() -> None:
    found = report(Credulous)
    malformed = found.kinds[-1]
    assert malformed.kind is HintKind.MALFORMED
    # What is neither a number nor missing at "turn", or no bool at "last_turn".
    expected = {
        (text if len(text := repr(value)) <= 30 else f"{text[:30]}...")
        for value in hostile_values()
        if not isinstance(value, bool)
    }
    assert {one.value for one in malformed.raised} == expected
    assert all("TypeError: turn" in one.error for one in malformed.raised)
    # True and what is left out are borne.
    assert malformed.value is not None
    assert found.costs_at_most is not None
    assert figures(found).keys() == set(HintKind)


def test_a_policy_that_cannot_be_without_hints_has_no_figures_to_compare_with() -> None:
    found = report(Demanding)
    none, true = found.kinds[:2]
    assert none.value is None
    (raised,) = none.raised
    assert (raised.value, raised.request) == (None, 0)
    assert raised.error.endswith("KeyError: 'last_turn'")
    assert true.value is not None
    assert (found.equals_base, found.over_base, found.reads_hints) == (None, None, None)
    assert [one.over_none for one in found.kinds] == [None] * 5
    assert found.costs_at_most is None


class Renamed(Hinted):
    """Reads a name of its own."""

    @override
    def is_last(self, params: Mapping[str, object]) -> bool:
        return params.get("closing") == "yes"


class RenamedDriver(Driver[Hinted]):
    @override
    def hints_for(self, future: RequestFuture) -> Mapping[str, object] | None:
        return {"closing": "yes"} if future.last_turn else None


def test_a_driver_says_how_hints_look() -> None:
    assert not report(Renamed).reads_hints
    assert not report(Renamed, Driver(Renamed)).reads_hints
    own, common = report(Renamed, RenamedDriver(Renamed)), report(Hinted)
    assert own.reads_hints
    assert figures(own)[HintKind.TRUE] == figures(common)[HintKind.TRUE] > 0


def outcome(*hits: int) -> Outcome:
    counts = np.array(hits, np.int64)
    return Outcome(counts, counts)


def test_a_report_of_runs_that_were_made_elsewhere() -> None:
    ones = np.full(4, 2, np.int64)
    runs = [
        HintRun(HintKind.NONE, outcome(2, 1, 1, 0)),
        HintRun(HintKind.ALL_WRONG, outcome(2, 0, 0, 0)),
    ]
    found = report_of(runs, Demand(ones, ones), "lru", outcome(0, 1, 1, 1), after=1)
    assert found.unlike_base == 1
    assert found.over_base is not None
    assert found.over_base.value == pytest.approx(-1 / 6)
    assert figures(found)[HintKind.ALL_WRONG] == pytest.approx(-2 / 6)
    assert found.costs_at_most is not None
    assert found.costs_at_most >= 2 / 6
    with pytest.raises(InvalidValueError, match="runs"):
        report_of([*runs, *runs], Demand(ones, ones), "lru", outcome(0, 1, 1, 1))
    # One that was cut short leaves the most it can cost unknown.
    cut = HintRun(HintKind.FIFTH_WRONG, None, (Raised(0, "KeyError"),))
    found = report_of([*runs, cut], Demand(ones, ones), "lru", outcome(0, 1, 1, 1))
    assert found.costs_at_most is None
