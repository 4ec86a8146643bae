"""WatchedManager: passes everything on, judges every call, and walks no more than its keys."""

import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from gc import collect
from weakref import ref

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import (
    ChunkNotFoundError,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadingStats,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestFinishedError,
    RequestOffloadingContext,
    ScheduleEndContext,
    UnknownTicketError,
    make_offload_key,
)
from stateful_models import operations as op
from stateful_models.account import Account, Entry
from stateful_models.gallery.managers import Look1PendingIsHit
from stateful_models.invariants import Finding, Invariant, manager_invariants
from stateful_models.judge import Judge, keys_in_short
from stateful_models.monitor import KEPT_VIOLATIONS
from stateful_models.steps import Step
from stateful_models.subjects import ManagerSubject
from stateful_models.watch import WatchedManager
from stateful_models.workload import Workload

A, B, C = (make_offload_key(name, 0) for name in (b"a", b"b", b"c"))


def watched(num_chunks: int = 2) -> tuple[WatchedManager, CPUOffloadingManager]:
    manager = CPUOffloadingManager(num_chunks, enable_events=True)
    return WatchedManager(manager, num_chunks=num_chunks, enable_events=True), manager


def test_every_call_goes_through_with_its_answer() -> None:
    watch, manager = watched()
    context = ReqContext("r")
    assert watch.on_new_request(context) == RequestOffloadingContext()
    output = watch.prepare_store([A, B], context)
    assert output is not None
    assert output.keys_to_store == [A, B]
    assert watch.lookup(A, context) is LookupResult.HIT_PENDING
    watch.complete_store([A, B], context, ticket=output.ticket)
    spec = watch.prepare_load([A], context)
    assert isinstance(spec, CPULoadStoreSpec)
    assert spec.ticket is not None
    watch.touch([A], context)
    watch.complete_load([A], context, ticket=spec.ticket)
    assert [event.keys for event in watch.take_events()] == [[A, B]]
    stats = watch.get_stats()
    assert isinstance(stats, OffloadingStats)
    watch.on_request_finished(context)
    watch.on_schedule_end(ScheduleEndContext((), ()))
    watch.reset_cache()
    watch.on_reset_flushed()
    assert watch.lookup(A, context) is LookupResult.MISS
    assert not watch.has_pending_work()
    watch.shutdown()
    with watch.lock:
        assert manager.generation == 1
    assert watch.violations == []
    assert watch.steps == 14


def test_an_exception_goes_through_and_is_judged() -> None:
    watch, _ = watched()
    with pytest.raises(ChunkNotFoundError):
        watch.prepare_load([A], ReqContext("r"))
    assert watch.steps == 1
    assert watch.violations == []


def test_keys_that_can_be_read_once_reach_the_manager() -> None:
    watch, _ = watched()
    keys: Iterator[OffloadKey] = iter([A, B])
    # Callers without a type checker do this.
    output = watch.prepare_store(keys, ReqContext("r"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert output is not None
    assert output.keys_to_store == [A, B]


@pytest.mark.clause("FIN-2")
def test_requests_are_told_by_their_contexts() -> None:
    """REQ-3: a second context need not be announced, and one of the same id is another request."""
    watch, _ = watched()
    first, second = ReqContext("r"), ReqContext("r")
    watch.on_new_request(first)
    assert watch.prepare_store([A], first) is not None
    watch.on_request_finished(first)
    assert watch.prepare_store([B], second) is not None
    assert watch.violations == []


class NeverRefuses(CPUOffloadingManager):
    """Takes everybody for a new request."""

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        return None


@pytest.mark.clause("FIN-2")
def test_of_two_contexts_of_one_id_the_finished_one_is_convicted() -> None:
    watch = WatchedManager(NeverRefuses(4), num_chunks=4)
    first, second = ReqContext("r"), ReqContext("r")
    for context in (first, second):
        watch.on_new_request(context)
    watch.on_request_finished(first)
    watch.prepare_store([A], second)
    assert watch.violations == []
    watch.prepare_store([B], first)
    assert [violation.clause for violation in watch.violations] == ["FIN-2"]


def test_contexts_can_go_away() -> None:
    watch, _ = watched()
    context = ReqContext("r")
    watch.prepare_store([A], context)
    watch.on_request_finished(context)
    gone = ref(context)
    del context
    collect()
    assert gone() is None
    # At the same address, most likely.
    assert watch.prepare_store([B], ReqContext("r")) is not None
    assert watch.violations == []


@pytest.mark.clause("LOAD-5")
def test_an_internal_load_goes_through_and_is_no_access() -> None:
    watch, manager = watched()
    context = ReqContext("r")
    watch.on_new_request(context)
    output = watch.prepare_store([A], ReqContext("other"))
    assert output is not None
    watch.complete_store([A], context, ticket=output.ticket)
    watch.on_request_finished(context)
    spec = watch.prepare_load([A], context, record_access=False)
    assert isinstance(spec, CPULoadStoreSpec)
    watch.complete_load([A], context, ticket=spec.ticket)
    manager.check()
    assert watch.violations == []
    with pytest.raises(RequestFinishedError):
        watch.prepare_load([A], context, record_access=True)
    assert watch.violations == []
    with pytest.raises(TypeError, match="record_access"):
        WatchedManager(OfOthers(), num_chunks=2).prepare_load([A], context, record_access=True)


class RefusesInternal(CPUOffloadingManager):
    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        return super().prepare_load(keys, req_context)


@pytest.mark.clause("LOAD-5")
def test_a_manager_that_takes_an_internal_load_for_an_access_is_convicted() -> None:
    watch = WatchedManager(RefusesInternal(2), num_chunks=2)
    subject, other = ManagerSubject(watch), ReqContext("other")
    output = watch.prepare_store([A], other)
    assert output is not None
    watch.complete_store([A], other, ticket=output.ticket)
    for operation in (op.NewRequest("r"), op.FinishRequest("r")):
        subject.perform(operation)
    step = subject.perform(op.PrepareLoad("r", (A,), internal=True))
    assert isinstance(step.error, RequestFinishedError)
    assert str(step.operation) == "prepare_load(r, [a/0], record_access=False)"
    assert [violation.clause for violation in watch.violations] == ["FIN-2"]


@pytest.mark.clause("DONE-4")
@pytest.mark.parametrize("ticket", [[], {}, "x", True, 1.5], ids=repr)
def test_a_ticket_of_any_kind_reaches_the_manager(ticket: int) -> None:
    watch, _ = watched()
    context = ReqContext("r")
    watch.prepare_store([A], context)
    watch.prepare_store([B], context)
    with pytest.raises(UnknownTicketError):
        watch.complete_store([A], context, ticket=ticket)
    with pytest.raises(UnknownTicketError):
        watch.complete_load([A], context, ticket=ticket)
    assert watch.violations == []


class TicketsOfItsOwn(CPUOffloadingManager):
    """Whose tickets are lists."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        return None if output is None else evolve(output, ticket=None)

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        super().complete_store(keys, req_context, success)


def test_a_manager_with_tickets_of_its_own_kind_is_not_convicted_for_them() -> None:
    watch = WatchedManager(TicketsOfItsOwn(2), num_chunks=2)
    context = ReqContext("r")
    watch.prepare_store([A], context)
    # Its callers know what it takes.
    watch.complete_store([A], context, ticket=[0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert watch.lookup(A, context) is LookupResult.HIT
    assert watch.violations == []


class OfOthers(OffloadingManager):
    """A manager as others write them: no tickets, nothing shown, `success` by position."""

    def __init__(self) -> None:
        self.inner = CPUOffloadingManager(2)

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return self.inner.on_new_request(req_context)

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return self.inner.lookup(key, req_context)

    @override
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        self.inner.prepare_load(keys, req_context)
        return LoadStoreSpec()

    # The interface of vLLM has no tickets, so neither have most managers.
    @override
    def complete_load(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> None:
        self.inner.complete_load(keys, req_context)

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = self.inner.prepare_store(keys, req_context)
        if output is None:
            return None
        return PrepareStoreOutput(output.keys_to_store, LoadStoreSpec(), output.evicted_keys)

    @override
    def complete_store(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        self.inner.complete_store(keys, req_context, success)

    @override
    def reset_cache(self) -> None:
        self.inner.reset_cache()


def test_a_manager_without_tickets_slots_or_figures_is_not_convicted_for_it() -> None:
    """DONE-4 and MET-1 hold for those who have tickets and figures."""
    watch = WatchedManager(OfOthers(), num_chunks=2)
    Workload(ManagerSubject(watch), seed=3).run(300)
    # A ticket is passed on only where one was given, so `complete_load` took none.
    assert watch.violations == []


CALLS: tuple[op.ManagerOperation, ...] = (
    op.NewRequest("r"),
    op.Lookup("r", A),
    op.PrepareLoad("r", (A,)),
    op.CompleteLoad("r", (A,)),
    op.Touch("r", (A,)),
    op.PrepareStore("r", (A,)),
    op.CompleteStore("r", (A,)),
    op.FinishRequest("r"),
    op.TakeEvents(),
    op.GetStats(),
    op.Reset(),
    op.ResetFlushed(),
    op.ScheduleEnd(),
)


@pytest.mark.parametrize("operation", CALLS, ids=lambda operation: operation.verb)
def test_at_least_three_invariants_judge_each_call(operation: op.ManagerOperation) -> None:
    judge = Judge(manager_invariants(), Account(2))
    ManagerSubject(CPUOffloadingManager(2)).perform(operation)
    judge.judge(Step(1, operation, error=ChunkNotFoundError("a call", A)))
    assert judge.checks >= 3


class NeverWalked(dict[OffloadKey, Entry]):
    """A dictionary of residents that nobody may read as a whole."""

    def _walked(self) -> Iterator[OffloadKey]:
        raise AssertionError("the books were walked")

    __iter__ = _walked
    keys = values = items = copy = _walked  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


def test_judging_a_call_walks_no_more_than_its_keys() -> None:
    """What `--check` costs must not depend on the size of the cache."""
    watch, _ = watched(6)
    subject = ManagerSubject(watch)
    books = Account(6)
    books.resident = NeverWalked()
    judge = Judge(manager_invariants(enable_events=True), books)
    workload = Workload(subject, seed=1, resets=False)
    workload.run(300)
    for step in workload.steps:
        assert not judge.judge(step)
    assert any(isinstance(step.operation, op.TakeEvents) for step in workload.steps)


class NoKeyTwice(Invariant[Account]):
    """A promise of somebody's own."""

    clauses = ("OWN-1",)
    concerns = (op.PrepareStore,)

    def judge(self, step: Step, books: Account) -> Sequence[Finding]:
        assert isinstance(step.operation, op.PrepareStore)
        keys = step.operation.keys
        return [Finding("OWN-1", "twice")] if len(set(keys)) < len(keys) else []


def test_invariants_of_ones_own() -> None:
    watch = WatchedManager(CPUOffloadingManager(2), num_chunks=2, invariants=[NoKeyTwice()])
    watch.prepare_store([A], ReqContext("r"))
    watch.prepare_store([B, B], ReqContext("r"))
    watch.lookup(A, ReqContext("r"))
    assert [violation.clause for violation in watch.violations] == ["OWN-1"]
    assert watch.checks == 2


class Breaks(Invariant[Account]):
    """Finds something, and then trips over its own feet."""

    clauses = ("OWN-1",)

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        yield Finding("OWN-1", "so far, so good")
        raise KeyError(A)


class SaysNothing(Invariant[Account]):
    def judge(self, step: Step, books: Account) -> Sequence[Finding]:
        # Authors without a type checker forget to return.
        return None  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def test_an_invariant_that_raises_is_a_violation_and_disturbs_nobody() -> None:
    invariants = [Breaks(), SaysNothing(), NoKeyTwice()]
    watch = WatchedManager(CPUOffloadingManager(2), num_chunks=2, invariants=invariants)
    context = ReqContext("r")
    assert watch.prepare_store([A], context) is not None
    assert watch.lookup(A, context) is LookupResult.HIT_PENDING
    # The others judge on, with books that were kept.
    watch.prepare_store([B, B], context)
    assert [violation.clause for violation in watch.violations] == [
        "OWN-1",
        "Breaks",
        "SaysNothing",
        "OWN-1",
    ]
    breaks, says_nothing = watch.violations[1:3]
    assert re.fullmatch(
        r"raised KeyError: a/0 in Breaks\.judge \(test_watch\.py:\d+\); it was not asked again",
        breaks.message,
    )
    assert "raised TypeError: 'NoneType'" in says_nothing.message
    assert "in SaysNothing.judge" in says_nothing.message
    assert [violation.raised for violation in watch.violations] == [False, True, True, False]
    assert watch.num_violations == 4


class Unlisted(Invariant[Account]):
    """A promise."""

    concerns = (op.Lookup,)

    def judge(self, step: Step, books: Account) -> Sequence[Finding]:
        return [Finding("OWN-9", "found"), Finding("LOOK-1", "found too")]


def test_a_clause_that_an_invariant_does_not_list_is_reported_with_its_name() -> None:
    watch = WatchedManager(CPUOffloadingManager(2), num_chunks=2, invariants=[Unlisted()])
    watch.lookup(A, ReqContext("r"))
    own, known = watch.violations
    assert own.message == "found (found by Unlisted, which does not list OWN-9)"
    assert (own.invariant, own.promise) == ("Unlisted", "A promise.")
    assert (known.invariant, known.message) == ("Unlisted", "found too")
    assert known.promise.startswith("A look-up says MISS")


class Forgets(CPUOffloadingManager):
    @override
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        raise ChunkNotFoundError("touch", next(iter(keys)))


def test_the_violation_that_tells_of_an_exception_is_known() -> None:
    watch = WatchedManager(Forgets(2), num_chunks=2)
    with pytest.raises(ChunkNotFoundError) as raised:
        watch.touch([A], ReqContext("r"))
    found = watch.violation_by(raised.value)
    assert found is not None
    assert found is watch.violations[0]
    assert found.message == "touch raised ChunkNotFoundError: touch: a/0 is not resident"
    assert found.calls[-1].endswith("raised ChunkNotFoundError: touch: a/0 is not resident")
    assert watch.violation_by(ChunkNotFoundError("touch", A)) is None
    watch.lookup(A, ReqContext("r"))
    # It was not the last call that raised it.
    assert watch.violation_by(raised.value) is None


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (f"{A!r} and {make_offload_key(bytes([39, 34]), 1)!r}", "a/0 and '\"/1"),
        ("b'a text' is no key", "b'a text' is no key"),
        (r"b'\xzz\x00\x00\x00\x00'", r"b'\xzz\x00\x00\x00\x00'"),
        (repr(b"\0\0\0\0"), repr(b"\0\0\0\0")),
    ],
)
def test_keys_in_words_are_short(text: str, short: str) -> None:
    assert keys_in_short(text) == short


def test_a_violation_reads_as_a_short_program() -> None:
    watch = WatchedManager(Look1PendingIsHit(2), num_chunks=2, keep_last=2)
    context = ReqContext("r")
    watch.on_new_request(context)
    watch.prepare_store([A, B], context)
    watch.lookup(A, context)
    (violation,) = watch.violations
    assert violation.clause == "LOOK-1"
    assert str(violation).splitlines() == [
        "LOOK-1: a/0 is answered HIT, and is HIT_PENDING",
        "  A look-up says MISS for what is not resident, HIT_PENDING for pending, HIT for ready; a "
        "single tier never says RETRY.",
        "     2  prepare_store(r, [a/0 b/0], attempt=0) -> store [a/0 b/0] at [0 1]",
        "     3  lookup(r, a/0) -> HIT",
    ]


def test_violations_are_counted_and_the_first_are_kept() -> None:
    watch = WatchedManager(Look1PendingIsHit(2), num_chunks=2)
    context = ReqContext("r")
    watch.prepare_store([A], context)
    for _ in range(KEPT_VIOLATIONS + 5):
        watch.lookup(A, context)
    assert watch.num_violations == KEPT_VIOLATIONS + 5
    assert len(watch.violations) == KEPT_VIOLATIONS


def test_events_that_nobody_drains_stay_bounded_and_add_up() -> None:
    """EVT-4: thousands of stores and evictions, one drain at the end."""
    watch, manager = watched(3)
    context = ReqContext("r")
    for n in range(2_000):
        key = make_offload_key(b"k%d" % (n % 7), 0)
        output = watch.prepare_store([key], context)
        assert output is not None
        watch.complete_store([key], context, ticket=output.ticket)
        manager.check()
    events = watch.take_events()
    assert sum(len(event.keys) for event in events) < 2_000
    assert watch.violations == []


def test_watching_needs_no_hypothesis() -> None:
    code = "import sys, stateful_models.watch; sys.exit('hypothesis' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_key_of_any_kind_can_be_shown() -> None:
    assert op.key_text(OffloadKey(b"abc")) == "b'abc'"
    assert op.key_text(make_offload_key(bytes(7) + b"\xa5", 3)) == "a5/3"
    assert str(op.Touch("r", (A, B, C))) == "touch(r, [a/0 b/0 c/0])"
