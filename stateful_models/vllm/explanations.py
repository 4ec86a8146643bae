"""What explains each deviation: exactly the difference that it is about, and no other.

An explanation looks at one step. It works out from the books what vLLM's manager must have done,
and is no explanation where something else came of it. Then it takes the difference away: where the
two are left in different states it mends vLLM's, and where that cannot be done the program is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve

from kvoffload import LookupResult, OffloadingEvent, OffloadKey
from kvoffload.errors import (
    ChunkNotFoundError,
    ChunkNotReadyError,
    InvalidKeyError,
    KVOffloadError,
    NotPinnedError,
    RequestFinishedError,
    UnknownTicketError,
)
from kvoffload.keys import MIN_KEY_BYTES
from stateful_models import operations as op
from stateful_models.models.comparison import Announced, difference
from stateful_models.programs import keys_of
from stateful_models.steps import Delivered, Step, Stored
from stateful_models.vllm.pair import Met, Pair

WORDS: Final[dict[type[KVOffloadError], str]] = {
    ChunkNotFoundError: "not found",
    ChunkNotReadyError: "is not ready for reading",
    NotPinnedError: "ref_cnt is already 0",
    RequestFinishedError: "after request finalization",
}
"""By the error that ours raises, what vLLM's assertion says of the same mistake."""


def named_error(pair: Pair, met: Met) -> bool:
    """vLLM asserts what ours raises a named error for.

    A call that is wrong in two ways may be refused for either, so what vLLM's says need only be
    true.
    """
    ours, theirs = met.raised
    if type(ours) not in WORDS or type(theirs) is not AssertionError:
        return False
    mistakes = set(_mistakes(pair, met))
    if not any(WORDS[mistake] in str(theirs) for mistake in mistakes):
        return False
    met.agree_on_answer()
    return True


def half_a_load(pair: Pair, met: Met) -> bool:
    """A load that vLLM's refuses half way keeps the pins that it has taken by then."""
    if not isinstance(met.operation, op.PrepareLoad) or not _refused(met):
        return False
    taken: list[OffloadKey] = []
    for key in met.operation.keys:
        if not pair.account.ready(key):
            break
        taken.append(key)
    idle = [key for key in dict.fromkeys(taken) if pair.account.pins(key) == 0]
    if not taken or not met.only_theirs_told([op.MarkNonEvictable(key) for key in idle]):
        return False
    request = met.operation.request
    pair.mend(lambda: pair.theirs.perform(op.CompleteLoad(request, tuple(taken))))
    return True


def half_a_release(pair: Pair, met: Met) -> bool:
    """A release that vLLM's refuses half way has let go of the pins before."""
    if not isinstance(met.operation, op.CompleteLoad) or not _refused(met):
        return False
    left = Counter({key: pair.account.pins(key) for key in met.operation.keys})
    released: list[OffloadKey] = []
    idle: list[OffloadKey] = []
    for key in met.operation.keys:
        if left[key] <= 0:
            break
        left[key] -= 1
        released.append(key)
        if not left[key]:
            idle.append(key)
    if not released or not met.only_theirs_told([op.MarkEvictable(key) for key in idle]):
        return False
    again = op.PrepareLoad(met.operation.request, tuple(released), internal=True)
    pair.mend(lambda: pair.theirs.perform(again))
    return True


def late_refusal(pair: Pair, met: Met) -> bool:
    """vLLM's refuses an offer by a finished request after it has counted it and told of misses."""
    ours, theirs = met.raised
    if not isinstance(met.operation, op.PrepareStore) or not isinstance(ours, RequestFinishedError):
        return False
    if type(theirs) is not AssertionError or WORDS[RequestFinishedError] not in str(theirs):
        return False
    told = met.theirs.told
    if told is not None:
        if met.ours.told != () or any(not isinstance(one, op.StoreMiss) for one in told):
            return False
        met.theirs = evolve(met.theirs, told=())
    met.over = True
    return True


def repeated_key(pair: Pair, met: Met) -> bool:
    """vLLM's stores a key as often as an offer names it, and counts it as often."""
    offer = met.operation
    if not isinstance(offer, op.PrepareStore):
        return False
    repeated = {key for key, times in Counter(offer.keys).items() if times > 1}
    absent = repeated - pair.account.resident.keys()
    if not (repeated if pair.settings.store_threshold >= 2 else absent) or met.theirs.error:
        return False
    ours, theirs = met.ours.result, met.theirs.result
    if isinstance(theirs, Stored):
        stored = () if not isinstance(ours, Stored) else ours.keys
        once = dict.fromkeys(theirs.keys)
        # Counted twice, a repeated key is admitted earlier.
        if any(key not in repeated for key in once if key not in stored):
            return False
        if [key for key in once if key in stored] != [*stored]:
            return False
        if [*theirs.keys] != [key for key in offer.keys if key in once]:
            return False
        # A ghost that is missed twice adapts twice, so that others may go, and more must.
        room = pair.capacity - len(pair.account.resident)
        if len(set(theirs.evicted)) != max(0, len(theirs.keys) - room):
            return False
        if not all(_may_go(pair, offer, key) for key in theirs.evicted):
            return False
    elif theirs is not None:
        return False
    met.agree()
    met.over = True
    return True


def _may_go(pair: Pair, offer: op.PrepareStore, key: OffloadKey) -> bool:
    entry = pair.account.resident.get(key)
    return entry is not None and entry.idle and key not in offer.keys


def take_early(pair: Pair, operation: op.Operation) -> None:
    """Before a reset ours is asked for the events that it would drop, so that all are compared."""
    if isinstance(operation, op.Reset) and pair.settings.enable_events:
        step = pair.ours.perform(op.TakeEvents())
        if isinstance(step.result, Delivered):
            pair.events.deliver(step.result.events)
            pair.events.held += _without_taking_back(pair, step.result.events)


def reset_event(pair: Pair, met: Met) -> bool:
    """After a reset ours takes back what it announced, and vLLM's tells what was before it."""
    events = pair.events
    if isinstance(met.operation, op.Reset):
        events.taken_back = tuple(events.believed)
        return False
    if met.ours.error or not isinstance(met.ours.result, Delivered):
        return False
    expected = bool(events.taken_back or events.held)
    told = [*events.held, *_without_taking_back(pair, events.latest)]
    events.held.clear()
    if isinstance(met.operation, op.TakeFirstEvent):
        told = told[:1]
    met.ours = evolve(met.ours, result=Delivered(tuple(told)))
    return expected


def _without_taking_back(
    pair: Pair, events: Sequence[OffloadingEvent]
) -> Sequence[OffloadingEvent]:
    keys, pair.events.taken_back = pair.events.taken_back, ()
    if keys and events and events[0].removed and tuple(events[0].keys) == keys:
        return events[1:]
    return events


def metadata_only(pair: Pair, met: Met) -> bool:
    """vLLM's has events of failed stores, which its connector does not publish."""
    failed = [
        [key for key in keys if key not in pair.account.resident] for keys in pair.events.failed
    ]
    pair.events.failed.clear()
    expected = [keys for keys in failed if keys]
    got = [event.keys for event in met.theirs.metadata_only]
    if isinstance(met.operation, op.TakeFirstEvent):
        expected = expected[: len(got)]
    if not got or got != expected or not all(one.removed for one in met.theirs.metadata_only):
        return False
    met.theirs = evolve(met.theirs, metadata_only=())
    return True


def folded_backlog(pair: Pair, met: Met) -> bool:
    """Of a long backlog ours leaves out what was stored and removed again; vLLM's keeps it all."""
    theirs = met.theirs.result
    if not isinstance(met.operation, op.TakeEvents) or not isinstance(theirs, Delivered):
        return False
    keys = sum(len(event.keys) for event in theirs.events)
    if met.ours.is_like(met.theirs) or keys <= BACKLOG_PER_SLOT * pair.capacity + BACKLOG_FLOOR:
        return False
    step = Step(0, met.operation, met.ours.result)
    if difference(Announced(theirs.events), step) is not None:
        return False
    met.agree_on_answer()
    return True


BACKLOG_PER_SLOT: Final = 4
BACKLOG_FLOOR: Final = 1024
"""From how many keys on a backlog may be shortened: for each slot, and beyond (EVT-4)."""


def unread_events(pair: Pair, met: Met) -> bool:
    """Events that were asked for and not read are delivered by ours, and kept by vLLM's."""
    if not isinstance(met.operation, op.HostEvent) or met.operation.name != "take_events":
        return False
    # What was delivered to nobody cannot be compared any more.
    met.over = True
    return True


def kept_counts(pair: Pair, met: Met) -> bool:
    """Offers counted before a reset count on in vLLM's."""
    counts = pair.their_manager.manager.counts
    if not isinstance(met.operation, op.Reset) or not counts:
        return False
    pair.mend(counts.clear)
    return True


def stale_completion(pair: Pair, met: Met) -> bool:
    """What is completed under a ticket is of its own attempt; to vLLM's it is of the present."""
    done = met.operation
    if not isinstance(done, (op.CompleteLoad, op.CompleteStore)) or done.attempt is None:
        return False
    counted = pair.our_manager.stale_completions > pair.stale
    if not counted and type(met.raised[0]) is not UnknownTicketError:
        return False
    theirs = met.raised[1]
    if isinstance(done, op.CompleteStore):
        # Those that ours completed leave nothing to be done twice.
        others = set(done.keys).difference(pair.account.acted)
        acts = any(key in pair.account.resident and not pair.account.ready(key) for key in others)
        if theirs is not None:
            return False
    else:
        acts = True
        if theirs is not None and type(theirs) is not AssertionError:
            return False
    met.agree()
    met.over = acts
    return True


def bad_key(pair: Pair, met: Met) -> bool:
    """What is no key ours refuses; vLLM's takes it for one that it does not have."""
    if type(met.raised[0]) is not InvalidKeyError:
        return False
    if all(len(key) >= MIN_KEY_BYTES for key in keys_of(met.operation)):
        return False
    harmless = isinstance(met.operation, (op.Lookup, op.Touch))
    if harmless and (met.theirs.error or met.theirs.result not in (None, LookupResult.MISS)):
        return False
    if not harmless:
        met.over = True
    if isinstance(met.operation, op.Touch):
        # The valid ones among them it has refreshed.
        met.over = any(key in pair.account.resident for key in keys_of(met.operation))
    met.agree()
    return True


def needless_evict(pair: Pair, met: Met) -> bool:
    """vLLM's asks its policy for more than is idle outside the offer, and is refused."""
    if not isinstance(met.operation, op.PrepareStore) or met.ours.told is None:
        return False
    told = met.theirs.told or ()
    if not told or told[:-1] != met.ours.told or not isinstance(told[-1], op.Evict):
        return False
    idle = sum(
        entry.idle and key not in told[-1].protected for key, entry in pair.account.resident.items()
    )
    if told[-1].count <= idle or met.theirs.result is not None:
        return False
    met.theirs = evolve(met.theirs, told=met.ours.told)
    return True


def _refused(met: Met) -> bool:
    ours, theirs = met.raised
    return type(ours) in WORDS and type(theirs) is AssertionError


def _mistakes(pair: Pair, met: Met) -> Iterator[type[KVOffloadError]]:
    """What is wrong with a call, apart from who makes it."""
    for kind in WORDS:
        if type(met.raised[0]) is kind:
            yield kind
    called, account = met.operation, pair.account
    named = keys_of(called)
    if isinstance(called, (op.PrepareLoad, op.CompleteLoad)):
        if any(key not in account.resident for key in named):
            yield ChunkNotFoundError
    if isinstance(called, op.PrepareLoad):
        if any(key in account.resident and not account.ready(key) for key in named):
            yield ChunkNotReadyError
    if isinstance(called, op.CompleteLoad):
        if any(times > account.pins(key) for key, times in Counter(named).items()):
            yield NotPinnedError
