"""Cost and memory, from the command line to the page and its picture."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from numpy import asarray

from kvoffload import CPUOffloadingManager
from kvoffload.cli import run
from kvoffload.judge.cost_page import time_text
from kvoffload.judge.cost_value import CostValue, measure_all
from kvoffload.judge.report import Judgement, from_json
from spec_tests.judge.quick_cost import SIZES, measure_quickly
from spec_tests.judge.test_cli import FOR_VLLM, POLICIES, ROOT

CALLS = ("evict(1)", "evict(8)", "request of 16 keys", "refusal")
LISTENING = (
    POLICIES
    + '''

class Listening(LRUCachePolicy):
    """Wants to be told of each lookup, and of each store before it happens."""

    def __init__(self, cache_capacity):
        super().__init__(cache_capacity)
        self.missed, self.coming, self.open = set(), set(), set()

    def insert(self, key, chunk, req_context):
        self.missed.remove(key)
        self.coming.remove(key)
        super().insert(key, chunk, req_context)


class ListeningDriver(Driver):
    def request_started(self, policy, context):
        policy.open.add(context.req_id)

    def looked_up(self, policy, key, found, context):
        if not found:
            policy.missed.add(key)

    def before_store(self, policy, keys, context):
        policy.missed.update(keys if policy.missed else ())
        policy.coming.update(keys)

    def request_finished(self, policy, context):
        policy.missed.clear()
        policy.coming.clear()
        policy.open.remove(context.req_id)
'''
)


class Judged(NamedTuple):
    """What came of a judgement."""

    page: str
    data: Judgement
    cost: CostValue
    folder: Path


Judge = Callable[..., Judged]


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Judges the cost of a target."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "policies.py").write_text(LISTENING)
    # To go through a plain dict is no visit of keys.
    (tmp_path / "for_vllm.py").write_text(FOR_VLLM.replace("OrderedDict()", "{}"))
    measure_quickly(monkeypatch)

    def judged(target: str, *options: str, status: int = 0, pictures: bool = False) -> Judged:
        # Pictures take longer than all the rest.
        monkeypatch.setattr("kvoffload.cli.folder.find_spec", find_spec if pictures else no_spec)
        options = ("--section", "cost", "--jobs", "1", "--out", "out", *options)
        assert run(["judge", target, *options]) == status
        data = from_json((tmp_path / "out" / "report.json").read_bytes())
        assert data.cost is not None
        page = (tmp_path / "out" / "report.md").read_text()
        return Judged(page, data, data.cost, tmp_path / "out")

    return judged


def no_spec(name: str) -> None:
    """Nothing is installed."""


def table(page: str, head: str) -> dict[tuple[str, str], list[str]]:
    """The rows of the table whose head begins so, by their first two cells."""
    lines = page[page.index(f"| {head}") :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(first, second): rest for first, second, *rest in rows}


def test_the_figures_of_the_page_are_those_of_the_data(judge: Judge) -> None:
    page, data, cost, _ = judge("sieve")
    assert [each.policy for each in cost.policies] == ["sieve", "lru", "arc"]
    assert not data.convicted
    rows = table(page, "call |")
    assert list(rows) == [(call, str(size)) for call in CALLS for size in SIZES]
    own, lru, arc = cost.policies
    for (call, size), (times, visits, beside_lru, beside_arc) in rows.items():
        one, ours, theirs = (
            next(cost for cost in each.cost.of(call) if cost.size == int(size))
            for each in (own, lru, arc)
        )
        told = [one.seconds.p50, one.seconds.p99, one.seconds.worst]
        assert times.split(" / ") in (
            [time_text(each) for each in told],
            [time_text(told[0]), time_text(told[2])],
        )
        counted = [f"{each:,.0f}" for each in (one.visits.p50, one.visits.p99, one.visits.worst)]
        assert visits.split(" / ") in (counted, [counted[0], counted[2]])
        for text, other in ((beside_lru, ours), (beside_arc, theirs)):
            assert text == f"{time_text(other.seconds.p50)} / {time_text(other.seconds.worst)}"
    words = table(page, "growth")
    for growth in own.cost.growth:
        assert any(
            call == growth.call and any(cell.startswith(growth.words) for cell in (first, *rest))
            for (call, first), rest in words.items()
        )
    assert cost.machine in page
    assert "Again: `kvoffload judge sieve --section cost`" in page


def test_memory_of_the_three_stands_side_by_side(judge: Judge) -> None:
    page, _, cost, _ = judge("spec_tests.judge.memory_policies:KeepsKeys")
    rows = {what: [own, *rest] for (what, own), rest in table(page, "bytes of").items()}
    own, lru, arc = (each.memory for each in cost.policies)
    for size, full in zip(SIZES, zip(own.full, lru.full, arc.full, strict=True), strict=True):
        assert rows[f"a resident chunk of {size}"] == [f"{one.a_chunk:,.0f}" for one in full]
    assert own.keys is not None
    assert own.sessions is not None
    assert rows["further keys"][0].startswith(f"**{own.keys.each:,.0f} each**")
    assert rows["further keys"][1].startswith("plateau at ")
    assert rows["a dead session"] == [f"{own.sessions.each:,.0f}", "none", "none"]
    assert arc.ghosts is not None
    assert rows["a ghost"][1:] == ["none", f"{arc.ghosts.a_ghost:,.0f} ({arc.ghosts.number} kept)"]
    assert lru.live is not None
    assert rows["a live request"][1] == f"{lru.live.each:,.0f}"


def test_a_policy_that_fails(judge: Judge) -> None:
    page, data, cost, _ = judge("spec_tests.judge.cost_policies:FailsWhenLarge", status=1)
    said = "with 128 chunks it raised RuntimeError: too large for me"
    assert cost.of("FailsWhenLarge").problems == (said,)
    assert f"- **FailsWhenLarge**: {said}" in page
    assert table(page, "call |")["evict(1)", "128"][:2] == ["-", "-"]
    assert data.convicted


def test_what_there_was_no_time_for_is_said(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvoffload.judge.cost_value._FOR_COST", 0.0)
    page, _, cost, folder = judge("lru")
    assert not cost.policies[0].cost.costs
    assert "- lru with 64 chunks, not measured: evict(1), evict(8), " in page
    assert "| call |" not in page
    assert "](cost.svg)" not in page
    assert not (folder / "cost.svg").exists()


def test_the_command_says_what_was_asked_for(judge: Judge) -> None:
    page, data, cost, _ = judge("lru", "--cost-seconds", "7", "--limit", "5")
    assert cost.seconds == 7
    assert f"for {cost.seconds:g} s at most" in page
    # It takes no trace.
    assert data.commands["cost"] == "kvoffload judge lru --cost-seconds 7 --section cost"


def test_a_driver_is_told_what_its_policy_needs(judge: Judge) -> None:
    options = ("--driver", "policies.py:ListeningDriver")
    page, _, cost, _ = judge("policies.py:Listening", *options)
    assert not cost.of("Listening").problems
    sessions = cost.of("Listening").memory.sessions
    assert sessions is not None
    assert not sessions.grows
    assert "What its driver does is in the figures of Listening." in page
    page, *_ = judge("policies.py:Listening", status=1)
    assert "KeyError" in page


def test_what_a_driver_leaves_behind(judge: Judge) -> None:
    options = ("--driver", "policies.py:HookedDriver", "--arg", "needs=true")
    _, _, cost, _ = judge("policies.py:Hooked", *options)
    sessions = cost.of("Hooked").memory.sessions
    assert sessions is not None
    # The names of requests.
    assert sessions.grows


def test_a_policy_for_vllm(judge: Judge) -> None:
    _, _, cost, _ = judge("for_vllm.py:Fifo", "--vllm=0.23")
    own = cost.of("Fifo")
    assert not own.problems
    for one in own.cost.of("refusal"):
        # It reads the `ref_cnt` of every chunk, which is vLLM's.
        assert one.visits.p50 >= one.size
    full = own.memory.full[0]
    assert 0 < full.a_chunk < 100, "the chunks of vLLM are its host's"


def test_the_picture_shows_every_policy_and_call(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figures: list[Figure] = []

    def render(figure: Figure, _: str) -> bytes:
        figures.append(figure)
        return b""

    # To draw takes long, and is the same for all pictures.
    monkeypatch.setattr("kvoffload.judge.pictures.render", render)
    page, _, cost, folder = judge("arc", pictures=True)
    assert "](cost.svg)" in page
    assert sorted(each.name for each in folder.glob("cost.*")) == ["cost.png", "cost.svg"]
    panels = figures[0].axes
    assert tuple(axes.get_title() for axes in panels) == CALLS
    for axes in panels:
        drawn = {line.get_gid(): asarray(line.get_ydata()).tolist() for line in axes.lines}
        call = axes.get_title()
        for each in cost.policies:
            seconds = [one.seconds for one in each.cost.of(call)]
            assert drawn[f"cost-{call}-{each.policy}-p50"] == [one.p50 for one in seconds]
            assert drawn[f"cost-{call}-{each.policy}-worst"] == [one.worst for one in seconds]
        assert len(drawn) == 2 * len(cost.policies)
        styles = {(line.get_linestyle(), line.get_marker()) for line in axes.lines}
        assert len(styles) == len(cost.policies)


def test_policies_are_measured_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_quickly(monkeypatch)
    told: list[int] = []
    value = measure_all({"mine": CPUOffloadingManager}, 9.0, proceed=told.append)
    (one,) = value.policies
    assert (one.policy, told) == ("mine", [1])
    assert one.cost.budget_s + one.memory.budget_s == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5, "2.5 s"),
        (1234.0, "1,234 s"),
        (0.0123456, "12.3 ms"),
        (0.9876, "988 ms"),
        (1e-6, "1 us"),
        (4.5e-8, "0.045 us"),
    ],
)
def test_times_are_told_by_a_readable_unit(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
