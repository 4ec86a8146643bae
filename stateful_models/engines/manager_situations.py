"""Situations that a run of a manager comes to, counted; what was never met was never tried."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from kvoffload import LookupResult, TierFilter
from kvoffload.errors import (
    ChunkNotFoundError,
    InvalidKeyError,
    NotPinnedError,
    RequestFinishedError,
    UnknownTicketError,
)
from stateful_models import operations as op
from stateful_models.manager_hosting import ManagerHost
from stateful_models.metrics import USAGE
from stateful_models.programs import ManagerSettings
from stateful_models.reach import Reach
from stateful_models.steps import Delivered, Held, Reported, Result, Step, Stored

_REFUSALS: Final = {
    InvalidKeyError: "refused key",
    NotPinnedError: "refused release",
    RequestFinishedError: "finished request refused",
    UnknownTicketError: "unknown ticket",
}


@frozen
class Before:
    """What there was before a call, as far as it matters to what it meets.

    Numbers of pinned and pending chunks, of `absent` keys of an offer, and whether there is a ready
    one `beside` them; whether listeners `believed` anything.
    """

    pinned: int
    pending: int
    believed: bool
    absent: int
    beside: bool


class Situations:
    """Counts in `reach` what one run comes to, of which `host` keeps the books."""

    def __init__(self, reach: Reach, host: ManagerHost, settings: ManagerSettings) -> None:
        self._reach = reach
        self._host = host
        self._settings = settings
        self._closed: dict[op.Attempt, int] = {}
        self._acted_in: dict[op.RequestId, int] = {}
        self._believed = False
        self._loaded = False

    def before(self, operation: op.Operation) -> Before:
        """What is known before a call."""
        account = self._host.account
        offered = operation.keys if isinstance(operation, op.PrepareStore) else ()
        return Before(
            account.pinned,
            account.pending,
            self._believed,
            sum(key not in account.resident for key in dict.fromkeys(offered)),
            any(account.ready(key) for key in offered),
        )

    def note_settled(self) -> None:
        """Everything in flight has ended."""
        self._reach.note("everything completed after loads", self._loaded)

    def note(self, step: Step, before: Before) -> None:
        """Count what the step came to; the books are those from after it."""
        reach, operation, result = self._reach, step.operation, step.result
        if step.error is not None:
            self._note_refusal(operation, step.error)
            return
        if isinstance(result, LookupResult):
            # By far the most frequent step.
            reach.note(f"look-up answered {result.name}")
            return
        if isinstance(operation, (op.PrepareStore, op.PrepareLoad)):
            generation = self._host.account.generation
            former = self._acted_in.get(operation.request, generation)
            self._acted_in[operation.request] = generation
            reach.note("request that goes on after a reset", former != generation)
        match operation:
            case op.PrepareStore(_, keys):
                reach.note("refused offer", result is None)
                reach.note("repetition in an offer", len(set(keys)) < len(keys))
                reach.note("offer of resident keys", before.beside)
                if isinstance(result, Stored):
                    self._note_store(result, before)
            case op.PrepareLoad(_, keys):
                reach.note("load")
                reach.note("load of several", len(keys) > 1)
                reach.note("key loaded twice at once", len(set(keys)) < len(keys))
                reach.note("internal load", operation.internal)
            case op.CompleteLoad() | op.CompleteStore():
                self._note_completion(operation)
            case op.Reset():
                reach.note("reset")
                reach.note("reset with work in flight", bool(before.pinned or before.pending))
                reach.note("reset after events were delivered", before.believed)
            case op.FinishRequest():
                reach.note("finished request")
            case op.Touch(_, keys):
                reach.note("touch")
                resident = self._host.account.resident
                absent_ones = any(key not in resident for key in keys)
                reach.note("touch of a key that is not resident", absent_ones)
            case op.NewRequest():
                reach.note("request announced")
                reach.note("request with hints", bool(operation.hints))
                reach.note(
                    "request with a tier filter", operation.load_tier_filter != TierFilter.ALL
                )
            case op.TakeFirstEvent():
                self._note_report(result)
                reach.note("drain broken off", result != Delivered(()))
            case _:
                self._note_report(result)

    def _note_store(self, stored: Stored, before: Before) -> None:
        reach, evicted = self._reach, bool(stored.evicted)
        reach.note("store", bool(stored.keys))
        reach.note("offer with nothing to store", not stored.keys)
        filters = self._settings.store_threshold > 1
        reach.note("skipped by the threshold", filters and len(stored.keys) < before.absent)
        reach.note("admitted by the threshold", filters and bool(stored.keys))
        reach.note("eviction", evicted)
        reach.note("eviction of several", len(stored.evicted) > 1)
        reach.note("eviction beside pins", evicted and before.pinned > 0)
        reach.note("eviction beside pending chunks", evicted and before.pending > 0)
        reach.note("eviction beside keys of the offer", evicted and before.beside)
        reach.note("offer told to the policy", self._settings.tapped and bool(stored.keys))

    def _note_completion(self, completion: op.CompleteLoad | op.CompleteStore) -> None:
        reach, attempt = self._reach, completion.attempt
        acted = bool(self._host.account.acted)
        if isinstance(completion, op.CompleteStore):
            reach.note("store completed", acted and completion.success)
            reach.note("failed store", acted and not completion.success)
        else:
            reach.note("load completed", acted)
            self._loaded = self._loaded or acted
        if attempt is None:
            reach.note("completion of the present")
        elif acted:
            self._closed[attempt] = self._host.account.generation
        elif completion.keys:
            late = self._closed.get(attempt) == self._host.account.generation
            reach.note("doubled completion", late)
            reach.note("completion of an earlier generation", self._is_old(attempt))

    def _is_old(self, attempt: op.Attempt) -> bool:
        # What is past, and still holds something, was cut off by a reset.
        return any(one.attempt == attempt and one.left.total() for one in self._host.past)

    def _note_refusal(self, operation: op.Operation, error: BaseException) -> None:
        reach = self._reach
        for kind, situation in _REFUSALS.items():
            reach.note(situation, isinstance(error, kind))
        reach.note("refused load", isinstance(operation, op.PrepareLoad))
        unheld = isinstance(error, ChunkNotFoundError) and isinstance(operation, op.CompleteLoad)
        reach.note("refused release", unheld)

    def _note_report(self, result: Result) -> None:
        if isinstance(result, Delivered):
            self._reach.note("events delivered", bool(result.events))
            self._reach.note("removal delivered", any(event.removed for event in result.events))
            self._reach.note("drain without events enabled", not self._settings.enable_events)
            self._believed = self._believed or bool(result.events)
        elif isinstance(result, Reported):
            self._reach.note("figures under the documented names", USAGE in result.values)
        elif isinstance(result, Held):
            self._reach.note("holdings listed")
