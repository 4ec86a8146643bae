"""Claimed orders: the models as invariants, and the clause that a difference is laid to."""

from collections.abc import Iterator, Sequence, Set
from random import Random

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models import operations as op
from stateful_models.capabilities import BUILT_IN, Capabilities
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.drawing import CAPACITIES, Scheduler
from stateful_models.engines.random import RandomPrograms
from stateful_models.engines.runs import PolicyRun, run_program
from stateful_models.gallery.broken_policies.adaptation import (
    Arc1InsertionPromotes,
    Arc3BeyondTheTarget,
    Arc5HeadFirst,
)
from stateful_models.gallery.broken_policies.base import Plain
from stateful_models.gallery.broken_policies.recency import (
    Lru1GroupByGroup,
    Lru2HeadFirst,
    Lru2HeadFirstWhileRunning,
)
from stateful_models.hosts import VLLM_030, VLLM_033, HostProtocol
from stateful_models.invariants.orders import order_invariants, reached_by
from stateful_models.levels import QUICK
from stateful_models.models.arc import ARCModel
from stateful_models.models.arc_faults import ARCFault, FaultyARC
from stateful_models.models.oracle import PolicyOracle
from stateful_models.programs import Program, keys

Victims = list[tuple[OffloadKey, ChunkStatus]]

LRU = BUILT_IN["lru"]
ARC = BUILT_IN["arc"]
TAIL_FIRST = Capabilities(tail_first=True)


def drawn(
    cls: type[CachePolicy], capabilities: Capabilities, programs: int
) -> Iterator[PolicyRun[CachePolicy]]:
    """Random programs, judged by nothing but the orders that are claimed."""
    for number in range(programs):
        chance = Random(number)
        capacity = chance.choice(CAPACITIES)
        run = PolicyRun(
            Driver[CachePolicy](cls), capacity, order_invariants(capabilities, capacity)
        )
        Scheduler(chance, run).play(20)
        yield run


def played(
    cls: type[CachePolicy],
    capabilities: Capabilities,
    program: Program,
    host: HostProtocol = VLLM_033,
) -> PolicyRun[CachePolicy]:
    driver = Driver[CachePolicy](cls)
    driver.host = host
    return run_program(
        driver, program, lambda capacity: order_invariants(capabilities, capacity, host)
    )


@pytest.mark.parametrize("programs", [700, pytest.param(2_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("cls", "capabilities", "clauses"),
    [
        (LRUCachePolicy, LRU, {"LRU-1", "LRU-2"}),
        (ARCCachePolicy, ARC, {"ARC-1", "ARC-2", "ARC-3", "ARC-4", "ARC-5"}),
    ],
)
def test_our_own_policies_keep_the_orders_that_they_claim(
    cls: type[CachePolicy], capabilities: Capabilities, clauses: set[str], programs: int
) -> None:
    reached: set[str] = set()
    for run in drawn(cls, capabilities, programs):
        assert run.violations == []
        reached |= reached_by(run.judge.invariants)
    assert reached == clauses


def test_the_tail_first_of_lru_holds_without_its_model() -> None:
    reached: set[str] = set()
    for run in drawn(LRUCachePolicy, TAIL_FIRST, 300):
        assert run.violations == []
        reached |= reached_by(run.judge.invariants)
    assert reached == {"LRU-2"}


class NewestFirst(LRUCachePolicy):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        idle = [
            (key, node.chunk)
            for key, node in self._nodes.items()
            if node.chunk.ref_cnt == 0 and key not in protected
        ][::-1][:n]
        if len(idle) < n:
            return None
        for key, _ in idle:
            self.remove(key)
        return idle


class HeadFirst(LRUCachePolicy):
    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        backwards = [group[::-1] for group in key_groups]
        for group in backwards:
            self.touch(group, req_context)


class NeverAdapts(ARCCachePolicy):
    @override
    def _adapt(self, key: OffloadKey) -> None:
        pass


class AdaptsAfterEviction(ARCCachePolicy):
    @override
    def on_store_miss(self, keys: object, req_context: ReqContext) -> None:
        pass

    @override
    def insert_all(
        self,
        keys: Sequence[OffloadKey],
        chunks: Sequence[ChunkStatus],
        req_context: ReqContext,
    ) -> None:
        for key in reversed(keys):
            self._adapt(key)
        super().insert_all(keys, chunks, req_context)


class FrequentFirst(ARCCachePolicy):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        self._exchange()
        victims = super().evict(n, protected)
        self._exchange()
        return victims

    def _exchange(self) -> None:
        self._t1, self._t2 = self._t2, self._t1
        self._b1, self._b2 = self._b2, self._b1


@pytest.mark.parametrize(
    ("cls", "capabilities", "clause"),
    [
        (NewestFirst, LRU, "LRU-1"),
        (HeadFirst, LRU, "LRU-2"),
        (HeadFirst, TAIL_FIRST, "LRU-2"),
        (NeverAdapts, ARC, "ARC-2"),
        (AdaptsAfterEviction, ARC, "ARC-2"),
        (FrequentFirst, ARC, "ARC-3"),
        (Lru1GroupByGroup, LRU, "LRU-1"),
        (Lru2HeadFirst, TAIL_FIRST, "LRU-2"),
        (Lru2HeadFirstWhileRunning, LRU, "LRU-2"),
        (Arc1InsertionPromotes, ARC, "ARC-1"),
        (Arc3BeyondTheTarget, ARC, "ARC-3"),
        (Arc5HeadFirst, ARC, "ARC-5"),
    ],
)
def test_a_broken_order_is_laid_to_its_clause(
    cls: type[CachePolicy], capabilities: Capabilities, clause: str
) -> None:
    assert any(
        violation.clause == clause and violation.kind is Kind.CLAIM
        for run in drawn(cls, capabilities, 1_000)
        for violation in run.violations
    )


def test_a_trial_counts_the_claims_that_its_runs_put_to_the_test() -> None:
    trial = PolicyTrial(
        Driver(LRUCachePolicy),
        lambda capacity: order_invariants(LRU, capacity),
        level=evolve(QUICK, programs=30),
    )
    RandomPrograms().run(trial)
    assert {"LRU-1", "LRU-2"} <= trial.tried


def test_the_message_says_who_went_and_who_was_expected() -> None:
    a, b, c = keys("a b c")
    program = Program(
        2,
        (
            op.PrepareStore("r", (a,)),
            op.PrepareStore("r", (b,)),
            op.CompleteStore("r", (a, b)),
            op.PrepareStore("r", (c,)),
        ),
    )
    (violation,) = played(NewestFirst, LRU, program).violations
    assert violation.clause == "LRU-1"
    assert violation.message == "evicted [b/0] where [a/0] was expected"


def test_a_breach_of_arc_is_explained_by_the_model_that_is_wrong_in_the_same_way() -> None:
    a, b, c = keys("a b c")
    program = Program(
        2,
        (
            op.PrepareStore("r", (a, b)),
            op.CompleteStore("r", (a, b)),
            op.FinishRequest("r"),
            op.PrepareStore("s", (c,)),
        ),
    )
    (violation,) = played(Arc5HeadFirst, ARC, program).violations
    assert violation.clause == "ARC-5"
    assert "applied from its head on" in violation.message


class Refusing(Plain):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return None


class TakesThePinned(Plain):
    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return list(self.chunks)


@pytest.mark.parametrize("cls", [Refusing, TakesThePinned])
def test_answers_that_no_policy_may_give_are_left_to_others(cls: type[CachePolicy]) -> None:
    a, b, c, d = keys("a b c d")
    program = Program(
        2,
        (
            op.PrepareStore("r", (a, b)),
            op.CompleteStore("r", (a, b)),
            op.PrepareLoad("s", (a,)),
            op.PrepareStore("r", (c,)),
            op.CompleteStore("r", (c,)),
            op.PrepareStore("r", (d,)),
        ),
    )
    run = played(cls, LRU, program)
    assert any(victims != (b,) for victims in run.victims)
    assert run.violations == []


PREFIX = (
    op.SetPositions("r", tuple(zip(keys("a b"), (16, 32), strict=True))),
    op.PrepareStore("r", keys("b a")),
    op.CompleteStore("r", keys("a b")),
    op.FinishRequest("r"),
)


class ByName(Plain):
    @override
    def candidates(self, protected: Set[OffloadKey]) -> list[OffloadKey]:
        return sorted(super().candidates(protected))


def test_a_head_may_not_go_before_its_tail() -> None:
    program = Program(2, (*PREFIX, op.PrepareStore("s", keys("c"))))
    (violation,) = played(ByName, TAIL_FIRST, program).violations
    assert violation.clause == "LRU-2"
    assert violation.message.startswith("a/0 was evicted while b/0")


@pytest.mark.parametrize(
    ("between", "offer"),
    [
        ((op.Touch("s", keys("b")),), "c"),
        ((op.PrepareLoad("s", keys("b")),), "c"),
        ((op.PrepareLoad("s", keys("b")), op.CompleteLoad("s", keys("b"))), "c"),
        ((), "c b"),
    ],
    ids=["touched since", "pinned", "read since", "protected"],
)
def test_unless_the_tail_was_used_since_or_cannot_go(
    between: tuple[op.ManagerOperation, ...], offer: str
) -> None:
    program = Program(2, (*PREFIX, *between, op.PrepareStore("s", keys(offer))))
    run = played(ByName, TAIL_FIRST, program)
    assert run.victims == [keys("a")]
    assert run.violations == []


def test_a_read_that_is_told_by_its_pin_alone_counts_as_a_use() -> None:
    """The other request saw the tail before the finish, and no access is told twice."""
    seen = op.PrepareStore("s", keys("b"))
    read = op.PrepareLoad("s", keys("b")), op.CompleteLoad("s", keys("b"))
    evict = op.PrepareStore("s", keys("c"))
    program = Program(2, (*PREFIX[:-1], seen, PREFIX[-1], *read, evict))
    run = played(ByName, TAIL_FIRST, program)
    assert run.victims == [keys("a")]
    assert run.violations == []
    unread = Program(2, (*PREFIX[:-1], seen, PREFIX[-1], evict))
    assert len(played(ByName, TAIL_FIRST, unread).violations) == 1


def test_what_a_host_never_tells_is_not_expected_to_be_known() -> None:
    """By the older protocol no finish is told, and the order is that of the touches."""
    a, b, c = keys("a b c")
    program = Program(
        2,
        (
            op.PrepareStore("r", (a,)),
            op.CompleteStore("r", (a,)),
            op.PrepareStore("s", (b,)),
            op.CompleteStore("s", (b,)),
            op.FinishRequest("r"),
            op.PrepareStore("s", (c,)),
        ),
    )
    assert played(LRUCachePolicy, LRU, program).victims == [(b,)]
    older = played(LRUCachePolicy, LRU, program, VLLM_030)
    assert older.victims == [(a,)]
    assert older.violations == []


def test_a_run_says_which_claims_it_has_put_to_the_test() -> None:
    a, b, c = keys("a b c")
    store = (op.PrepareStore("r", (a, b)), op.CompleteStore("r", (a, b)))
    evict = (op.PrepareStore("s", (c,)),)
    several = played(LRUCachePolicy, LRU, Program(2, (*store, op.FinishRequest("r"), *evict)))
    assert reached_by(several.judge.invariants) == {"LRU-1", "LRU-2"}
    apart = played(LRUCachePolicy, LRU, Program(2, (*store, *evict)))
    assert reached_by(apart.judge.invariants) == {"LRU-1"}
    idle = played(LRUCachePolicy, LRU, Program(2, store))
    assert reached_by(idle.judge.invariants) == set()


def test_only_what_is_claimed_is_judged() -> None:
    assert order_invariants(Capabilities(), 4) == []
    assert len(order_invariants(LRU, 4)) == 1
    assert len(order_invariants(ARC, 4)) == 1
    # Nobody can be held to the order of a finish that is never told.
    assert order_invariants(TAIL_FIRST, 4, VLLM_030) == []


@pytest.fixture(scope="module")
def arc_runs() -> list[tuple[int, list[op.Operation]]]:
    """Long runs in small caches, where the target comes to its ends and ghosts leave."""
    runs: list[tuple[int, list[op.Operation]]] = []
    for number in range(160):
        run = PolicyRun(Driver(ARCCachePolicy), 2 + number % 4, ())
        Scheduler(Random(number), run).play(120)
        steps = [step.operation for played in run.played for step in played.steps]
        runs.append((run.host.capacity, steps))
    return runs


def differs(capacity: int, operations: list[op.Operation], fault: ARCFault) -> bool:
    right = PolicyOracle(ARCModel(capacity))
    wrong = PolicyOracle(FaultyARC(capacity, fault))
    return any(right.predict(operation) != wrong.predict(operation) for operation in operations)


@pytest.mark.parametrize("fault", ARCFault, ids=lambda fault: fault.name)
def test_every_faulty_model_differs_from_the_right_one(
    fault: ARCFault, arc_runs: list[tuple[int, list[op.Operation]]]
) -> None:
    """One that never did would explain nothing."""
    assert any(differs(capacity, operations, fault) for capacity, operations in arc_runs)
