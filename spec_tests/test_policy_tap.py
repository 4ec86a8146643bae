"""The tap: every call to a policy is written down once, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Set

import pytest
from typing_extensions import override

from kvoffload import (
    CachePolicy,
    ChunkStatus,
    CPUOffloadingManager,
    OffloadKey,
    ReqContext,
    make_offload_key,
)
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models import operations as op
from stateful_models.gallery.oddities import WithoutTickets
from stateful_models.policy_tap import Tap
from stateful_models.steps import Held, Stored
from stateful_models.subjects import ManagerSubject
from stateful_models.workload import Workload

A, B, C = (make_offload_key(name, 0) for name in (b"a", b"b", b"c"))


def tapped(num_chunks: int = 2, inner: str | type[CachePolicy] | None = None) -> ManagerSubject:
    tap = Tap(inner)
    return ManagerSubject(CPUOffloadingManager(num_chunks, tap.policy_cls), tap=tap)


def told(subject: ManagerSubject, operation: op.Operation) -> list[op.PolicyOperation]:
    step = subject.perform(operation)
    assert step.error is None
    assert step.told is not None
    return list(step.told)


def test_a_life_of_a_chunk_is_told_call_by_call() -> None:
    subject = tapped()
    assert told(subject, op.NewRequest("r")) == []
    assert told(subject, op.PrepareStore("r", (A, B), 1)) == [
        op.StoreMiss("r", (A, B)),
        op.RequestAccess("r", (A, B)),
        op.Insert(A, 0, "r"),
        op.Insert(B, 1, "r"),
    ]
    assert told(subject, op.CompleteStore("r", (A, B), True, 1)) == [
        op.MarkEvictable(A),
        op.MarkEvictable(B),
    ]
    assert told(subject, op.PrepareLoad("s", (A, A), 2)) == [
        op.MarkNonEvictable(A),
        op.RequestAccess("s", (A,)),
    ]
    assert told(subject, op.PrepareStore("s", (C,), 3)) == [
        op.StoreMiss("s", (C,)),
        op.RequestAccess("s", (C,)),
        op.Evict(1, frozenset({C})),
        op.Insert(C, 1, "s"),
    ]
    assert told(subject, op.CompleteStore("s", (C,), False, 3)) == [op.Remove(C)]
    assert told(subject, op.CompleteLoad("s", (A,), 2)) == []
    assert told(subject, op.CompleteLoad("s", (A,), 2)) == [op.MarkEvictable(A)]
    assert told(subject, op.Touch("s", (A, B))) == [op.TouchKeys("s", (A, B))]
    assert told(subject, op.Lookup("s", A)) == []
    assert told(subject, op.FinishRequest("s")) == [
        op.RequestFinished("s", ((A, C),), frozenset({C}), frozenset({A}))
    ]
    assert told(subject, op.Reset()) == [op.Clear()]


def test_what_a_call_told_before_it_raised_is_told() -> None:
    class Raises(LRUCachePolicy):
        @override
        def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
            raise RuntimeError

    step = tapped(inner=Raises).perform(op.PrepareStore("r", (A, B)))
    assert step.error is not None
    assert step.told == (
        op.StoreMiss("r", (A, B)),
        op.RequestAccess("r", (A, B)),
        op.Insert(A, 0, "r"),
    )


def test_without_a_tap_nothing_is_known() -> None:
    assert ManagerSubject(CPUOffloadingManager(2)).perform(op.Lookup("r", A)).told is None


@pytest.mark.parametrize("inner", ["lru", "arc"])
def test_a_tap_changes_no_answer(inner: str) -> None:
    bare = Workload(ManagerSubject(CPUOffloadingManager(9, inner, enable_events=True)))
    bare.run(300)
    tap = Tap(inner)
    manager = CPUOffloadingManager(9, tap.policy_cls, enable_events=True)
    heard = Workload(ManagerSubject(manager, tap=tap))
    heard.run(300)
    manager.check()
    answers = [(str(step), step.visible) for step in bare.steps]
    assert [(str(step), step.visible) for step in heard.steps] == answers
    assert any(isinstance(s.result, Stored) and s.result.evicted for s in bare.steps)


def test_policies_of_an_older_form_are_served() -> None:
    """One without optional hooks, with a two-argument insert and a one-argument touch."""

    class Older:
        def __init__(self, cache_capacity: int) -> None:
            self.chunks: dict[OffloadKey, ChunkStatus] = {}
            self.touched: list[OffloadKey] = []

        def get(self, key: OffloadKey) -> ChunkStatus | None:
            return self.chunks.get(key)

        def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
            self.chunks[key] = chunk

        def remove(self, key: OffloadKey) -> None:
            del self.chunks[key]

        def touch(self, keys: Iterable[OffloadKey]) -> None:
            self.touched += keys

        def evict(self, n: int, protected: Set[OffloadKey]) -> None:
            return None

        def clear(self) -> None:
            self.chunks.clear()

    # It has the methods of a policy, which is all that is asked.
    inner: type[CachePolicy] = Older  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    subject = tapped(inner=inner)
    for operation in (
        op.PrepareStore("r", (A,), 1),
        op.CompleteStore("r", (A,), True, 1),
        op.PrepareLoad("r", (A,), 2),
        op.CompleteLoad("r", (A,), 2),
        op.Touch("r", (A,)),
        op.FinishRequest("r"),
        op.Reset(),
    ):
        assert told(subject, operation)


def test_a_refusal_by_design_is_passed_on() -> None:
    class Refuses(LRUCachePolicy):
        may_refuse = "it always does"

    assert Tap(Refuses).policy_cls.may_refuse == "it always does"
    assert Tap("lru").policy_cls.may_refuse is None


def test_each_tap_hears_its_own_manager() -> None:
    first, second = tapped(), tapped()
    assert told(first, op.Touch("r", (A,)))
    assert told(second, op.Lookup("r", A)) == []


def test_a_policy_that_is_made_anew_counts_as_cleared() -> None:
    tap = Tap()
    tap.policy_cls(cache_capacity=2)
    assert tap.drain() == (op.Clear(),)
    assert tap.drain() == ()


def test_a_completion_without_a_ticket_is_of_the_present() -> None:
    subject = ManagerSubject(WithoutTickets(2))
    subject.perform(op.PrepareStore("r", (A,), 7))
    done = subject.perform(op.CompleteStore("r", (A,), True, 7))
    assert done.operation == op.CompleteStore("r", (A,), True, None)
    kept = tapped()
    kept.perform(op.PrepareStore("r", (A,), 7))
    assert kept.perform(op.CompleteStore("r", (A,), True, 7)).operation == op.CompleteStore(
        "r", (A,), True, 7
    )


def test_what_a_request_holds_is_asked_for() -> None:
    subject = tapped()
    subject.perform(op.PrepareStore("r", (A, B), 1))
    subject.perform(op.CompleteStore("r", (A,), True, 1))
    subject.perform(op.PrepareLoad("r", (A, A), 2))
    assert subject.perform(op.Outstanding("r")).result == Held((A, A), (B,))
    assert subject.perform(op.Outstanding("s")).result == Held((), ())
