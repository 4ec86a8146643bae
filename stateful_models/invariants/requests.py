"""Requests: what a finished request may still do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeAlias

from attrs import define, field

from kvoffload.errors import RequestFinishedError
from kvoffload.keys import OffloadKey
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    FinishRequest,
    Lookup,
    NewRequest,
    PrepareLoad,
    PrepareStore,
    RequestId,
    Reset,
    keys_text,
)
from stateful_models.steps import Loaded, Step, Stored

_Who: TypeAlias = tuple[RequestId, int | None]
"""A request: the id alone does not tell, where a host has several contexts under one."""

KEPT = 1024
"""How many finished requests are remembered."""


@define
class _Sight:
    """What a request may have seen. `vague` if it need not have seen all of that."""

    keys: set[OffloadKey] = field(factory=set)
    vague: bool = False


class Requests(Invariant[Account]):
    """FIN-2.

    A refused offer does not tell which keys a threshold admitted, and a request that is announced
    again not whether it is another; there nothing is held against the manager. An internal load
    is no access, whoever makes it.
    """

    clauses: ClassVar[tuple[str, ...]] = ("FIN-2",)

    def __init__(self) -> None:
        self._live: dict[_Who, _Sight] = {}
        self._finished: dict[_Who, _Sight | None] = {}

    def judge(self, step: Step, books: Account) -> Iterable[Finding]:
        operation = step.operation
        if type(operation) is Lookup and step.error is None:
            return ()
        if isinstance(operation, (PrepareLoad, PrepareStore)):
            return self._prepared(operation, step, books)
        return self._other(step)

    def _other(self, step: Step) -> Iterator[Finding]:
        operation = step.operation
        if isinstance(step.error, RequestFinishedError):
            yield Finding("FIN-2", f"{operation.verb} was refused because a request had finished")
        elif isinstance(operation, Reset):
            self._live.clear()
            self._finished.clear()
        elif isinstance(operation, NewRequest):
            who = (operation.request, operation.context)
            if who in self._finished:
                self._finished[who] = None
            else:
                self._live.setdefault(who, _Sight())
        elif isinstance(operation, FinishRequest):
            who = (operation.request, operation.context)
            if who in self._live:
                self._finished[who] = self._live.pop(who)
                while len(self._finished) > KEPT:
                    del self._finished[next(iter(self._finished))]

    def _prepared(
        self, operation: PrepareLoad | PrepareStore, step: Step, books: Account
    ) -> Iterator[Finding]:
        request = operation.request
        if isinstance(operation, PrepareLoad) and operation.internal:
            if isinstance(step.error, RequestFinishedError):
                yield Finding("FIN-2", f"{request} was refused an internal load, no access")
            return
        who = (request, operation.context)
        if who not in self._finished:
            if isinstance(step.error, RequestFinishedError):
                yield Finding("FIN-2", f"{request} was refused as finished, and has not finished")
            elif step.error is None:
                self._see(self._live.setdefault(who, _Sight()), operation, step, books)
            return
        before = self._finished[who]
        if before is None:
            return
        if isinstance(step.error, RequestFinishedError):
            if not before.vague and before.keys.issuperset(operation.keys):
                yield Finding("FIN-2", f"{request} was refused, and had seen all of these keys")
        elif step.error is None:
            now = _Sight()
            self._see(now, operation, step, books)
            if not now.vague and not now.keys <= before.keys:
                new = keys_text(sorted(now.keys - before.keys))
                yield Finding("FIN-2", f"{request} has finished and saw {new}")

    def _see(
        self, sight: _Sight, operation: PrepareLoad | PrepareStore, step: Step, books: Account
    ) -> None:
        if isinstance(step.result, Loaded):
            sight.keys.update(operation.keys)
            return
        resident = books.resident
        for key in operation.keys:
            entry = resident.get(key)
            if entry is not None and not entry.pending:
                sight.keys.add(key)
        if isinstance(step.result, Stored):
            sight.keys.update(step.result.keys)
        else:
            sight.keys.update(key for key in operation.keys if key not in resident)
            sight.vague = True
