"""A manager under watch: every call goes through, and is judged by the invariants.

It works on a live manager of anybody, knows only what the calls and their answers tell, and
never changes either. `replay --check` is this; so is a monitor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import TYPE_CHECKING

from typing_extensions import override

from kvoffload import (
    LoadStoreSpec,
    LookupResult,
    OffloadingEvent,
    OffloadingManager,
    OffloadingStats,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from kvoffload.requests import PerRequest
from stateful_models.account import Account
from stateful_models.capabilities import Capabilities
from stateful_models.invariants import Invariant, manager_invariants
from stateful_models.judge import Violation, keys_in_short
from stateful_models.monitor import Monitor, Observer, Setup, reread
from stateful_models.operations import (
    NEVER_MADE,
    Attempt,
    CompleteLoad,
    CompleteStore,
    FinishRequest,
    GetStats,
    Lookup,
    NewRequest,
    Operation,
    PrepareLoad,
    PrepareStore,
    Reset,
    ResetFlushed,
    ScheduleEnd,
    TakeEvents,
    Touch,
)
from stateful_models.policy_tap import Tap
from stateful_models.steps import (
    NOTHING_VISIBLE,
    Delivered,
    Result,
    Visible,
)
from stateful_models.subjects import loaded_from, reported_from, stored_from, visible_state

DECLARED = "its cache policy declares it"
"""Why a manager may do what it may, where no more is known than that it may."""


class WatchedManager(OffloadingManager):
    """Passes every call on to `manager`, which must be new, and judges what comes of it.

    `num_chunks`, `store_threshold` and `enable_events` are how the manager was built, as far as
    known: without `num_chunks` nothing that depends on it is judged. `may_refuse`: its cache
    policy refuses by design; `may_evict_more`: it gives more victims than it is asked for.
    `invariants` replace the usual ones; one that raises becomes a violation under its own name and
    is not asked again. A key is judged by what the calls made of
    it; a request by its context, not by its id; a completion by its ticket where the manager gives
    any. `observers` are told of every step. With the `tap` behind the class of its cache policy,
    what the manager tells its policy is judged too.

    Attributes that are no call of the interface are those of the manager inside, and calls of
    such go through unjudged.
    """

    def __init__(
        self,
        manager: OffloadingManager,
        *,
        num_chunks: int | None,
        store_threshold: int = 1,
        enable_events: bool = False,
        may_refuse: bool = False,
        may_evict_more: bool = False,
        invariants: Sequence[Invariant[Account]] | None = None,
        keep_last: int = 12,
        observers: Sequence[Observer] = (),
        tap: Tap | None = None,
    ) -> None:
        self.manager = manager
        self._tap = tap
        if tap is not None:
            # What came before the first call, such as the making of the policy, is no part of it.
            tap.drain()
        self._last_error: Exception | None = None
        if invariants is None:
            invariants = manager_invariants(
                store_threshold=store_threshold,
                enable_events=enable_events,
                may_refuse=may_refuse,
                may_evict_more=may_evict_more,
            )
        setup = Setup(
            kind="manager",
            num_chunks=num_chunks,
            store_threshold=store_threshold,
            enable_events=enable_events,
            capabilities=Capabilities(
                may_refuse=DECLARED if may_refuse else None,
                may_evict_more=DECLARED if may_evict_more else None,
            ),
        )
        self._monitor = Monitor(
            setup, invariants, Account(num_chunks), keep_last=keep_last, observers=observers
        )
        self._contexts: PerRequest[int] = PerRequest()
        self._next_context = count()

    if not TYPE_CHECKING:
        # For the host only: nobody who is checked may rely on attributes that may not be there.
        def __getattr__(self, name):
            if "manager" not in vars(self):
                raise AttributeError(name)
            return getattr(self.manager, name)

    @property
    def violations(self) -> list[Violation]:
        """What was found, the first hundred of every clause."""
        return self._monitor.tally.violations

    @property
    def num_violations(self) -> int:
        """How many violations there were in all."""
        return self._monitor.tally.num_violations

    @property
    def steps(self) -> int:
        """How many calls were judged."""
        return self._monitor.tally.steps

    @property
    def checks(self) -> int:
        """How many judgements were made: at least three for every call."""
        return self._monitor.judge.checks

    @property
    @override
    def lock(self) -> AbstractContextManager[object]:
        return self.manager.lock

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        operation = NewRequest(
            req_context.req_id,
            req_context.kv_transfer_params,
            context=self._context(req_context),
        )
        try:
            answer = self.manager.on_new_request(req_context)
        except Exception as error:
            self._failed(operation, error)
            raise
        self._done(operation, answer, visible_state(self.manager))
        return answer

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        operation = Lookup(req_context.req_id, key, context=self._context(req_context))
        try:
            answer = self.manager.lookup(key, req_context)
        except Exception as error:
            self._failed(operation, error)
            raise
        self._done(operation, answer)
        return answer

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool | None = None,
    ) -> LoadStoreSpec:
        """`record_access` is passed on to a manager that knows it, and only where it is given."""
        keys = reread(keys)
        request, named = req_context.req_id, tuple(keys)
        context = self._context(req_context)
        internal = record_access is False
        # Not part of the interface.
        prepare: Callable[..., LoadStoreSpec] = self.manager.prepare_load
        try:
            if record_access is None:
                spec = prepare(keys, req_context)
            else:
                spec = prepare(keys, req_context, record_access=record_access)
        except Exception as error:
            self._failed(PrepareLoad(request, named, context=context, internal=internal), error)
            raise
        loaded = loaded_from(spec)
        operation = PrepareLoad(request, named, loaded.ticket, context=context, internal=internal)
        self._done(operation, loaded)
        return spec

    @override
    def complete_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        ticket: int | None = None,
    ) -> None:
        keys = reread(keys)
        request, named = req_context.req_id, tuple(keys)
        context = self._context(req_context)
        try:
            if ticket is None:
                self.manager.complete_load(keys, req_context)
            else:
                self.manager.complete_load(keys, req_context, ticket=ticket)
        except Exception as error:
            refused = _refused_attempt(ticket)
            self._failed(CompleteLoad(request, named, refused, context=context), error)
            raise
        accepted = _accepted_attempt(ticket)
        operation = CompleteLoad(request, named, accepted, context=context)
        self._done(operation, None, visible_state(self.manager))

    @override
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        keys = reread(keys)
        operation = Touch(req_context.req_id, tuple(keys), context=self._context(req_context))
        try:
            self.manager.touch(keys, req_context)
        except Exception as error:
            self._failed(operation, error)
            raise
        self._done(operation, None)

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        keys = reread(keys)
        request, named = req_context.req_id, tuple(keys)
        context = self._context(req_context)
        try:
            output = self.manager.prepare_store(keys, req_context)
        except Exception as error:
            self._failed(PrepareStore(request, named, context=context), error)
            raise
        if output is None:
            self._done(PrepareStore(request, named, context=context), None)
        else:
            stored = stored_from(output)
            self._done(PrepareStore(request, named, stored.ticket, context=context), stored)
        return output

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        keys = reread(keys)
        request, named = req_context.req_id, tuple(keys)
        context = self._context(req_context)
        try:
            if ticket is None:
                self.manager.complete_store(keys, req_context, success)
            else:
                self.manager.complete_store(keys, req_context, success, ticket=ticket)
        except Exception as error:
            refused = _refused_attempt(ticket)
            self._failed(CompleteStore(request, named, success, refused, context=context), error)
            raise
        accepted = _accepted_attempt(ticket)
        operation = CompleteStore(request, named, success, accepted, context=context)
        self._done(operation, None, visible_state(self.manager))

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        operation = FinishRequest(req_context.req_id, context=self._context(req_context))
        try:
            self.manager.on_request_finished(req_context)
        except Exception as error:
            self._failed(operation, error)
            raise
        self._done(operation, None)

    @override
    def take_events(self) -> list[OffloadingEvent]:
        """Everything that the manager yields: a drain is full, or it could not be judged."""
        operation = TakeEvents()
        try:
            events = list(self.manager.take_events())
        except Exception as error:
            self._failed(operation, error)
            raise
        self._done(operation, Delivered(tuple(events)))
        return events

    @override
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        operation = ScheduleEnd(tuple(context.new_req_ids), tuple(context.preempted_req_ids))
        try:
            self.manager.on_schedule_end(context)
        except Exception as error:
            self._failed(operation, error)
            raise
        self._done(operation, None)

    @override
    def has_pending_work(self) -> bool:
        return self.manager.has_pending_work()

    @override
    def reset_cache(self) -> None:
        operation = Reset()
        try:
            self.manager.reset_cache()
        except Exception as error:
            self._failed(operation, error)
            raise
        self._done(operation, None, visible_state(self.manager))

    @override
    def on_reset_flushed(self) -> None:
        operation = ResetFlushed()
        try:
            self.manager.on_reset_flushed()
        except Exception as error:
            self._failed(operation, error)
            raise
        self._done(operation, None)

    @override
    def get_stats(self) -> OffloadingStats | None:
        operation = GetStats()
        try:
            stats = self.manager.get_stats()
        except Exception as error:
            self._failed(operation, error)
            raise
        self._done(operation, reported_from(stats))
        return stats

    @override
    def shutdown(self) -> None:
        self.manager.shutdown()

    def violation_by(self, error: BaseException) -> Violation | None:
        """The violation that reports `error`, which a call raised, if the last one did.

        None as well if it is one of too many to be kept.
        """
        if error is not self._last_error:
            return None
        words = f"{type(error).__name__}: {keys_in_short(str(error))}"
        return next(
            (
                violation
                for violation in reversed(self.violations)
                if violation.number == self.steps and words in violation.message
            ),
            None,
        )

    def _context(self, req_context: ReqContext) -> int | None:
        """A number for each context, as long as it lives: ids may come again, at a time even."""
        number = self._contexts.get(req_context)
        if number is None:
            number = next(self._next_context)
            try:
                self._contexts.set(req_context, number)
            except TypeError:
                # One of a host's own kind, that no reference can follow: its id has to do.
                return None
        return number

    def _done(
        self, operation: Operation, result: Result, visible: Visible = NOTHING_VISIBLE
    ) -> None:
        told = None if self._tap is None else self._tap.drain()
        self._monitor.tell(operation, result, None, visible, told)

    def _failed(self, operation: Operation, error: Exception) -> None:
        self._last_error = error
        told = None if self._tap is None else self._tap.drain()
        self._monitor.tell(operation, None, error, NOTHING_VISIBLE, told)


def _accepted_attempt(ticket: object) -> Attempt | None:
    """The attempt of a completion that went well: tickets of a manager's own kind tell nothing."""
    return ticket if type(ticket) is int else None


def _refused_attempt(ticket: object) -> Attempt | None:
    """The attempt of a completion that was refused: what is no number was never given out."""
    return ticket if ticket is None or type(ticket) is int else NEVER_MADE
