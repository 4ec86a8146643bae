"""Refusals: a call raises only for what its caller did wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Final

from kvoffload.errors import (
    InvalidKeyError,
    PolicyContractError,
    RequestFinishedError,
    UnknownTicketError,
)
from kvoffload.keys import MIN_KEY_BYTES, OffloadKey
from stateful_models.account import Account
from stateful_models.contract import CLAUSES
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    CompleteLoad,
    CompleteStore,
    FinishRequest,
    GetStats,
    Lookup,
    NewRequest,
    Operation,
    Outstanding,
    PrepareLoad,
    PrepareStore,
    RequestId,
    Reset,
    ResetFlushed,
    ScheduleEnd,
    TakeEvents,
    TakeFirstEvent,
    Touch,
)
from stateful_models.steps import Step

CLAUSE_OF: Final[Mapping[type[Operation], str]] = {
    NewRequest: "REQ-3",
    Lookup: "LOOK-1",
    PrepareLoad: "LOAD-2",
    CompleteLoad: "PIN-1",
    Touch: "TOUCH-1",
    PrepareStore: "STORE-4",
    CompleteStore: "DONE-1",
    FinishRequest: "FIN-1",
    Outstanding: "PIN-2",
    TakeEvents: "EVT-1",
    TakeFirstEvent: "EVT-1",
    GetStats: "MET-2",
    Reset: "GEN-1",
    ResetFlushed: "SPECS-3",
    ScheduleEnd: "SPECS-3",
}
"""The clause that a call breaks when it raises without a reason, does not return, or ends the
process: the one that asks what it is there for, which nobody sees happen."""

_AFTER_A_BREACH = (PrepareLoad, PrepareStore, Touch, NewRequest, FinishRequest)
"""The calls that a manager refuses once its policy broke the contract (STORE-10)."""

_NOTHING: tuple[Finding, ...] = ()

KEPT = 1024
"""How many finished requests are remembered."""


class Refusals(Invariant[Account]):
    """Each call's own clause, KEY-2, and STORE-10 with the clause that a policy broke."""

    clauses: ClassVar[tuple[str, ...]] = (
        *dict.fromkeys(CLAUSE_OF.values()),
        "DONE-3",
        "DONE-4",
        "KEY-2",
        "STORE-10",
    )

    def __init__(self) -> None:
        self._breach_known = False
        self._finished: dict[tuple[RequestId, int | None], None] = {}

    def judge(self, step: Step, books: Account) -> Iterable[Finding]:
        if step.error is None:
            operation = step.operation
            if type(operation) is Reset:
                self._breach_known = False
                self._finished.clear()
            elif type(operation) is FinishRequest:
                self._finished[operation.request, operation.context] = None
                if len(self._finished) > KEPT:
                    del self._finished[next(iter(self._finished))]
            return _NOTHING
        return self._raised(step, step.error, books)

    def _raised(self, step: Step, error: BaseException, books: Account) -> Iterator[Finding]:
        operation = step.operation
        said = f"{operation.verb} raised {type(error).__name__}: {error}"
        if isinstance(error, PolicyContractError):
            if not self._breach_known:
                clause = error.clause if error.clause in CLAUSES else "STORE-10"
                yield Finding(clause, said)
            elif not isinstance(operation, _AFTER_A_BREACH):
                yield Finding("STORE-10", f"{said}, a call that still has to work")
            self._breach_known = True
        elif isinstance(error, InvalidKeyError):
            if all(map(_valid, _keys_of(operation))):
                yield Finding("KEY-2", f"{said}, with valid keys")
        elif isinstance(error, RequestFinishedError):
            pass  # Judged by what the request has seen.
        elif not all(map(_valid, _keys_of(operation))):
            pass  # A refusal under another name, as those of others are.
        elif isinstance(operation, (CompleteLoad, CompleteStore)) and not books.is_due(operation):
            # Whether the attempt was made is judged by those who remember attempts.
            named = operation.attempt is not None
            if named and isinstance(error, UnknownTicketError):
                return
            if isinstance(operation, CompleteStore):
                yield Finding("DONE-3", said)
            elif named:
                yield Finding("DONE-4", said)
        elif _justified(operation, books) or self._is_over(operation):
            pass
        else:
            yield Finding(CLAUSE_OF.get(type(operation), "SPECS-3"), said)

    def _is_over(self, operation: Operation) -> bool:
        """Whether it prepares something for a finished request, which may be refused (FIN-2)."""
        if not isinstance(operation, (PrepareLoad, PrepareStore)):
            return False
        return (operation.request, operation.context) in self._finished


def _justified(operation: Operation, books: Account) -> bool:
    return isinstance(operation, PrepareLoad) and not all(map(books.ready, operation.keys))


def _keys_of(operation: Operation) -> Iterable[OffloadKey]:
    if isinstance(operation, Lookup):
        return (operation.key,)
    if isinstance(operation, (PrepareLoad, CompleteLoad, Touch, PrepareStore, CompleteStore)):
        return operation.keys
    return ()


def _valid(key: object) -> bool:
    return isinstance(key, bytes) and len(key) >= MIN_KEY_BYTES
