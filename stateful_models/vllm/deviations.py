"""Where our manager is meant to differ from vLLM 0.33's: the list that `docs/deviations.md` shows.

Every entry is tried on both. One that no longer shows is as wrong as a difference that is not here.
"""

from __future__ import annotations

from typing import Final

from kvoffload import OffloadKey
from stateful_models import operations as op
from stateful_models.programs import HostOperation, ManagerSettings, Program, keys
from stateful_models.vllm import explanations
from stateful_models.vllm.pair import UNREAD, Deviation

QUIET: Final = ManagerSettings(policy="lru", enable_events=False)
TELLING: Final = ManagerSettings(policy="lru")
SHORT: Final = OffloadKey(b"abcd")
MANY: Final = 700


def _many(name: str) -> tuple[OffloadKey, ...]:
    return keys(" ".join(f"{name}{number}" for number in range(MANY)))


def _churned() -> tuple[HostOperation, ...]:
    """Offers that push each other out: all but the last keys are stored and removed again."""
    offers = enumerate(map(_many, "abcd"), 1)
    return tuple(
        operation
        for attempt, offered in offers
        for operation in (
            op.PrepareStore("r1", offered, attempt),
            op.CompleteStore("r1", offered, True, attempt),
        )
    )


DEVIATIONS: Final[tuple[Deviation, ...]] = (
    Deviation(
        id="named-error",
        clauses=("LOAD-1", "LOAD-4", "FIN-2"),
        differs=(
            "A load of what is not resident or not ready, a release of what is not pinned and a "
            "new key of a finished request raise errors with names. vLLM's asserts."
        ),
        why=(
            "Under `python -O` an assertion is not there, and then the call goes on with what it "
            "does not have; a name can be told apart from a mistake of the manager's own."
        ),
        calls=(op.PrepareLoad, op.CompleteLoad, op.PrepareStore),
        explain=explanations.named_error,
        shows=Program(1, (op.PrepareLoad("r1", keys("a")),), settings=QUIET),
        ours="raised ChunkNotFoundError",
        theirs="raised AssertionError",
    ),
    Deviation(
        id="half-a-load",
        clauses=("LOAD-1", "FIN-2"),
        differs=(
            "A load that is refused pins nothing. vLLM's keeps the pins of the keys before the one "
            "that it refuses, and those of all keys where the request has finished."
        ),
        why="Nobody completes a load that was refused, so that these chunks would stay for ever.",
        calls=(op.PrepareLoad,),
        explain=explanations.half_a_load,
        shows=Program(
            1,
            (
                op.PrepareStore("r1", keys("a")),
                op.CompleteStore("r1", keys("a")),
                op.PrepareLoad("r1", keys("a b")),
                op.PrepareStore("r1", keys("b")),
            ),
            settings=QUIET,
        ),
        ours="store [b/0] at [0], evicted [a/0]",
        theirs="None",
    ),
    Deviation(
        id="half-a-release",
        clauses=("LOAD-4",),
        differs=(
            "A release that is refused releases nothing. vLLM's has released the keys before the "
            "one that it refuses."
        ),
        why=(
            "The caller that is told of its mistake still holds what it held: a chunk that it "
            "reads must not be given away (LOAD-3)."
        ),
        calls=(op.CompleteLoad,),
        explain=explanations.half_a_release,
        shows=Program(
            1,
            (
                op.PrepareStore("r1", keys("a")),
                op.CompleteStore("r1", keys("a")),
                op.PrepareLoad("r1", keys("a")),
                op.CompleteLoad("r1", keys("a a")),
                op.PrepareStore("r1", keys("b")),
            ),
            settings=QUIET,
        ),
        ours="None",
        theirs="store [b/0] at [0], evicted [a/0]",
    ),
    Deviation(
        id="late-refusal",
        clauses=("FIN-2",),
        differs=(
            "An offer by a finished request that would show it another key is refused before it "
            "counts. vLLM's has counted its keys by then, and told its policy of misses."
        ),
        why="What is refused has not happened: no later offer is to depend on it.",
        calls=(op.PrepareStore,),
        explain=explanations.late_refusal,
        shows=Program(
            2,
            (
                op.PrepareStore("r1", keys("a")),
                op.FinishRequest("r1"),
                op.PrepareStore("r1", keys("a b")),
                op.PrepareStore("r2", keys("b")),
            ),
            settings=ManagerSettings(policy="lru", enable_events=False, store_threshold=2),
        ),
        ours="store [] at []",
        theirs="store [b/0] at [0]",
    ),
    Deviation(
        id="repeated-key",
        clauses=("STORE-1",),
        differs=(
            "A key that an offer names twice is stored once. vLLM's gives it two slots, of which "
            "it forgets the first."
        ),
        why="A slot that nobody remembers is lost until the next reset (SLOT-1).",
        calls=(op.PrepareStore,),
        explain=explanations.repeated_key,
        shows=Program(2, (op.PrepareStore("r1", keys("a a")),), settings=QUIET),
        ours="store [a/0] at [0]",
        theirs="store [a/0 a/0] at [0 1]",
    ),
    Deviation(
        id="stale-completion",
        clauses=("DONE-4",),
        differs=(
            "A completion under a ticket is of the attempt that got the ticket: late ones change "
            "nothing and are counted. vLLM's has no tickets, and takes every completion for one of "
            "the present."
        ),
        why=(
            "A store of before a reset says nothing of the bytes of the one that is under way, "
            "whose key must not become loadable. vLLM's scheduler sorts such reports out by "
            "numbers of its own; here no caller need."
        ),
        calls=(op.CompleteLoad, op.CompleteStore),
        explain=explanations.stale_completion,
        shows=Program(
            1,
            (
                op.PrepareStore("r1", keys("a"), 1),
                op.Reset(),
                op.PrepareStore("r1", keys("a"), 2),
                op.CompleteStore("r1", keys("a"), True, 1),
                op.Lookup("r1", keys("a")[0]),
            ),
            settings=QUIET,
        ),
        ours="HIT_PENDING",
        theirs="HIT",
    ),
    Deviation(
        id="bad-key",
        clauses=("KEY-2",),
        differs=(
            "Bytes that are too short for a hash and a group are refused by every call. vLLM's "
            "takes them as they are."
        ),
        why="Its group would be read from bytes of another meaning: the caller has mixed keys up.",
        calls=(
            op.Lookup,
            op.Touch,
            op.PrepareLoad,
            op.CompleteLoad,
            op.PrepareStore,
            op.CompleteStore,
        ),
        explain=explanations.bad_key,
        shows=Program(1, (op.Lookup("r1", SHORT),), settings=QUIET),
        ours="raised InvalidKeyError",
        theirs="MISS",
    ),
    Deviation(
        id="reset-event",
        clauses=("EVT-5",),
        differs=(
            "After a reset the first event names as removed everything that was announced and not "
            "taken back, and events of before that nobody took are dropped. vLLM's announces no "
            "reset, and delivers what is left of the time before it."
        ),
        why="Adding and removing what is delivered gives what can be loaded (EVT-1): nothing.",
        calls=(op.Reset, op.TakeEvents, op.TakeFirstEvent),
        foresee=explanations.take_early,
        explain=explanations.reset_event,
        shows=Program(
            1,
            (
                op.PrepareStore("r1", keys("a")),
                op.CompleteStore("r1", keys("a")),
                op.TakeEvents(),
                op.Reset(),
                op.TakeEvents(),
            ),
            settings=TELLING,
        ),
        ours="-[a/0]",
        theirs="no events",
    ),
    Deviation(
        id="metadata-only",
        clauses=("DONE-2", "EVT-1"),
        differs=(
            "Of a failed store nothing is announced. vLLM's tells its connector of it by an event "
            "marked `metadata_only`."
        ),
        why=(
            "The key was never announced, so there is nothing to take back, and vLLM's connector "
            "publishes nothing either: it forgets what it noted of the block."
        ),
        calls=(op.TakeEvents, op.TakeFirstEvent),
        explain=explanations.metadata_only,
        shows=Program(
            1,
            (
                op.PrepareStore("r1", keys("a")),
                op.CompleteStore("r1", keys("a"), False),
                op.TakeEvents(),
            ),
            settings=TELLING,
        ),
        ours="no events",
        theirs="no events, metadata_only -[a/0]",
    ),
    Deviation(
        id="folded-backlog",
        clauses=("EVT-4",),
        differs=(
            "If nobody takes events, a store and the removal after it cancel once there are many. "
            "vLLM's keeps every event."
        ),
        why="Memory stays bounded by the capacity, and what the events add up to is the same.",
        calls=(op.TakeEvents,),
        explain=explanations.folded_backlog,
        shows=Program(MANY, (*_churned(), op.TakeEvents()), settings=TELLING),
        ours="+[d0/0 d1/0 d2/0 d3/0 d4/0 d5/0 d6/0 d7/0 ... 692 more]",
        theirs=(
            "+[a0/0 a1/0 a2/0 a3/0 a4/0 a5/0 a6/0 a7/0 ... 692 more] "
            "-[a0/0 a1/0 a2/0 a3/0 a4/0 a5/0 a6/0 a7/0 ... 692 more]"
        ),
    ),
    Deviation(
        id="unread-events",
        clauses=("EVT-3",),
        differs=(
            "`take_events()` delivers by being called. vLLM's delivers once somebody begins to "
            "read."
        ),
        why="Whether an event was delivered does not depend on how far a reader got.",
        calls=(op.HostEvent,),
        explain=explanations.unread_events,
        shows=Program(
            1,
            (
                op.PrepareStore("r1", keys("a")),
                op.CompleteStore("r1", keys("a")),
                op.HostEvent(UNREAD),
                op.TakeEvents(),
            ),
            settings=TELLING,
        ),
        ours="no events",
        theirs="+[a/0]",
    ),
    Deviation(
        id="kept-counts",
        clauses=("GEN-1",),
        differs=(
            "With a `store_threshold`, offers are counted anew after a reset. In vLLM's those of "
            "before count on."
        ),
        why="After a reset the manager equals a new one in everything that calls can show.",
        calls=(op.Reset,),
        explain=explanations.kept_counts,
        shows=Program(
            1,
            (
                op.PrepareStore("r1", keys("a")),
                op.Reset(),
                op.PrepareStore("r1", keys("a")),
            ),
            settings=ManagerSettings(policy="lru", enable_events=False, store_threshold=2),
        ),
        ours="store [] at []",
        theirs="store [a/0] at [0]",
    ),
    Deviation(
        id="needless-evict",
        clauses=("STORE-6",),
        differs=(
            "A policy is asked for victims only where enough are idle outside the offer. vLLM's "
            "counts those inside too, and has its policy find out."
        ),
        why="Failing takes time in proportion to the offer, not to the cache, at every step anew.",
        calls=(op.PrepareStore,),
        explain=explanations.needless_evict,
        shows=Program(
            1,
            (
                op.PrepareStore("r1", keys("a")),
                op.CompleteStore("r1", keys("a")),
                op.PrepareStore("r1", keys("a b")),
            ),
            settings=ManagerSettings(policy="lru", enable_events=False, tapped=True),
        ),
        ours="None; the policy was told on_store_miss(r1, [b/0]), on_request_access(r1, [b/0])",
        theirs=(
            "None; the policy was told on_store_miss(r1, [b/0]), on_request_access(r1, [b/0]), "
            "evict(1, protected=[a/0 b/0])"
        ),
    ),
)
