"""How the policy is called, and what it promises beyond the contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from lanes import TwoLanes

from kvoffload import OffloadKey
from stateful_models.drivers import Driver
from stateful_models.invariants import Finding, Invariant, PolicyBooks
from stateful_models.operations import Evict, Insert, NewRequest
from stateful_models.steps import Step, Victims


class LanesDriver(Driver[TwoLanes]):
    """Requests with and without a priority."""

    def build(self, capacity: int) -> TwoLanes:
        return self.target(cache_capacity=capacity, **self.arguments)

    def contexts(self) -> SearchStrategy[Mapping[str, object] | None]:
        return st.none() | st.fixed_dictionaries({"priority": st.integers(0, 2)})


class FastLaneStays(Invariant[PolicyBooks]):
    """Nothing of the fast lane leaves while something of the slow one can."""

    clauses = ("LANES-1",)

    def __init__(self) -> None:
        self.fast_requests: set[str] = set()
        self.fast: dict[OffloadKey, bool] = {}

    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        match step.operation:
            case NewRequest(request, hints):
                asked = (hints or {}).get("priority")
                if type(asked) is int and asked >= 1:
                    self.fast_requests.add(request)
            case Insert(key, _, request):
                self.fast[key] = request in self.fast_requests
            case Evict(_, protected) if isinstance(step.result, Victims):
                gone = step.result.keys
                left = [k for k, n in books.ref_cnt.items() if n == 0 and k not in protected]
                slow = [key for key in left if key not in gone and not self.fast[key]]
                if slow and any(self.fast.get(key, False) for key in gone):
                    yield Finding("LANES-1", f"{gone} went, and {slow} could have")
            case _:
                pass
