"""Reference counts: loads pin what they name, and completions release what is held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from kvoffload.wording import counted
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.metrics import READ_USAGE, USAGE
from stateful_models.operations import (
    CompleteLoad,
    GetStats,
    Operation,
    PrepareLoad,
    key_text,
    keys_text,
)
from stateful_models.steps import Loaded, Reported, Step

TOLERANCE = 1e-9


class RefCounts(Invariant[Account]):
    """LOAD-1, LOAD-2, LOAD-4 and PIN-1."""

    clauses: ClassVar[tuple[str, ...]] = ("LOAD-1", "LOAD-2", "LOAD-4", "PIN-1")
    concerns: ClassVar[tuple[type[Operation], ...]] = (PrepareLoad, CompleteLoad, GetStats)

    def __init__(self) -> None:
        self._load_refused = False

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        operation = step.operation
        if isinstance(operation, PrepareLoad):
            if step.error is not None:
                self._load_refused = True
            elif isinstance(step.result, Loaded):
                yield from self._loaded(operation, step.result, books)
        elif isinstance(operation, CompleteLoad):
            if operation.attempt is None:
                yield from self._completed(operation, step, books)
        elif isinstance(step.result, Reported):
            yield from self._reported(step.result, books)

    def _loaded(self, load: PrepareLoad, loaded: Loaded, books: Account) -> Iterator[Finding]:
        unreadable = [key for key in load.keys if not books.ready(key)]
        if unreadable:
            yield Finding(
                "LOAD-1", f"a load of {keys_text(unreadable)} was granted, which is not ready"
            )
            return
        if loaded.slots is None:
            return
        if len(loaded.slots) != len(load.keys):
            yield Finding(
                "LOAD-2",
                f"to load {counted(len(load.keys), 'key')}, "
                f"{counted(len(loaded.slots), 'slot')} came",
            )
            return
        resident = books.resident
        for key, slot in zip(load.keys, loaded.slots, strict=True):
            if (own := resident[key].slot) is not None and own != slot:
                yield Finding("LOAD-2", f"{key_text(key)} is in slot {own}, not in slot {slot}")

    def _completed(self, load: CompleteLoad, step: Step, books: Account) -> Iterator[Finding]:
        if step.error is None and len(books.acted) < len(load.keys):
            yield Finding(
                "LOAD-4", f"{len(load.keys)} pins were released, but only {len(books.acted)} held"
            )

    def _reported(self, figures: Reported, books: Account) -> Iterator[Finding]:
        if books.num_chunks is None or READ_USAGE not in figures.values:
            return
        read = figures.values[READ_USAGE]
        surplus = read - books.pinned / max(1, books.num_chunks) > TOLERANCE
        if surplus and self._load_refused:
            yield Finding("LOAD-1", "a load that raised left pins behind")
        self._load_refused = False
        used = figures.values.get(USAGE, 0.0)
        if used > TOLERANCE and not books.pinned and not books.pending:
            yield Finding(
                "PIN-1", f"every transfer is over, but {used:.1%} of the slots are in use"
            )
