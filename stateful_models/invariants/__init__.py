"""Invariants over the steps of a manager or a policy, one family a module."""

from stateful_models.account import Account
from stateful_models.capabilities import NONE, Capabilities
from stateful_models.hosts import VLLM_033, HostProtocol
from stateful_models.invariants.accesses import Accesses
from stateful_models.invariants.admission import Admission
from stateful_models.invariants.announcements import Announcements
from stateful_models.invariants.base import Books, Finding, Invariant
from stateful_models.invariants.events import Events
from stateful_models.invariants.eviction_protection import EvictionProtection
from stateful_models.invariants.generations import Generations
from stateful_models.invariants.holdings import Holdings
from stateful_models.invariants.marks import Marks
from stateful_models.invariants.metrics import Metrics
from stateful_models.invariants.orders import order_invariants
from stateful_models.invariants.policies import PolicyBooks, PolicyContract
from stateful_models.invariants.quiet_calls import QuietCalls
from stateful_models.invariants.ref_counts import RefCounts
from stateful_models.invariants.refusals import Refusals
from stateful_models.invariants.requests import Requests
from stateful_models.invariants.residency import Residency
from stateful_models.invariants.slots import Slots
from stateful_models.invariants.store_hooks import StoreHooks
from stateful_models.invariants.unjudged import UNJUDGED

__all__ = [
    "UNJUDGED",
    "Accesses",
    "Account",
    "Admission",
    "Announcements",
    "Books",
    "Events",
    "EvictionProtection",
    "Finding",
    "Generations",
    "Holdings",
    "Invariant",
    "Marks",
    "Metrics",
    "PolicyBooks",
    "PolicyContract",
    "QuietCalls",
    "RefCounts",
    "Refusals",
    "Requests",
    "Residency",
    "Slots",
    "StoreHooks",
    "manager_invariants",
    "policy_invariants",
]


def manager_invariants(
    *,
    store_threshold: int = 1,
    enable_events: bool = False,
    may_refuse: bool = False,
    may_evict_more: bool = False,
    max_tracker_size: int | None = None,
) -> list[Invariant[Account]]:
    """A fresh set of every family, for a manager configured like this.

    `may_refuse`: the policy refuses by design (POL-3). `may_evict_more`: it gives more victims than
    it is asked for. `max_tracker_size` None: not known, but not 0.
    """
    return [
        Admission(store_threshold, max_tracker_size),
        Slots(),
        EvictionProtection(may_refuse=may_refuse, may_evict_more=may_evict_more),
        Generations(),
        RefCounts(),
        Residency(),
        Requests(),
        Events(enabled=enable_events),
        Metrics(store_threshold),
        Refusals(),
        Announcements(),
        Holdings(),
        QuietCalls(),
        Accesses(store_threshold),
        StoreHooks(may_refuse=may_refuse, may_evict_more=may_evict_more),
        Marks(),
    ]


def policy_invariants(
    capabilities: Capabilities = NONE, capacity: int = 0, host: HostProtocol = VLLM_033
) -> list[Invariant[PolicyBooks]]:
    """A fresh set for a policy of `capacity` chunks that promises and declines this."""
    return [PolicyContract(capabilities), *order_invariants(capabilities, capacity, host)]
