"""WatchedPolicy, loaded by configuration alone, under the stand-ins of vLLM 0.33."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from errno import ENOSPC
from itertools import count
from pathlib import Path
from typing import Final, cast

import pytest
from typing_extensions import override

from kvoffload import ChunkStatus, CPUOffloadingManager, OffloadKey, ReqContext
from kvoffload.errors import (
    InvalidValueError,
    NotAPolicyError,
    NoVLLMError,
    PolicyContractError,
    UnknownPolicyError,
)
from kvoffload.replay import SAMPLE, CostModel, Counts, Replay, Trace, TraceRequest, survey
from kvoffload.vllm.policies import HostedPolicy
from kvoffload.vllm.standins import StandIns
from kvoffload.vllm.standins.factory import PolicyFactory
from kvoffload.vllm.versions import NEWEST
from spec_tests.clauses.policies import FIFOPolicy, Victims
from spec_tests.vllm.rounds import KEYS, Called, Rounds
from stateful_models import operations as op
from stateful_models.loading import TargetError
from stateful_models.logs import CallLog, HintOfType, LogReader, judge_log
from stateful_models.steps import Step
from stateful_models.vllm import settings, watched
from stateful_models.vllm.settings import Judging, Settings, place
from stateful_models.vllm.watched import RecordedPolicy, close_logs, wrapped_class

HERE: Final = __name__
MODULE: Final = "stateful_models.vllm.watched"
A, B, C = KEYS[:3]
VARIABLES: Final = (
    settings.POLICY,
    settings.LOG,
    settings.SALT,
    settings.HINTS,
    settings.JUDGE,
    settings.LIMIT,
)


class Pinned(FIFOPolicy):
    """Gives the oldest, whoever reads it (POL-2)."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        oldest = [(key, self.chunks.pop(key)) for key in list(self.chunks)[:n]]
        return oldest if len(oldest) == n else None


class RefusedError(RuntimeError):
    """What a policy raises."""


class Refusing(FIFOPolicy):
    """Raises, always the same."""

    error: BaseException = RefusedError("no touching")

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        raise self.error


class Sessions(FIFOPolicy):
    """Has hooks and attributes that only a host of its own knows."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.opened: list[object] = []
        self.score = 0.5

    def open_session(self, name: str, *, keys: Iterable[OffloadKey] = (), by: object = None) -> int:
        self.opened.append((name, tuple(keys), by))
        return len(self.opened)

    def fail(self) -> None:
        raise RefusedError("extra")


class NoPolicy:
    """Has no method of one."""


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with StandIns(NEWEST) as standins:
        yield standins
        close_logs()


@pytest.fixture
def log(vllm: StandIns, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where logs go, before process and engine are placed in the name."""
    path = tmp_path / "logs" / "calls.jsonl"
    monkeypatch.setenv(settings.LOG, str(path))
    return path


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def watched_class(vllm: StandIns) -> type:
    factory = vllm.classes.factory
    assert factory is not None
    assert issubclass(factory, PolicyFactory)
    return factory.get_cache_policy_cls("WatchedPolicy", MODULE)


def side_of(vllm: StandIns) -> tuple[Called, RecordedPolicy]:
    """A side with the class that the environment describes, and one request."""
    side = Called(vllm, watched_class(vllm))
    side.begin("r", {A: 16, B: 32})
    return side, cast("RecordedPolicy", side.policy)


def log_of(policy: RecordedPolicy) -> Path:
    path = policy.live.log_path
    assert path is not None
    return path


def lines_of(policy: RecordedPolicy) -> list[dict[str, object]]:
    policy.live.close()
    return [json.loads(line) for line in log_of(policy).read_bytes().splitlines()]


def calls_of(policy: RecordedPolicy) -> list[object]:
    return [line["call"] for line in lines_of(policy)[1:]]


def steps_in(path: Path) -> list[Step]:
    with LogReader(path) as reader:
        return list(reader)


@pytest.mark.parametrize("judge", ["off", "report", "raise"])
@pytest.mark.parametrize("name", ["lru", "arc", "kvoffload.policies.lru:LRUCachePolicy"])
def test_a_watched_policy_chooses_as_the_one_inside(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path, name: str, judge: str
) -> None:
    monkeypatch.setenv(settings.POLICY, name)
    monkeypatch.setenv(settings.JUDGE, judge)
    monkeypatch.setenv(settings.SALT, "of this test")
    inside = vllm.classes.arc if name == "arc" else vllm.classes.lru
    assert inside is not None
    side = Called(vllm, watched_class(vllm))
    rounds = Rounds(7, (side, Called(vllm, inside)), clears=True)
    rounds.play(300)
    assert rounds.reach["victims: 1"] >= 5
    policy = cast("RecordedPolicy", side.policy)
    tally = policy.live.tally
    assert tally.violations == []
    policy.live.close()
    report = judge_log(log_of(policy))
    assert report.num_violations == 0
    assert report.steps == tally.steps > 2_000
    assert report.checks >= report.steps
    # What leaves the machine: no key, no request, no salt.
    data = log_of(policy).read_bytes()
    assert not any(key[:-4].hex().encode() * 2 in data for key in KEYS)
    assert b"of this test" not in data
    assert b'"r0"' not in data


def test_the_log_tells_positions_and_times(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    readings = count(100)
    monkeypatch.setattr(watched, "monotonic", lambda: float(next(readings)))
    side, policy = side_of(vllm)
    side.access([A, C], "r")
    side.insert(A, 3, "r")
    side.references(A, 0)
    header, *lines = lines_of(policy)
    assert header["timed"] is True
    assert header["host"] == "vLLM"
    assert [line["call"] for line in lines] == [
        "on_new_request",
        "set_offload_key_position",
        "on_request_access",
        "insert",
        "mark_evictable",
    ]
    assert [line["time"] for line in lines] == [1.0, 2.0, 3.0, 4.0, 5.0]
    (position,) = cast("list[list[object]]", lines[1]["positions"])
    assert position == [cast("list[str]", lines[2]["keys"])[0], 16]


def test_the_name_of_a_log_has_process_and_engine(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    names = [log_of(side_of(vllm)[1]).name for _ in range(2)]
    mine = f"calls.MainProcess-{os.getpid()}"
    assert names == [f"{mine}-0.jsonl", f"{mine}-1.jsonl"]
    assert place(Path("a/b.jsonl.gz"), 2).name == f"b.MainProcess-{os.getpid()}-2.jsonl.gz"
    assert place(Path("log"), 0) == Path(f"log.MainProcess-{os.getpid()}-0")
    monkeypatch.setattr("multiprocessing.process._current_process._name", "Engine Core/1")
    assert place(Path("log"), 0) == Path(f"log.Engine_Core_1-{os.getpid()}-0")


def test_logs_under_one_salt_name_a_key_alike(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    def name_of_a() -> object:
        side, policy = side_of(vllm)
        side.call("get", A)
        return lines_of(policy)[-1]["key"]

    assert name_of_a() != name_of_a()
    monkeypatch.setenv(settings.SALT, "12345678")
    assert name_of_a() == name_of_a()


def test_of_hints_only_listed_fields_are_written(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    sent: dict[str, object] = {"session": "s1", "secret": "hunter2", "turn": 3}
    envelope = vllm.make_hints({"pin": {"seconds": 3, "who": "hunter2"}})

    def hints() -> object:
        side, policy = side_of(vllm)
        side.contexts["h"] = vllm.make_context("h", sent, kv_hints=envelope)
        side.touch([A], "h")
        policy.live.close()
        seen = steps_in(log_of(policy))[0].operation
        assert isinstance(seen, op.NewRequest)
        return seen.hints

    assert hints() == {}
    monkeypatch.setenv(settings.HINTS, "turn, session,unheard")
    assert hints() == {"session": "s1", "turn": 3}
    monkeypatch.setenv(settings.HINTS, "kv_hints")
    (actions,) = [cast("dict[str, dict[str, object]]", hints())["kv_hints"]["actions"]]
    assert cast("list[dict[str, object]]", actions)[0]["payload"] == {
        "seconds": 3,
        "who": "hunter2",
    }


def test_a_report_says_which_hints_a_log_has(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    for listed, said in (("", "none"), ("turn", "turn")):
        monkeypatch.setenv(settings.HINTS, listed)
        side, policy = side_of(vllm)
        side.contexts["h"] = vllm.make_context("h", {"turn": 1})
        side.touch([A], "h")
        policy.live.close()
        assert f"of hints, the log has these fields: {said}" in str(judge_log(log_of(policy)))


def pinned_victim(side: Called) -> None:
    """Make Pinned give a chunk that is being read."""
    side.insert(A, 0, "r")
    side.references(A, 0)
    side.references(A, 1)
    side.evict(1, [])


def test_breaches_are_reported_once_a_clause_and_change_nothing(
    vllm: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    log: Path,
    warnings: Callable[[], list[str]],
) -> None:
    monkeypatch.setenv(settings.POLICY, f"{HERE}:Pinned")
    monkeypatch.setenv(settings.JUDGE, "report")
    side, policy = side_of(vllm)
    side.contexts["r"] = vllm.make_context("r", {"secret": "hunter2"})
    pinned_victim(side)
    pinned_victim(side)
    assert [said.partition("\n")[0] for said in warnings()] == [
        f"watched policy Pinned: POL-2: the victim {op.key_text(A)} is pinned"
    ]
    assert "evict(1, " in warnings()[0]
    assert "hunter2" not in warnings()[0]
    assert policy.live.tally.num_violations == 2
    policy.live.close()
    report = judge_log(log_of(policy))
    assert [found.clause for found in report.convictions] == ["POL-2", "POL-2"]
    assert [found.number for found in report.violations] == [
        found.number for found in policy.live.tally.violations
    ]


def test_a_breach_is_raised_where_that_is_asked_for(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    monkeypatch.setenv(settings.POLICY, f"{HERE}:Pinned")
    monkeypatch.setenv(settings.JUDGE, "raise")
    side, policy = side_of(vllm)
    with pytest.raises(PolicyContractError, match=r"Pinned.*evict.*POL-2.*pinned"):
        pinned_victim(side)
    assert side.call("get", A) is None
    assert calls_of(policy)[-2:] == ["evict", "get"]


def test_the_end_of_a_watch_is_told(
    vllm: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    warnings: Callable[[], list[str]],
) -> None:
    monkeypatch.setenv(settings.POLICY, f"{HERE}:Pinned")
    monkeypatch.setenv(settings.JUDGE, "report")
    side, policy = side_of(vllm)
    pinned_victim(side)
    steps = policy.live.tally.steps
    del side, policy
    gc.collect()
    assert warnings()[-1] == (
        f"watched policy Pinned: {steps} steps judged, 1 violations (clauses: POL-2)"
    )


def test_without_anything_to_do_calls_go_to_the_policy_alone(vllm: StandIns) -> None:
    side, policy = side_of(vllm)
    assert policy.live.watch is None
    assert policy.live.log is None
    pinned_victim(side)


@pytest.mark.parametrize("judge", ["off", "raise"])
def test_what_the_policy_raises_passes_through_as_it_is(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path, judge: str
) -> None:
    monkeypatch.setenv(settings.POLICY, f"{HERE}:Refusing")
    monkeypatch.setenv(settings.JUDGE, judge)
    side, policy = side_of(vllm)
    for error in (RefusedError("no"), KeyboardInterrupt(), SystemExit(3)):
        monkeypatch.setattr(Refusing, "error", error)
        with pytest.raises(type(error)) as raised:
            side.touch([A], "r")
        assert raised.value is error
    assert policy.live.watch is not None
    told = [line.get("error") for line in lines_of(policy) if line.get("call") == "touch"]
    assert [cast("dict[str, str]", each)["name"] for each in told] == ["RefusedError", "SystemExit"]


def test_extra_hooks_pass_through_and_are_noted(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    monkeypatch.setenv(settings.POLICY, f"{HERE}:Sessions")
    side, policy = side_of(vllm)
    inside = cast("HostedPolicy", policy.policy).policy
    assert isinstance(inside, Sessions)
    host = cast("Sessions", policy)
    assert host.open_session("client-7", keys=[A, B], by=side.contexts["r"]) == 1
    assert inside.opened == [("client-7", (A, B), side.contexts["r"])]
    assert host.score == host.score == 0.5
    host.score = 0.75
    assert inside.score == 0.75
    with pytest.raises(RefusedError, match="extra"):
        host.fail()
    assert not hasattr(host, "unheard_of")
    assert policy.cache_capacity == inside.cache_capacity
    lines = lines_of(policy)
    assert [line["call"] for line in lines[1:]] == ["host_event"] * 3
    assert [line["name"] for line in lines[1:]] == ["open_session", "score", "fail"]
    names = cast("list[dict[str, object]]", lines[1]["arguments"])
    assert [sorted(each) for each in names] == [["type"], ["keys"], ["request"]]
    assert names[0] == {"type": "string"}
    opened, read, failed = steps_in(log_of(policy))
    assert isinstance(opened.operation, op.HostEvent)
    text, keys, request = opened.operation.values
    assert text == HintOfType("string")
    assert len(cast("tuple[OffloadKey, ...]", keys)) == 2
    assert request == names[2]["request"]
    assert read.operation == op.HostEvent("score")
    assert type(failed.error).__name__ == "RefusedError"
    assert [found.clause for found in judge_log(log_of(policy)).violations] == ["POL-7"]


class FailureError(Exception):
    """A mistake in the watching."""


@pytest.mark.parametrize("judge", ["off", "report", "raise"])
@pytest.mark.parametrize("at", ["before", "after"])
def test_a_mistake_in_the_watching_ends_it_and_nothing_else(
    vllm: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    log: Path,
    warnings: Callable[[], list[str]],
    at: str,
    judge: str,
) -> None:
    """Before the policy was called or after: it is called once, and its answer arrives."""
    monkeypatch.setenv(settings.POLICY, f"{HERE}:Counting")
    monkeypatch.setenv(settings.JUDGE, judge)

    def fail(*_: object, **__: object) -> None:
        raise FailureError("of ours")

    hooks: dict[str, Callable[[Called], object]] = {
        "get": lambda side: side.call("get", A),
        "insert": lambda side: side.insert(B, 1, "r"),
        "remove": lambda side: side.remove(A),
        "touch": lambda side: side.touch([A], "r"),
        "evict": lambda side: side.evict(1, []),
        "clear": lambda side: side.clear(),
        "on_store_miss": lambda side: side.miss([B], "r"),
        "on_request_access": lambda side: side.access([A], "r"),
        "on_request_finished": lambda side: side.finish([[A]], [], [A], "r"),
        "mark_evictable": lambda side: side.call("mark_evictable", A),
        "mark_non_evictable": lambda side: side.call("mark_non_evictable", A),
    }
    for hook, call in hooks.items():
        before = len(warnings())
        side, policy = side_of(vllm)
        side.insert(A, 0, "r")
        side.references(A, 0)
        inside = cast("HostedPolicy", policy.policy).policy
        assert isinstance(inside, Counting)
        inside.called.clear()
        watch = policy.live.watch
        assert watch is not None
        with monkeypatch.context() as patch:
            if at == "before":
                patch.setattr(type(watch), hook, fail)
            else:
                patch.setattr(watch, "_tell", fail)
            answer = call(side)
        assert inside.called == [hook], hook
        if hook == "get":
            assert answer is side.statuses[A]
        if hook == "evict":
            assert answer == [A]
        assert policy.live.watch is None
        said = warnings()[before:]
        assert len(said) == 1, hook
        assert "the watching has ended: FailureError: of ours" in said[0]
        side.call("get", A)
        assert len(warnings()) == before + 1


def test_what_can_be_read_once_is_left_for_the_policy(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    """Where the watching fails when it has read the keys already."""
    monkeypatch.setenv(settings.POLICY, f"{HERE}:Counting")

    def fail(*_: object) -> None:
        raise FailureError("of ours")

    for hook in ("touch", "on_request_access"):
        side, policy = side_of(vllm)
        monkeypatch.setattr(policy.live.watch, "_request", fail)
        side.call(hook, iter([A]), side.contexts["r"])
        inside = cast("HostedPolicy", policy.policy).policy
        assert isinstance(inside, Counting)
        assert inside.called == [hook]


def test_what_the_policy_raised_before_is_not_raised_again(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    monkeypatch.setenv(settings.POLICY, f"{HERE}:Refusing")
    side, policy = side_of(vllm)
    with pytest.raises(RefusedError):
        side.touch([A], "r")

    def fail(*_: object) -> None:
        raise FailureError("of ours")

    monkeypatch.setattr(policy.live.watch, "_tell", fail)
    assert side.call("get", A) is None
    assert policy.live.watch is None


class Counting(FIFOPolicy):
    """Notes which hooks were called."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.called: list[str] = []

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        self.called.append("get")
        return super().get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.called.append("insert")
        super().insert(key, chunk, req_context)

    @override
    def remove(self, key: OffloadKey) -> None:
        self.called.append("remove")
        super().remove(key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        # Whoever came before must not have used it up.
        assert list(keys)
        self.called.append("touch")

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        self.called.append("evict")
        return super().evict(n, protected)

    @override
    def clear(self) -> None:
        self.called.append("clear")
        super().clear()

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.called.append("on_store_miss")

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        assert list(keys)
        self.called.append("on_request_access")

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        self.called.append("on_request_finished")

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self.called.append("mark_evictable")

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.called.append("mark_non_evictable")


def test_an_interrupt_during_the_watching_is_no_mistake(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    side, policy = side_of(vllm)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(policy.live.watch, "_tell", interrupted)
        with pytest.raises(KeyboardInterrupt):
            side.call("get", A)
    assert policy.live.watch is not None


@pytest.mark.parametrize("judge", ["off", "report"])
def test_a_full_disk_ends_the_log_alone(
    vllm: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    log: Path,
    warnings: Callable[[], list[str]],
    judge: str,
) -> None:
    monkeypatch.setenv(settings.JUDGE, judge)
    side, policy = side_of(vllm)
    side.call("get", A)
    steps = policy.live.tally.steps

    def full(*_: object) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(CallLog, "_write", full)
    for _ in range(3):
        assert side.call("get", A) is None
    assert len(warnings()) == 1
    assert "raised OSError" in warnings()[0]
    assert "No space left" in warnings()[0]
    # Who judges goes on; who does not has nothing left to do.
    assert (policy.live.watch is None) is (judge == "off")
    assert policy.live.tally.steps == steps + (1 if judge == "off" else 3)
    assert judge_log(log_of(policy)).steps == steps


def test_a_place_that_cannot_be_written_is_warned_of(
    vllm: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    warnings: Callable[[], list[str]],
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(settings.LOG, str(tmp_path / "file" / "calls.jsonl"))
    side, policy = side_of(vllm)
    assert policy.live.watch is None
    (said,) = warnings()
    assert "nothing is recorded" in said
    assert side.call("get", A) is None
    monkeypatch.setenv(settings.JUDGE, "report")
    assert side_of(vllm)[1].live.watch is not None


@pytest.mark.parametrize("name", ["calls.jsonl", "calls.jsonl.gz"])
def test_a_log_stops_at_its_limit(
    vllm: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    warnings: Callable[[], list[str]],
    tmp_path: Path,
    name: str,
) -> None:
    monkeypatch.setenv(settings.LOG, str(tmp_path / name))
    limit = 100_000
    monkeypatch.setenv(settings.LIMIT, "100KB")
    side = Called(vllm, watched_class(vllm))
    rounds = Rounds(1, (side,), clears=True)
    for _ in range(400):
        rounds.play(10)
        if warnings():
            break
    policy = cast("RecordedPolicy", side.policy)
    path = log_of(policy)
    (said,) = warnings()
    assert "the log has reached its limit of 100,000 bytes" in said
    assert policy.live.watch is None
    size = path.stat().st_size
    assert limit * 0.9 < size < limit + (0 if name.endswith("l") else 70_000)
    rounds.play(10)
    assert path.stat().st_size == size
    report = judge_log(path)
    assert (report.cut, report.num_violations) == (False, 0)
    # A call may be several steps, and the first of them was too much.
    assert policy.live.tally.steps - report.steps in (1, 2)


FORKING: Final = """
import gc, os
from kvoffload import make_offload_key
from kvoffload.vllm.standins import StandIns
from kvoffload.vllm.versions import NEWEST

StandIns(NEWEST).install()
from stateful_models.vllm.watched import WatchedPolicy

a, b, c = (make_offload_key(name, 0) for name in (b"a", b"b", b"c"))
policy = WatchedPolicy(4)
policy.get(a)
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    policy.get(c)
else:
    assert policy.get(b) is None
    assert policy.live.watch is None
    # What is buffered is written when the file goes; and when a process ends as any does.
    policy.live.log = None
    gc.collect()
"""


def test_a_forked_process_leaves_the_log_alone(tmp_path: Path) -> None:
    # In a process without threads, which could not be forked.
    logs = tmp_path / "logs"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        settings.LOG: str(logs / "calls.jsonl"),
    }
    subprocess.run([sys.executable, "-c", FORKING], env=environment, check=True)
    (path,) = logs.iterdir()
    first, second = (step.operation for step in steps_in(path))
    assert isinstance(first, op.Get)
    assert isinstance(second, op.Get)
    assert first.key != second.key


PROCESS: Final = """
import multiprocessing, os, sys
from kvoffload import make_offload_key
from kvoffload.vllm.standins import StandIns
from kvoffload.vllm.versions import NEWEST

def engine():
    StandIns(NEWEST).install()
    from stateful_models.vllm.watched import WatchedPolicy
    # It is there to the end, as that of an engine.
    global policy
    policy = WatchedPolicy(4)
    for n in range(10):
        policy.get(make_offload_key(bytes([n]), 0))
    if len(sys.argv) > 2:
        sys.exit(3)

if __name__ == "__main__" and sys.argv[1] == "here":
    engine()
elif __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=engine, name="EngineCore_0")
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("how", ["here", "fork", "spawn"])
@pytest.mark.parametrize("exits", [False, True])
def test_a_log_is_complete_when_its_process_ends(tmp_path: Path, how: str, exits: bool) -> None:
    """Engines are processes of their own, forked ones too, and end in several ways."""
    (tmp_path / "process.py").write_text(PROCESS, "utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        settings.LOG: str(tmp_path / "logs" / "calls.jsonl.gz"),
        settings.JUDGE: "report",
    }
    ended = subprocess.run(
        [sys.executable, "process.py", how, *(["exit"] if exits else [])],
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert ended.returncode == (3 if exits else 0)
    (path,) = (tmp_path / "logs").iterdir()
    engine = "MainProcess" if how == "here" else "EngineCore_0"
    assert path.name.startswith(f"calls.{engine}-")
    report = judge_log(path)
    assert (report.steps, report.cut) == (10, False)


SETTINGS: Final[Mapping[str, tuple[Mapping[str, str], Settings]]] = {
    "nothing": ({}, Settings()),
    "all": (
        {
            "KVOFFLOAD_LOG": "/a/b",
            "KVOFFLOAD_SALT": "12345678",
            "KVOFFLOAD_HINTS": "a, b,",
            "KVOFFLOAD_JUDGE": "Raise",
            "KVOFFLOAD_LOG_LIMIT": "1MiB",
        },
        Settings(Path("/a/b"), b"12345678", ("a", "b"), Judging.RAISE, 1 << 20),
    ),
    "empty": (dict.fromkeys(VARIABLES, ""), Settings()),
    "no limit": ({"KVOFFLOAD_LOG_LIMIT": "none"}, Settings(limit=None)),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_settings_are_read(what: str) -> None:
    environment, expected = SETTINGS[what]
    assert Settings.of(environment) == expected


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("KVOFFLOAD_SALT", "short-1", "8 to 64 bytes long, got '7 bytes'"),
        ("KVOFFLOAD_JUDGE", "yes", "one of off, report, raise"),
        ("KVOFFLOAD_LOG_LIMIT", "much", "bytes, such as"),
    ],
)
def test_a_setting_that_means_nothing_is_warned_of(
    vllm: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    log: Path,
    warnings: Callable[[], list[str]],
    name: str,
    value: str,
    said: str,
) -> None:
    with pytest.raises(InvalidValueError, match=said):
        Settings.of({name: value})
    monkeypatch.setenv(name, value)
    _, policy = side_of(vllm)
    assert policy.live.watch is None
    assert len(warnings()) == 1
    assert f"the policy is not watched: InvalidValueError: {name} must be" in warnings()[0]
    assert "short-1" not in warnings()[0]
    assert not log.parent.exists()


def test_policies_are_named_in_every_way(vllm: StandIns, tmp_path: Path) -> None:
    assert wrapped_class("lru") is vllm.classes.lru
    lru = "vllm.v1.kv_offload.cpu.policies.lru"
    assert wrapped_class(f"{lru}:LRUCachePolicy") is vllm.classes.lru
    assert wrapped_class(f"{lru}.LRUCachePolicy") is vllm.classes.lru
    file = tmp_path / "mine.py"
    file.write_text(f"from {lru} import LRUCachePolicy\nclass Mine(LRUCachePolicy): pass\n")
    assert type(wrapped_class(f"{file}:Mine")(3)).__name__ == "Mine"
    assert isinstance(wrapped_class(f"{HERE}:Sessions")(3), HostedPolicy)
    assert isinstance(wrapped_class("kvoffload.vllm.policies:ARCCachePolicy")(3), HostedPolicy)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("mru", UnknownPolicyError, "neither vLLM nor kvoffload has a policy registered"),
        (f"{MODULE}:WatchedPolicy", UnknownPolicyError, "that is what watches"),
        (f"{HERE}:NoPolicy", NotAPolicyError, "lacks get"),
        ("no.such.module:Class", TargetError, "cannot be imported"),
        (f"{HERE}.Nothing", TargetError, "has no Nothing"),
    ],
)
def test_what_cannot_be_watched_is_refused_in_words(
    vllm: StandIns, name: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        wrapped_class(name)


def test_a_class_that_vllm_would_refuse_is_warned_of(
    vllm: StandIns, warnings: Callable[[], list[str]]
) -> None:
    wrapped_class("spec_tests.vllm.test_hosted:Plain")
    assert "vLLM would refuse it where it is not watched" in warnings()[0]


def test_without_vllm_the_error_says_so() -> None:
    with pytest.raises(NoVLLMError, match="there is no vLLM here"):
        _ = watched.WatchedPolicy
    assert not hasattr(watched, "Nothing")


def test_watching_needs_no_extra() -> None:
    code = (
        "import sys, stateful_models.vllm.watched\n"
        "assert not {'hypothesis', 'pytest', 'typer', 'rich', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def replayed(manager: CPUOffloadingManager, trace: Trace, clock: list[float]) -> Counts:
    """The counts of a replay, with `clock` as its time."""
    block_tokens = trace.reader.block_tokens or 0
    replay = Replay(manager, CostModel(chunk_bytes=block_tokens * 131_072))
    clock[:] = [0.0]

    def arriving() -> Iterator[TraceRequest]:
        with trace.open() as requests:
            for request in requests:
                clock[0] = request.arrival
                yield request

    return replay.run(arriving())


@pytest.mark.parametrize(("name", "chunks"), [("lru", 700), ("lru", 1_000), ("arc", 1_000)])
def test_a_recorded_run_is_replayed_to_the_same_hits(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch, log: Path, name: str, chunks: int
) -> None:
    """The same capacity and policy: what the engine hit is hit again."""
    monkeypatch.setenv(settings.POLICY, f"kvoffload.policies.{name}:{name.upper()}CachePolicy")
    clock = [0.0]
    monkeypatch.setattr(watched, "monotonic", lambda: clock[0])
    manager = CPUOffloadingManager(chunks, cache_policy=watched_class(vllm))
    counts = replayed(manager, Trace(SAMPLE, limit=300), clock)
    close_logs()
    assert counts.given_up == 0
    (path,) = log.parent.iterdir()
    trace = Trace(path)
    found = survey(trace)
    assert (found.requests, found.blocks) == (counts.requests, counts.blocks)
    assert trace.reader.block_tokens == 512
    again = replayed(CPUOffloadingManager(chunks, cache_policy=name), trace, clock)
    assert again.blocks == counts.blocks
    assert counts.block_hits > 100
    assert found.recorded_hits is not None
    assert (again.block_hits, found.recorded_hits) == (counts.block_hits, counts.block_hits)
