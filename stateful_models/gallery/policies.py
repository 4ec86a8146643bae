"""All cache policies on show: broken ones with what they must trip, and legal oddities.

A verification kit is worth what it convicts here, and what it acquits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias, cast

from attrs import frozen
from typing_extensions import override

from kvoffload import CachePolicy
from stateful_models.capabilities import NONE, Capabilities
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.gallery.broken_policies import (
    adaptation,
    clearing,
    clocks,
    costs,
    determinism,
    growth,
    hints,
    hooks,
    lines,
    liveness,
    lookups,
    recency,
    refusals,
    release_order,
    victims,
    wrappers,
)
from stateful_models.gallery.broken_policies.base import Plain
from stateful_models.gallery.legal_policies import (
    admission_gate,
    aging_lfu,
    counting_get,
    eager_compaction,
    group_evictor,
    lazy_heap,
    lrfu,
    mru,
    old_interface,
    s3_fifo,
    second_chance,
    seeded_random,
    segmented_lru,
    sessions,
    six_methods,
    ttl,
    two_queues,
    wrapper,
)

Around: TypeAlias = Callable[[int, CachePolicy], CachePolicy]
"""Makes a wrapper of this capacity around an inner policy."""


@frozen
class Exhibit:
    """What a broken policy must trip: `clause`, and of its demands the one of class `kind`.

    None: the leading one. `mistake` says in a few words what is wrong. `bug_rows` are reports of
    real bugs of the same kind. `claims` is what the policy wrongly promises; most mistakes need no
    promise. `around` makes the same wrapper around another policy, None for one that wraps none.
    One that `hangs` must be tried in a process of its own.
    """

    clause: str
    mistake: str
    bug_rows: tuple[str, ...] = ()
    claims: Capabilities = NONE
    kind: Kind | None = None
    around: Around | None = None
    hangs: bool = False


@frozen
class LegalPolicy:
    """A policy that breaks nothing: `factory` makes one of a capacity, `claims` is what it states.

    `oddity` says what is unusual. `around` as for an `Exhibit`.
    """

    factory: Callable[[int], CachePolicy]
    oddity: str
    claims: Capabilities = NONE
    around: Around | None = None


_H, _A, _C = Kind.HOST, Kind.ADVICE, Kind.CLAIM
_LRU: Final = Capabilities(lru=True, tail_first=True)
_ARC: Final = Capabilities(arc=True)
_COST: Final = Capabilities(cost=True)
_RELEASE: Final = Capabilities(release_order=True)
_FRESH: Final = Capabilities(fresh_reinsertion=True)

BROKEN_POLICIES: Final[Mapping[type[CachePolicy], Exhibit]] = {
    lookups.Pol1Copy: Exhibit("POL-1", "get gives a copy of the chunk"),
    lookups.Pol1FindsRemoved: Exhibit("POL-1", "get finds a removed key"),
    lookups.Pol1HidesPinned: Exhibit("POL-1", "get finds no pinned key"),
    lookups.Pol1HidesPending: Exhibit("POL-1", "get finds no pending key"),
    lookups.Pol1EarlierChunk: Exhibit("POL-1", "get gives the chunk of an earlier residence"),
    clocks.Pol1ExpiredIsNotFound: Exhibit("POL-1", "get finds no key whose time is up"),
    wrappers.Pol1WrapperKeepsRemoved: Exhibit(
        "POL-1", "the wrapper forwards no removal", around=wrappers.Pol1WrapperKeepsRemoved
    ),
    victims.Pol2TooFew: Exhibit("POL-2", "evicts as many as there are, if fewer", kind=_H),
    victims.Pol2TooMany: Exhibit("POL-2", "evicts all that may go", ("POL15",), kind=_H),
    victims.Pol2VictimTwice: Exhibit("POL-2", "gives a victim twice"),
    victims.Pol2PinnedVictim: Exhibit("POL-2", "evicts pinned chunks"),
    victims.Pol2PendingVictim: Exhibit("POL-2", "evicts pending chunks"),
    victims.Pol2ProtectedVictim: Exhibit("POL-2", "evicts protected keys"),
    victims.Pol2ProtectsTheFirst: Exhibit("POL-2", "protects right for one victim, not for more"),
    victims.Pol2SwapsChunks: Exhibit("POL-2", "gives victims with each other's chunks"),
    victims.Pol2OtherGroupsUnpinned: Exhibit("POL-2", "sees no pins of keys of group 1"),
    victims.Pol2UsesUpProtection: Exhibit("POL-2", "empties the protected set as it goes"),
    victims.Pol2UnpinsVictims: Exhibit("POL-2", "sets ref_cnt to 0 and evicts"),
    victims.Pol2RemovesSiblings: Exhibit("POL-2", "removes more than it tells of"),
    victims.Pol2LosesWhenRefusing: Exhibit("POL-2", "removes victims and answers None"),
    victims.Pol2RefusalReorders: Exhibit("POL-2", "a refusal changes later choices", kind=_H),
    victims.Pol2SessionWithItsPins: Exhibit("POL-2", "evicts pinned chunks, given a session_id"),
    lines.Pol2OffersWhatFailed: Exhibit("POL-2", "evicts a key whose store failed"),
    lines.Pol2KeepsVictims: Exhibit("POL-2", "evicts again what has gone"),
    lines.Pol2LineSurvivesClear: Exhibit("POL-2", "evicts what a reset removed"),
    clocks.Pol2ExpiredThoughPinned: Exhibit("POL-2", "evicts pinned chunks when their time is up"),
    refusals.Pol3SubtractsProtection: Exhibit("POL-3", "refuses beside protected keys"),
    refusals.Pol3Reserve: Exhibit("POL-3", "keeps an undeclared reserve"),
    refusals.Pol3ForEver: Exhibit("POL-3", "refuses for ever once it has refused"),
    refusals.Pol3FailedStoreCounts: Exhibit("POL-3", "refuses after failed stores"),
    refusals.Pol3PinnedForEver: Exhibit("POL-3", "never evicts what was pinned once"),
    clocks.Pol3ExpiryStopsEviction: Exhibit("POL-3", "refuses when everything's time is up"),
    wrappers.Pol3WrapperForgetsMarks: Exhibit(
        "POL-3", "the wrapper forwards no mark", around=wrappers.Pol3WrapperForgetsMarks
    ),
    wrappers.Pol3WrapperSwallows: Exhibit(
        "POL-3", "the wrapper turns errors into refusals", around=wrappers.Pol3WrapperSwallows
    ),
    growth.Pol4CountsEveryKey: Exhibit("POL-4", "counts keys and never forgets one"),
    growth.Pol4CountsRequests: Exhibit("POL-4", "counts requests and never forgets one"),
    growth.Pol4KeepsContexts: Exhibit("POL-4", "keeps contexts alive"),
    growth.Pol4UntrimmedGhosts: Exhibit("POL-4", "never trims its ghosts"),
    growth.Pol4GhostsBehindTheLiving: Exhibit(
        "POL-4", "one resident key keeps all ghosts behind it", ("POL12",)
    ),
    determinism.Pol5SetOrder: Exhibit("POL-5", "evicts in the order of a set", kind=_A),
    determinism.Pol5Addresses: Exhibit("POL-5", "evicts in the order of addresses"),
    determinism.Pol5OneCounterForAll: Exhibit("POL-5", "all objects share a counter"),
    determinism.Pol5Unseeded: Exhibit("POL-5", "evicts at random, without a seed"),
    determinism.Pol5ClassState: Exhibit("POL-5", "all objects share a set of keys"),
    determinism.Pol5Environment: Exhibit("POL-5", "keeps a count in os.environ"),
    determinism.Pol5KeepsTheList: Exhibit("POL-5", "keeps the list that it was handed"),
    clearing.Pol6OldPlaces: Exhibit("POL-6", "clear keeps the order"),
    clearing.Pol6OldFrequencies: Exhibit("POL-6", "clear keeps the frequencies"),
    clearing.Pol6OldTarget: Exhibit("POL-6", "clear keeps the target"),
    clearing.Pol6OldGhosts: Exhibit("POL-6", "clear keeps the ghosts"),
    clearing.Pol6RandomGoesOn: Exhibit("POL-6", "clear does not seed again"),
    clearing.Pol6OldPlaceAfterRemoval: Exhibit(
        "POL-6", "a removed key comes back to its old place", claims=_FRESH, kind=_C
    ),
    hooks.Pol7PendingTouch: Exhibit("POL-7", "raises at the touch of a pending key", ("POL1",)),
    hooks.Pol7UnknownTouch: Exhibit("POL-7", "raises at the touch of an unknown key"),
    hooks.Pol7NoKeys: Exhibit("POL-7", "raises on empty input"),
    hooks.Pol7FinishOfTheGone: Exhibit("POL-7", "raises at the finish of evicted keys"),
    hooks.Pol7TouchRevives: Exhibit("POL-7", "a touch makes an evicted key resident"),
    hooks.Pol7MissReserves: Exhibit("POL-7", "a miss makes a key resident"),
    hooks.Pol7PinnedIsGone: Exhibit("POL-7", "a pin makes a key leave"),
    hooks.Pol7RingAndMap: Exhibit("POL-7", "ring and map of keys disagree", ("POL24",)),
    hooks.Pol7ReadsTwice: Exhibit("POL-7", "reads an iterator twice", kind=_A),
    hints.Pol7HintExpected: Exhibit("POL-7", "raises without hints", ("POL17",)),
    hints.Pol7TextForANumber: Exhibit("POL-7", "raises on null, text or a list for a number"),
    hints.Pol7NotANumber: Exhibit("POL-7", "never evicts what has NaN for a priority"),
    hints.Pol7UnhashableSession: Exhibit("POL-7", "raises on an unhashable hint"),
    liveness.Pol7LoopsForEver: Exhibit("POL-7", "loops until a pin ends", hangs=True),
    liveness.Pol7SleepsForEver: Exhibit("POL-7", "sleeps until a pin ends", hangs=True),
    liveness.Pol7WaitsForReal: Exhibit("POL-7", "waits for an event until a pin ends", hangs=True),
    wrappers.Pol7WrapperInsertsTwice: Exhibit(
        "POL-7", "the wrapper forwards insertions twice", around=wrappers.Pol7WrapperInsertsTwice
    ),
    costs.Pol8WalksThePinned: Exhibit(
        "POL-8", "walks pinned chunks at each eviction", ("POL21",), _COST
    ),
    costs.Pol8RestartsForEach: Exhibit(
        "POL-8", "searches from the start for each victim", ("POL3",), _COST
    ),
    costs.Pol8SortsEachTime: Exhibit("POL-8", "sorts all at each eviction", ("POL20",), _COST),
    costs.Pol8CountsFirst: Exhibit("POL-8", "counts all idle chunks first", (), _COST),
    release_order.Pol9CompletionIsUse: Exhibit(
        "POL-9", "a completion makes recent", ("POL2",), _RELEASE
    ),
    release_order.Pol9BackOfTheLine: Exhibit("POL-9", "a pin costs its place", (), _RELEASE),
    recency.Lru1NewestFirst: Exhibit("LRU-1", "evicts the newest first", (), _LRU),
    recency.Lru1UseByDecode: Exhibit("LRU-1", "each call is a use", ("POL2",), _LRU),
    recency.Lru1GroupByGroup: Exhibit("LRU-1", "finishes group by group", (), _LRU),
    recency.Lru2HeadFirst: Exhibit("LRU-2", "the head goes first", ("POL2",), _LRU),
    recency.Lru2HeadFirstWhileRunning: Exhibit(
        "LRU-2", "the head of a running request goes first", (), _LRU
    ),
    wrappers.Lru1WrapperForgetsFinish: Exhibit(
        "LRU-1",
        "the wrapper forwards no finish",
        claims=_LRU,
        around=wrappers.Lru1WrapperForgetsFinish,
    ),
    wrappers.Lru2WrapperSortsKeys: Exhibit(
        "LRU-2",
        "the wrapper forwards keys in another order",
        claims=_LRU,
        around=wrappers.Lru2WrapperSortsKeys,
    ),
    adaptation.Arc1InsertionPromotes: Exhibit("ARC-1", "an insertion counts as reuse", (), _ARC),
    adaptation.Arc1TouchOnEveryCall: Exhibit("ARC-1", "each access promotes", ("POL2",), _ARC),
    adaptation.Arc2NeverLearns: Exhibit("ARC-2", "no ghost moves the target", (), _ARC),
    adaptation.Arc2AdaptsTooLate: Exhibit("ARC-2", "adapts after insertion", ("POL6",), _ARC),
    adaptation.Arc2TargetOfAConstant: Exhibit(
        "ARC-2", "the target may pass the capacity", ("POL4",), _ARC
    ),
    wrappers.Arc2WrapperMissesTwice: Exhibit(
        "ARC-2",
        "the wrapper forwards misses twice",
        claims=_ARC,
        around=wrappers.Arc2WrapperMissesTwice,
    ),
    adaptation.Arc3GhostsOfAConstant: Exhibit(
        "ARC-3", "as many ghosts for every capacity", ("POL4",), _ARC
    ),
    adaptation.Arc3GhostsUnbounded: Exhibit(
        "ARC-3", "the bound of ghosts has another unit", ("POL34",), _ARC
    ),
    adaptation.Arc3GhostsByTarget: Exhibit("ARC-3", "B2 is trimmed by target", ("POL35",), _ARC),
    adaptation.Arc3ComparesT2: Exhibit("ARC-3", "compares T2 with the target", ("POL34",), _ARC),
    adaptation.Arc3BeyondTheTarget: Exhibit("ARC-3", "T1 keeps its target exactly", (), _ARC),
    adaptation.Arc2NoGhosts: Exhibit("ARC-2", "victims leave no ghost", ("POL13",), _ARC),
    adaptation.Arc4ResidentGhost: Exhibit("ARC-4", "a resident key stays a ghost", (), _ARC),
    adaptation.Arc5HeadFirst: Exhibit("ARC-5", "the head goes first", (), _ARC),
}
"""Every broken policy, by clause; built like any policy, with `cache_capacity` alone."""


def _rows() -> dict[str, tuple[type[CachePolicy], ...]]:
    rows: dict[str, tuple[type[CachePolicy], ...]] = {}
    for policy_cls, exhibit in BROKEN_POLICIES.items():
        for row in exhibit.bug_rows:
            rows[row] = (*rows.get(row, ()), policy_cls)
    return rows


POLICY_BUGS: Final[Mapping[str, tuple[type[CachePolicy], ...]]] = _rows()
"""The broken policies that stand for each kind of reported bug."""


def _six_methods(cache_capacity: int) -> CachePolicy:
    # It has what a host calls, though it does not derive from the interface: that is its oddity.
    return cast(CachePolicy, six_methods.SixMethods(cache_capacity))


_BLIND: Final = Capabilities(key_blind=True)

LEGAL_POLICIES: Final[Mapping[str, LegalPolicy]] = {
    "mru": LegalPolicy(
        mru.MRU,
        "evicts the most recently used",
        Capabilities(key_blind=True, fresh_reinsertion=True),
    ),
    "seeded random": LegalPolicy(
        seeded_random.SeededRandom, "evicts at random, the same each time", _BLIND
    ),
    "lazy heap": LegalPolicy(lazy_heap.LazyHeap, "holds stale entries, within a bound", _BLIND),
    "eager compaction": LegalPolicy(
        eager_compaction.EagerCompaction, "rebuilds its arrays at every change", _BLIND
    ),
    "s3-fifo": LegalPolicy(s3_fifo.S3FIFO, "moves chunks between queues while evicting", _BLIND),
    "time to live": LegalPolicy(ttl.TimeToLive, "reads a clock that was bound at import", _BLIND),
    "admission gate": LegalPolicy(
        admission_gate.AdmissionGate,
        "refuses by design",
        Capabilities(may_refuse=admission_gate.AdmissionGate.may_refuse, key_blind=True),
    ),
    "group evictor": LegalPolicy(
        group_evictor.GroupEvictor,
        "evicts more than it is asked for",
        group_evictor.GroupEvictor.capabilities,
    ),
    "sessions": LegalPolicy(
        sessions.Sessions,
        "reads the hints of clients, whatever they are",
        Capabilities(key_blind=True, without_hints=Plain),
    ),
    "wrapper": LegalPolicy(
        wrapper.Metered,
        "leaves everything to an inner policy",
        Capabilities(
            lru=True,
            tail_first=True,
            cost=True,
            release_order=True,
            fresh_reinsertion=True,
            key_blind=True,
        ),
        around=wrapper.Metered,
    ),
    "counting get": LegalPolicy(counting_get.CountingGet, "counts in get", _BLIND),
    "lrfu": LegalPolicy(
        partial(lrfu.LRFU, decay=0.1), "has an argument that must be given", _BLIND
    ),
    "old interface": LegalPolicy(
        old_interface.OldInterface, "insert and touch take no context", _BLIND
    ),
    "six methods": LegalPolicy(
        _six_methods,
        "does not derive from CachePolicy, and has no hooks",
        Capabilities(key_blind=True, fresh_reinsertion=True),
    ),
    "clock": LegalPolicy(second_chance.SecondChance, "evicts by a hand that goes round", _BLIND),
    "segmented lru": LegalPolicy(segmented_lru.SegmentedLRU, "has two lists", _BLIND),
    "aging lfu": LegalPolicy(aging_lfu.AgingLFU, "halves its counts now and then", _BLIND),
    "2q": LegalPolicy(two_queues.TwoQueues, "remembers keys that have gone", _BLIND),
}
"""Policies that no trial may convict, by name."""


class GalleryDriver(Driver[CachePolicy]):
    """Builds what is on show, with the claims that stand here: a broken class, or the factory of a
    legal policy. `kvoffload verify --driver` takes it too."""

    @property
    def shown(self) -> Exhibit | LegalPolicy | None:
        """What the gallery says of the target."""
        for policy_cls, exhibit in BROKEN_POLICIES.items():
            if policy_cls is self.target:
                return exhibit
        for legal in LEGAL_POLICIES.values():
            if legal.factory is self.target:
                return legal
        return None

    @property
    @override
    def capabilities(self) -> Capabilities:
        shown = self.shown
        return super().capabilities if shown is None else shown.claims

    @override
    def build_around(self, inner: CachePolicy, capacity: int) -> CachePolicy | None:
        shown = self.shown
        if shown is None or shown.around is None:
            return None
        return shown.around(capacity, inner)
