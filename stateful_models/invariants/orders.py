"""Orders that are claimed: LRU's, ARC's or a model's to the key, or that the tail goes first."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

from typing_extensions import override

from kvoffload.keys import OffloadKey, get_offload_group_idx
from stateful_models import operations as op
from stateful_models.capabilities import Capabilities
from stateful_models.contract import Kind
from stateful_models.hosts import VLLM_033, HostProtocol
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.invariants.policies import PolicyBooks
from stateful_models.models.arc import ARCModel
from stateful_models.models.arc_faults import ARCFault, FaultyARC
from stateful_models.models.lru import LRUModel
from stateful_models.models.oracle import PolicyOracle
from stateful_models.models.policy import PolicyModel
from stateful_models.operations import key_text, keys_text
from stateful_models.steps import Step, Victims


class ClaimedOrder(Invariant[PolicyBooks]):
    """An order of victims that is claimed. `reached`: the clauses that this run put to the test."""

    def __init__(self) -> None:
        self.reached: set[str] = set()


def reached_by(invariants: Iterable[Invariant[PolicyBooks]]) -> set[str]:
    """The claims of order that a run put to the test, given what judged it."""
    orders = (one for one in invariants if isinstance(one, ClaimedOrder))
    return {clause for order in orders for clause in order.reached}


class VictimOrder(ClaimedOrder):
    """Victims are those of a model, in its order; the first that are not are a breach.

    After a breach, or after an answer that no policy may give, policy and model no longer agree
    on what is resident, and nothing more is judged.
    """

    concerns: ClassVar[tuple[type[op.Operation], ...]] = (
        op.SetPositions,
        op.Insert,
        op.Remove,
        op.TouchKeys,
        op.Evict,
        op.StoreMiss,
        op.RequestAccess,
        op.RequestFinished,
        op.MarkEvictable,
        op.MarkNonEvictable,
        op.Clear,
    )

    def __init__(self, model: PolicyModel, host: HostProtocol = VLLM_033) -> None:
        super().__init__()
        self._oracle = PolicyOracle(model)
        self._host = host
        self._over = False

    @override
    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        operation = step.operation
        if self._over:
            return
        if step.error is not None:
            self._over = True
        elif isinstance(operation, op.Evict):
            yield from self._evicted(operation, step.result, books)
        elif self._host.tells_finish or not isinstance(operation, op.RequestFinished):
            self.learn(operation)

    def learn(self, operation: op.Operation) -> None:
        """Let the model follow a call that is no eviction."""
        self._oracle.predict(operation)

    def _evicted(self, evict: op.Evict, result: object, books: PolicyBooks) -> Iterator[Finding]:
        before = self.before(evict)
        prediction = self._oracle.predict(evict)
        given = result.keys if isinstance(result, Victims) else None
        expected = prediction.keys if isinstance(prediction, Victims) else None
        if given is None or expected is None or not _legal(evict, given, books):
            self._over = given is not expected
            return
        self.reached.update(before)
        if given == expected:
            self.agreed(evict, given)
            return
        self._over = True
        place = next(n for n, pair in enumerate(zip(given, expected, strict=True)) if _differ(pair))
        clause, why = self.clause(evict, expected, given, place)
        message = f"evicted {keys_text(given)} where {keys_text(expected)} was expected"
        yield Finding(clause, f"{message}: {why}" if why else message, Kind.CLAIM)

    @abstractmethod
    def before(self, evict: op.Evict) -> set[str]:
        """Told of an eviction before the model is: the clauses that it puts to the test."""

    def agreed(self, evict: op.Evict, victims: tuple[OffloadKey, ...]) -> None:
        """The victims of an eviction were as expected."""

    @abstractmethod
    def clause(
        self,
        evict: op.Evict,
        expected: Sequence[OffloadKey],
        given: Sequence[OffloadKey],
        place: int,
    ) -> tuple[str, str]:
        """The clause that is broken by the victim at `place`, and perhaps why."""


def _differ(pair: tuple[OffloadKey, OffloadKey]) -> bool:
    return pair[0] != pair[1]


def _legal(evict: op.Evict, given: Sequence[OffloadKey], books: PolicyBooks) -> bool:
    return len(given) == len(set(given)) == evict.count and all(
        books.ref_cnt.get(key) == 0 and key not in evict.protected for key in given
    )


class ModelOrder(VictimOrder):
    """Victims are those of the model that it names, in the model's order."""

    clauses: ClassVar[tuple[str, ...]] = ("its model",)

    @override
    def before(self, evict: op.Evict) -> set[str]:
        return set(self.clauses)

    @override
    def clause(
        self,
        evict: op.Evict,
        expected: Sequence[OffloadKey],
        given: Sequence[OffloadKey],
        place: int,
    ) -> tuple[str, str]:
        return self.clauses[0], ""


class LRUOrder(VictimOrder):
    """Least recently used, and of what one request used, the tail first (LRU-1, LRU-2)."""

    clauses: ClassVar[tuple[str, ...]] = ("LRU-1", "LRU-2")

    def __init__(self, capacity: int, host: HostProtocol = VLLM_033) -> None:
        self._model = LRUModel(capacity)
        super().__init__(self._model, host)
        # The first number of each call that used keys: what lies between two was one use.
        self._calls: list[int] = []
        self._ranks: dict[OffloadKey, tuple[int, int]] = {}

    @override
    def learn(self, operation: op.Operation) -> None:
        if isinstance(operation, op.Clear):
            self._calls.clear()
        else:
            self._calls.append(self._model.uses + 1)
        super().learn(operation)
        if self._calls and self._calls[-1] > self._model.uses:
            self._calls.pop()

    @override
    def before(self, evict: op.Evict) -> set[str]:
        self._ranks = dict(self._model.rank)
        uses = [self._use(key) for key in self._model.idle(evict.protected)]
        return {"LRU-1"} if len(set(uses)) == len(uses) else {"LRU-1", "LRU-2"}

    def _use(self, key: OffloadKey) -> int:
        """Which use a key was last part of: one call, or all of a running request."""
        return bisect_right(self._calls, self._ranks[key][0])

    @override
    def clause(
        self,
        evict: op.Evict,
        expected: Sequence[OffloadKey],
        given: Sequence[OffloadKey],
        place: int,
    ) -> tuple[str, str]:
        due, gone = expected[place], given[place]
        one_use = self._use(due) == self._use(gone) and self._ranks[due] != self._ranks[gone]
        if one_use and get_offload_group_idx(due) == get_offload_group_idx(gone):
            return "LRU-2", f"{key_text(due)} is further down the prefix than {key_text(gone)}"
        return "LRU-1", ""


class ARCOrder(VictimOrder):
    """Adaptive replacement (ARC-1 to ARC-5).

    At a difference the models that are wrong in one way are asked: of those that predict all
    victims of the run, one says which clause it is. If there is none, what the run came to does.
    """

    clauses: ClassVar[tuple[str, ...]] = ("ARC-1", "ARC-2", "ARC-3", "ARC-4", "ARC-5")

    def __init__(self, capacity: int, host: HostProtocol = VLLM_033) -> None:
        self._model = ARCModel(capacity)
        super().__init__(self._model, host)
        self._learnt: list[tuple[op.Operation, tuple[OffloadKey, ...] | None]] = []
        self._finishes = 0
        # Which finish a key was last used by.
        self._finish: dict[OffloadKey, int] = {}
        self._lists: tuple[frozenset[OffloadKey], ...] = ()

    @override
    def learn(self, operation: op.Operation) -> None:
        super().learn(operation)
        self._learnt.append((operation, None))
        match operation:
            case op.Insert(key):
                self._finish.pop(key, None)
            case op.TouchKeys(_, keys):
                for key in keys:
                    self._finish.pop(key, None)
            case op.RequestFinished(_, groups, inserted, reused):
                self._finishes += 1
                keys = tuple(key for group in groups for key in group)
                used = [key for key in keys if key in inserted or key in reused]
                self._finish.update(dict.fromkeys(used, self._finishes))
            case op.Clear():
                self._finish.clear()
            case _:
                pass

    @override
    def before(self, evict: op.Evict) -> set[str]:
        model = self._model
        self._lists = (frozenset(model.t1), frozenset(model.t2))
        tested = {"ARC-3"}
        if model.t2:
            tested.add("ARC-1")
        if model.ghost_hits:
            tested |= {"ARC-2", "ARC-4"}
        ends = [self._finish[k] for k in model.idle(evict.protected) if k in self._finish]
        if len(set(ends)) < len(ends):
            tested.add("ARC-5")
        return tested

    @override
    def agreed(self, evict: op.Evict, victims: tuple[OffloadKey, ...]) -> None:
        self._learnt.append((evict, victims))

    @override
    def clause(
        self,
        evict: op.Evict,
        expected: Sequence[OffloadKey],
        given: Sequence[OffloadKey],
        place: int,
    ) -> tuple[str, str]:
        due, gone = expected[place], given[place]
        one_list = any(due in keys and gone in keys for keys in self._lists)
        finish = self._finish.get(due)
        if one_list and finish is not None and finish == self._finish.get(gone):
            likely = ["ARC-5"]
        elif self._model.ghost_hits:
            likely = ["ARC-2"]
        else:
            likely = []
        likely += ["ARC-1", "ARC-3"] if self._lists[1] else ["ARC-3", "ARC-1"]
        self._learnt.append((evict, tuple(given)))
        explained: dict[str, ARCFault] = {}
        for fault in ARCFault:
            if fault.clause not in explained and self._explains(fault):
                explained[fault.clause] = fault
        for clause in (*likely, *explained):
            if clause in explained:
                return clause, f"as if {explained[clause].words}"
        return likely[0], ""

    def _explains(self, fault: ARCFault) -> bool:
        oracle = PolicyOracle(FaultyARC(self._model.capacity, fault))
        for operation, victims in self._learnt:
            answer = oracle.predict(operation)
            if victims is not None and (not isinstance(answer, Victims) or answer.keys != victims):
                return False
        return True


class _Use(NamedTuple):
    finish: int
    end: int


class TailFirst(ClaimedOrder):
    """Among keys of one group last used by one finished request the tail goes first (LRU-2).

    Judged without a model: no victim may come before an idle, unprotected key that lies further
    down the same prefix. What was used since, or pinned, is left out.
    """

    clauses: ClassVar[tuple[str, ...]] = ("LRU-2",)
    concerns: ClassVar[tuple[type[op.Operation], ...]] = (op.PolicyOperation, op.SetPositions)

    def __init__(self) -> None:
        super().__init__()
        self._positions: dict[op.RequestId, dict[OffloadKey, int]] = {}
        self._finishes = 0
        self._uses: dict[OffloadKey, _Use] = {}

    @override
    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        operation = step.operation
        match operation:
            case op.SetPositions(request, positions):
                self._positions.setdefault(request, {}).update(positions)
            case op.Insert(key) | op.MarkNonEvictable(key) | op.SetRefCount(key):
                self._uses.pop(key, None)
            case op.TouchKeys(_, keys) | op.RequestAccess(_, keys):
                for key in keys:
                    self._uses.pop(key, None)
            case op.RequestFinished(request, groups):
                self._finished(request, [key for group in groups for key in group])
            case op.Clear():
                self._uses.clear()
            case op.Evict():
                if isinstance(step.result, Victims):
                    yield from self._evicted(operation, step.result.keys, books)
            case _:
                pass

    def _finished(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> None:
        self._finishes += 1
        ends = self._positions.get(request, {})
        positioned = all(key in ends for key in keys)
        for key in keys:
            if positioned:
                self._uses[key] = _Use(self._finishes, ends[key])
            else:
                self._uses.pop(key, None)

    def _evicted(
        self, evict: op.Evict, given: Sequence[OffloadKey], books: PolicyBooks
    ) -> Iterator[Finding]:
        victims = {key: self._uses[key] for key in given if key in self._uses}
        for key in given:
            self._uses.pop(key, None)
        if not victims:
            return
        stay = [
            key for key in self._uses if books.ref_cnt.get(key) == 0 and key not in evict.protected
        ]
        self.reached.add("LRU-2")
        for gone, use in victims.items():
            for key in stay:
                other = self._uses[key]
                if (
                    other.finish == use.finish
                    and other.end > use.end
                    and get_offload_group_idx(key) == get_offload_group_idx(gone)
                ):
                    yield Finding(
                        "LRU-2",
                        f"{key_text(gone)} was evicted while {key_text(key)}, further down the "
                        "prefix of the same request, could have gone",
                        Kind.CLAIM,
                    )
                    break


def order_invariants(
    capabilities: Capabilities, capacity: int, host: HostProtocol = VLLM_033
) -> list[Invariant[PolicyBooks]]:
    """What judges the orders that are claimed, for one run of a cache of `capacity` chunks."""
    invariants: list[Invariant[PolicyBooks]] = []
    if capabilities.lru:
        invariants.append(LRUOrder(capacity, host))
    if capabilities.arc:
        invariants.append(ARCOrder(capacity, host))
    if capabilities.model is not None:
        invariants.append(ModelOrder(capabilities.model(capacity), host))
    if capabilities.tail_first and not capabilities.lru and host.tells_finish:
        invariants.append(TailFirst())
    return invariants
