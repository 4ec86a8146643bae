"""Call logs: what is written hides what it must, and is judged as it would have been live."""

import gzip
import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import reduce
from pathlib import Path
from typing import ClassVar

import pytest
from attrs import evolve
from typing_extensions import Buffer, override

from kvoffload import (
    CachePolicy,
    ChunkNotFoundError,
    ChunkStatus,
    CPUOffloadingManager,
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    OffloadPolicy,
    PolicyContractError,
    ReqContext,
    RequestFinishedError,
    RequestOffloadingContext,
    make_offload_key,
)
from kvoffload.errors import InvalidKeyError, InvalidValueError
from spec_tests.clauses.policies import FIFOPolicy, PolicyHost, Victims
from stateful_models import operations as op
from stateful_models.account import Account
from stateful_models.capabilities import BUILT_IN, NONE, Capabilities
from stateful_models.contract import Profile
from stateful_models.gallery import BREAKS
from stateful_models.gallery.legal_policies.group_evictor import GroupEvictor
from stateful_models.gallery.managers import Look1PendingIsHit
from stateful_models.generous import GenerousManager
from stateful_models.invariants import Finding, Invariant
from stateful_models.judge import Violation
from stateful_models.logs import (
    CallLog,
    HintOfType,
    LogError,
    LoggedError,
    LogInUseError,
    LogReader,
    LogReport,
    NotLoggableError,
    judge_log,
)
from stateful_models.logs.pseudonyms import KNOWN_NAMES, Pseudonyms, key_of
from stateful_models.monitor import Setup
from stateful_models.policy_tap import Tap
from stateful_models.steps import (
    BadAnswerError,
    Delivered,
    Found,
    Loaded,
    Reported,
    Step,
    Stored,
    Victim,
    Visible,
)
from stateful_models.steps import Victims as VictimsAnswer
from stateful_models.subjects import ManagerSubject
from stateful_models.watch import WatchedManager
from stateful_models.watch_policy import WatchedPolicy
from stateful_models.watching import watch, watched_policy_cls
from stateful_models.workload import Workload

A, B, C = (make_offload_key(name * 5, 3) for name in (b"a", b"b", b"c"))
R = ReqContext("client-request-1")
SALT = b"no secret at all"
MANAGER, POLICY = Setup(kind="manager", num_chunks=4), Setup(kind="policy", num_chunks=4)


def verdicts(violations: Sequence[Violation]) -> list[tuple[object, ...]]:
    """What must not depend on where it is judged: all but the names of keys and requests."""
    return [
        (
            found.clause,
            found.kind,
            found.number,
            found.invariant,
            found.raised,
            [call.partition("(")[0] for call in found.calls],
        )
        for found in violations
    ]


def agrees(watched: WatchedManager | WatchedPolicy, report: LogReport, name: str = "") -> None:
    """The trial of the log came to what the watch came to."""
    assert verdicts(report.violations) == verdicts(watched.violations), name
    assert (report.num_violations, report.steps, report.checks, report.cut) == (
        watched.num_violations,
        watched.steps,
        watched.checks,
        False,
    )


def recorded(
    path: Path,
    manager_cls: type[CPUOffloadingManager],
    *,
    threshold: int = 1,
    rounds: int = 50,
) -> WatchedManager:
    """A run of a manager with everything that can be logged, in a log at `path`."""
    tap = Tap("lru")
    manager = manager_cls(9, tap.policy_cls, enable_events=True, store_threshold=threshold)
    with CallLog.to(path, salt=SALT) as log:
        watched = watch(
            manager,
            num_chunks=9,
            store_threshold=threshold,
            enable_events=True,
            observers=[log],
            tap=tap,
        )
        Workload(ManagerSubject(watched), seed=1).run(rounds)
    return watched


def test_a_log_is_judged_as_the_manager_was_live(tmp_path: Path) -> None:
    """All broken managers; enough of them are convicted for that to mean something."""
    clauses: list[set[str]] = []
    told = 0
    for manager_cls, clause in BREAKS.items():
        path = tmp_path / f"{manager_cls.__name__}.jsonl.gz"
        watched = recorded(path, manager_cls, threshold=2 if clause == "STORE-3" else 1)
        agrees(watched, judge_log(path), manager_cls.__name__)
        clauses.append({found.clause for found in watched.violations})
        told += gzip.decompress(path.read_bytes()).count(b'"told":[{')
    assert sum(map(bool, clauses)) >= 25
    assert len(set[str]().union(*clauses)) >= 20
    assert told > 1_000


def test_a_sound_manager_is_acquitted_from_its_log(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    watched = recorded(path, CPUOffloadingManager, threshold=2)
    report = judge_log(path, profile=Profile.REFERENCE)
    agrees(watched, report)
    assert report.violations == report.convictions == ()
    assert report.setup.store_threshold == 2
    assert str(report).splitlines() == [
        f"{path}: a manager of 9 chunks",
        f"{watched.steps:,} steps, {watched.checks:,} judgements, 0 violations",
        "clauses that convict (profile reference): none",
    ]


class TooFew(FIFOPolicy):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return super().evict(n, protected) if n < 2 else super().evict(n - 1, protected)


class Fails(FIFOPolicy):
    @override
    def remove(self, key: OffloadKey) -> None:
        raise KeyError(key)


class Refuses(FIFOPolicy):
    may_refuse: ClassVar[str | None] = "says so"

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return None if n % 2 else super().evict(n, protected)


class RefusesUndeclared(Refuses):
    may_refuse: ClassVar[str | None] = None


class Garbage(FIFOPolicy):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return [A, B]  # type: ignore[list-item]  # pyright: ignore[reportReturnType]


POLICIES: Mapping[type[CachePolicy], set[str]] = {
    TooFew: {"POL-2"},
    Fails: {"POL-7"},
    Garbage: {"POL-2"},
    RefusesUndeclared: {"POL-3"},
    Refuses: set(),
    FIFOPolicy: set(),
}


@pytest.mark.parametrize("policy_cls", POLICIES)
def test_a_log_is_judged_as_the_policy_was_live(
    policy_cls: type[CachePolicy], tmp_path: Path
) -> None:
    """Each policy that the manager made, in a log of its own."""
    logs: list[CallLog] = []

    def new_log() -> list[CallLog]:
        logs.append(CallLog.to(tmp_path / f"{len(logs)}.jsonl", host="a test"))
        return logs[-1:]

    cls = watched_policy_cls(policy_cls, make_observers=new_log)
    manager = CPUOffloadingManager(9, cache_policy=cls, enable_events=True)
    Workload(ManagerSubject(manager), seed=2).run(250)
    steps, found, own = 0, list[object](), set[str]()
    for number, log in enumerate(logs):
        log.close()
        report = judge_log(tmp_path / f"{number}.jsonl")
        found += [(v.clause, v.kind, v.number + steps) for v in report.violations]
        own |= {v.clause for v in report.convictions}
        steps += report.steps
        assert report.setup == Setup(
            kind="policy",
            num_chunks=9,
            capabilities=Capabilities(may_refuse=policy_cls.may_refuse),
        )
        assert report.host == "a test"
    assert found == [(v.clause, v.kind, v.number) for v in cls.tally.violations]
    assert steps == cls.tally.steps > 50
    assert own == POLICIES[policy_cls]


def test_counts_that_no_mark_told_are_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with CallLog.to(path) as log:
        watched = watch(FIFOPolicy(4), observers=[log])
        for slot, key in enumerate((A, B)):
            chunk = ChunkStatus(slot)
            watched.insert(key, chunk, R)
            chunk.ref_cnt = slot
        assert watched.evict(1, set()) is not None
        assert watched.evict(1, set()) is None
    assert watched.violations == []
    agrees(watched, judge_log(path))


class Openly(Pseudonyms):
    """Hides nothing, so that what is read can be compared with what was written."""

    @override
    def key(self, key: object) -> str:
        assert isinstance(key, bytes)
        return key.hex()

    @override
    def request(self, request: str) -> str:
        return request


OPEN = Openly(SALT)
EVENTS = (
    OffloadingEvent([A, B], Medium.CPU, False),
    OffloadingEvent([A], Medium.STORAGE, True, Locality.REMOTE, "tier", True),
)
HINTS: Mapping[str, object] = {
    "session": "s",
    "priority": 3,
    "share": 0.5,
    "last": True,
    "none": None,
    "tags": ["x", ["y", 2]],
    "nested": {"a": {"b": 1}},
    "huge": 10**5_000,
    "infinite": -math.inf,
}
MANAGER_STEPS = [
    Step(1, op.NewRequest("r", HINTS, context=1), RequestOffloadingContext()),
    Step(2, op.NewRequest("q"), RequestOffloadingContext(OffloadPolicy.REQUEST_LEVEL)),
    Step(3, op.NewRequest("q"), None),
    Step(4, op.Lookup("r", A, context=1), LookupResult.HIT_PENDING),
    Step(5, op.Lookup("r", A), LookupResult.RETRY),
    Step(6, op.PrepareLoad("r", (A, B), 5, context=1), Loaded((1, 0), 5)),
    Step(7, op.PrepareLoad("r", (A,), None, internal=True), Loaded(None)),
    Step(8, op.CompleteLoad("r", (A,), 5, context=1), None, None, Visible(0, 2)),
    Step(9, op.Touch("r", (), context=1)),
    Step(10, op.PrepareStore("r", (A, B, C), 6, context=1), Stored((C,), (3,), (A,), 6)),
    Step(11, op.PrepareStore("r", (C,)), Stored((), None, ())),
    Step(12, op.PrepareStore("r", (A,)), None),
    Step(13, op.CompleteStore("r", (C,), False, 6, context=2)),
    Step(14, op.CompleteStore("r", (C,))),
    Step(15, op.FinishRequest("r", context=1)),
    Step(16, op.TakeEvents(), Delivered(EVENTS)),
    Step(17, op.TakeEvents(), Delivered(())),
    Step(18, op.GetStats(), Reported({"a": 1.5, "b": math.inf, "c": -math.inf})),
    Step(19, op.GetStats(), None),
    Step(20, op.Reset(), None, None, Visible(1, 2)),
    Step(21, op.ResetFlushed()),
    Step(22, op.ScheduleEnd(("r",), ("q", "s"))),
    Step(
        23,
        op.Touch("r", (A,)),
        told=(
            op.TouchKeys("r", (A,)),
            op.Evict(2, frozenset((A,))),
            op.RequestFinished("r", ((A, B), (C,)), frozenset((A,)), frozenset((B, C))),
        ),
    ),
    Step(24, op.Touch("r", (A,)), told=()),
]
POLICY_STEPS = [
    Step(1, op.NewRequest("r", {"a": 1})),
    Step(2, op.NewRequest("q")),
    Step(3, op.SetPositions("r", ((A, 16), (B, 32)))),
    Step(4, op.StoreMiss("r", (A, B))),
    Step(5, op.RequestAccess("r", (A, B))),
    Step(6, op.Insert(A, 3, "r")),
    Step(7, op.MarkEvictable(A)),
    Step(8, op.MarkNonEvictable(A)),
    Step(9, op.SetRefCount(A, 2)),
    Step(10, op.Get(A), Found(3)),
    Step(11, op.Get(B), Found(-1, False)),
    Step(12, op.Get(C), None),
    Step(13, op.TouchKeys("r", (A, B))),
    Step(14, op.Evict(2, frozenset((A, B))), VictimsAnswer((Victim(C, 1), Victim(A, 0, False)))),
    Step(15, op.Evict(1), None),
    Step(16, op.Remove(A)),
    Step(17, op.RequestFinished("r", ((A,), (B, C)), frozenset((A,)), frozenset())),
    Step(18, op.Clear()),
]


def written(setup: Setup, steps: Sequence[Step], names: Pseudonyms, *, hints: bool = True) -> bytes:
    file = io.BytesIO()
    log = CallLog(file, names, host=None, hints=hints)
    log.begin(setup)
    for step in steps:
        log.observe(step)
    return file.getvalue()


def read(path: Path, data: bytes) -> list[Step]:
    path.write_bytes(data)
    with LogReader(path) as reader:
        return list(reader)


@pytest.mark.parametrize(("setup", "steps"), [(MANAGER, MANAGER_STEPS), (POLICY, POLICY_STEPS)])
def test_every_call_is_read_as_it_was_written(
    setup: Setup, steps: Sequence[Step], tmp_path: Path
) -> None:
    assert read(tmp_path / "log", written(setup, steps, Openly(SALT))) == steps


def test_every_call_of_a_watched_subject_has_its_line() -> None:
    """A new operation needs a line; those of hosts and engines alone are named here."""
    never = {op.Outstanding, op.TakeFirstEvent, op.BeforeStore}
    pending: list[type[op.Operation]] = [op.ManagerOperation, op.PolicyOperation]
    calls: set[type[op.Operation]] = set()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if not cls.__subclasses__():
            calls.add(cls)
    shown = {type(step.operation) for step in MANAGER_STEPS + POLICY_STEPS}
    assert calls - shown == never


def test_what_has_no_line_ends_the_log_and_nothing_else() -> None:
    file = io.BytesIO()
    log = CallLog.to(file)
    log.begin(MANAGER)
    with pytest.raises(NotLoggableError, match="advance_clock"):
        log.observe(Step(1, op.AdvanceClock(1.0)))
    with pytest.raises(NotLoggableError, match="get"):
        log.observe(Step(1, op.Get(A)))
    assert file.getvalue().count(b"\n") == 1


def test_a_ticket_of_any_size_is_told_from_others(tmp_path: Path) -> None:
    """Those of others may be 128 bits long."""
    steps = [
        Step(n, op.PrepareLoad("r", (A,), ticket), Loaded((0,), ticket))
        for n, ticket in enumerate((2**127, 2**127 + 1, -(2**70)), 1)
    ]
    given = read(tmp_path / "log", written(MANAGER, steps, Pseudonyms(SALT)))
    loads = [(step.operation, step.result) for step in given]
    # JSON has numbers of any size; many a reader has not.
    attempts = {load.attempt for load, _ in loads if isinstance(load, op.PrepareLoad)}
    assert attempts == {answer.ticket for _, answer in loads if isinstance(answer, Loaded)}
    assert len(attempts) == 3


def test_nan_is_read_again(tmp_path: Path) -> None:
    steps = [Step(1, op.GetStats(), Reported({"a": math.nan}))]
    (step,) = read(tmp_path / "log", written(MANAGER, steps, Openly(SALT)))
    assert isinstance(step.result, Reported)
    assert math.isnan(step.result.values["a"])


SECRETS = ("secret", "client-request-1", "aaaaa", A.hex(), A[:-4].hex())


def test_a_log_shows_no_key_no_request_and_no_hint(tmp_path: Path) -> None:
    text = written(
        MANAGER,
        [
            Step(1, op.NewRequest(R.req_id, {"session": "secret", "n": 5, "l": ["secret"]})),
            Step(2, op.PrepareStore(R.req_id, (A,)), Stored((A,), (0,), (B,), 0)),
            Step(3, op.Touch(R.req_id, (A,)), None, ChunkNotFoundError("touch", A)),
            Step(4, op.Touch(R.req_id, (A,)), None, RequestFinishedError("touch", R.req_id, A)),
            Step(5, op.Touch(R.req_id, (A,)), None, ValueError(f"'secret' of {R.req_id}: {A!r}")),
            Step(6, op.ScheduleEnd((R.req_id,), ()), None, KeyError("secret")),
            Step(7, op.TakeEvents(), Delivered((OffloadingEvent([A], Medium.CPU, False),))),
        ],
        Pseudonyms(SALT),
        hints=False,
    )
    for secret in SECRETS:
        assert secret.encode() not in text
    lines = list(map(json.loads, text.splitlines()))
    assert lines[1]["hints"] == {"session": "string", "n": "number", "l": "array"}
    assert lines[5]["error"]["text"].startswith("'...' of ")
    steps = read(tmp_path / "log", text)
    assert isinstance(steps[0].operation, op.NewRequest)
    assert steps[0].operation.hints == {
        "session": HintOfType("string"),
        "n": HintOfType("number"),
        "l": HintOfType("array"),
    }


def test_equal_keys_have_equal_names_under_one_salt_and_keep_their_group() -> None:
    one, same, other = Pseudonyms(SALT), Pseudonyms(SALT), Pseudonyms(SALT + b"!")
    again = make_offload_key(b"aaaaa", 4)
    assert one.key(A) == same.key(A) != other.key(A)
    assert one.key(A)[:-8] == one.key(again)[:-8]
    assert key_of(one.key(A))[-4:] == A[-4:]
    assert key_of(one.key(again))[-4:] == again[-4:]
    assert one.request("r") == same.request("r") != other.request("r")
    assert one.salt_id == same.salt_id != other.salt_id


@pytest.mark.parametrize("key", [b"", b"x", b"abcd", "text", None, (1, 2)], ids=repr)
def test_what_is_no_key_is_none_under_its_name_either(key: object) -> None:
    """KEY-2 is judged from a log too."""
    name = Pseudonyms(SALT).key(key)
    given: object = key_of(name)
    assert isinstance(given, bytes) == isinstance(key, bytes)
    if isinstance(given, bytes) and isinstance(key, bytes):
        assert len(given) == len(key)
    assert "text" not in name


@pytest.mark.parametrize("salt", [b"", b"short", b"x" * 65, "a text of ten"], ids=repr)
def test_a_salt_that_hides_nothing_is_refused(salt: bytes, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="salt must be 8 to 64 bytes") as raised:
        CallLog.to(tmp_path / "log", salt=salt)
    assert not salt or str(salt) not in str(raised.value)
    assert not (tmp_path / "log").exists()


def test_without_a_salt_each_log_has_its_own() -> None:
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        CallLog.to(file).begin(MANAGER)
    assert files[0].getvalue() != files[1].getvalue()


class OwnKeyError(InvalidKeyError):
    """What a manager of somebody else raises."""


def test_an_exception_is_read_with_its_name_text_and_classes(tmp_path: Path) -> None:
    def invalid() -> UnicodeDecodeError:
        return UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")

    errors: list[BaseException] = [
        OwnKeyError(A, "too long"),
        PolicyContractError("MyPolicy", "evict", "POL-2", "too few"),
        BadAnswerError("5"),
        ChunkNotFoundError("touch", A),
        SystemExit(3),
        ExceptionGroup("several", [ValueError()]),
        invalid(),
    ]
    steps = [Step(n, op.Touch("r", (A,)), None, e) for n, e in enumerate(errors, 1)]
    given = [step.error for step in read(tmp_path / "log", written(MANAGER, steps, Openly(SALT)))]
    assert [type(error).__name__ for error in given] == [type(e).__name__ for e in errors]
    own, contract, bad, missing, *_ = given
    assert isinstance(own, InvalidKeyError)
    assert isinstance(own, ValueError)
    assert isinstance(contract, PolicyContractError)
    assert contract.clause == "POL-2"
    assert str(contract) == "MyPolicy.evict broke POL-2: too few"
    assert isinstance(bad, BadAnswerError)
    assert isinstance(missing, KeyError)
    assert str(missing) == "touch: aaaaa/3 is not resident"
    assert all(isinstance(error, LoggedError) for error in given)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


HOSTILE: dict[str, object] = {
    "half": "\ud800",
    "\ud800": 1,
    "deep": reduce(lambda inside, _: [inside], range(100_000), list[object]()),
    "object": object(),
    "huge": -(10**5_000),
    "nan": math.nan,
}


@pytest.mark.parametrize("hints", [True, False])
def test_whatever_a_client_sends_can_be_written(hints: bool, tmp_path: Path) -> None:
    steps = [
        Step(1, op.NewRequest("\ud800", HOSTILE)),
        Step(2, op.Touch("\ud800", (A,)), None, ValueError("\ud800" * 1_000)),
        Step(3, op.Touch("r", (A,)), None, UnspeakableError()),
    ]
    data = written(MANAGER, steps, Pseudonyms(SALT), hints=hints)
    given = read(tmp_path / "log", data)
    assert len(given) == 3
    sent = given[0].operation
    assert isinstance(sent, op.NewRequest)
    assert sent.hints is not None
    assert sent.hints["object"] == HintOfType("object")
    assert len(data) < 6_000
    if hints:
        assert sent.hints["huge"] == HOSTILE["huge"]
        assert str(sent.hints["nan"]) == "nan"
    else:
        assert sent.hints["half"] == HintOfType("string")


def test_the_header_says_what_was_watched(tmp_path: Path) -> None:
    setup = Setup(
        kind="policy",
        num_chunks=None,
        store_threshold=3,
        enable_events=True,
        capabilities=Capabilities(may_evict_more="by groups", lru=True, growth=9),
    )
    path = tmp_path / "log"
    assert read(path, written(setup, (), Pseudonyms(SALT), hints=False)) == []
    with LogReader(path) as reader:
        assert reader.setup == setup
    header = json.loads(path.read_bytes())
    assert list(header)[:2] == ["kvoffload_log", "kind"]
    assert header["kvoffload_log"] == 2
    assert header["hints"] == "types"
    for capabilities in (NONE, *BUILT_IN.values()):
        made = Setup(kind="policy", capabilities=capabilities)
        read(path, written(made, (), Pseudonyms(SALT)))
        with LogReader(path) as reader:
            # What makes a model is code, which is in no log.
            assert reader.setup == evolve(made, capabilities=evolve(capabilities, model=None))


HEADER = written(MANAGER, (), Pseudonyms(SALT))
GOOD = b'{"call":"reset_cache"}\n'
DAMAGED = {
    "no file": (None, r"log: No such file"),
    "empty": (b"", r"log:1: the log ends before its header"),
    "header cut off": (HEADER[:-9], r"log:1: the log ends before its header"),
    "no JSON": (b"hello\n", r"log:1: no header of a call log"),
    "some other JSON": (b'{"a": 1}\n', r"log:1: no header of a call log.*kvoffload_log"),
    "another version": (
        HEADER.replace(b":2,", b":3,", 1),
        r"log:1: the log is of version 3; .*1 and 2",
    ),
    "unknown field in header": (
        HEADER.replace(b'"kind"', b'"x":1,"kind"'),
        r"log:1: no header of a call log.*unknown field",
    ),
    "unknown capability": (
        HEADER.replace(b'"growth"', b'"shrinks"'),
        r"log:1: capabilities: shrinks",
    ),
    "capability of another type": (
        HEADER.replace(b'"growth":4', b'"growth":true'),
        r"log:1: capabilities: growth",
    ),
    "no call": (HEADER + GOOD + b"{}\n" + GOOD, r"log:3: no line of a call log.*`call`"),
    "unknown call": (HEADER + b'{"call":"x"}\n', r"log:2: no line of a call log.*'x'"),
    "a policy's call": (HEADER + b'{"call":"clear"}\n', r"log:2: no line of a call log.*'clear'"),
    "unknown field": (HEADER + b'{"call":"reset_cache","x":1}\n', r"log:2: no line.*unknown field"),
    "wrong type": (HEADER + b'{"call":"touch","request":1,"keys":[]}\n', r"log:2: no line.*str"),
    "an empty line": (HEADER + b"\n" + GOOD, r"log:2: no line of a call log"),
    "no key": (HEADER + b'{"call":"lookup","request":"r","key":"zz"}\n', r"log:2: .*hexadecimal"),
    "half a character": (HEADER + b'{"call":"touch","request":"\xff","keys":[]}\n', r"log:2: "),
    "too deep": (
        HEADER
        + b'{"call":"on_new_request","request":"r","hints":{"a":%b}}\n'
        % (b"[" * 100_000 + b"]" * 100_000),
        r"log:2: no line of a call log",
    ),
    "impossible exception": (
        HEADER
        + b'{"call":"reset_cache","error":{"name":"E","text":"","kinds":["KeyError","OSError"]}}\n',
        r"log:2: ",
    ),
    "no ZIP": (b"\x1f\x8bnot compressed\n", r"log:1: cannot read on"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_log_is_refused_with_its_file_and_line(what: str, tmp_path: Path) -> None:
    data, message = DAMAGED[what]
    path = tmp_path / "log"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(LogError, match=message) as raised:
        judge_log(path)
    assert str(raised.value).startswith(str(path))


@pytest.mark.parametrize("declared", [False, True])
def test_that_a_policy_may_evict_more_is_known_live_and_from_the_log(
    declared: bool, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    tap = Tap(GroupEvictor)
    manager = GenerousManager(4, tap.policy_cls)
    with CallLog.to(path, salt=SALT) as log:
        watched = watch(manager, num_chunks=4, may_evict_more=declared, observers=[log], tap=tap)
        Workload(ManagerSubject(watched), seed=1).run(50)
    agrees(watched, judge_log(path))
    assert {found.clause for found in watched.violations} == (set() if declared else {"STORE-4"})
    with LogReader(path) as reader:
        assert (reader.setup.capabilities.may_evict_more is not None) == declared


@pytest.mark.parametrize(
    ("carried", "values", "told"),
    [({"lane": "fast"}, False, True), ({"lane": "fast"}, True, False), (None, False, False)],
)
def test_a_report_says_where_hints_are_types(
    carried: dict[str, object] | None, values: bool, told: bool, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    with CallLog.to(path, hints=values) as log:
        watched = watch(CPUOffloadingManager(4), num_chunks=4, observers=[log])
        watched.on_new_request(ReqContext("hinted", carried))
    report = judge_log(path)
    assert report.hints_are_types is told
    text = "hints are types: an invariant that reads hints cannot judge them"
    assert (text in str(report)) is told


def test_a_log_that_ends_in_the_middle_of_a_line_is_judged_up_to_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    recorded(path, Look1PendingIsHit, rounds=60)
    whole = path.read_bytes()
    full = judge_log(path)
    assert not full.cut
    # A line that lacks nothing but its end is whole.
    path.write_bytes(whole[:-1])
    assert judge_log(path) == full
    path.write_bytes(whole[:-2])
    report = judge_log(path)
    assert report.cut
    assert report.steps == full.steps - 1
    assert f"the log is cut off: what came after step {report.steps:,} is not known" in str(report)
    assert report.violations == full.violations[: len(report.violations)] != ()


def test_a_compressed_log_that_was_not_closed_is_judged_up_to_where_it_was_flushed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.gz"
    log = CallLog.to(path)
    watched = watch(CPUOffloadingManager(4), num_chunks=4, observers=[log])
    for key in (A, B, C):
        assert watched.prepare_store([key], R) is not None
    log.flush()
    flushed = path.read_bytes()
    watched.reset_cache()
    log.close()
    agrees(watched, judge_log(path))
    path.write_bytes(flushed)
    report = judge_log(path)
    assert (report.steps, report.cut) == (3, True)


def test_a_damaged_stream_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    recorded(path, CPUOffloadingManager, rounds=60)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)
    with pytest.raises(LogError, match=r"log\.gz:\d+: "):
        judge_log(path)


def test_the_same_calls_under_one_salt_make_the_same_file(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.gz" for n in range(2)]
    for path in paths:
        recorded(path, CPUOffloadingManager, rounds=60)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    # gzip's own time stamp.
    assert paths[0].read_bytes()[4:8] == bytes(4)


def test_no_log_is_ever_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"what led to the crash")
    with pytest.raises(FileExistsError):
        CallLog.to(path)
    assert path.read_bytes() == b"what led to the crash"


def test_a_log_is_for_one_subject(tmp_path: Path) -> None:
    log = CallLog.to(tmp_path / "log")
    first = watch(CPUOffloadingManager(4), num_chunks=4, observers=[log])
    with pytest.raises(LogInUseError):
        log.begin(MANAGER)
    second = watch(CPUOffloadingManager(4), num_chunks=4, observers=[log])
    first.reset_cache()
    second.reset_cache()
    log.close()
    log.close()
    # What comes after the end is not written, and nobody is disturbed.
    first.reset_cache()
    assert [found.clause for found in second.violations] == ["CallLog"]
    assert "for one subject" in second.violations[0].message
    assert first.violations == []
    assert judge_log(tmp_path / "log").steps == 1


def test_an_open_file_is_written_to_and_left_open() -> None:
    file = io.BytesIO()
    with CallLog.to(file) as log:
        watch(CPUOffloadingManager(4), num_chunks=4, observers=[log]).reset_cache()
        log.flush()
    assert file.getvalue().endswith(GOOD.replace(b"}", b',"generation":1,"stale_completions":0}'))


class FullDisk(io.BytesIO):
    @override
    def write(self, data: object, /) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_reported_and_disturbs_nobody() -> None:
    watched = watch(CPUOffloadingManager(4), num_chunks=4, observers=[CallLog.to(FullDisk())])
    assert watched.prepare_store([A], R) is not None
    assert [found.clause for found in watched.violations] == ["CallLog"]
    assert "No space left on device" in watched.violations[0].message


class Stutters(io.BytesIO):
    """Takes at most ten bytes at once, and none once so many are `left`."""

    left = 10_000

    @override
    def write(self, data: Buffer, /) -> int:
        part = bytes(data)[: min(10, self.left)]
        if not part:
            raise MemoryError
        self.left -= len(part)
        return super().write(part)


LOOKED_UP = [Step(n, op.Lookup("r", A), LookupResult.MISS) for n in range(1, 7)]


def test_a_file_that_takes_a_part_of_a_line_gets_the_rest() -> None:
    file, whole = Stutters(), io.BytesIO()
    for each in (file, whole):
        log = CallLog.to(each, salt=SALT)
        log.begin(MANAGER)
        for step in LOOKED_UP:
            log.observe(step)
    assert file.getvalue() == whole.getvalue()


@pytest.mark.parametrize("broken_off", range(0, 120, 7))
def test_a_line_that_fails_halfway_ends_the_log(broken_off: int, tmp_path: Path) -> None:
    file = Stutters()
    log = CallLog.to(file, salt=SALT)
    log.begin(MANAGER)
    log.observe(LOOKED_UP[0])
    before = len(file.getvalue())
    file.left = broken_off
    failed = 0
    for step in LOOKED_UP[1:]:
        try:
            log.observe(step)
        except MemoryError:
            # There is memory again, and somebody goes on.
            file.left, failed = 10_000, failed + 1
    assert failed == 1
    assert before <= len(file.getvalue()) <= before + broken_off
    path = tmp_path / "log"
    path.write_bytes(file.getvalue())
    with LogReader(path) as reader:
        steps = list(reader)
    assert len(steps) == file.getvalue().count(b"\n") - 1
    assert reader.cut == (not file.getvalue().endswith(b"\n"))


@pytest.mark.parametrize("name", ["log", "log.gz"])
def test_a_line_that_cannot_be_made_ends_the_log(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    log = CallLog.to(path, salt=SALT)
    log.begin(MANAGER)
    log.observe(LOOKED_UP[0])
    with monkeypatch.context() as patched:
        patched.setattr(Pseudonyms, "key", _no_memory)
        with pytest.raises(MemoryError):
            log.observe(LOOKED_UP[1])
    log.observe(LOOKED_UP[2])
    log.close()
    with LogReader(path) as reader:
        assert len(list(reader)) == 1
    assert not reader.cut


def test_a_compressed_stream_that_fails_halfway_keeps_what_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.gz"
    log = CallLog.to(path, salt=SALT)
    log.begin(MANAGER)
    log.observe(LOOKED_UP[0])
    log.flush()
    deflate = gzip.GzipFile.write

    def fails_late(self: gzip.GzipFile, data: bytes) -> int:
        deflate(self, data)
        raise MemoryError

    long = op.PrepareStore("r", tuple(make_offload_key(b"%d" % n, 0) for n in range(5_000)))
    with monkeypatch.context() as patched:
        patched.setattr(gzip.GzipFile, "write", fails_late)
        with pytest.raises(MemoryError):
            log.observe(Step(2, long))
    log.observe(LOOKED_UP[2])
    log.close()
    with LogReader(path) as reader:
        steps = list(reader)
    assert steps[0].operation.verb == "lookup"
    assert len(steps) in (1, 2)
    assert reader.cut


def _no_memory(self: Pseudonyms, key: OffloadKey) -> str:
    raise MemoryError


class Stumbles(Invariant[Account]):
    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        raise KeyError("own fault")


def test_an_invariant_that_fails_is_reported_and_convicts_nobody(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(written(MANAGER, [Step(1, op.Lookup("r", A), LookupResult.MISS)] * 2, OPEN))
    report = judge_log(path, invariants=[Stumbles()])
    assert [(found.clause, found.raised) for found in report.violations] == [("Stumbles", True)]
    assert report.convictions == ()


class TooManyAtOnce(Invariant[Account]):
    """No offer of more than two."""

    clauses = ("OWN-1",)
    concerns = (op.PrepareStore,)

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        assert isinstance(step.operation, op.PrepareStore)
        if len(step.operation.keys) > 2 and books.num_chunks == 4:
            yield Finding("OWN-1", "too many at once")


def test_invariants_of_ones_own_judge_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with CallLog.to(path, salt=SALT) as log:
        watched = watch(CPUOffloadingManager(4), num_chunks=4, observers=[log])
        watched.prepare_store([A, B, C], R)
    report = judge_log(path, invariants=[TooManyAtOnce()])
    assert [found.clause for found in report.convictions] == ["OWN-1"]
    assert "  No offer of more than two.\n" in str(report)
    with CallLog.to(tmp_path / "policy") as log:
        watch(FIFOPolicy(4), observers=[log]).get(A)
    assert judge_log(tmp_path / "policy", invariants=[TooManyAtOnce()]).violations == ()


def test_the_profile_says_what_convicts(tmp_path: Path) -> None:
    """A repeated key stored twice breaks STORE-1, which binds the reference alone."""
    path = tmp_path / "log"
    twice = Stored((A, A), (0, 1), ())
    steps = [
        Step(1, op.PrepareStore("r", (A, A)), twice),
        Step(2, op.Lookup("r", B), LookupResult.HIT),
    ]
    path.write_bytes(written(MANAGER, steps, Pseudonyms(SALT)))
    everybody, ours = judge_log(path), judge_log(path, profile=Profile.REFERENCE)
    assert "STORE-1" in {found.clause for found in ours.convictions}
    assert {found.clause for found in everybody.convictions} == {
        found.clause for found in ours.convictions
    } - {"STORE-1"}
    assert "LOOK-1" in {found.clause for found in everybody.convictions}
    assert "(reported only) STORE-1: " in str(everybody)
    assert "\n\nLOOK-1: " in str(everybody)


def test_watching_and_logs_need_no_hypothesis() -> None:
    code = (
        "import sys, stateful_models.watching, stateful_models.logs;"
        "sys.exit('hypothesis' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_policy_host_of_ones_own_is_recorded_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with CallLog.to(path) as log:
        watched = watch(FIFOPolicy(4), observers=[log])
        host = PolicyHost(watched)
        host.store([A, B])
        host.pin([A])
        watched.evict(1, {C})
    agrees(watched, judge_log(path))
    assert watched.violations == []


def test_a_log_of_version_1_is_read(tmp_path: Path) -> None:
    """It had no times, no listed fields and no extra hooks."""
    header = {
        name: value for name, value in json.loads(HEADER).items() if name not in ("listed", "timed")
    }
    path = tmp_path / "log"
    path.write_text(json.dumps({**header, "kvoffload_log": 1}) + "\n" + GOOD.decode(), "utf-8")
    report = judge_log(path)
    assert (report.steps, report.cut) == (1, False)


def test_times_are_counted_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    now = [50.0]
    steps = [Step(1, op.Get(A)), Step(2, op.Clear()), Step(3, op.Get(B))]
    with CallLog.to(path, salt=SALT, clock=lambda: now[0]) as log:
        log.begin(POLICY)
        for step, seconds in zip(steps, (0.25, 0.5, 1.5), strict=True):
            now[0] += seconds
            log.observe(step)
            # Lines wait for others, and for no more than a second of them.
            lines = path.read_bytes().count(b"\n")
            assert lines == (4 if step.number == 3 else 0)
    times: list[float | None] = []
    with LogReader(path) as reader:
        assert (reader.header.timed, reader.time) == (True, None)
        for _ in reader:
            times.append(reader.time)
    assert times == [0.25, 0.75, 2.25]


def test_without_a_clock_equal_calls_make_equal_files() -> None:
    data = written(POLICY, [Step(1, op.Get(A))], Pseudonyms(SALT))
    assert b'"time"' not in data
    assert data == written(POLICY, [Step(1, op.Get(A))], Pseudonyms(SALT))


@pytest.mark.parametrize("values", [False, True])
def test_of_extra_hooks_keys_and_requests_are_told(values: bool, tmp_path: Path) -> None:
    context = ReqContext("client-request-1")
    arguments = (A, [A, B], {A, B}, (A, 3), context, "text", 3, None, b"x")
    step = Step(1, op.HostEvent("extra", arguments))
    data = written(POLICY, [step], Pseudonyms(SALT), hints=values)
    assert b"client-request" not in data
    (event,) = [each.operation for each in read(tmp_path / "log", data)]
    assert isinstance(event, op.HostEvent)
    key, keys, some, mixed, request, text, number, nothing, short = event.values
    names = Pseudonyms(SALT)
    assert key == key_of(names.key(A))
    both = (key_of(names.key(A)), key_of(names.key(B)))
    assert (keys, some) == (both, tuple(map(key_of, sorted(names.keys((A, B))))))
    assert request == names.request("client-request-1")
    if values:
        assert (text, number, nothing) == ("text", 3, None)
        assert mixed == [HintOfType("bytes"), 3]
    else:
        types = (mixed, text, number, nothing)
        assert types == tuple(map(HintOfType, ("array", "string", "number", "null")))
    assert short == HintOfType("bytes")


def test_many_keys_keep_their_names() -> None:
    """More than are remembered at a time."""
    names = Pseudonyms(SALT)
    keys = [make_offload_key(n.to_bytes(4, "big"), n % 3) for n in range(KNOWN_NAMES + 10)]
    first = names.keys(keys)
    assert len(set(first)) == len(keys)
    assert names.keys(keys) == first == Pseudonyms(SALT).keys(keys)
