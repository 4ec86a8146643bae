"""`kvoffload judge` from the command line to the page."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kvoffload.cli import executors, run
from kvoffload.cli.executors import progress_bar
from kvoffload.cli.judging import Subject, contract_of
from kvoffload.judge import page as pages
from kvoffload.judge.report import Judgement, from_json
from kvoffload.judge.resampling import Interval
from spec_tests.judge.quick_cost import measure_quickly
from spec_tests.judge.traces import write_trace
from stateful_models.driven import DrivenManager
from stateful_models.trial.verdicts import Outcome, Report

ROOT = Path(__file__).resolve().parents[2]
VALUE = ["--section", "value", "--jobs", "1", "--capacity", "10", "--capacity", "20%"]
POLICIES = '''
import os

from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.drivers import Driver
from stateful_models.invariants import Finding, Invariant
from stateful_models.operations import Evict


class NeverTwoAtOnce(Invariant):
    """No two chunks go at once."""

    clauses = ("TWO-1",)
    concerns = (Evict,)

    def judge(self, step, books):
        if step.operation.count > 1:
            yield Finding("TWO-1", f"{step.operation.count} at once")


class Fine(LRUCachePolicy):
    def __init__(self, cache_capacity, spare=0):
        print("built")
        super().__init__(cache_capacity)


class Tires(LRUCachePolicy):
    evictions = 0

    def evict(self, n, protected):
        self.evictions += 1
        if self.evictions == 5:
            raise RuntimeError("tired")
        return super().evict(n, protected)


class Wrong(LRUCachePolicy):
    def evict(self, n, protected):
        return super().evict(n, set())


class Leaves(LRUCachePolicy):
    def evict(self, n, protected):
        os._exit(0)


class lru(LRUCachePolicy):
    pass


class NeverMade(LRUCachePolicy):
    def __init__(self, cache_capacity):
        raise SystemExit(0)


class Hooked(LRUCachePolicy):
    """Evicts what came first unless its driver tells it of requests."""

    def __init__(self, cache_capacity, *, needs):
        super().__init__(cache_capacity)
        self.needs, self.told = needs, set()

    def begin(self, name):
        self.told.add(name)

    def insert(self, key, chunk, req_context):
        if self.needs and req_context.req_id not in self.told:
            raise RuntimeError("never heard of it")
        super().insert(key, chunk, req_context)


class Loyal(LRUCachePolicy):
    """Gives up what requests in their last turn stored first."""

    def __init__(self, cache_capacity):
        super().__init__(cache_capacity)
        self.given_up = {}

    def insert(self, key, chunk, req_context):
        super().insert(key, chunk, req_context)
        hints = req_context.kv_transfer_params or {}
        if hints.get("last_turn", False) + 0:
            self.given_up[key] = None

    def remove(self, key):
        super().remove(key)
        self.given_up.pop(key, None)

    def evict(self, n, protected):
        first = [
            key
            for key in self.given_up
            if key not in protected and self.get(key).ref_cnt == 0
        ][:n]
        victims = []
        for key in first:
            victims.append((key, self.get(key)))
            self.remove(key)
        rest = super().evict(n - len(victims), protected)
        for key, _ in rest:
            self.given_up.pop(key, None)
        return victims + rest


class HookedDriver(Driver):
    def host_events(self):
        return None

    def request_started(self, policy, context):
        policy.begin(context.req_id)
'''
FOR_VLLM = """
from collections import OrderedDict

from vllm.v1.kv_offload.cpu.policies.base import CachePolicy


class Fifo(CachePolicy):
    def __init__(self, cache_capacity):
        self.blocks = OrderedDict()

    def get(self, key):
        return self.blocks.get(key)

    def insert(self, key, block):
        self.blocks[key] = block

    def remove(self, key):
        del self.blocks[key]

    def touch(self, keys):
        pass

    def evict(self, n, protected):
        idle = [k for k, b in self.blocks.items() if b.ref_cnt == 0 and k not in protected][:n]
        if len(idle) < n:
            return None
        return [(key, self.blocks.pop(key)) for key in idle]

    def clear(self):
        self.blocks.clear()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Drawing takes longer than all else.
    monkeypatch.setattr("kvoffload.cli.folder.find_spec", find_nothing)
    write_trace(tmp_path / "small.jsonl")
    (tmp_path / "policies.py").write_text(POLICIES)
    (tmp_path / "for_vllm.py").write_text(FOR_VLLM)
    return tmp_path


def find_nothing(name: str) -> None:
    """Finds no module."""


def judged(here: Path, target: str, *options: str, status: int = 0) -> tuple[str, Judgement]:
    """The page and the data of a judgement on the small trace."""
    arguments = ["judge", target, "--trace", "small.jsonl", *options, "--out", "out"]
    assert run(arguments) == status
    page = (here / "out" / "report.md").read_text()
    return page, from_json((here / "out" / "report.json").read_bytes())


def cells(text: str) -> list[list[str]]:
    """The rows of the tables of a page, without their heads."""
    rows = [line for line in text.splitlines() if re.match(r"\| [\d,]+\+? \|", line)]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def shown(interval: Interval | None) -> str:
    assert interval is not None
    return f"{interval.value:.4f}"


class TestPage:
    def test_its_figures_are_those_of_the_data(self, here: Path) -> None:
        page, data = judged(here, "arc", *VALUE, "--prefill-rate", "1e4", "--transfer-rate", "2e9")
        (value,) = data.values
        rows = iter(cells(page))
        for tier in value.tiers:
            for own, lru, best in zip(*map(tier.of, ("arc", "lru", "optimum")), strict=True):
                row = next(rows)
                assert row[0] == f"{own.capacity:,}"
                assert row[1] == f"{own.of_working_set:.4f}"
                assert own.token_hits is not None
                assert row[2] == (
                    f"{shown(own.token_hits)} [{own.token_hits.low:.4f}, "
                    f"{own.token_hits.high:.4f}] ({shown(own.block_hits)})"
                )
                assert row[3] == f"{shown(lru.token_hits)} ({shown(lru.block_hits)})"
                assert row[4] == f"{shown(best.token_hits)} ({shown(best.block_hits)})"
                assert own.over_lru is not None
                assert row[5].startswith(f"{own.over_lru.value:+.4f} [")
                assert row[6].startswith(shown(own.gap_closed))
                assert row[8] == f"{own.refused:,}"
                assert row[9] == f"{own.saved_s:.4f}"
        assert not list(rows)
        assert "is a model" in page
        assert f"The first {value.warm_up} requests warm up" in page
        assert value.warm_up == value.requests // 10

    def test_each_command_in_it_gives_its_figures_again(
        self, here: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        page, _ = judged(here, "arc", *VALUE, "--warm-up", "7", "--gpu-chunks", "4")
        commands = re.findall(r"`(kvoffload judge [^`]*)`", page)
        assert len(commands) == 2
        for command in set(commands):
            done = subprocess.run(
                [sys.executable, "-m", *shlex.split(command), "--jobs", "1"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert cells(done.stdout) == cells(page) != []
            # Nobody looks at a bar.
            (told,) = done.stderr.splitlines()
            assert re.fullmatch(r"arc: \d+ runs over 1 trace, one after the other; .*", told)

    @pytest.mark.usefixtures("short_trials")
    def test_a_whole_page_is_a_page(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        measure_quickly(monkeypatch)
        page, data = judged(here, "lru", "--jobs", "1")
        assert len(page.splitlines()) <= 120
        assert "**clean**" in page
        assert data.contract is not None
        assert data.contract.held > 5
        assert sorted(data.commands) == ["contract", "cost", "hints", "sessions", "value"]
        # Nothing is said of the difference to itself.
        assert "over lru" not in page
        assert len([row for row in cells(page) if len(row) == 7]) == 12

    def test_several_traces_have_a_section_each(self, here: Path) -> None:
        write_trace(here / "other.jsonl", seed=1)
        page, data = judged(here, "arc", *VALUE, "--trace", "other.jsonl")
        assert [value.trace for value in data.values] == ["small.jsonl", "other.jsonl"]
        assert page.index("## Value on small.jsonl") < page.index("## Value on other.jsonl")

    def test_without_a_folder_it_goes_to_standard_output(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["judge", "policies.py:Fine", "--trace", "small.jsonl", *VALUE]) == 0
        out, _ = capsys.readouterr()
        assert out.startswith("# Fine, judged")
        # What a policy prints is no part of it.
        assert "built" not in out

    def test_a_name_is_never_that_of_a_baseline(self, here: Path) -> None:
        page, data = judged(here, "policies.py:lru", *VALUE)
        assert data.name == "lru (yours)"
        assert [row[6].split()[0] for row in cells(page)] == ["+0.0000"] * 4


class TestSessions:
    OPTIONS = ("--section", "sessions", "--jobs", "1")

    def test_its_figures_are_those_of_the_data(self, here: Path) -> None:
        page, data = judged(here, "arc", *self.OPTIONS)
        (value,) = data.sessions
        reports = [each.report for each in value.policies if each.report is not None]
        assert [each.policy for each in value.policies] == ["arc", "lru"]
        rows = [row for row in cells(page) if len(row) == 5]
        assert len(rows) == len(reports[0].turns) > 3
        for place, row in enumerate(rows):
            own, lru = (report.turns[place] for report in reports)
            assert row[1] == f"{own.requests:,}"
            assert row[3] == f"{own.p10:,} / {own.p50:,} / {own.p90:,}"
            assert row[4] == f"{lru.p10:,} / {lru.p50:,} / {lru.p90:,}"
        assert f"{reports[0].stranded.mean:.4f}" in page
        assert shown(reports[0].starved.share) in page
        assert shown(reports[0].regret.share) in page
        assert f"{value.capacity:,} chunks" in page

    def test_a_policy_that_raises(self, here: Path) -> None:
        page, data = judged(here, "policies.py:Tires", *self.OPTIONS, status=1)
        assert "**Tires**: PolicyContractError" in page
        assert data.sessions[0].policies[1].report is not None


class TestHints:
    OPTIONS = ("--section", "hints", "--jobs", "1")

    def test_a_policy_without_hints(self, here: Path) -> None:
        page, data = judged(here, "lru", *self.OPTIONS)
        (value,) = data.hints
        assert value.report is not None
        assert value.report.reads_hints is False
        assert "Without hints it equals lru." in page
        # There is nothing to tabulate.
        assert "over none" not in page

    def test_one_that_lives_on_them(self, here: Path) -> None:
        page, data = judged(here, "policies.py:Loyal", *self.OPTIONS, status=1)
        (value,) = data.hints
        assert value.report is not None
        assert value.report.reads_hints
        assert value.report.equals_base
        for kind in value.report.kinds:
            (row,) = [
                line for line in page.splitlines() if line.startswith(f"| {kind.kind.value} |")
            ]
            assert shown(kind.value) in row
        # What it makes of a malformed one ends that run alone.
        raised = [kind.kind.value for kind in value.report.kinds if kind.raised]
        assert raised == ["malformed"]
        assert "- **malformed on " in page
        assert "TypeError" in page


class TestPictures:
    def test_they_lie_beside_the_page(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("matplotlib")
        monkeypatch.setattr("kvoffload.cli.folder.find_spec", find_spec)
        page, _ = judged(here, "arc", *VALUE)
        assert "](curves-0.svg)" in page
        svg = (here / "out" / "curves-0.svg").read_text()
        for policy in ("arc", "lru", "optimum"):
            assert f'id="curve-{policy}"' in svg
        assert (here / "out" / "curves-0.png").read_bytes().startswith(b"\x89PNG")

    def test_without_matplotlib_the_page_says_so(self, here: Path) -> None:
        page, _ = judged(here, "arc", *VALUE)
        assert "need matplotlib" in page
        assert "![" not in page
        assert [each.name for each in (here / "out").iterdir() if "curves" in each.name] == []


class TestTargets:
    def test_a_policy_that_raises_in_a_run_has_its_page(self, here: Path) -> None:
        page, data = judged(here, "policies.py:Tires", *VALUE, status=1)
        assert "RuntimeError: tired (in request 8 of the trace)" in page
        assert data.convicted
        # Those beside it have their figures.
        assert all("(" in row[3] for row in cells(page))

    def test_and_so_has_one_that_ends_its_process(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("os.cpu_count", lambda: 1)
        options = ["--section", "value", "--capacity", "10", "--gpu-chunks", "0"]
        page, data = judged(here, "policies.py:Leaves", *options, status=1)
        found = "- **Leaves at 10 chunks**: ended its process, with status 0 (in request 4 of"
        assert found in page
        assert data.convicted
        assert all("(" in row[3] for row in cells(page))

    def test_and_so_has_one_that_breaks_its_contract_in_a_run(self, here: Path) -> None:
        page, _ = judged(here, "policies.py:Wrong", *VALUE, status=1)
        assert "PolicyContractError" in page
        assert "POL-2" in page

    @pytest.mark.usefixtures("short_trials")
    def test_one_that_is_convicted_on_trial_by_invariants_of_ones_own_too(self, here: Path) -> None:
        option = ("--invariant", "policies.py:NeverTwoAtOnce")
        page, data = judged(here, "policies.py:Wrong", "--section", "contract", *option, status=1)
        assert "**convicted**" in page
        assert "- POL-2 broken: " in page
        assert "- TWO-1 broken: " in page
        assert data.contract is not None
        assert data.contract.convicted
        assert " ".join(option) in data.commands["contract"]

    def test_what_was_cut_is_on_the_page(self) -> None:
        report = Report(
            target="lru",
            verdict=Outcome.CLEAN,
            profile="vllm",
            level="quick",
            host="vLLM 0.33",
            cut={"random": 0.815},
        )
        contract = contract_of(report)
        told = pages.page(
            Judgement(target="lru", name="lru", version="", command="", contract=contract)
        )
        line = "**clean**: 0 clauses held, level quick, host vLLM 0.33; cut by time: random 81%."
        assert line in told.splitlines()

    def test_a_driver_and_arguments(self, here: Path) -> None:
        target = "policies.py:Hooked"
        judged(here, target, *VALUE, "--arg", "needs=true", status=1)
        driven = ["--driver", "policies.py:HookedDriver", "--arg", "needs=true"]
        page, data = judged(here, target, *VALUE, *driven)
        assert data.arguments == {"needs": True}
        for tier in data.values[0].tiers:
            assert [p.token_hits for p in tier.of("Hooked")] == [
                p.token_hits for p in tier.of("lru")
            ]
        assert "--driver policies.py:HookedDriver --arg needs=True" in page
        (note,) = data.notes
        assert "`host_events`" in note
        assert f"- {note}" in page

    def test_a_policy_for_vllm(self, here: Path) -> None:
        page, data = judged(here, "for_vllm.py:Fifo", *VALUE, "--vllm")
        # As it was recognised.
        assert data.vllm == "0.25"
        assert "--vllm=0.25" in data.command
        assert "vLLM 0.24 to 0.30" in page
        assert not data.values[0].problems
        tier = data.values[0].tiers[0]
        for fifo, lru in zip(tier.of("Fifo"), tier.of("lru"), strict=True):
            assert fifo.token_hits is not None
            assert fifo.token_hits.value > 0
            assert fifo.token_hits != lru.token_hits
        # Only prompts that are larger than a cache find no room.
        assert tier.of("Fifo")[1].refused == 0

    def test_the_baselines_have_the_same_host(self, here: Path) -> None:
        makers = Subject("for_vllm.py:Fifo", vllm="0.23").policies()
        assert list(makers) == ["Fifo", "lru", "arc"]
        for make in makers.values():
            assert isinstance(make(5), DrivenManager)
        assert not isinstance(Subject("arc").policies()["lru"](5), DrivenManager)


DRIVERS = """
from stateful_models.drivers import Driver


class Future(Driver):
    def hints_for(self, future):
        return {"session_id": future.session}


class Listed(Driver):
    def hints_for(self, future):
        return [future.session_id]


class Hook(Driver):
    def request_finished(self, policy, context):
        context.kv_transfer_params["session_id"]


class Lazy(Driver):
    def evict(self, policy, count, protected, context):
        yield policy.victims[0]


class Leaves(Driver):
    def before_insert(self, policy, key, chunk, context):
        raise SystemExit(0)


class TooFew(Driver):
    def request_finished(self, policy):
        pass


class Asks(Driver):
    def request_finished(self, policy, context):
        policy.tire()
"""
HINTS = ["--section", "hints", "--jobs", "1", "--capacity", "20%"]
COST = ["--section", "cost", "--cost-seconds", "1", "--jobs", "1"]


@pytest.mark.parametrize(
    ("driver", "options", "said"),
    [
        ("Future", HINTS, "AttributeError: 'RequestFuture' object has no attribute 'session' at"),
        ("Future", COST, "drivers.py:7 in hints_for"),
        ("Listed", HINTS, "hints_for gives ['session-0'], no dict and not None"),
        (
            "Hook",
            HINTS,
            "object is not subscriptable at drivers.py:17 in request_finished",
        ),
        ("Hook", [*VALUE, "--section", "sessions"], "drivers.py:17 in request_finished"),
        ("Hook", COST, "drivers.py:17 in request_finished"),
        ("Lazy", VALUE, "no attribute 'victims' at drivers.py:22 in evict"),
        ("Leaves", VALUE, "SystemExit: 0 at drivers.py:27 in before_insert"),
        ("TooFew", VALUE, "request_finished is called with (policy, context), and takes (policy)"),
    ],
)
def test_what_the_driver_does_wrong_is_not_held_against_the_policy(
    driver: str,
    options: Sequence[str],
    said: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure_quickly(monkeypatch)
    (here / "drivers.py").write_text(DRIVERS)
    named = ["--driver", f"drivers.py:{driver}", "--trace", "small.jsonl"]
    assert run(["judge", "lru", *named, *options]) == 2
    page, error = capsys.readouterr()
    assert not page
    assert said in error.splitlines()[-1]


def test_nor_is_it_where_processes_carry_out_the_runs(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    (here / "drivers.py").write_text(DRIVERS)
    options = ["--section", "value", "--capacity", "10", "--trace", "small.jsonl"]
    assert run(["judge", "lru", "--driver", "drivers.py:Hook", *options]) == 2
    assert "the driver failed: TypeError" in capsys.readouterr().err


def test_what_a_hook_makes_the_policy_raise_is_the_policy_s(here: Path) -> None:
    (here / "drivers.py").write_text(DRIVERS)
    with (here / "policies.py").open("a") as policies:
        policies.write(
            "\n\nclass Weak(LRUCachePolicy):\n"
            "    def tire(self):\n        raise RuntimeError('tired')\n"
        )
    driven = ["--driver", "drivers.py:Asks"]
    page, _ = judged(here, "policies.py:Weak", *VALUE, *driven, status=1)
    assert "RuntimeError: tired" in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["none", *VALUE], "not registered"),
        (["policies.py:None", *VALUE], "no None"),
        # By default a policy is built in a process of its own first.
        (["policies.py:NeverMade", "--section", "value"], "cannot be built: SystemExit"),
        (["policies.py:NeverMade", "--section", "contract"], "cannot be built: SystemExit"),
        (["lru", "--trace", "none.jsonl", *VALUE], "No such file"),
        (["lru", "--trace", "policies.py", *VALUE], "policies.py"),
        (["for_vllm.py:Fifo", "--vllm=0.30", "--section", "contract"], "called by vLLM 0.30"),
        (["lru", *VALUE, "--warm-up", "all"], "warm-up"),
        (["lru", *VALUE, "--warm-up", "300", "--trace", "small.jsonl"], "warm-up"),
        (["lru", *VALUE, "--capacity", "some"], "capacity"),
        (["lru", *VALUE, "--prefill-rate", "5"], "go together"),
        (
            ["lru", *VALUE, "--invariant", "policies.py:NeverTwoAtOnce"],
            "--invariant judges a trial, which only the section contract holds",
        ),
        (["lru", *VALUE, "--prefill-rate", "1e-320", "--transfer-rate", "1"], "--prefill-rate"),
        (["lru", *VALUE, "--arg", "a=1,2"], "one value each"),
        (["lru", *VALUE, "--scheduler", "tcp://127.0.0.1:1"], "--jobs or --scheduler"),
        (["lru", *VALUE, "--out", "small.jsonl"], "--out small.jsonl"),
    ],
)
def test_what_cannot_be_judged(
    here: Path, options: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["judge", *options]) == 2
    _, error = capsys.readouterr()
    # What is to come is told before it is known that it cannot be.
    *before, last = error.splitlines()
    assert said in last
    assert len(before) <= ("contract" in options)


def test_what_is_to_come_is_told_and_not_on_the_page(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_quickly(monkeypatch)
    monkeypatch.setattr(executors, "LINE_SECONDS", 0.0)
    sections = ("--section", "value", "--section", "cost", "--cost-seconds", "5")
    options = ("--capacity", "10", "--gpu-chunks", "0", "--jobs", "1")
    assert run(["judge", "sieve", "--trace", "small.jsonl", *options, *sections]) == 0
    page, told = capsys.readouterr()
    lines = told.splitlines()
    assert lines[:2] == [
        "sieve: value (runs over 1 trace, counted once they are planned); then cost (each policy "
        "for up to 5 s)",
        # That of the policy, of LRU, ARC, the optimum and an infinite cache.
        "sieve: 5 runs over 1 trace, one after the other; 1,500 requests in all",
    ]
    assert lines[2:7] == [f"sieve: runs, {done} of 5" for done in range(1, 6)]
    assert lines[7:] == [f"sieve: cost, {done} of 3" for done in range(1, 4)]
    assert "runs over" not in page


def test_ctrl_c(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvoffload.judge.study.Study.carry_out", interrupt)
    assert run(["judge", "lru", "--trace", "small.jsonl", *VALUE]) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "kvoffload: interrupted; lru is not judged"


def test_a_bar_on_a_terminal() -> None:
    file = StringIO()
    with progress_bar(Console(file=file, force_terminal=True, width=80), "runs", 8) as proceed:
        proceed(5)
    assert re.search(r"runs .*━.*5/8", file.getvalue())


def test_a_line_that_cannot_be_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (here / "small.jsonl").open("a") as file:
        file.write(json.dumps({"timestamp": 1}) + "\n")
    assert run(["judge", "lru", "--trace", "small.jsonl", *VALUE]) == 2
    assert "small.jsonl" in capsys.readouterr().err
    assert run(["judge", "lru", "--trace", "small.jsonl", *VALUE, "--skip-bad-lines"]) == 0
