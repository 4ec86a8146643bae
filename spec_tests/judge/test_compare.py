"""`kvoffload compare`, from the command line to the tables; and the tables of the documentation."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from kvoffload import CachePolicyFactory
from kvoffload.cli import run
from kvoffload.judge.comparison import comparison_lines, from_json
from kvoffload.judge.value import INFINITE, OPTIMUM
from spec_tests.judge.test_cli import find_nothing
from spec_tests.judge.traces import write_trace
from spec_tests.policies_page import BEGIN, DATA, PAGE, renewed

TIRES = """
from kvoffload.policies.lru import LRUCachePolicy


class Tires(LRUCachePolicy):
    def evict(self, n, protected):
        raise RuntimeError("tired")
"""
OPTIONS = ("--trace", "small.jsonl", "--limit", "150", "--gpu-chunks", "0", "--jobs", "1")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # Drawing takes longer than all else.
    monkeypatch.setattr("kvoffload.cli.folder.find_spec", find_nothing)
    write_trace(tmp_path / "small.jsonl")
    blank = {"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}
    (tmp_path / "blank.jsonl").write_text(json.dumps(blank) + "\n")
    write_trace(tmp_path / "\udcff.jsonl")
    (tmp_path / "mine.py").write_text(TIRES)
    return tmp_path


def figures(page: str) -> dict[str, list[list[str]]]:
    """The cells behind the name of each policy, a list for each table."""
    found: dict[str, list[list[str]]] = {}
    for line in page.splitlines():
        if re.match(r"\| (`|optimum|infinite)", line):
            name, *cells = (cell.strip(" `") for cell in line.strip("|").split("|"))
            found.setdefault(name, []).append(cells)
    return found


def test_its_tables_are_those_of_the_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--capacity", "10", "--capacity", "30"]
    assert run(["compare", "slru", "arc", *OPTIONS, *sizes, "--out", "out"]) == 0
    page = (here / "out" / "report.md").read_text()
    data = from_json((here / "out" / "report.json").read_bytes())
    (tier,) = data.values[0].tiers
    shown = figures(page)
    assert list(shown) == ["lru", "slru", "arc", OPTIMUM, INFINITE]
    for name in ("lru", "slru", "arc", OPTIMUM):
        for point, cells in zip(tier.of(name), shown[name], strict=True):
            assert point.token_hits
            assert point.block_hits
            assert cells[0].startswith(f"{point.token_hits.value:.4f} [{point.token_hits.low:.4f}")
            assert cells[1].startswith(f"{point.block_hits.value:.4f} [{point.block_hits.low:.4f}")
            over, gap = point.over_lru, point.gap_closed
            assert cells[2].split(" [")[0] == (f"{over.value:+.4f}" if over else "-")
            assert cells[3].split(" [")[0] == (f"{gap.value:.4f}" if gap else "-")
    assert "**30 chunks**, " in page
    assert "\n".join(comparison_lines(data, None)) in page
    # The command in it gives the same again.
    again = [*shlex.split(data.command)[1:], "--jobs", "1"]
    capsys.readouterr()
    assert run([*again, "--json", "-"]) == 0
    out, told = capsys.readouterr()
    assert from_json(out.encode()) == data
    assert "optimum" in told
    assert run([*again, "--json", "-", "--out", "other"]) == 0
    assert capsys.readouterr().out == out
    assert (here / "other" / "report.json").read_text() == out


def test_by_default_all_that_are_registered(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *OPTIONS, "--capacity", "10"]) == 0
    shown = table_rows(capsys.readouterr().out)
    assert list(shown) == [*CachePolicyFactory.names(), OPTIMUM]


def table_rows(out: str) -> dict[str, list[str]]:
    """What stands behind the name of each policy, in all tables of a screen."""
    found: dict[str, list[str]] = {}
    for line in out.splitlines():
        row = re.fullmatch(r" (?!policy)(\S+) +([-.\d].*)", line)
        if row is not None:
            found.setdefault(row[1], []).extend(row[2].split())
    return found


@pytest.mark.parametrize(("columns", "tables"), [("40", 3), ("80", 1)])
def test_a_short_table_goes_to_the_screen(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
    tables: int,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    sizes = ["--capacity", "10", "--capacity", "30", "--capacity", "90"]
    assert run(["compare", "sieve", *OPTIONS, *sizes, "--json", "figures.json"]) == 0
    data = from_json((here / "figures.json").read_bytes())
    (tier,) = data.values[0].tiers
    out, told = capsys.readouterr()
    assert told == "to compare: 10 runs over 1 trace, one after the other; 1,500 requests in all\n"
    assert out.count(" policy ") == tables
    assert out.endswith(f"\nAgain: {data.command}\n")
    shown = table_rows(out)
    assert list(shown) == ["lru", "sieve", OPTIMUM]
    for name, row in shown.items():
        expected: list[str] = []
        for point in tier.of(name):
            assert point.token_hits
            expected.append(f"{point.token_hits.value:.4f}")
            over = point.over_lru
            if over is not None:
                assert over.low is not None
                assert over.high is not None
                sure = over.low > 0 or over.high < 0
                expected.append(f"{over.value:+.4f}{'*' if sure else ''}")
        assert row == expected
    assert any(cell.endswith("*") for cell in shown[OPTIMUM])


DRIVEN = """
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.drivers import Driver


class Needs(LRUCachePolicy):
    def __init__(self, cache_capacity, *, needs):
        super().__init__(cache_capacity)
        self.needs, self.told = needs, set()

    def insert(self, key, chunk, req_context):
        if self.needs and req_context.req_id not in self.told:
            raise RuntimeError("never heard of it")
        super().insert(key, chunk, req_context)


class Twin(Needs):
    pass


class Tells(Driver):
    def request_started(self, policy, context):
        policy.told.add(context.req_id)


class Errs(Driver):
    def request_started(self, policy, context):
        context.nothing
"""


def test_a_driver_and_arguments_are_those_of_all_targets_of_ones_own(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "driven.py").write_text(DRIVEN)
    targets = ["driven.py:Needs", "driven.py:Twin", "arc"]
    options = [*OPTIONS, "--capacity", "10", "--arg", "needs=true"]
    driven = ["--driver", "driven.py:Tells"]
    assert run(["compare", *targets, *options, "--json", "plain.json"]) == 1
    assert run(["compare", *targets, *driven, *options, "--json", "driven.json"]) == 0
    data = from_json((here / "driven.json").read_bytes())
    (tier,) = data.values[0].tiers
    hits = {point.policy: point.token_hits for point in tier.points}
    assert hits["Needs"] == hits["Twin"] == hits["lru"] != hits["arc"]
    words = shlex.split(data.command)
    assert words[: 2 + len(targets)] == ["kvoffload", "compare", *targets]
    assert run([*words[1:], "--jobs", "1", "--json", "again.json"]) == 0
    assert (here / "again.json").read_bytes() == (here / "driven.json").read_bytes()
    capsys.readouterr()
    assert run(["compare", *targets, *options, "--driver", "driven.py:Errs"]) == 2
    assert "the driver failed: AttributeError" in capsys.readouterr().err.splitlines()[-1]


def test_a_policy_that_raises_is_told_of(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "mine.py:Tires", *OPTIONS, "--capacity", "10"]) == 1
    out = capsys.readouterr().out
    assert table_rows(out)["Tires"] == ["-"]
    assert re.search(r"^Tires at 10 chunks: .*RuntimeError: tired \(in request \d+ ", out, re.M)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["none"], "not registered"),
        (["mine.py:None"], "no None"),
        (["--trace", "none.jsonl"], "No such file"),
        (["lru", "--driver", "mine.py:Tires"], "--driver mine.py:Tires: for targets of your own"),
        (["--arg", "a=1"], "--arg: for targets of your own"),
        (["mine.py:Tires", "--arg", "a=1,2"], "one value each"),
        (["mine.py:Tires", "--driver", "mine.py:Tires"], "not a subclass of"),
        (["lru", "--warm-up", "1e99999999%"], "warm-up"),
        (["lru", "--warm-up", "0.5"], "warm-up"),
        (["lru", "--chunk-bytes", "0", "--capacity", "8GiB"], "chunk-bytes must be at least 1"),
        (["lru", "--trace", "\udcff.jsonl"], "trace must be named by text"),
        (["lru", "--trace", "blank.jsonl"], "blank.jsonl: a trace without blocks"),
        (["--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"], "not both"),
    ],
)
def test_what_cannot_be_compared(
    here: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "--jobs", "1", *options]) == 2
    _, error = capsys.readouterr()
    assert said in error
    assert error.count("\n") == 1


def test_without_a_standard_output(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert run(["compare", "lru", *OPTIONS]) == 2
    assert "standard output is closed" in capsys.readouterr().err


def test_its_pictures_have_a_line_for_each_policy() -> None:
    pictures = pytest.importorskip("kvoffload.judge.pictures", exc_type=ImportError)
    value = from_json(DATA.read_bytes()).values[0]
    (axes,) = pictures.draw_curves(value).axes
    lines = [line for line in axes.get_lines() if line.get_gid()]
    names = [point.policy for point in value.tiers[0].points if point.capacity == 2000]
    assert [line.get_gid() for line in lines] == [f"curve-{name}" for name in names]
    # No two of them look alike, with colour or without.
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == len(lines)


def test_the_tables_of_the_documentation_are_made_from_its_data() -> None:
    text = PAGE.read_text("utf-8")
    assert renewed(text, DATA.read_bytes()) == text
    # Of every policy that there is, on both traces.
    shown = figures(text[text.index(BEGIN) :])
    assert list(shown) == [*CachePolicyFactory.names(), OPTIMUM, INFINITE]
    assert {len(rows) for rows in shown.values()} == {6}
