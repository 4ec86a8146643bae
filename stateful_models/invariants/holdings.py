"""Holdings: what a manager says that a request still holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import ClassVar

from attrs import define, field

from kvoffload.keys import OffloadKey
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    Attempt,
    CompleteLoad,
    CompleteStore,
    Operation,
    Outstanding,
    PrepareLoad,
    PrepareStore,
    RequestId,
    Reset,
    keys_text,
)
from stateful_models.steps import Held, Loaded, Step, Stored

KEPT = 65_536
"""How many keys of unclear ownership are remembered."""


@define
class _Holding:
    """What one attempt holds of its keys."""

    request: RequestId
    stores: bool
    keys: Counter[OffloadKey] = field(factory=Counter)


class Holdings(Invariant[Account]):
    """PIN-2, and GEN-2 for transfers from before a reset.

    Of keys that were completed without naming an attempt nothing is judged until the next reset:
    whose they were is the manager's to decide. Where that becomes the rule, nothing is judged.
    """

    clauses: ClassVar[tuple[str, ...]] = ("PIN-2", "GEN-2")
    concerns: ClassVar[tuple[type[Operation], ...]] = (
        PrepareLoad,
        PrepareStore,
        CompleteLoad,
        CompleteStore,
        Outstanding,
        Reset,
    )

    def __init__(self) -> None:
        self._by_attempt: dict[Attempt, _Holding] = {}
        self._by_request: dict[RequestId, dict[Attempt, _Holding]] = {}
        self._unclear: set[OffloadKey] = set()
        # What each request held when the cache was last reset.
        self._former: dict[RequestId, set[OffloadKey]] = {}

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        operation = step.operation
        if step.error is not None:
            return
        if isinstance(operation, (PrepareLoad, PrepareStore)):
            self._prepared(operation, step)
        elif isinstance(operation, (CompleteLoad, CompleteStore)):
            self._completed(operation, books)
        elif isinstance(operation, Outstanding):
            if isinstance(step.result, Held) and len(self._unclear) < KEPT:
                yield from self._listed(operation.request, step.result)
        elif isinstance(operation, Reset):
            self._former = {
                request: {key for holding in holdings.values() for key in holding.keys}
                for request, holdings in self._by_request.items()
            }
            self._by_attempt.clear()
            self._by_request.clear()
            self._unclear.clear()

    def _prepared(self, operation: PrepareLoad | PrepareStore, step: Step) -> None:
        stores = isinstance(operation, PrepareStore)
        if isinstance(step.result, Stored):
            keys = step.result.keys
        elif isinstance(step.result, Loaded):
            keys = operation.keys
        else:
            return
        if operation.attempt is None:
            self._disown(keys)
        elif keys:
            holding = _Holding(operation.request, stores, Counter(keys))
            self._by_attempt[operation.attempt] = holding
            self._by_request.setdefault(operation.request, {})[operation.attempt] = holding

    def _completed(self, completion: CompleteLoad | CompleteStore, books: Account) -> None:
        attempt = completion.attempt
        if attempt is None:
            self._disown(books.acted)
            return
        holding = self._by_attempt.get(attempt)
        if holding is None:
            return
        holding.keys -= Counter(books.acted)
        if not holding.keys:
            del self._by_attempt[attempt]
            of_request = self._by_request[holding.request]
            del of_request[attempt]
            if not of_request:
                del self._by_request[holding.request]

    def _disown(self, keys: Iterable[OffloadKey]) -> None:
        if len(self._unclear) < KEPT:
            self._unclear.update(keys)

    def _listed(self, request: RequestId, held: Held) -> Iterator[Finding]:
        holdings = self._by_request.get(request, {}).values()
        for what, listed, stores in (("loads", held.loads, False), ("stores", held.stores, True)):
            expected: Counter[OffloadKey] = Counter()
            for holding in holdings:
                if holding.stores == stores:
                    expected += holding.keys
            shown = Counter(listed)
            missing = [key for key in expected - shown if key not in self._unclear]
            surplus = [key for key in shown - expected if key not in self._unclear]
            if missing:
                yield Finding(
                    "PIN-2", f"{request} {what} {keys_text(missing)}, and that is not listed"
                )
            if surplus:
                former = self._former.get(request, set()).issuperset(surplus)
                yield Finding(
                    "GEN-2" if former else "PIN-2",
                    f"{request} is listed with {what} of {keys_text(surplus)}, and has none"
                    + (" since the reset" if former else ""),
                )
