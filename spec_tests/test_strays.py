"""Keys that stray: the call is to blame after which `get` is wrong, and no other."""

from collections.abc import Iterable, Set

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from spec_tests.tiny_policies import SHORT, Fifo, trial_of
from stateful_models import operations as op
from stateful_models.checking import BrokenClauseError, check_policy, keys
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.random import RandomPrograms
from stateful_models.engines.runs import PolicyRun, run_program
from stateful_models.invariants.policies import PolicyContract
from stateful_models.levels import Level
from stateful_models.programs import HostOperation, Program

LEVELS = [
    pytest.param(evolve(SHORT, programs=150), id="150 programs"),
    pytest.param(SHORT, id="as many as quickly", marks=pytest.mark.nightly),
]


class LosesPinned(Fifo):
    """A touch loses what is pinned."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            chunk = self.chunks.get(key)
            if chunk is not None and chunk.ref_cnt > 0:
                del self.chunks[key]


class LosesAnother(Fifo):
    """An eviction loses one more than it gives."""

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        victims = super().evict(n, protected)
        for key in list(self.chunks)[:1] if victims else ():
            del self.chunks[key]
        return victims


class FoundOnce(Fifo):
    """Whom it has found twice it has found for the last time."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.times: dict[OffloadKey, int] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        self.times[key] = self.times.get(key, 0) + 1
        found = super().get(key)
        if self.times[key] > 4:
            self.chunks.pop(key, None)
        return found


class HidesPinned(Fifo):
    """What is being read is not found."""

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        found = super().get(key)
        return None if found is not None and found.ref_cnt > 0 else found


class HidesPinnedAndCounts(HidesPinned):
    """It has marks of its own, which lose nothing."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.idle = 0

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self.idle += 1

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.idle -= 1


class LosesWhenMarked(Fifo):
    """The mark of a pin loses the chunk."""

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        del self.chunks[key]


class ForgetsTheUnsought(Fifo):
    """Whatever was not looked for in the two calls before a touch is lost by it."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.calls = 0
        self.sought: dict[OffloadKey, int] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        self.sought[key] = self.calls
        return super().get(key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.calls += 1
        for key in list(self.chunks):
            if self.calls - self.sought.get(key, self.calls) > 2:
                del self.chunks[key]


class Revives(Fifo):
    """Touching a key that was evicted brings it back."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.gone: dict[OffloadKey, ChunkStatus] = {}

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        victims = super().evict(n, protected)
        self.gone.update(victims or ())
        return victims

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            if key in self.gone:
                self.chunks[key] = self.gone.pop(key)


a, b, c, d = keys("a b c d")


def stored(*names: OffloadKey, by: str = "r0") -> tuple[HostOperation, ...]:
    return op.PrepareStore(by, names), op.CompleteStore(by, names)


def played(cls: type[Fifo], capacity: int, *operations: HostOperation) -> PolicyRun[Fifo]:
    program = Program(capacity, operations)
    return run_program(Driver[Fifo](cls), program, lambda capacity: [PolicyContract()])


LOST_WHEN_PINNED = (
    *stored(a, b),
    op.PrepareLoad("r1", (a,)),
    op.Touch("r2", (b, a)),
    op.FinishRequest("r0"),
    *stored(c, by="r3"),
)
"""The pin is lost in the touch; an eviction, hooks and insertions follow before anybody looks."""


PINNED = (*stored(a), op.PrepareLoad("r1", (a,)))


@pytest.mark.parametrize(
    ("cls", "operations", "clause", "told"),
    [
        (
            LosesPinned,
            LOST_WHEN_PINNED,
            "POL-7",
            "a/0 is resident, .* nothing after a call of touch",
        ),
        (
            LosesAnother,
            (*stored(a, b), op.Touch("r1", (a,)), *stored(c, by="r1")),
            "POL-2",
            "b/0 is resident, .* nothing after an eviction that did not give it",
        ),
        (
            FoundOnce,
            (*stored(a), *[op.Lookup("r1", a)] * 4, op.Touch("r1", (b,)), op.FinishRequest("r0")),
            "POL-1",
            "a/0 is resident, .* nothing, and nothing but get was called meanwhile",
        ),
        (
            HidesPinned,
            PINNED,
            "POL-1",
            "a/0 is resident, .* nothing once it was pinned",
        ),
        (
            HidesPinnedAndCounts,
            PINNED,
            "POL-1",
            "a/0 is resident, .* nothing once it was pinned",
        ),
        (
            LosesWhenMarked,
            PINNED,
            "POL-7",
            "a/0 is resident, .* nothing after a call of mark_non_evictable",
        ),
        (
            Revives,
            (*stored(a, b), *stored(c, by="r1"), op.Touch("r2", (a,)), op.FinishRequest("r1")),
            "POL-7",
            "a/0 is not resident, and get found .* after a call of touch",
        ),
    ],
)
def test_the_call_is_blamed_in_which_the_key_strayed(
    cls: type[Fifo], operations: tuple[HostOperation, ...], clause: str, told: str
) -> None:
    run = played(cls, 2, *operations)
    (violation,) = run.violations
    assert violation.clause == clause
    assert violation.strayed is None
    with pytest.raises(BrokenClauseError, match=f"{clause}: {told}"):
        check_policy(cls, 2, operations)


def test_where_looking_keeps_the_key_the_promise_of_get_is_broken() -> None:
    touches = [op.Touch("r1", (b,))] * 3
    run = played(ForgetsTheUnsought, 2, *stored(a), *touches, *stored(b, by="r2"))
    (violation,) = run.violations
    assert violation.clause == "POL-1"
    assert violation.strayed == a
    assert violation.message == (
        "a/0 is resident, and get found nothing after one of the calls get, touch, on_store_miss, "
        "insert"
    )


@pytest.mark.parametrize("level", LEVELS)
def test_of_whoever_hides_pins_the_promise_of_get_is_broken_though_nothing_else_is_asked(
    level: Level,
) -> None:
    for cls in (HidesPinned, HidesPinnedAndCounts):
        trial = trial_of(Driver[Fifo](cls), level=level)
        RandomPrograms().run(trial)
        assert set(trial.breaches) == {("POL-1", Kind.SAFETY)}


def test_a_mark_that_no_run_was_played_again_for_leaves_it_open_who_is_to_blame() -> None:
    capacity, operations = 1, PINNED
    run = PolicyRun(Driver[Fifo](LosesWhenMarked), capacity, [PolicyContract()])
    for operation in operations:
        run.play(operation, (a,))
    run.end()
    (violation,) = run.violations
    assert (violation.clause, violation.strayed) == ("POL-1", a)


def test_a_pin_that_no_mark_tells_of_leaves_it_open_whether_a_later_call_is_to_blame() -> None:
    """It was found twice in a row, so that one call is all that came between."""
    pinned = (op.PrepareLoad("r1", (a,)), op.FinishRequest("r1"))
    run = PolicyRun(Driver[Fifo](HidesPinned), 1, [PolicyContract()])
    for operation in (*stored(a), *pinned):
        run.play(operation, (a,))
    run.end()
    (violation,) = run.violations
    assert (violation.clause, violation.strayed) == ("POL-1", a)
    assert violation.message == (
        "a/0 is resident, and get found nothing after a call of on_request_finished"
    )


@pytest.mark.parametrize("level", LEVELS)
def test_a_trial_convicts_what_loses_pinned_chunks_of_one_clause(level: Level) -> None:
    trial = trial_of(Driver[Fifo](LosesPinned), level=level)
    RandomPrograms().run(trial)
    assert set(trial.breaches) == {("POL-7", Kind.SAFETY)}
    message = trial.breaches["POL-7", Kind.SAFETY].message
    # What a policy does not define of hooks passes on to its touch.
    assert message.endswith(
        (
            "get found nothing after a call of touch",
            "get found nothing after a call of on_request_finished",
        )
    )
