"""Slots: each is handed out once, and lies inside the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from kvoffload.wording import counted
from stateful_models.account import Account
from stateful_models.contract import Kind
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import Operation, PrepareStore, key_text
from stateful_models.steps import Step, Stored


class Slots(Invariant[Account]):
    """STORE-7 and SLOT-1, as far as they are safety."""

    clauses: ClassVar[tuple[str, ...]] = ("STORE-7", "SLOT-1")
    concerns: ClassVar[tuple[type[Operation], ...]] = (PrepareStore,)

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        stored = step.result
        if not isinstance(stored, Stored) or stored.slots is None:
            return
        if len(stored.slots) != len(stored.keys):
            yield Finding(
                "STORE-7",
                f"to store {counted(len(stored.keys), 'key')}, "
                f"{counted(len(stored.slots), 'slot')} came",
                Kind.SAFETY,
            )
        if not stored.slots:
            return
        if len(set(stored.slots)) < len(stored.slots):
            yield Finding(
                "STORE-7",
                f"one call handed a slot out twice: {list(stored.slots)}",
                Kind.SAFETY,
            )
        if min(stored.slots) < 0 or (
            books.num_chunks is not None and max(stored.slots) >= books.num_chunks
        ):
            yield Finding(
                "SLOT-1", f"slots {list(stored.slots)} are not all below {books.num_chunks}"
            )
        gone = set(stored.evicted)
        occupant = books.occupant
        for slot in stored.slots:
            owner = occupant.get(slot)
            if owner is not None and owner not in gone:
                yield Finding(
                    "STORE-7",
                    f"slot {slot} was handed out although {key_text(owner)} is in it",
                    Kind.SAFETY,
                )
