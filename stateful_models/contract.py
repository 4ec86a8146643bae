"""The contract as data: every clause with its class, its source and one sentence of what it asks.

Engines cite clauses by id. Whether a breach convicts depends on the class and on whose code is
on trial, so both travel with the sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from attrs import frozen


class Kind(Enum):
    """What a breach means."""

    SAFETY = "S"
    """Wrong bytes, a lost or doubled slot, a dead engine."""
    HOST = "H"
    """Documented behaviour that the other side relies on."""
    LIVENESS = "L"
    """Something must come about in the end."""
    CLAIM = "C"
    """Holds only for those who claim it."""
    ADVICE = "A"
    """Reported, never a conviction."""
    REFERENCE = "R"
    """Stricter than the field: only the reference implementation is held to it."""


class Source(Enum):
    """Who says so."""

    SEED = "seed"
    """The two documents that the system was specified by."""
    VLLM = "0.33"
    """The behaviour of vLLM 0.33.0."""
    OWN = "own"
    """Decided by this project."""


class Profile(Enum):
    """Whose code is on trial, and so what a breach is worth."""

    REFERENCE = "reference"
    """Our own code: every class but advice convicts."""
    VLLM = "vllm"
    """Anybody's code: only what was signed convicts, the rest is reported."""


KIND_TEXTS: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.SAFETY: "safety: wrong bytes, a lost or doubled slot, a dead engine",
        Kind.HOST: "host contract: documented, and the other side relies on it",
        Kind.LIVENESS: "liveness: something must come about in the end",
        Kind.CLAIM: "a claim: only for those who make it",
        Kind.ADVICE: "advice: reported, never a conviction",
        Kind.REFERENCE: "reference: stricter than the field, for our own code",
    }
)
"""The classes in words."""

SOURCE_TEXTS: Mapping[Source, str] = MappingProxyType(
    {
        Source.SEED: "the documents that the system was specified by",
        Source.VLLM: "the behaviour of vLLM 0.33.0",
        Source.OWN: "decided by this project",
    }
)
"""The sources in words."""


@frozen
class Part:
    """One demand: `sentence` in the class `kind`, from `source`."""

    kind: Kind
    source: Source
    sentence: str

    def convicts(self, profile: Profile) -> bool:
        """Whether a breach of this demand is a conviction under `profile`.

        A claim convicts whoever made it; whether it was made is a matter of capabilities.
        """
        if self.kind is Kind.ADVICE:
            return False
        if profile is Profile.REFERENCE or self.kind is Kind.SAFETY:
            return True
        if self.kind is Kind.CLAIM:
            return True
        return self.kind in (Kind.HOST, Kind.LIVENESS) and self.source is not Source.OWN


@frozen
class Clause:
    """A clause: its id and its demands, the leading one first."""

    id: str
    parts: tuple[Part, ...]

    @property
    def kind(self) -> Kind:
        """The class of the leading demand."""
        return self.parts[0].kind

    @property
    def source(self) -> Source:
        """The source of the leading demand."""
        return self.parts[0].source

    def part(self, kind: Kind | None) -> Part:
        """The demand of this class, the leading one for None.

        Raises KeyError, with id and class, when there is none.
        """
        if kind is None:
            return self.parts[0]
        for part in self.parts:
            if part.kind is kind:
                return part
        raise KeyError(f"{self.id} {kind.value}")

    @property
    def sentence(self) -> str:
        """All demands as one text."""
        return " ".join(part.sentence for part in self.parts)


# A demand each: id, class, source, sentence; indented lines continue the sentence.
_TABLE = """
KEY-1 H seed A key is the block hash followed by the group as 4 unsigned big-endian bytes; no
    empty hash, no group outside 32 bits.
KEY-2 R own Hash and group can be read back; what is too short for a key is refused before
    anything changes.
TIER-1 H seed A matcher compares medium and locality, and None matches all.
TIER-2 H seed A filter allows what one of its matchers matches, and nothing without any.
TIER-3 H 0.33 A manager of a single tier ignores the tier filter of a request.
REQ-1 H seed A request carries its id, the client's parameters, a tier filter and typed state.
REQ-2 H seed A request knows where its keys end in the prompt, or None.
REQ-3 H seed A new request is answered with its offload policy, block level unless told otherwise;
    announcing and finishing are optional.
SPECS-1 H seed Block ids are int32 and not negative; group sizes sum to their number.
SPECS-2 H seed A spec has the documented defaults and builds its manager and its worker once.
SPECS-3 H seed Every hook of the interfaces does nothing unless overridden.
SPECS-4 H seed Every rank computes the same number of chunks from the bytes it may use.
LOOK-1 H seed A look-up says MISS for what is not resident, HIT_PENDING for pending, HIT for
    ready; a single tier never says RETRY.
LOOK-2 R own A look-up changes nothing.
LOAD-1 R own A load with one key missing or pending raises, and leaves no pin and no access
    behind.
LOAD-2 H seed Each occurrence of a key takes one pin, and block_ids[i] is the slot of keys[i].
LOAD-3 S seed Until a reset, a pinned or pending chunk is neither evicted nor moved nor handed out
    again.
LOAD-4 R own Completing a load releases one pin an occurrence; releasing more than is held raises
    and releases nothing.
LOAD-5 H seed A ready key that a request loads or offers is reused by it, unless that request
    inserted it.
TOUCH-1 H seed A touch changes recency and adaptation only; unknown keys do no harm.
PIN-1 S own Once every prepare is completed, nothing is pinned and nothing pending.
PIN-2 R own What a request still holds can be listed, and so be released after an abort.
STORE-1 R own A key repeated in an offer counts once, at its first place.
STORE-2 H seed Resident keys are not stored again; a pending one is not seen.
STORE-3 H seed With a threshold T of 2 or more a key is admitted on its T-th offer; below, at
    once.
STORE-4 H seed As many chunks are evicted as are lacking, and only when the store succeeds; what
    cannot succeed returns None and changes neither residency, slots, pins nor events.
STORE-5 S seed Offered keys that were resident stay resident.
STORE-6 L 0.33 With fewer idle chunks than needed the policy is not asked to evict.
STORE-6 R own Only idle chunks outside the offer count, so that failing costs no more than the
    offer.
STORE-7 C seed Fresh slots go out in ascending order, then freed ones, last freed first.
STORE-7 S seed A slot is handed out once.
STORE-8 H 0.33 A store tells the policy misses, first accesses, eviction and insertions, in this
    order.
STORE-9 H seed With nothing to store the answer is an empty output, not None.
STORE-10 R own The manager's index decides what is resident; a policy that answers wrongly is
    named, and nothing is lost by it.
STORE-12 L seed An offer repeated often enough is admitted at last.
DONE-1 H seed After a successful store the keys that were pending are ready.
DONE-1 R own One stored event carries exactly these, in the given order.
DONE-2 H seed After a failed store the keys that were pending are gone, their slots free, and
    nothing is announced.
DONE-3 H seed Completing a store ignores keys that are not pending.
DONE-4 R own A completion with a ticket acts on what is held under it and on nothing else.
SLOT-1 S seed Free, pending and ready slots are together all slots, each once.
GEN-1 H seed A reset removes everything whatever its pins, and frees every slot.
GEN-1 R own Afterwards the manager behaves as a new one does.
GEN-2 H seed Records of an earlier generation have no effect.
GEN-3 S own No transfer of a new generation touches a slot before the earlier ones are reported.
FIN-1 H seed When a request finishes, the policy is told once what it saw, inserted and reused, in
    prefix order.
FIN-2 R own A finished request can see no further key; look-ups, touches and completions go on.
EVT-1 S seed What the events add up to is exactly the ready set after every full drain.
EVT-2 H seed Events come in the order things happened, none is empty, and each describes a chunk
    of this tier.
EVT-3 R own Taking events delivers them by the call alone, however the answer is iterated.
EVT-4 H seed Without events enabled none accumulates.
EVT-4 R own Undrained, the backlog stays bounded and still adds up.
EVT-5 R own After a reset one removal names, in announced order, everything that listeners still
    believe stored.
EVT-6 H seed A composing manager may merge the streams of its children, and invents none.
MET-1 S 0.33 Every gauge equals a recount.
MET-1 H 0.33 The documented names are used, with a sample for every offer that has an admitted
    key.
MET-2 H seed Counters and histograms tell what happened since last asked, and are never negative.
POL-1 S 0.33 After an insertion get answers with that very chunk until it is removed, evicted or
    cleared.
POL-2 S 0.33 Evicting returns distinct, unprotected, idle, resident chunks and removes exactly
    these, or returns None and removes none.
POL-2 H 0.33 They are exactly as many as asked for.
POL-3 L 0.33 With enough idle and unprotected chunks evicting succeeds, unless refusing is
    declared.
POL-4 L own What a policy holds does not grow without end.
POL-4 A own What it holds stays near its declared bound.
POL-5 H own The same calls at the same clock give the same victims.
POL-5 A own They do so in another process too.
POL-6 H 0.33 After clear a policy behaves as a new one does.
POL-6 C 0.33 Removing and inserting equals a fresh insertion.
POL-7 S own No hook raises, loses or revives a key, or spoils later evictions, whatever keys and
    hints it is given.
POL-7 A own Keys are gone through once, so that an iterator serves as well as a list.
POL-8 C own The cost of evicting follows what changed, not what is resident.
POL-9 C own When and in which order pins are released never decides who goes.
LRU-1 C 0.33 Victims go by last use; within a request from its tail.
LRU-2 C own Among keys last used by one request the tail goes first.
ARC-1 C 0.33 New keys enter T1, and only a reuse moves them to T2.
ARC-2 C 0.33 A miss on a ghost adapts the target before victims are chosen.
ARC-3 C 0.33 Victims come from T1 while it is at least as long as the target, else from T2, and
    become ghosts.
ARC-4 C 0.33 A key is in at most one of T1, T2, B1 and B2.
ARC-5 C own After a finish the tail goes first within T1 and within T2.
MAP-1 H seed Fragment i of a run lies i strides behind the offset, on either side.
MAP-2 S seed Runs cover the unpadded local page, each byte once.
MAP-3 S seed The runs of the writing ranks tile the canonical page once.
MAP-3 R own Those that keep the same bytes write in turn, block by block, and are read from
    equally.
MAP-4 H 0.33 Ranks, tokens and heads are numbered as documented; anything else is refused with the
    arithmetic.
MAP-4 R own What is illegal is not taken for opaque; a refusal tells the numbers that contradict
    each other; and those that keep the same bytes take turns in order of rank.
MAP-5 H 0.33 The known encodings are mapped, everything else is opaque.
MAP-5 R own What is refused is named.
MAP-6 S own The description decides the encoding, and a tensor can only confirm or contradict it.
MAP-6 R own A tensor that is as described is recognised.
MAP-7 R own Runs are in normal form.
MAP-8 S seed Canonical bytes are the same under every legal configuration.
MAP-8 H 0.33 Without context parallelism a recognised mapping says so of itself.
MAP-8 R own With context parallelism it does, too.
ID-1 S own A layout id changes exactly when the bytes do.
ID-1 R own Descriptions that come to the same bytes in different words share an id.
COPY-1 S seed Storing and loading returns every byte and touches no other.
COPY-2 S seed A logical block sits in the sub-block that its index says.
COPY-3 S own Every address lies inside its tensor and its page.
COPY-4 H seed Transfers of one lane finish in order, and each job is reported once.
COPY-5 H own A job is done when every rank has reported it.
COPY-6 S own No chunk becomes loadable with blocks that nobody wrote.
ORD-1 S own A transfer comes after every conflicting access enqueued before it.
ORD-2 S own What a transfer uses is reused only after it is done.
ORD-3 S own Transfers are ordered for slots as they are for blocks, across resets too.
ORD-4 H own What the caller enqueues after a submission is the caller's to order.
"""


def _read(table: str) -> dict[str, Clause]:
    parts: dict[str, tuple[Part, ...]] = {}
    for line in table.replace("\n    ", " ").strip().splitlines():
        name, kind, source, sentence = line.split(" ", 3)
        parts[name] = (*parts.get(name, ()), Part(Kind(kind), Source(source), sentence))
    return {name: Clause(name, own) for name, own in parts.items()}


CLAUSES: Mapping[str, Clause] = MappingProxyType(_read(_TABLE))
"""All clauses by id, in the order of the contract."""


def clause(clause_id: str) -> Clause:
    """The clause of this id. Raises KeyError with the id when there is none."""
    return CLAUSES[clause_id]
