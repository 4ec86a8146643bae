"""Invariants over the steps of a manager or a policy, one family a module."""

from stateful_models.account import Account
from stateful_models.invariants.admission import Admission
from stateful_models.invariants.base import Books, Finding, Invariant
from stateful_models.invariants.events import Events
from stateful_models.invariants.eviction_protection import EvictionProtection
from stateful_models.invariants.generations import Generations
from stateful_models.invariants.metrics import Metrics
from stateful_models.invariants.policies import PolicyBooks, PolicyContract
from stateful_models.invariants.ref_counts import RefCounts
from stateful_models.invariants.refusals import Refusals
from stateful_models.invariants.requests import Requests
from stateful_models.invariants.residency import Residency
from stateful_models.invariants.slots import Slots

__all__ = [
    "Account",
    "Admission",
    "Books",
    "Events",
    "EvictionProtection",
    "Finding",
    "Generations",
    "Invariant",
    "Metrics",
    "PolicyBooks",
    "PolicyContract",
    "RefCounts",
    "Refusals",
    "Requests",
    "Residency",
    "Slots",
    "manager_invariants",
]


def manager_invariants(
    *, store_threshold: int = 1, enable_events: bool = False, may_refuse: bool = False
) -> list[Invariant[Account]]:
    """A fresh set of every family, for a manager configured like this.

    `may_refuse`: the policy refuses by design (POL-3).
    """
    return [
        Admission(store_threshold),
        Slots(),
        EvictionProtection(may_refuse=may_refuse),
        Generations(),
        RefCounts(),
        Residency(),
        Requests(),
        Events(enabled=enable_events),
        Metrics(store_threshold),
        Refusals(),
    ]
