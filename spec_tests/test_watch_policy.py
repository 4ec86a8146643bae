"""WatchedPolicy: passes everything on, knows who is idle under any host, and judges every call."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import ClassVar, cast

import pytest
from typing_extensions import override

from kvoffload import (
    CachePolicy,
    CachePolicyFactory,
    ChunkStatus,
    CPUOffloadingManager,
    OffloadKey,
    PolicyContractError,
    ReqContext,
    make_offload_key,
)
from kvoffload.errors import InvalidValueError
from kvoffload.policies.factory import check_policy_cls
from kvoffload.policies.hooks import PolicyHooks
from spec_tests.clauses.policies import Call, FIFOPolicy, PolicyHost, RecordingPolicy, Victims
from stateful_models import operations as op
from stateful_models.account import Account
from stateful_models.capabilities import Capabilities
from stateful_models.contract import Kind
from stateful_models.gallery.managers import Look1PendingIsHit
from stateful_models.invariants import Finding, Invariant, PolicyBooks
from stateful_models.monitor import Setup
from stateful_models.policy_tap import Tap
from stateful_models.steps import Step
from stateful_models.subjects import ManagerSubject
from stateful_models.watch import WatchedManager
from stateful_models.watch_policy import WatchedPolicy
from stateful_models.watching import watch, watched_policy_cls
from stateful_models.workload import Workload

A, B, C, D = (make_offload_key(name, 0) for name in (b"a", b"b", b"c", b"d"))
R = ReqContext("r")
LRU = CachePolicyFactory.get_cache_policy_cls("lru")
ARC = CachePolicyFactory.get_cache_policy_cls("arc")


def clauses(watched: WatchedPolicy) -> list[str]:
    return [violation.clause for violation in watched.violations]


def host_of(policy: CachePolicy) -> tuple[PolicyHost, WatchedPolicy]:
    """A host that sets counts first and marks then, with the policy under watch."""
    watched = watch(policy)
    return PolicyHost(watched), watched


class Steps:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.setups: list[Setup] = []
        self.steps: list[Step] = []

    def begin(self, setup: Setup) -> None:
        self.setups.append(setup)

    def observe(self, step: Step) -> None:
        self.steps.append(step)

    @property
    def calls(self) -> list[str]:
        return [str(step.operation) for step in self.steps]


class OldFIFO:
    """To the interface of former times, and of no base class: neither contexts nor hooks."""

    def __init__(self, cache_capacity: int) -> None:
        self.inner = FIFOPolicy(cache_capacity)
        self.touched: list[tuple[OffloadKey, ...]] = []

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.inner.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        self.inner.insert(key, chunk, R)

    def remove(self, key: OffloadKey) -> None:
        self.inner.remove(key)

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        self.touched.append(tuple(keys))

    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.inner.evict(n, protected)

    def clear(self) -> None:
        self.inner.clear()


OLD = check_policy_cls(OldFIFO)


@pytest.mark.parametrize("policy_cls", [LRU, ARC, FIFOPolicy, RecordingPolicy, OLD])
@pytest.mark.parametrize("seed", range(2))
def test_a_manager_does_the_same_with_a_watched_policy(
    policy_cls: type[CachePolicy], seed: int
) -> None:
    """Every answer and every exception, through evictions, failures, mistakes and resets."""
    watched_cls = watched_policy_cls(policy_cls)
    programs: list[list[str]] = []
    for cls in (policy_cls, watched_cls):
        manager = CPUOffloadingManager(9, cache_policy=cls, enable_events=True)
        workload = Workload(ManagerSubject(manager), seed=seed)
        workload.run(300)
        manager.check()
        programs.append(list(map(str, workload.steps)))
    assert programs[0] == programs[1]
    assert watched_cls.tally.violations == []
    assert watched_cls.tally.steps > 500
    assert "evicted [" in "".join(programs[0])


def test_the_policy_inside_gets_the_very_calls_that_it_got_unwatched() -> None:
    calls: list[list[Call]] = []
    for cls in (RecordingPolicy, watched_policy_cls(RecordingPolicy)):
        Workload(ManagerSubject(CPUOffloadingManager(9, cache_policy=cls)), seed=5).run(200)
        calls.append(RecordingPolicy.made.pop().calls)
    assert calls[0] == calls[1]
    assert {call.hook for call in calls[1]} >= {"evict", "remove", "mark_evictable", "clear"}


class BulkFIFO(FIFOPolicy):
    """Says how it was asked."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.bulks: list[str] = []

    @override
    def insert_all(
        self, keys: Sequence[OffloadKey], chunks: Sequence[ChunkStatus], req_context: ReqContext
    ) -> None:
        self.bulks.append("insert_all")
        super().insert_all(keys, chunks, req_context)

    @override
    def mark_all_evictable(self, keys: Sequence[OffloadKey]) -> None:
        self.bulks.append("mark_all_evictable")


class SingleAgain(BulkFIFO):
    """Overrides the single form, so that the inherited bulk form must not be used."""

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.bulks.append("insert")
        super().insert(key, chunk, req_context)


def bulk_forms(policy: CachePolicy) -> tuple[bool, bool]:
    """Which bulk forms of the policy itself a host would use."""
    hooks = PolicyHooks(policy)
    inserts: object = hooks.insert_all
    marks: object = hooks.mark_all_evictable
    return (
        getattr(inserts, "__self__", None) is policy,
        getattr(marks, "__self__", None) is policy,
    )


@pytest.mark.parametrize(
    ("policy_cls", "forms"),
    [
        (LRU, (True, True)),
        (BulkFIFO, (True, True)),
        (SingleAgain, (False, True)),
        (RecordingPolicy, (False, False)),
        (FIFOPolicy, (False, False)),
        (OLD, (False, False)),
    ],
)
def test_a_watched_policy_has_the_bulk_forms_of_the_one_inside(
    policy_cls: type[CachePolicy], forms: tuple[bool, bool]
) -> None:
    assert bulk_forms(policy_cls(cache_capacity=3)) == forms
    assert bulk_forms(watch(policy_cls(cache_capacity=3))) == forms
    assert bulk_forms(watched_policy_cls(policy_cls)(cache_capacity=3)) == forms


def test_bulk_calls_go_through_as_such_and_each_key_is_a_step() -> None:
    seen = Steps()
    inner = BulkFIFO(3)
    watched = watch(inner, observers=[seen])
    chunks = [ChunkStatus(0), ChunkStatus(1)]
    watched.insert_all([A, B], chunks, R)
    for chunk in chunks:
        chunk.ref_cnt = 0
    watched.mark_all_evictable([A, B])
    assert inner.bulks == ["insert_all", "mark_all_evictable"]
    assert seen.calls == [
        "on_new_request(r)",
        "insert(r, a/0, slot 0)",
        "insert(r, b/0, slot 1)",
        "mark_evictable(a/0)",
        "mark_evictable(b/0)",
    ]
    assert watched.evict(2, set()) == [(A, chunks[0]), (B, chunks[1])]
    assert watched.violations == []


class BulkFails(BulkFIFO):
    @override
    def insert_all(
        self, keys: Sequence[OffloadKey], chunks: Sequence[ChunkStatus], req_context: ReqContext
    ) -> None:
        raise ValueError("no room")


@pytest.mark.clause("POL-7")
def test_a_bulk_call_that_raises_is_one_violation() -> None:
    watched = watch(BulkFails(3))
    with pytest.raises(ValueError, match="no room"):
        watched.insert_all([A, B], [ChunkStatus(0), ChunkStatus(1)], R)
    assert clauses(watched) == ["POL-7"]
    assert watched.violations[0].calls[-1].endswith("-> raised ValueError: no room")


def test_old_interfaces_are_served_under_old_hosts_too() -> None:
    inner = OldFIFO(2)
    # It has the methods of one, as policies of former times have.
    watched = watch(cast("CachePolicy", inner))
    chunk = ChunkStatus(0)
    watched.insert(A, chunk)
    watched.touch([A])
    watched.touch([B], R)
    watched.on_store_miss([C], R)
    watched.on_request_finished([[A], [B]], {A}, {B}, R)
    watched.mark_evictable(A)
    watched.mark_non_evictable(A)
    assert inner.touched == [(A,), (B,), (C,), (A,), (B,)]
    assert watched.get(A) is chunk
    assert watched.violations == []


class Misbehaves(FIFOPolicy):
    """Gives an eviction whatever the test wants."""

    answer: object = None

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        # Policies are anybody's.
        return cast("Victims", self.answer)


@pytest.mark.clause("POL-2")
def test_a_bad_victim_is_named_with_its_state() -> None:
    inner = Misbehaves(4)
    host, watched = host_of(inner)
    host.store([A, B])
    host.pin([B])
    host.pending([C])
    for key, what in ((B, "pinned"), (C, "pending"), (D, "not resident"), (A, "protected")):
        inner.answer = [(key, host.chunks.get(key) or ChunkStatus(3))]
        watched.evict(1, {A})
        assert watched.violations[-1].message == f"the victim {op.key_text(key)} is {what}"
        assert watched.violations[-1].kind is Kind.SAFETY
        host.store([key])
    inner.answer = [(A, ChunkStatus(0))]
    watched.evict(1, set())
    assert watched.violations[-1].message == "the victim a/0 came with another chunk"
    assert watched.num_violations == 5


class Cruel(FIFOPolicy):
    """Evicts what is pinned, and hides it."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        for chunk in self.chunks.values():
            chunk.ref_cnt = 0
        return super().evict(n, protected)


@pytest.mark.clause("POL-2")
@pytest.mark.parametrize("marks", [True, False])
def test_a_policy_cannot_hide_a_pin(marks: bool) -> None:
    host, watched = host_of(Cruel(2))
    if marks:
        host.store([A])
        host.pin([A])
    else:
        watched.insert(A, ChunkStatus(0, ref_cnt=1), R)
    watched.evict(1, set())
    assert [violation.message for violation in watched.violations] == ["the victim a/0 is pinned"]


def test_a_host_without_marks_is_understood() -> None:
    """Who is idle is then read off `ref_cnt`, of every chunk, before each eviction."""
    seen = Steps()
    watched = watch(FIFOPolicy(4), observers=[seen])
    chunks = {key: ChunkStatus(slot) for slot, key in enumerate((A, B, C, D))}
    for key, chunk in chunks.items():
        watched.insert(key, chunk, R)
        chunk.ref_cnt = 0
    chunks[A].ref_cnt = 2
    assert watched.evict(1, {C}) == [(B, chunks[B])]
    chunks[A].ref_cnt, chunks[C].ref_cnt = 0, 1
    assert watched.evict(2, set()) == [(A, chunks[A]), (D, chunks[D])]
    assert watched.evict(1, set()) is None
    assert watched.violations == []
    assert [call for call in seen.calls if call.startswith("set_ref_cnt")] == [
        "set_ref_cnt(a/0, 2)",
        "set_ref_cnt(b/0, 0)",
        "set_ref_cnt(c/0, 0)",
        "set_ref_cnt(d/0, 0)",
        "set_ref_cnt(a/0, 0)",
        "set_ref_cnt(c/0, 1)",
    ]


def test_a_host_that_forgets_a_mark_convicts_nobody() -> None:
    host, watched = host_of(FIFOPolicy(4))
    host.store([A, B, C])
    host.pin([A])
    host.chunks[A].ref_cnt = 0
    assert watched.evict(1, {B}) == [(A, host.chunks[A])]
    host.chunks[B].ref_cnt = 1
    assert watched.evict(2, set()) is None
    assert watched.violations == []


class PinnedUnmarked(FIFOPolicy):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return [self.chunks.popitem()]


@pytest.mark.clause("POL-2")
def test_a_pin_without_a_mark_still_counts() -> None:
    host, watched = host_of(PinnedUnmarked(4))
    host.store([A])
    host.chunks[A].ref_cnt = 1
    watched.evict(1, set())
    assert [violation.message for violation in watched.violations] == ["the victim a/0 is pinned"]


class CountedChunk(ChunkStatus):
    """Knows how often somebody looked at its count of pins."""

    looks: ClassVar[int] = 0

    @override
    def __getattribute__(self, name: str) -> object:
        if name == "ref_cnt":
            CountedChunk.looks += 1
        return super().__getattribute__(name)


def test_an_eviction_looks_at_no_chunk_that_is_idle_by_its_mark() -> None:
    """What watching costs must not depend on the size of the cache."""
    looks: list[int] = []
    for number in (10, 1_000):
        watched = watch(LRU(cache_capacity=number))
        keys = [make_offload_key(b"%d" % n, 0) for n in range(number)]
        for slot, key in enumerate(keys):
            chunk = CountedChunk(slot)
            watched.insert(key, chunk, R)
            chunk.ref_cnt = 0
            watched.mark_evictable(key)
        CountedChunk.looks = 0
        assert watched.evict(2, set()) is not None
        looks.append(CountedChunk.looks)
        assert watched.violations == []
    assert looks[0] == looks[1]


@pytest.mark.clause("POL-3")
def test_a_refusal_with_candidates_is_convicted() -> None:
    inner = Misbehaves(3)
    host, watched = host_of(inner)
    host.store([A, B])
    host.pin([B])
    assert watched.evict(1, {A}) is None
    assert watched.violations == []
    assert watched.evict(1, set()) is None
    assert clauses(watched) == ["POL-3"]


class Reserved(Misbehaves):
    may_refuse: ClassVar[str | None] = "keeps a reserve"


def test_what_a_policy_declares_is_known_and_passed_on() -> None:
    inner = Reserved(3)
    watched = watch(inner)
    assert watched.may_refuse == "keeps a reserve"
    assert watched_policy_cls(Reserved).may_refuse == "keeps a reserve"
    assert watched_policy_cls(FIFOPolicy)(2).may_refuse is None
    PolicyHost(watched).store([A])
    assert watched.evict(1, set()) is None
    assert watched.violations == []
    generous = Misbehaves(3)
    grouped = watch(generous, capabilities=Capabilities(may_evict_more="evicts by groups"))
    host = PolicyHost(grouped)
    host.store([A, B])
    generous.answer = [(A, host.chunks[A]), (B, host.chunks[B])]
    grouped.evict(1, set())
    assert grouped.violations == []


UNREADABLE: list[object] = [5, [A], [(A,)], [7], [([], None)]]


@pytest.mark.clause("POL-2")
@pytest.mark.parametrize("answer", UNREADABLE, ids=repr)
def test_an_answer_that_cannot_be_read_goes_through_and_is_convicted(answer: object) -> None:
    inner = Misbehaves(3)
    inner.answer = answer
    host, watched = host_of(inner)
    host.store([A])
    given: object = watched.evict(1, set())
    assert given is answer
    assert clauses(watched) == ["POL-2"]
    assert "evict answered" in watched.violations[0].message


def test_victims_that_can_be_read_once_reach_the_host() -> None:
    inner = Misbehaves(3)
    host, watched = host_of(inner)
    host.store([A])
    inner.answer = ((key, host.chunks[key]) for key in (A,))
    assert watched.evict(1, set()) == [(A, host.chunks[A])]
    assert watched.violations == []

    def broken() -> Iterator[tuple[OffloadKey, ChunkStatus]]:
        yield A, ChunkStatus(0)
        raise KeyError(A)

    inner.answer = broken()
    with pytest.raises(KeyError):
        watched.evict(1, set())
    assert clauses(watched) == ["POL-7"]


class Raises(FIFOPolicy):
    error: BaseException = ValueError("spoilt")

    def _raise(self, *_: object) -> None:
        raise self.error

    insert = remove = touch = clear = on_store_miss = _raise  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    on_request_access = on_request_finished = _raise  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    mark_evictable = mark_non_evictable = _raise  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    get = evict = _raise  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


CALLS: dict[str, Callable[[CachePolicy], object]] = {
    "get": lambda policy: policy.get(A),
    "insert": lambda policy: policy.insert(A, ChunkStatus(0), R),
    "remove": lambda policy: policy.remove(A),
    "touch": lambda policy: policy.touch([A], R),
    "evict": lambda policy: policy.evict(1, {A}),
    "clear": lambda policy: policy.clear(),
    "on_store_miss": lambda policy: policy.on_store_miss([A], R),
    "on_request_access": lambda policy: policy.on_request_access([A], R),
    "on_request_finished": lambda policy: policy.on_request_finished([[A]], {A}, set(), R),
    "mark_evictable": lambda policy: policy.mark_evictable(A),
    "mark_non_evictable": lambda policy: policy.mark_non_evictable(A),
}


@pytest.mark.clause("POL-7")
@pytest.mark.parametrize("error", [ValueError("spoilt"), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("call", CALLS)
def test_an_exception_goes_through_and_is_convicted(call: str, error: BaseException) -> None:
    inner = Raises(3)
    inner.error = error
    watched = watch(inner)
    with pytest.raises(type(error)) as raised:
        CALLS[call](watched)
    assert raised.value is error
    assert clauses(watched) == ["POL-7"]
    assert watched.violations[0].message.startswith(f"{call} raised {type(error).__name__}")


def test_an_interrupt_goes_through_and_is_nobodys_breach() -> None:
    inner = Raises(3)
    inner.error = KeyboardInterrupt()
    watched = watch(inner)
    for call in CALLS.values():
        with pytest.raises(KeyboardInterrupt):
            call(watched)
    assert watched.violations == []


class Forgetful(FIFOPolicy):
    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return None


class Remembers(FIFOPolicy):
    @override
    def clear(self) -> None:
        return None


@pytest.mark.clause("POL-1")
@pytest.mark.clause("POL-6")
def test_look_ups_are_judged() -> None:
    host, watched = host_of(Forgetful(2))
    host.store([A])
    watched.get(A)
    assert clauses(watched) == ["POL-1"]
    host, watched = host_of(Remembers(2))
    host.store([A])
    watched.clear()
    watched.get(A)
    assert clauses(watched) == ["POL-6"]


class KeepsSessions(Invariant[PolicyBooks]):
    """A session named by a client is known, and so is where its keys end."""

    clauses = ("OWN-1",)

    def __init__(self) -> None:
        self.sessions: dict[str, object] = {}
        self.ends: dict[OffloadKey, int] = {}

    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        operation = step.operation
        if isinstance(operation, op.NewRequest) and operation.hints is not None:
            self.sessions[operation.request] = operation.hints.get("session_id")
        elif isinstance(operation, op.SetPositions):
            self.ends.update(operation.positions)
        elif isinstance(operation, op.Insert) and operation.request not in self.sessions:
            yield Finding("OWN-1", f"{operation.request} has no session")


def test_invariants_of_ones_own_know_hints_and_positions() -> None:
    own = KeepsSessions()
    watched = watch(FIFOPolicy(4), invariants=[own])
    with_session = ReqContext("s", {"session_id": 7})
    with_session.set_offload_key_position(A, 16)
    for context in (with_session, ReqContext("t")):
        watched.on_store_miss([A], context)
        watched.on_request_access([A, B], context)
        watched.insert(A, ChunkStatus(0), context)
    assert own.sessions == {"s": 7}
    assert own.ends == {A: 16}
    assert [violation.message for violation in watched.violations] == ["t has no session"]


class HostsContext:
    """Of a host's own kind: no hints, no positions, and nothing can follow it."""

    __slots__ = ("req_id",)

    def __init__(self) -> None:
        self.req_id = "h"


def test_a_context_of_any_kind_will_do() -> None:
    watched = watch(FIFOPolicy(4))
    # As above.
    context = cast("ReqContext", HostsContext())
    watched.on_request_access([A], context)
    watched.insert(A, ChunkStatus(0), context)
    assert watched.steps == 2
    assert watched.violations == []


class Breaks(Invariant[PolicyBooks]):
    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        raise KeyError(A)


class FullDisk(Steps):
    @override
    def observe(self, step: Step) -> None:
        super().observe(step)
        if len(self.steps) == 2:
            raise OSError("the disk is full")


class WrongObserver(Steps):
    @override
    def begin(self, setup: Setup) -> None:
        raise OSError("no such file")


def test_invariants_and_observers_that_raise_are_reported_and_disturb_nobody() -> None:
    full, wrong, sound = FullDisk(), WrongObserver(), Steps()
    watched = watch(FIFOPolicy(4), invariants=[Breaks()], observers=[full, wrong, sound])
    for _ in range(3):
        assert watched.get(A) is None
    assert clauses(watched) == ["WrongObserver", "Breaks", "FullDisk"]
    assert all(violation.raised for violation in watched.violations)
    assert "raised OSError: the disk is full" in watched.violations[2].message
    assert [len(full.steps), len(wrong.steps), len(sound.steps)] == [2, 0, 3]
    assert sound.setups == [Setup(kind="policy", num_chunks=4)]


class ExtraHooks(FIFOPolicy):
    """With a hook that only a host of its own calls, and an argument too many."""

    def __init__(self, cache_capacity: int, sessions: int = 0) -> None:
        super().__init__(cache_capacity)
        self.opened: list[str] = []
        self.hurry: list[bool] = []

    def open_session(self, name: str) -> None:
        self.opened.append(name)

    @override
    def evict(self, n: int, protected: Set[OffloadKey], hurry: bool = False) -> Victims | None:
        self.hurry.append(hurry)
        return super().evict(n, protected)


def test_what_only_its_own_host_knows_reaches_the_policy() -> None:
    inner = ExtraHooks(3)
    watched = watch(inner)
    # The host knows what is inside.
    policy = cast("ExtraHooks", watched)
    policy.open_session("s")
    watched.evict(1, set(), True)
    assert inner.opened == policy.opened == ["s"]
    assert inner.hurry == [True]
    assert watched.cache_capacity == 3
    with pytest.raises(AttributeError, match="no_such_thing"):
        getattr(policy, "no_such_thing")  # noqa: B009
    with pytest.raises(AttributeError, match="policy"):
        getattr(WatchedPolicy.__new__(WatchedPolicy), "policy")  # noqa: B009


class FailsAtSix(FIFOPolicy):
    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        if len(self.chunks) == 6:
            raise ValueError("six")


def test_a_class_under_watch_keeps_what_was_found_in_policies_that_are_gone() -> None:
    """A manager replaces a broken policy at the next reset, and names it in what it raises."""
    seen: list[Steps] = []
    made: list[int] = []

    def observers() -> list[Steps]:
        seen.append(Steps())
        return seen[-1:]

    def invariants(capacity: int) -> list[KeepsSessions]:
        made.append(capacity)
        return [KeepsSessions()]

    cls = watched_policy_cls(FailsAtSix, make_observers=observers, make_invariants=invariants)
    manager = CPUOffloadingManager(8, cache_policy=cls)
    keys = [make_offload_key(b"%d" % n, 0) for n in range(6)]
    request = ReqContext("q", {})
    for _ in range(2):
        with pytest.raises(PolicyContractError, match="six"):
            manager.prepare_store(keys, request)
        with pytest.raises(PolicyContractError, match=r"FailsAtSix\.insert broke POL-7"):
            manager.touch(keys, request)
        manager.reset_cache()
    assert manager.prepare_store([A], request) is not None
    assert [violation.clause for violation in cls.tally.violations] == ["POL-7", "POL-7"]
    assert made == [8, 8, 8]
    assert [sum("raised" in str(step) for step in each.steps) for each in seen] == [1, 1, 0]
    assert cls.tally.steps == sum(len(each.steps) for each in seen)
    assert issubclass(cls, CachePolicy)


def test_two_classes_under_watch_have_nothing_in_common() -> None:
    one, other = watched_policy_cls(FIFOPolicy), watched_policy_cls(FIFOPolicy)
    one(cache_capacity=2).get(A)
    assert (one.tally.steps, other.tally.steps) == (1, 0)


def test_anything_can_be_put_under_watch_that_has_the_calls_of_a_manager_or_a_policy() -> None:
    manager = watch(CPUOffloadingManager(2), num_chunks=2)
    assert isinstance(manager, WatchedManager)
    assert manager.prepare_store([A, B], R) is not None
    assert manager.steps == 1
    assert manager.checks >= 3
    for nothing in (None, 5, LRU, CPUOffloadingManager):
        with pytest.raises(InvalidValueError, match="a manager or a cache policy"):
            # Callers without a type checker do this.
            watch(nothing, num_chunks=2)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(TypeError, match="num_chunks"):
        watch(CPUOffloadingManager(2))  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(TypeError, match="num_chunks"):
        watch(FIFOPolicy(2), num_chunks=2)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


class NoLookUps(Invariant[Account]):
    clauses = ("OWN-1",)
    concerns = (op.Lookup,)

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        yield Finding("OWN-1", "a look-up")


def test_invariants_given_for_a_manager_judge_beside_the_usual_ones() -> None:
    watched = watch(Look1PendingIsHit(2), num_chunks=2, invariants=[NoLookUps()])
    watched.prepare_store([A], R)
    watched.lookup(A, R)
    assert sorted(found.clause for found in watched.violations) == ["LOOK-1", "OWN-1"]


def test_what_a_call_that_raised_told_the_policy_is_part_of_it() -> None:
    tap, seen = Tap(FailsAtSix), Steps()
    manager = CPUOffloadingManager(8, cache_policy=tap.policy_cls)
    watched = watch(manager, num_chunks=8, observers=[seen], tap=tap)
    with pytest.raises(PolicyContractError, match="six"):
        watched.prepare_store([make_offload_key(b"%d" % n, 0) for n in range(6)], R)
    watched.lookup(A, R)
    offer, lookup = seen.steps
    assert [type(call) for call in offer.told or ()][-6:] == [op.Insert] * 6
    assert lookup.told == ()


def test_a_watched_manager_shows_what_the_one_inside_has_beside_the_interface() -> None:
    watched = watch(CPUOffloadingManager(2), num_chunks=2)
    manager = cast("CPUOffloadingManager", watched)
    watched.prepare_store([A], R)
    assert [transfer.keys for transfer in manager.outstanding("r")] == [(A,)]
    assert manager.generation == 0
    with pytest.raises(AttributeError, match="no_such_thing"):
        getattr(manager, "no_such_thing")  # noqa: B009


def test_an_extra_hook_that_somebody_notes_is_a_step() -> None:
    seen = Steps()
    watched = watch(FIFOPolicy(3), observers=[seen])
    watched.note_event("open_session", ["a", 3])
    watched.note_event("fail", (), RuntimeError("no"))
    assert seen.calls == ["host_event(open_session, 'a', 3)", "host_event(fail)"]
    assert clauses(watched) == ["POL-7"]


def test_one_that_is_not_judged_is_only_observed() -> None:
    seen = Steps()
    watched = WatchedPolicy(FIFOPolicy(3), observers=[seen], judged=False)
    watched.note_event("fail", (), RuntimeError("no"))
    assert watched.evict(1, set()) is None
    assert len(seen.steps) == 2
    assert (watched.violations, watched.checks) == ([], 0)
