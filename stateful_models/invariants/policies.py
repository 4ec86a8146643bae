"""Policies: what a host may expect of `get` and `evict`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from kvoffload.keys import OffloadKey
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    Clear,
    Evict,
    Get,
    Insert,
    MarkEvictable,
    MarkNonEvictable,
    Remove,
    SetRefCount,
    key_text,
)
from stateful_models.steps import Found, Step, Victims


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
    """POL-1, POL-2, POL-3 and POL-7. `may_refuse`: refusing is declared by the policy."""

    clauses: ClassVar[tuple[str, ...]] = ("POL-1", "POL-2", "POL-3", "POL-7")

    def __init__(self, *, may_refuse: bool = False) -> None:
        self._may_refuse = may_refuse

    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        operation = step.operation
        if step.error is not None:
            yield Finding(
                "POL-7", f"{operation.verb} raised {type(step.error).__name__}: {step.error}"
            )
        elif isinstance(operation, Get):
            yield from self._got(operation.key, step.result, books)
        elif isinstance(operation, Evict):
            if isinstance(step.result, Victims):
                yield from self._evicted(operation, step.result, books)
            else:
                yield from self._refused(operation, books)

    def _got(self, key: OffloadKey, result: object, books: PolicyBooks) -> Iterator[Finding]:
        slot = books.slots.get(key)
        if slot is None and result is not None:
            yield Finding("POL-1", f"{key_text(key)} is not resident, and {result} was found")
        elif slot is not None and not (
            isinstance(result, Found) and result.own and result.slot == slot
        ):
            yield Finding("POL-1", f"{key_text(key)} is in slot {slot}, and {result} was found")

    def _evicted(self, evict: Evict, given: Victims, books: PolicyBooks) -> Iterator[Finding]:
        if len(given.victims) != evict.count:
            yield Finding("POL-2", f"{evict.count} were asked for, {len(given.victims)} given")
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

    def _refused(self, evict: Evict, books: PolicyBooks) -> Iterator[Finding]:
        idle = sum(
            count == 0 and key not in evict.protected for key, count in books.ref_cnt.items()
        )
        if idle >= evict.count and not self._may_refuse:
            yield Finding("POL-3", f"evicting {evict.count} was refused, with {idle} candidates")
