"""Synthetic traffic: what it promises of itself, that it can be read, and the optimum it knows."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from kvoffload.cli import run
from kvoffload.errors import InvalidValueError
from kvoffload.judge.generator import (
    BLOCK_TOKENS,
    OUTPUT_RATE,
    TOOL_SECONDS,
    Rotation,
    Traffic,
    synthesize,
    trace_lines,
)
from kvoffload.judge.optimum import best_possible
from kvoffload.judge.sessions import NOBODY, Sessions
from kvoffload.judge.workload import Workload
from kvoffload.replay import Trace, TraceFormat
from spec_tests.cli_helpers import Output
from spec_tests.judge.test_optimum import by_trying_everything

SMALL = Traffic(sessions=12, turns=3, systems=2, system_tokens=40, tools=2, tool_tokens=10)


@pytest.mark.parametrize("trace_format", BLOCK_TOKENS)
@pytest.mark.parametrize("packed", [False, True])
def test_its_reader_reads_what_was_made(
    tmp_path: Path, trace_format: TraceFormat, packed: bool
) -> None:
    made = synthesize(Traffic(sessions=30), 5, BLOCK_TOKENS[trace_format])
    data = trace_lines(made, trace_format)
    path = tmp_path / "made"
    path.write_bytes(gzip.compress(data) if packed else data)
    trace = Trace(path)
    assert trace.format is trace_format
    with trace.open() as reading:
        read = list(reading)
    has_chats = trace_format is TraceFormat.BAILIAN
    assert read == [one if has_chats else evolve(one, chat=None) for one in made]


def test_only_these_formats_and_sizes_are_written() -> None:
    made = synthesize(SMALL, 0, 16)
    with pytest.raises(InvalidValueError, match="trace_format"):
        trace_lines(made, TraceFormat.CSV)
    with pytest.raises(InvalidValueError, match="block_tokens"):
        trace_lines(made, TraceFormat.MOONCAKE)
    with pytest.raises(InvalidValueError, match="block_tokens"):
        synthesize(SMALL, 0, 0)


@given(st.integers(0, 2**20))
def test_a_seed_is_all_that_chance_follows_from(seed: int) -> None:
    made = synthesize(SMALL, seed)
    assert made == synthesize(SMALL, seed)
    assert made != synthesize(SMALL, seed + 1)


@given(st.integers(0, 2**20), st.sampled_from([1, 7, 16, 512]))
def test_a_turn_sends_all_that_was_said_before(seed: int, block_tokens: int) -> None:
    """A block is a number, and the same number always has the same blocks before it."""
    made = synthesize(evolve(SMALL, branching=0.4), seed, block_tokens)
    sessions = Sessions.of(made)
    assert sessions.told
    before: dict[int, int] = {}
    for request in made:
        tokens = request.input_tokens
        assert tokens is not None
        assert len(request.blocks) == -(-tokens // block_tokens)
        for one, other in pairwise((-1, *request.blocks)):
            assert before.setdefault(other, one) == one
    assert [one.arrival for one in made] == sorted(one.arrival for one in made)
    for request, parent in zip(made, sessions.previous, strict=True):
        assert request.chat is not None
        assert (parent == NOBODY) == (request.chat.turn == 1)
        if parent == NOBODY:
            continue
        earlier = made[int(parent)]
        said, answered = earlier.input_tokens, earlier.output_tokens
        assert said is not None
        assert answered is not None
        whole = said // block_tokens
        assert request.blocks[:whole] == earlier.blocks[:whole]
        assert (request.input_tokens or 0) > said + answered
        # To a thousandth, as times are whole milliseconds.
        assert request.arrival - earlier.arrival > answered / OUTPUT_RATE - 0.002


def test_it_is_as_it_was_asked_to_be() -> None:
    traffic = Traffic(sessions=2_000, turns=4.0, tool_use=0.5, branching=0.2, session_gap=3.0)
    made = synthesize(traffic, 1, 512)
    sessions = Sessions.of(made)
    assert len(set(sessions.session)) == 2_000
    assert len(made) / 2_000 == pytest.approx(4.0, rel=0.1)
    kinds = [one.chat.kind for one in made if one.chat is not None]
    later = int((sessions.previous != NOBODY).sum())
    assert kinds.count("tool") / later == pytest.approx(0.5, abs=0.03)
    parents = [int(n) for n in sessions.previous if n != NOBODY]
    assert len(parents) - len(set(parents)) > 100
    begun = [one.arrival for one in made if one.chat is not None and one.chat.turn == 1]
    assert begun[-1] / 2_000 == pytest.approx(3.0, rel=0.1)
    gaps = {"tool": list[float](), "text": list[float]()}
    for request, parent in zip(made, sessions.previous, strict=True):
        if parent != NOBODY and request.chat is not None:
            earlier = made[int(parent)]
            answered = (earlier.output_tokens or 0) / OUTPUT_RATE
            gaps[request.chat.kind].append(request.arrival - earlier.arrival - answered)
    assert sum(gaps["tool"]) / len(gaps["tool"]) == pytest.approx(TOOL_SECONDS, rel=0.1)
    # Those who go back to an earlier turn take longer than they think.
    assert 55 < sum(gaps["text"]) / len(gaps["text"]) < 110
    # Four system prompts, of which one is the favourite.
    first = [one.blocks[0] for one in made if one.chat is not None and one.chat.turn == 1]
    shares = sorted((first.count(block) / len(first) for block in set(first)), reverse=True)
    assert shares == pytest.approx([12 / 25, 6 / 25, 4 / 25, 3 / 25], abs=0.03)


def test_sessions_can_be_inferred_from_what_it_writes() -> None:
    made = synthesize(Traffic(sessions=100, branching=0.0, user_tokens=900.0), 2, 16)
    told = Sessions.of(made)
    inferred = Sessions.of([evolve(one, chat=None) for one in made])
    assert not inferred.told
    assert list(inferred.previous) == list(told.previous)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("sessions", lambda: Traffic(sessions=0)),
        ("turns", lambda: Traffic(turns=0.5)),
        ("turns", lambda: Traffic(turns=float("nan"))),
        ("branching", lambda: Traffic(branching=1.0)),
        ("tools", lambda: Traffic(tools=-1)),
        ("think_time", lambda: Traffic(think_time=1e300)),
        ("turns", lambda: Rotation(sessions=1, turns=0)),
    ],
)
def test_what_is_no_traffic(name: str, build: Callable[[], object]) -> None:
    with pytest.raises(InvalidValueError, match=name):
        build()


ROTATIONS = st.builds(
    Rotation,
    sessions=st.integers(1, 3),
    turns=st.integers(1, 4),
    shared=st.integers(0, 2),
    first=st.integers(0, 2),
    more=st.integers(0, 2),
)


@given(ROTATIONS, st.integers(0, 12))
def test_the_known_optimum_is_the_judge_s(rotation: Rotation, capacity: int) -> None:
    best = best_possible(Workload.of(rotation.requests()), capacity)
    assert best.block_hits.sum() == best.token_hits.sum() == rotation.optimum(capacity)


@given(ROTATIONS, st.integers(0, 3))
def test_the_known_optimum_is_what_trying_everything_finds(
    rotation: Rotation, capacity: int
) -> None:
    workload = Workload.of(rotation.requests())
    # Everything is much.
    assume(workload.distinct_blocks <= 8 and len(workload.requests) <= 8)
    tried = by_trying_everything(workload, capacity, lambda number, start, stop: stop - start)
    assert tried == rotation.optimum(capacity)


@pytest.mark.parametrize("number", range(3))
def test_what_the_page_shows_runs(number: int) -> None:
    text = (Path(__file__).parents[2] / "docs" / "judge-sessions.md").read_text("utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(programs) == 3
    exec(compile(programs[number], "judge-sessions.md", "exec"), {"__name__": "page"})


def test_the_command_writes_what_it_says(tmp_path: Path, capsys: Output) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    options = ["--sessions", "20", "--seed", "3", "--think-time", "9", "--format", "mooncake"]
    for path in (plain, packed):
        assert run(["synthesize", str(path), *options]) == 0
    made = synthesize(Traffic(sessions=20, think_time=9.0), 3, 512)
    assert plain.read_bytes() == trace_lines(made, TraceFormat.MOONCAKE)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert f"{len(made)} requests" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--format", "csv"], "bailian"),
        (["--turns", "0"], "--turns"),
        (["--branching", "1"], "--branching"),
        (["--system-tokens", "-1"], "--system-tokens"),
    ],
)
def test_the_command_says_what_is_wrong(
    tmp_path: Path, capsys: Output, options: list[str], said: str
) -> None:
    path = tmp_path / "a.jsonl"
    assert run(["synthesize", str(path), *options]) == 2
    assert said in capsys.readouterr().err
    assert not path.exists()
