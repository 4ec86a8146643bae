"""The scope of a policy's trial: which clauses are judged, and what must come about for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from attrs import frozen

from stateful_models.capabilities import Capabilities
from stateful_models.engines.claims import Renaming
from stateful_models.engines.comparing import Law
from stateful_models.engines.laws import WithoutHints
from stateful_models.invariants.orders import ModelOrder


@frozen
class Scope:
    """What judging one clause takes.

    `situations` must all have come about, and one of the engines must have said that it tried it.
    `claimed` tells from the capabilities whether it is promised, and `declined` which one declines
    it; `through` are the methods of a policy that decide it. `promise` is the sentence of what is
    no clause of the contract, but a claim by itself.
    """

    situations: tuple[str, ...] = ()
    claimed: Callable[[Capabilities], bool] | None = None
    claim: str = ""
    declined: Callable[[Capabilities], str | None] | None = None
    through: tuple[str, ...] = ()
    promise: str = ""

    def not_applicable(self, capabilities: Capabilities) -> str:
        """Which capability says that the clause does not apply; "" when none does."""
        if self.claimed is not None and not self.claimed(capabilities):
            return f"not claimed ({self.claim})"
        reason = self.declined(capabilities) if self.declined is not None else None
        return f"declined: {reason}" if reason else ""


ORDER_HOOKS: Final = (
    "touch",
    "on_store_miss",
    "on_request_access",
    "on_request_finished",
    "mark_evictable",
    "mark_non_evictable",
)

ITS_MODEL: Final = ModelOrder.clauses[0]

_CLAIMED: Final[tuple[tuple[type[Law], Callable[[Capabilities], bool], str], ...]] = (
    (Renaming, lambda c: c.key_blind, "key_blind"),
    (WithoutHints, lambda c: c.without_hints is not None, "without_hints"),
)

POLICY_SCOPE: Final[Mapping[str, Scope]] = {
    "POL-1": Scope(("eviction", "failed store", "pin"), through=("get", "insert", "remove")),
    "POL-2": Scope(
        (
            "eviction",
            "eviction beside pins",
            "eviction beside pending chunks",
            "eviction beside keys of the offer",
            "eviction of several",
            "refused eviction",
        ),
        through=("evict",),
    ),
    "POL-3": Scope(("eviction",), declined=lambda c: c.may_refuse, through=("evict",)),
    "POL-4": Scope(("churn",)),
    "POL-5": Scope(("eviction",)),
    "POL-6": Scope(("reset",), through=("clear",)),
    "POL-7": Scope(
        (
            "eviction",
            "finished request",
            "pin",
            "request with hints",
            "hostile hints",
        ),
        through=ORDER_HOOKS,
    ),
    "POL-8": Scope(claimed=lambda c: c.cost, claim="cost"),
    "POL-9": Scope(claimed=lambda c: c.release_order, claim="release_order"),
    "LRU-1": Scope(("eviction",), claimed=lambda c: c.lru, claim="lru"),
    "LRU-2": Scope(
        ("eviction", "finished request"),
        claimed=lambda c: c.lru or c.tail_first,
        claim="lru or tail_first",
    ),
    "ARC-1": Scope(("eviction", "finished request that reused"), lambda c: c.arc, "arc"),
    "ARC-2": Scope(("eviction",), lambda c: c.arc, "arc"),
    "ARC-3": Scope(("eviction",), lambda c: c.arc, "arc"),
    "ARC-4": Scope(("eviction",), lambda c: c.arc, "arc"),
    "ARC-5": Scope(("eviction", "finished request"), lambda c: c.arc, "arc"),
    ITS_MODEL: Scope(
        ("eviction", "finished request that reused"),
        lambda c: c.model is not None,
        "model",
        promise=(ModelOrder.__doc__ or "").strip(),
    ),
    **{
        law.clause: Scope((law.situation,), claimed, claim, promise=law.promise)
        for law, claimed, claim in _CLAIMED
    },
}
"""Every clause that is judged in the trial of a policy, and what else it may claim."""

CLAIMS: Final = (ITS_MODEL, *(law.clause for law, _, _ in _CLAIMED))
"""What a policy may claim that is no clause of the contract."""
