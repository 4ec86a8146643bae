"""Announcements: what the host said of a request beforehand, and what that must not change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Final, TypeAlias

from kvoffload.errors import PolicyContractError
from kvoffload.keys import OffloadKey
from kvoffload.lookup import LookupResult
from kvoffload.tiers import TierFilter
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    FinishRequest,
    Lookup,
    NewRequest,
    Operation,
    PrepareLoad,
    PrepareStore,
    RequestId,
    Reset,
    key_text,
)
from stateful_models.steps import Step, Stored

_Who: TypeAlias = tuple[RequestId, int | None]

_POLICIES: Final = frozenset({"block_level", "chunk_level", "request_level"})
"""The values of OffloadPolicy, whoever's enumeration it is."""


class Announcements(Invariant[Account]):
    """REQ-3 and TIER-3.

    A call that fails for a request that nobody announced breaks REQ-3 if nothing else was wrong
    with it. A manager of one tier has nothing to filter: what a request with a filter does not
    find, one without must not find either.
    """

    clauses: ClassVar[tuple[str, ...]] = ("REQ-3", "TIER-3")
    concerns: ClassVar[tuple[type[Operation], ...]] = (
        NewRequest,
        Lookup,
        PrepareLoad,
        PrepareStore,
        FinishRequest,
        Reset,
    )

    def __init__(self) -> None:
        # Requests that were announced and have not finished, and those among them with a filter.
        self._announced: set[_Who] = set()
        self._filtered: set[_Who] = set()
        # Requests that were not, and did something all the same.
        self._served: set[_Who] = set()
        # Resident keys that requests with a filter did not find.
        self._hidden: set[OffloadKey] = set()

    def judge(self, step: Step, books: Account) -> Iterable[Finding]:
        operation = step.operation
        if type(operation) is Lookup:
            if not (self._hidden or self._filtered):
                return ()
            return self._looked_up(operation, step, books)
        if isinstance(operation, (PrepareLoad, PrepareStore)):
            return self._prepared(operation, step, books)
        if isinstance(operation, NewRequest):
            return self._new(operation, step)
        if isinstance(operation, FinishRequest):
            return self._ended(operation, step)
        if step.error is None:
            self._hidden.clear()
        return ()

    def _new(self, request: NewRequest, step: Step) -> Iterator[Finding]:
        who = (request.request, request.context)
        self._announced.add(who)
        self._filtered.discard(who)
        if request.load_tier_filter != TierFilter.ALL:
            self._filtered.add(who)
        if step.error is None:
            policy: object = getattr(step.result, "policy", None)
            if getattr(policy, "value", policy) not in _POLICIES:
                yield Finding("REQ-3", f"a new request was answered with {step.result}")

    def _ended(self, finish: FinishRequest, step: Step) -> Iterator[Finding]:
        who = (finish.request, finish.context)
        if who not in self._announced and who not in self._served:
            yield from _unannounced(finish, finish.request, step.error)
        self._announced.discard(who)
        self._filtered.discard(who)
        self._served.discard(who)

    def _prepared(
        self, operation: PrepareLoad | PrepareStore, step: Step, books: Account
    ) -> Iterator[Finding]:
        who = (operation.request, operation.context)
        if isinstance(step.result, Stored):
            self._hidden.difference_update((*step.result.keys, *step.result.evicted))
        if who in self._announced:
            return
        if step.error is None:
            self._served.add(who)
        # What looks a request up and does not find it raises this.
        elif isinstance(step.error, KeyError):
            if isinstance(operation, PrepareStore) or all(map(books.ready, operation.keys)):
                yield from _unannounced(operation, operation.request, step.error)

    def _looked_up(self, lookup: Lookup, step: Step, books: Account) -> Iterator[Finding]:
        if step.error is not None or lookup.key not in books.resident:
            return
        if (lookup.request, lookup.context) in self._filtered:
            if step.result is LookupResult.MISS:
                self._hidden.add(lookup.key)
        elif lookup.key in self._hidden:
            self._hidden.discard(lookup.key)
            if step.result is not LookupResult.MISS:
                yield Finding(
                    "TIER-3", f"{key_text(lookup.key)} was hidden from a request with a filter"
                )


def _unannounced(
    operation: Operation, request: RequestId, error: BaseException | None
) -> Iterator[Finding]:
    if error is not None and not isinstance(error, PolicyContractError):
        yield Finding(
            "REQ-3",
            f"{operation.verb} raised {type(error).__name__} for {request}, which was not "
            "announced",
        )
