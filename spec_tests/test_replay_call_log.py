"""Call logs as traces: which requests come out, and what a replay of them hits."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from kvoffload import (
    CachePolicyFactory,
    CPUOffloadingManager,
    OffloadingManager,
    ReqContext,
    RequestOffloadingContext,
)
from kvoffload.cli import run
from kvoffload.errors import TraceError
from kvoffload.replay import (
    SAMPLE,
    CostModel,
    Counts,
    Replay,
    Trace,
    TraceFormat,
    TraceRequest,
    survey,
)
from kvoffload.replay.readers.call_log import LOG_VERSION
from spec_tests.cli_helpers import Output
from stateful_models.logs import CallLog
from stateful_models.watching import watch, watched_policy_cls

HEADER = {"kvoffload_log": LOG_VERSION, "kind": "policy", "num_chunks": 4, "timed": True}
Line = Mapping[str, object]


def name(number: int, group: int = 0) -> str:
    """A key as a log names it; its block has the number."""
    return f"{number:016x}{0:08x}{group:08x}"


def access(time: float, request: str, *keys: str) -> Line:
    return {"call": "on_request_access", "time": time, "request": request, "keys": keys}


def ends(request: str, ends: Mapping[str, int], time: float = 0.0) -> Line:
    places = list(ends.items())
    call = "set_offload_key_position"
    return {"call": call, "time": time, "request": request, "positions": places}


def finish(request: str, *groups: Sequence[str], reused: Sequence[str] = ()) -> Line:
    call = "on_request_finished"
    return {"call": call, "request": request, "key_groups": groups, "reused": reused}


def write(path: Path, *lines: Line, header: Line = HEADER) -> Path:
    data = "".join(f"{json.dumps(line)}\n" for line in (header, *lines)).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path) -> list[TraceRequest]:
    with Trace(path).open() as requests:
        return list(requests)


def blocks(path: Path) -> list[list[int]]:
    return [list(request.blocks) for request in read(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


def test_a_log_is_told_by_its_header(path: Path) -> None:
    assert Trace(write(path)).format is TraceFormat.CALL_LOG


def test_requests_come_in_the_order_of_their_first_access(path: Path) -> None:
    write(
        path,
        access(1.0, "a", name(1)),
        access(2.0, "b", name(2)),
        access(3.0, "a", name(3)),
        access(4.0, "c", name(4)),
        finish("b", [name(2)]),
        finish("a", [name(1), name(3)]),
        # One that never ended, and one behind it.
        access(5.0, "d", name(5)),
        finish("d", [name(5)]),
    )
    requests = read(path)
    assert [request.arrival for request in requests] == [1.0, 2.0, 4.0, 5.0]
    assert [list(request.blocks) for request in requests] == [[1, 3], [2], [4], [5]]


def test_a_name_that_comes_again_after_its_end_is_another_request(path: Path) -> None:
    write(path, access(1.0, "a", name(1)), finish("a", [name(1)]), access(9.0, "a", name(2)))
    assert blocks(path) == [[1], [2]]


@pytest.mark.parametrize("ended", [True, False])
def test_the_prefix_goes_by_position(path: Path, ended: bool) -> None:
    keys = {name(1): 16, name(2): 32, name(3): 48}
    lines = [ends("a", keys), access(1.0, "a", name(3)), access(1.5, "a", name(2), name(1))]
    if ended:
        lines.append(finish("a", [name(1), name(2), name(3)]))
    assert blocks(write(path, *lines)) == [[1, 2, 3]]


def test_without_positions_the_order_is_that_of_the_end_or_of_access(path: Path) -> None:
    write(
        path,
        access(1.0, "a", name(3), name(1)),
        finish("a", [name(1), name(3)]),
        access(2.0, "b", name(3)),
        {"call": "insert", "time": 2.5, "request": "b", "key": name(1), "slot": 0},
    )
    assert blocks(path) == [[1, 3], [3, 1]]
    assert survey(Trace(path)).block_tokens is None


def test_tokens_are_told_by_where_keys_end(path: Path) -> None:
    """A last block that is not full counts as it is, and a head that was on the GPU does not."""
    write(
        path,
        ends("a", {name(1): 16, name(2): 32, name(3): 40}),
        access(1.0, "a", name(1), name(2), name(3)),
        ends("b", {name(8): 800, name(9): 816}),
        access(2.0, "b", name(8), name(9)),
    )
    first, second = read(path)
    assert (first.block_tokens, first.input_tokens) == (16, 40)
    assert list(first.block_ends()) == [16, 32, 40]
    assert (second.block_tokens, second.input_tokens) == (16, 32)


def test_keys_of_other_groups_are_left_out(path: Path) -> None:
    write(
        path,
        ends("a", {name(1): 16, name(1, 1): 16, name(2): 32, name(2, 1): 20}),
        access(1.0, "a", name(1), name(1, 1), name(2), name(2, 1)),
        finish("a", [name(1), name(2)], [name(1, 1), name(2, 1)], reused=[name(1), name(1, 1)]),
    )
    (request,) = read(path)
    assert list(request.blocks) == [1, 2]
    assert (request.block_tokens, request.recorded_hits) == (16, 1)


def test_what_is_no_key_and_what_is_of_no_request_is_left_out(path: Path) -> None:
    write(
        path,
        {"call": "get", "key": name(7)},
        {"call": "evict", "count": 1, "protected": [name(7)]},
        {"call": "host_event", "name": "f", "arguments": [{"keys": [name(7)]}]},
        access(1.0, "", name(7)),
        access(1.0, "a", "?str:00", "zz", name(1)),
        # After the end, nothing of it is an access.
        finish("a", ["?str:00", name(1)]),
        {"call": "touch", "request": "a", "keys": [name(7)]},
        {"call": "complete_store", "request": "a", "keys": [name(7)]},
    )
    assert blocks(path) == [[1]]


def test_what_the_engine_reused_is_summed_up(path: Path) -> None:
    write(
        path,
        access(1.0, "a", name(1), name(2)),
        finish("a", [name(1), name(2)]),
        access(2.0, "b", name(1), name(2)),
        finish("b", [name(1), name(2)], reused=[name(1)]),
        access(3.0, "c", name(1)),
    )
    found = survey(Trace(path))
    # Of one that did not end it is not known.
    assert (found.recorded_hits, found.recorded_blocks, found.blocks) == (1, 4, 5)
    assert survey(Trace(SAMPLE, limit=3)).recorded_hits is None


def test_hints_whose_values_are_there_reach_policies(path: Path) -> None:
    def seen(request: str, values: bool, **hints: object) -> Line:
        call = "on_new_request"
        return {"call": call, "request": request, "hints": hints, "hint_values": values}

    odd = {"?number": "nan"}
    write(
        path,
        seen("a", True, session="s", turn=2, odd=odd, thing={"?": "object"}),
        access(1.0, "a", name(1)),
        seen("b", False, session="string"),
        access(2.0, "b", name(1)),
        access(3.0, "c", name(1)),
    )
    hints = [request.hints for request in read(path)]
    assert hints[0] is not None
    assert str(hints[0]["odd"]) == "nan"
    assert {**hints[0], "odd": 0} == {"session": "s", "turn": 2, "odd": 0}
    assert hints[1:] == [None, None]
    manager = Listening(4)
    with Trace(path).open() as requests:
        Replay(manager, CostModel()).run(requests)
    assert [None if each is None else dict(each)["session"] for each in manager.sent] == [
        "s",
        None,
        None,
    ]


class Listening(CPUOffloadingManager):
    """Keeps what clients sent."""

    def __init__(self, num_chunks: int) -> None:
        super().__init__(num_chunks)
        self.sent: list[dict[str, object] | None] = []

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self.sent.append(req_context.kv_transfer_params)
        return super().on_new_request(req_context)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"kvoffload_log": 1, "kind": "policy"}, "does not say when anything happened"),
        ({**HEADER, "timed": False}, "does not say when anything happened"),
        ({**HEADER, "kvoffload_log": 3}, "of version 3; these are read: 1 and 2"),
        ({**HEADER, "kvoffload_log": "two"}, "the JSON of this line cannot be read"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_words(path: Path, header: Line, said: str) -> None:
    write(path, access(1.0, "a", name(1)), header=header)
    with pytest.raises(TraceError, match=rf"calls\.jsonl:1: .*{said}"):
        read(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (access(-1.0, "b", name(1)), "time must be in"),
        (access(1e300, "b", name(1)), "time must be in"),
        (ends("b", {name(1): -16}), "the ends of keys"),
        (ends("b", {name(1): 2**60}), "the ends of keys"),
        ({"call": "on_request_access", "request": 3}, "the JSON of this line cannot be read"),
    ],
)
def test_a_bad_line_is_refused_or_skipped(path: Path, line: Line, said: str) -> None:
    write(path, access(1.0, "a", name(1)), line, access(2.0, "a", name(2)))
    with pytest.raises(TraceError, match=rf"calls\.jsonl:3: .*{said}"):
        read(path)
    trace = Trace(path, skip_bad=True)
    with trace.open() as requests:
        found = [list(request.blocks) for request in requests if request.blocks]
        assert requests.skipped == 1
    assert found == [[1, 2]]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_the_log_of_a_process_that_was_killed_is_read_to_its_end(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"calls.{suffix}"
    numbers = range(400)
    write(path, *(access(float(n), f"r{n}", name(n * 7919)) for n in numbers))
    path.write_bytes(path.read_bytes()[:-40])
    found = blocks(path)
    assert 300 < len(found) < 400
    assert found == [[n * 7919] for n in numbers][: len(found)]


def recorded(
    path: Path, make: Callable[[CallLog], OffloadingManager], *, limit: int = 200
) -> Counts:
    """The counts of a run of the sample, of which a log was written on the clock of the trace."""
    time = [0.0]

    def arriving() -> Iterator[TraceRequest]:
        with Trace(SAMPLE, limit=limit).open() as requests:
            for request in requests:
                time[0] = request.arrival
                yield request

    with CallLog.to(path, clock=lambda: time[0]) as log:
        return Replay(make(log), CostModel(chunk_bytes=512 * 131_072)).run(arriving())


def of_policy(log: CallLog) -> OffloadingManager:
    lru = CachePolicyFactory.get_cache_policy_cls("lru")
    watched = watched_policy_cls(lru, make_observers=lambda: (log,))
    return CPUOffloadingManager(900, cache_policy=watched)


def of_manager(log: CallLog) -> OffloadingManager:
    return watch(CPUOffloadingManager(900), num_chunks=900, observers=[log])


def test_a_recorded_policy_is_replayed_to_the_hits_it_had(path: Path) -> None:
    counts = recorded(path, of_policy)
    assert counts.given_up == 0
    again = CPUOffloadingManager(900)
    with Trace(path).open() as requests:
        found = Replay(again, CostModel(chunk_bytes=512 * 131_072)).run(requests)
    assert (found.blocks, found.block_hits, found.token_hits, found.evicted) == (
        counts.blocks,
        counts.block_hits,
        counts.token_hits,
        counts.evicted,
    )
    assert counts.block_hits > 150
    assert counts.evicted > 1_000
    assert survey(Trace(path)).recorded_hits == counts.block_hits


def test_a_recorded_manager_is_replayed_without_tokens(path: Path) -> None:
    counts = recorded(path, of_manager)
    found = survey(Trace(path))
    assert (found.requests, found.blocks) == (counts.requests, counts.blocks)
    assert (found.block_tokens, found.recorded_hits) == (None, None)


def test_the_command_replays_a_log_and_says_what_was_recorded(path: Path, capsys: Output) -> None:
    counts = recorded(path, of_policy)
    assert run(["replay", str(path), "--capacity", "900", "--policy", "lru", "--check"]) == 0
    out = capsys.readouterr().out
    assert "calls.jsonl (callLog): 200 requests" in out
    share = counts.block_hits / counts.blocks
    assert f"the engine reused {share:.4f} of blocks: {counts.block_hits:,} of" in out
    assert f" {share:.4f} " in out.split("second", 1)[1]


def test_the_command_replays_the_log_of_a_manager(path: Path, capsys: Output) -> None:
    counts = recorded(path, of_manager, limit=50)
    assert run(["replay", str(path), "--capacity", "900", "--policy", "lru"]) == 0
    assert f"50 requests, {counts.blocks:,} blocks of unknown size" in capsys.readouterr().out
