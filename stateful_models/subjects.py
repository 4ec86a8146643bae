"""Subjects: a manager that performs operations and answers with steps, and what is common."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Protocol

from attrs import evolve

from kvoffload import (
    LoadStoreSpec,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    ScheduleEndContext,
)
from stateful_models import operations as op
from stateful_models.host_types import OWN_TYPES, HostTypes
from stateful_models.policy_tap import Tap
from stateful_models.steps import (
    Delivered,
    Held,
    Loaded,
    Reported,
    Result,
    Step,
    Stored,
    Visible,
)
from stateful_models.trial.hang import DidNotReturn


class Subject(Protocol):
    """Anything that operations can be performed on."""

    def perform(self, operation: op.Operation) -> Step:
        """Make the call, and tell what came of it; what it raises is part of the step."""
        ...


class Contexts:
    """The request contexts of one host, by request id; `make_hints` copies a client's hints."""

    def __init__(
        self,
        make_hints: Callable[[Mapping[str, object]], dict[str, object]] = dict,
        types: HostTypes = OWN_TYPES,
    ) -> None:
        self._make_hints = make_hints
        self._types = types
        self._contexts: dict[op.RequestId, ReqContext] = {}

    def of(self, request: op.RequestId) -> ReqContext:
        """The context of a request, made when it is first needed."""
        context = self._contexts.get(request)
        if context is None:
            context = self._contexts[request] = self._types.make_context(request)
        return context

    def forget(self, request: op.RequestId) -> None:
        """Let go of the context of a request that is over."""
        self._contexts.pop(request, None)

    def announce(self, operation: op.NewRequest) -> ReqContext:
        """The context of a request that comes with the client's parameters."""
        context = self.of(operation.request)
        hints = None if operation.hints is None else self._make_hints(operation.hints)
        self._types.announce(context, hints, operation.load_tier_filter)
        return context

    def set_positions(self, operation: op.SetPositions) -> None:
        """Tell the context of a request where its keys end."""
        context = self.of(operation.request)
        for key, end in operation.positions:
            self._types.set_position(context, key, end)


class ManagerSubject:
    """A manager, called as a scheduler calls it.

    A manager whose completions take no `ticket` is completed without; one that gives none for
    an attempt as well; the steps then say so, for such a completion is of the present.
    `advance_clock` is what the passing of time means to it, if anything. With the `tap` behind
    the class that the manager got as its cache policy, the steps say what the policy was told.
    """

    def __init__(
        self,
        manager: OffloadingManager,
        *,
        advance_clock: Callable[[float], object] | None = None,
        tap: Tap | None = None,
    ) -> None:
        self.manager = manager
        self.contexts: Contexts = Contexts()
        self._tap = tap
        if tap is not None:
            # What came before the first step, such as the making of the policy, is none of its.
            tap.drain()
        self._advance_clock = advance_clock
        self._tickets: dict[op.Attempt, int | None] = {}
        self._takes_tickets = takes_tickets(manager)
        self._steps = 0

    def perform(self, operation: op.Operation) -> Step:
        """Make the call, and tell what came of it."""
        self._steps += 1
        result: Result = None
        error: BaseException | None = None
        try:
            result = self._call(operation)
        except (DidNotReturn, KeyboardInterrupt):
            raise
        # A host dies of an exit, and of whatever else, as it does of an exception.
        except BaseException as raised:
            error = raised
        told = None if self._tap is None else self._tap.drain()
        done = self._as_called(operation)
        return Step(self._steps, done, result, error, visible_state(self.manager), told)

    def _as_called(self, operation: op.Operation) -> op.Operation:
        if (
            isinstance(operation, (op.CompleteLoad, op.CompleteStore))
            and operation.attempt is not None
            and self._ticket_of(operation.attempt) is None
        ):
            return evolve(operation, attempt=None)
        return operation

    def _call(self, operation: op.Operation) -> Result:
        manager, of = self.manager, self.contexts.of
        match operation:
            case op.NewRequest():
                return manager.on_new_request(self.contexts.announce(operation))
            case op.SetPositions():
                self.contexts.set_positions(operation)
            case op.Lookup(request, key):
                return manager.lookup(key, of(request))
            case op.PrepareLoad(request, keys, attempt):
                prepare: Callable[..., LoadStoreSpec] = manager.prepare_load
                options = {"record_access": False} if operation.internal else {}
                loaded = loaded_from(prepare(keys, of(request), **options))
                self._remember(attempt, loaded.ticket)
                return loaded
            case op.CompleteLoad(request, keys, attempt):
                if (ticket := self._ticket_of(attempt)) is None:
                    manager.complete_load(keys, of(request))
                else:
                    manager.complete_load(keys, of(request), ticket=ticket)
            case op.Touch(request, keys):
                manager.touch(keys, of(request))
            case op.PrepareStore(request, keys, attempt):
                output = manager.prepare_store(keys, of(request))
                stored = None if output is None else stored_from(output)
                if stored is not None:
                    self._remember(attempt, stored.ticket)
                return stored
            case op.CompleteStore(request, keys, success, attempt):
                if (ticket := self._ticket_of(attempt)) is None:
                    manager.complete_store(keys, of(request), success)
                else:
                    manager.complete_store(keys, of(request), success, ticket=ticket)
            case op.AdvanceClock(seconds):
                if self._advance_clock is not None:
                    self._advance_clock(seconds)
            case op.HostEvent(name, values):
                call_if_there(manager, name, values)
            case _:
                return self._call_plain(operation)
        return None

    def _call_plain(self, operation: op.Operation) -> Result:
        manager = self.manager
        match operation:
            case op.FinishRequest(request):
                manager.on_request_finished(self.contexts.of(request))
            case op.Outstanding(request):
                return held_from(manager, request)
            case op.TakeEvents():
                return Delivered(tuple(manager.take_events()))
            case op.TakeFirstEvent():
                return Delivered(tuple(islice(manager.take_events(), 1)))
            case op.GetStats():
                return reported_from(manager.get_stats())
            case op.Reset():
                manager.reset_cache()
            case op.ResetFlushed():
                manager.on_reset_flushed()
            case op.ScheduleEnd(new, preempted):
                manager.on_schedule_end(ScheduleEndContext(new, preempted))
            case _:
                raise TypeError(f"{operation} is no call to a manager")
        return None

    def _remember(self, attempt: op.Attempt | None, ticket: int | None) -> None:
        if attempt is not None:
            self._tickets[attempt] = ticket

    def _ticket_of(self, attempt: op.Attempt | None) -> int | None:
        if attempt is None or not self._takes_tickets:
            return None
        # Of an attempt that was never made there is no ticket, and a host that errs makes one up.
        return self._tickets.get(attempt, -1 - abs(attempt))


def takes_tickets(manager: OffloadingManager) -> bool:
    """Whether completions of this manager can carry a ticket."""
    return all(
        "ticket" in parameters
        or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        for parameters in (
            inspect.signature(manager.complete_load).parameters,
            inspect.signature(manager.complete_store).parameters,
        )
    )


def visible_state(manager: OffloadingManager) -> Visible:
    """What a manager shows of itself without being called."""
    return Visible(_shown(manager, "generation"), _shown(manager, "stale_completions"))


def loaded_from(spec: LoadStoreSpec) -> Loaded:
    """The answer of a load, from the spec that was returned."""
    return Loaded(_slots_of(spec), _shown(spec, "ticket"))


def stored_from(output: PrepareStoreOutput) -> Stored:
    """The answer of an offer, from the output that was returned."""
    return Stored(
        tuple(output.keys_to_store),
        _slots_of(output.store_spec),
        tuple(output.evicted_keys),
        _shown(output, "ticket"),
    )


def held_from(manager: OffloadingManager, request: op.RequestId) -> Held | None:
    """What a request holds, from the transfers that a manager lists; None if it lists none."""
    outstanding: Callable[[str], Iterable[object]] | None = getattr(manager, "outstanding", None)
    if outstanding is None:
        return None
    loads: list[OffloadKey] = []
    stores: list[OffloadKey] = []
    for transfer in outstanding(request):
        kind = getattr(transfer, "kind", None)
        held = loads if getattr(kind, "value", kind) == "load" else stores
        held += getattr(transfer, "keys", ())
    return Held(tuple(loads), tuple(stores))


def reported_from(stats: object) -> Reported | None:
    """Figures by name, None from a manager that reports none or in a form of its own."""
    reduce = getattr(stats, "reduce", None)
    return None if reduce is None else Reported(dict(reduce()))


def _slots_of(spec: LoadStoreSpec) -> tuple[int, ...] | None:
    block_ids = getattr(spec, "block_ids", None)
    return None if block_ids is None else tuple(block_ids.tolist())


def _shown(thing: object, name: str) -> int | None:
    value = getattr(thing, name, None)
    return value if type(value) is int else None


def call_if_there(subject: object, name: str, values: tuple[object, ...]) -> None:
    """Call an extra hook of a subject, if it has one of this name."""
    hook = getattr(subject, name, None)
    if hook is not None:
        hook(*values)
