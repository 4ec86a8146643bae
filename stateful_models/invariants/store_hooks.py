"""Store hooks: what a manager asks of its policy during an offer, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar, Final

from kvoffload.wording import counted
from stateful_models.account import Account
from stateful_models.contract import Kind
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    Evict,
    Insert,
    Operation,
    PolicyOperation,
    PrepareStore,
    Remove,
    RequestAccess,
    StoreMiss,
    keys_text,
)
from stateful_models.steps import Step, Stored

_RANK: Final[dict[type[PolicyOperation], int]] = {
    StoreMiss: 0,
    RequestAccess: 1,
    Evict: 2,
    Insert: 3,
}
"""The order of STORE-8; other hooks have no place in it."""


class StoreHooks(Invariant[Account]):
    """STORE-6 and STORE-8, and of STORE-4 what the policy sees of it.

    Judged where a tap tells what the policy was told. `may_refuse`: the policy refuses by design,
    so that having asked in vain proves nothing. `may_evict_more`: it may give more than is asked
    for.
    """

    clauses: ClassVar[tuple[str, ...]] = ("STORE-4", "STORE-6", "STORE-8")
    concerns: ClassVar[tuple[type[Operation], ...]] = (PrepareStore,)

    def __init__(self, *, may_refuse: bool = False, may_evict_more: bool = False) -> None:
        self._may_refuse = may_refuse
        self._may_evict_more = may_evict_more

    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        offer, told = step.operation, step.told
        if not isinstance(offer, PrepareStore) or told is None or step.error is not None:
            return
        placed = [call for call in told if type(call) in _RANK]
        if any(_RANK[type(one)] > _RANK[type(next_)] for one, next_ in pairwise(placed)):
            order = ", ".join(dict.fromkeys(call.verb for call in placed))
            yield Finding("STORE-8", f"the policy was called in the order {order}")
        yield from self._asked(offer, step, told, books)
        inserted = tuple(call.key for call in told if isinstance(call, Insert))
        if isinstance(step.result, Stored):
            if inserted != step.result.keys:
                yield Finding(
                    "STORE-8",
                    f"{keys_text(inserted)} was inserted for an offer that was answered with "
                    f"{keys_text(step.result.keys)}",
                )
        elif inserted:
            yield Finding("STORE-4", f"a refused offer inserted {keys_text(inserted)}")
        removed = [call.key for call in told if isinstance(call, Remove)]
        if removed:
            yield Finding(
                "STORE-4", f"{keys_text(removed)} was removed by an offer, and not evicted"
            )

    def _asked(
        self, offer: PrepareStore, step: Step, told: Sequence[PolicyOperation], books: Account
    ) -> Iterator[Finding]:
        asked = sum(call.count for call in told if isinstance(call, Evict))
        if isinstance(step.result, Stored):
            gone = len(step.result.evicted)
            if gone != asked and not (self._may_evict_more and 0 < asked < gone):
                yield Finding(
                    "STORE-4",
                    f"the policy was asked to evict {asked}, and the answer names {gone}",
                )
        if not asked:
            return
        idle = books.idle
        if idle < asked:
            yield Finding(
                "STORE-6",
                f"evict was called for {asked}, with {counted(idle, 'chunk')} idle",
                Kind.LIVENESS,
            )
            return
        resident = books.resident
        for key in set(offer.keys):
            entry = resident.get(key)
            if entry is not None and entry.idle:
                idle -= 1
        if idle < asked:
            yield Finding(
                "STORE-6",
                f"evict was called for {asked}, with {counted(idle, 'chunk')} idle outside "
                "the offer",
                Kind.REFERENCE,
            )
        elif step.result is None and not self._may_refuse:
            yield Finding(
                "STORE-4", f"the policy was asked to evict {asked} for an offer that was refused"
            )
