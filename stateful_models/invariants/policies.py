"""Policies: what a host may expect of `get` and `evict`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from kvoffload.keys import OffloadKey
from stateful_models.capabilities import NONE, Capabilities
from stateful_models.contract import Kind
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.loading import words_of
from stateful_models.operations import (
    Clear,
    Evict,
    Get,
    Insert,
    MarkEvictable,
    MarkNonEvictable,
    PolicyOperation,
    Remove,
    RequestAccess,
    RequestFinished,
    SetRefCount,
    StoreMiss,
    TouchKeys,
    key_text,
)
from stateful_models.steps import BadAnswerError, Found, Step, Victims

HOOKS: Final[tuple[type[PolicyOperation], ...]] = (
    TouchKeys,
    StoreMiss,
    RequestAccess,
    RequestFinished,
    MarkEvictable,
    MarkNonEvictable,
)
"""The calls that change order, and never membership (POL-7)."""

_INSERTION: Final = ("POL-1", "it was inserted")


class PolicyBooks:
    """What the host of a policy knows: the slot and the ref_cnt of every resident key."""

    def __init__(self) -> None:
        self.slots: dict[OffloadKey, int] = {}
        self.ref_cnt: dict[OffloadKey, int] = {}

    def read(self, step: Step) -> None:
        """Nothing of a policy's step needs preparing."""

    def apply(self, step: Step) -> None:
        """Write down what the host did, and which victims it was given."""
        operation = step.operation
        if isinstance(operation, Insert):
            self.slots[operation.key], self.ref_cnt[operation.key] = operation.slot, -1
        elif isinstance(operation, Remove):
            self._drop(operation.key)
        elif isinstance(operation, MarkEvictable):
            self.ref_cnt[operation.key] = 0
        elif isinstance(operation, MarkNonEvictable):
            self.ref_cnt[operation.key] = 1
        elif isinstance(operation, SetRefCount):
            self.ref_cnt[operation.key] = operation.ref_cnt
        elif isinstance(operation, Clear):
            self.slots.clear()
            self.ref_cnt.clear()
        elif isinstance(step.result, Victims):
            for key in step.result.keys:
                self._drop(key)

    def _drop(self, key: OffloadKey) -> None:
        self.slots.pop(key, None)
        self.ref_cnt.pop(key, None)


class PolicyContract(Invariant[PolicyBooks]):
    """POL-1, POL-2, POL-3, POL-6 and POL-7, as far as single answers show them.

    What `get` answers is held against the last call that may have changed it: `insert` and
    `remove` of the key, an eviction, a clearing. Where there was none of these since it was last
    as it should be, the hooks called meanwhile are to blame.
    """

    clauses: ClassVar[tuple[str, ...]] = ("POL-1", "POL-2", "POL-3", "POL-6", "POL-7")

    def __init__(self, capabilities: Capabilities = NONE) -> None:
        self._capabilities = capabilities
        # What may be to blame for the next wrong answer of `get`: clause and call, for keys that
        # were told apart since, and for all others.
        self._blame: dict[OffloadKey, tuple[str, str]] = {}
        self._blame_of_others = _INSERTION
        # Of which keys `get` has answered rightly since; hooks called after that are to blame.
        self._confirmed: set[OffloadKey] = set()

    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        operation = step.operation
        if isinstance(step.error, BadAnswerError):
            yield Finding("POL-2", f"{operation.verb} answered {step.error}", Kind.SAFETY)
        elif step.error is not None:
            yield Finding(
                "POL-7",
                f"{operation.verb} raised {type(step.error).__name__}: {words_of(step.error)}",
            )
        elif isinstance(operation, Get):
            yield from self._got(operation.key, step.result, books)
        elif isinstance(operation, Evict):
            if isinstance(step.result, Victims):
                yield from self._evicted(operation, step.result, books)
            else:
                yield from self._refused(operation, books)
            self._blame_all(("POL-2", "an eviction that did not give it"))
            if isinstance(step.result, Victims):
                for key in step.result.keys:
                    self._set_blame(key, ("POL-2", "it was evicted"))
        elif isinstance(operation, Insert):
            self._set_blame(operation.key, _INSERTION)
        elif isinstance(operation, Remove):
            self._set_blame(operation.key, ("POL-1", "it was removed"))
        elif isinstance(operation, Clear):
            self._blame_all(("POL-6", "a clear"))
        elif isinstance(operation, HOOKS) and self._confirmed:
            for key in self._confirmed:
                self._blame[key] = ("POL-7", f"a call of {operation.verb}")
            self._confirmed.clear()

    def _set_blame(self, key: OffloadKey, blame: tuple[str, str]) -> None:
        self._blame[key] = blame
        self._confirmed.discard(key)

    def _blame_all(self, blame: tuple[str, str]) -> None:
        self._blame.clear()
        self._confirmed.clear()
        self._blame_of_others = blame

    def _got(self, key: OffloadKey, result: object, books: PolicyBooks) -> Iterator[Finding]:
        slot = books.slots.get(key)
        found = isinstance(result, Found)
        if slot is None and not found:
            self._confirmed.add(key)
            return
        if slot is not None and isinstance(result, Found) and result.own and result.slot == slot:
            self._confirmed.add(key)
            return
        clause, call = self._blame.get(key, self._blame_of_others)
        if slot is None:
            yield Finding(
                clause, f"{key_text(key)} is not resident, and get found {result} after {call}"
            )
        elif found:
            yield Finding(
                "POL-1", f"{key_text(key)} was inserted with slot {slot}, and get found {result}"
            )
        else:
            yield Finding(
                clause, f"{key_text(key)} is resident, and get found nothing after {call}"
            )

    def _evicted(self, evict: Evict, given: Victims, books: PolicyBooks) -> Iterator[Finding]:
        if len(set(given.keys)) < len(given.keys):
            yield Finding("POL-2", "a victim was given twice")
        for victim in given.victims:
            name = key_text(victim.key)
            if victim.key in evict.protected:
                yield Finding("POL-2", f"the victim {name} is protected")
            if victim.key not in books.slots:
                yield Finding("POL-2", f"the victim {name} is not resident")
            elif books.ref_cnt[victim.key] != 0:
                state = "pending" if books.ref_cnt[victim.key] < 0 else "pinned"
                yield Finding("POL-2", f"the victim {name} is {state}")
            elif not victim.own:
                yield Finding("POL-2", f"the victim {name} came with another chunk")
        asked, number = evict.count, len(given.victims)
        if number < asked or (number > asked and self._capabilities.may_evict_more is None):
            yield Finding("POL-2", f"{asked} were asked for, {number} given", Kind.HOST)

    def _refused(self, evict: Evict, books: PolicyBooks) -> Iterator[Finding]:
        idle = sum(
            count == 0 and key not in evict.protected for key, count in books.ref_cnt.items()
        )
        if idle >= evict.count and self._capabilities.may_refuse is None:
            yield Finding("POL-3", f"evicting {evict.count} was refused, with {idle} candidates")
