"""The policy subject: performs the calls of a manager on a cache policy, through its driver."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Final, Generic, TypeVar

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.errors import NotInStandInsError
from stateful_models import operations as op
from stateful_models.driver_faults import innermost_code, is_of_the_driver
from stateful_models.drivers import Driver, DriverFailedError
from stateful_models.host_types import HostTypes
from stateful_models.loading import describe
from stateful_models.steps import BadAnswerError, Found, Result, Step, Victim, Victims
from stateful_models.subjects import Contexts, call_if_there
from stateful_models.trial.driver_methods import mismatch
from stateful_models.trial.hang import DidNotReturn

P = TypeVar("P", bound=CachePolicy)
T = TypeVar("T")


_PERFORM_EVENT: Final[object] = vars(Driver)["perform_event"].__code__
"""In which the method of an event is called where the driver does not do it otherwise."""


_DEFAULT_IS_NOTHING: Final[Mapping[type[op.Operation], str]] = {
    op.RequestAccess: "on_request_access",
    op.MarkEvictable: "mark_evictable",
    op.MarkNonEvictable: "mark_non_evictable",
}
"""Hooks that do nothing as `CachePolicy` has them."""
_TELLS_THE_DRIVER: Final[Mapping[type[op.Operation], str]] = {
    op.NewRequest: "request_started",
    op.BeforeStore: "before_store",
}
"""What only a driver is told of, and does nothing about unless its own class says so."""


class _DriverOf(Driver[P]):
    """The driver of a policy that is there already."""

    def __init__(self, policy: P) -> None:
        def the_policy(cache_capacity: int) -> P:
            return policy

        super().__init__(the_policy)


class PolicySubject(Generic[P]):
    """A policy, called as a manager calls it; the subject keeps the chunks and sets ref_cnt.

    Optional hooks may be missing, `insert` may take two arguments and `touch` one: the policy is
    then called as a host serves such a one. What it is handed is of the types of the driver;
    `make_hints` and `make_keys` make the hints of a request and the keys of a hook. `watch` is
    entered around each call.
    """

    def __init__(
        self,
        policy: P,
        driver: Driver[P] | None = None,
        *,
        advance_clock: Callable[[float], object] | None = None,
        make_hints: Callable[[Mapping[str, object]], dict[str, object]] = dict,
        make_keys: Callable[[Sequence[OffloadKey]], Iterable[OffloadKey]] = list,
        watch: AbstractContextManager[object] | None = None,
    ) -> None:
        self.policy = policy
        self.driver: Driver[P] = _DriverOf(policy) if driver is None else driver
        types = self.driver.types
        self.contexts: Contexts = Contexts(make_hints, types)
        self.chunks: dict[OffloadKey, ChunkStatus] = {}
        self._make_keys = make_keys
        self._slot = types.slot
        self._insert_takes_context, self._touch_takes_context = context_taken(policy, types)
        self._advance_clock = advance_clock
        self._watch: AbstractContextManager[object] = nullcontext() if watch is None else watch
        self._steps = 0
        self._silent: frozenset[type[op.Operation]] = frozenset(_silent(policy, self.driver))

    def perform(self, operation: op.Operation) -> Step:
        """Make the call, and tell what came of it."""
        self._steps += 1
        result: Result = None
        error: BaseException | None = None
        try:
            # By itself, since what runs while it is watched takes three times as long.
            call = self._call_of(operation)
            with self._watch:
                result = call()
        # Nor does a policy err that asks for more of vLLM than is here.
        except (DidNotReturn, KeyboardInterrupt, DriverFailedError, NotInStandInsError):
            raise
        # A host dies of an exit, and of whatever else, as it does of an exception.
        except BaseException as raised:
            if is_of_the_driver(self.driver, raised):
                raise DriverFailedError(describe(raised)) from raised
            error = raised
        return Step(self._steps, operation, result, error, silent=type(operation) in self._silent)

    def _tell(self, hook: Callable[..., T], *arguments: object) -> T:
        """Call a method of the driver. Raises DriverFailedError where it takes other arguments."""
        try:
            return hook(self.policy, *arguments)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                # It came up in what was called.
                raise
            raise DriverFailedError(mismatch(hook, Driver)) from error

    def _call_of(self, operation: op.Operation) -> Callable[[], Result]:
        """The call that the operation stands for; the most frequent ones first."""
        of = self.contexts.of
        match operation:
            case op.Get(key, request):
                return partial(self._get, key, None if request is None else of(request))
            case op.Insert(key, slot, request):
                return partial(self._insert, key, slot, of(request))
            case op.MarkEvictable(key):
                return partial(self._mark, key, 0, "mark_evictable")
            case op.BeforeStore(request, keys):
                return partial(self._tell, self.driver.before_store, keys, of(request))
            case op.RequestAccess(request, keys):
                arguments = (self._make_keys(keys), of(request))
                return partial(call_if_there, self.policy, "on_request_access", arguments)
            case op.StoreMiss(request, keys):
                return partial(self._miss, keys, of(request))
            case op.Evict(count, protected, request):
                return partial(self._evict, count, protected, of(request or ""))
            case op.RequestFinished():
                return partial(self._finish, operation)
            case op.MarkNonEvictable(key):
                return partial(self._mark, key, 1, "mark_non_evictable")
            case op.Remove(key):
                return partial(self._remove, key)
            case op.TouchKeys(request, keys):
                return partial(self._touch, keys, of(request))
            case op.SetRefCount(key, ref_cnt):
                return partial(setattr, self.chunks[key], "ref_cnt", ref_cnt)
            case op.Clear():
                return self._clear
            case _:
                return partial(self._call_host, operation)

    def _get(self, key: OffloadKey, context: ReqContext | None) -> Found | None:
        found = self.policy.get(key)
        if context is not None:
            self._tell(self.driver.looked_up, key, found is not None, context)
        if found is None:
            return None
        slot: object = getattr(found, self._slot, None)
        return Found(slot if isinstance(slot, int) else -1, found is self.chunks.get(key))

    def _mark(self, key: OffloadKey, ref_cnt: int, hook: str) -> None:
        self.chunks[key].ref_cnt = ref_cnt
        if self.driver.host.marks:
            call_if_there(self.policy, hook, (key,))

    def _miss(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        if self._overrides("on_store_miss"):
            self.policy.on_store_miss(self._make_keys(keys), context)
        else:
            self._touch(keys, context)

    def _remove(self, key: OffloadKey) -> None:
        del self.chunks[key]
        self.policy.remove(key)

    def _clear(self) -> None:
        self.chunks.clear()
        self.policy.clear()

    def make_chunk(self, slot: int) -> ChunkStatus:
        """The chunk that is inserted for this slot."""
        return self.driver.types.chunk(slot)

    def _insert(self, key: OffloadKey, slot: int, context: ReqContext) -> None:
        chunk = self.chunks[key] = self.make_chunk(slot)
        arguments = (key, chunk, context)
        self._tell(self.driver.before_insert, *arguments)
        call_if_there(self.policy, "insert", arguments[: 3 if self._insert_takes_context else 2])
        self._tell(self.driver.after_insert, *arguments)

    def _finish(self, operation: op.RequestFinished) -> None:
        context = self.contexts.of(operation.request)
        if self.driver.host.tells_finish:
            if self._overrides("on_request_finished"):
                self.policy.on_request_finished(
                    operation.key_groups,
                    set(operation.insertion_only),
                    set(operation.reused),
                    context,
                )
            else:
                for group in operation.key_groups:
                    self._touch(group, context)
        self._tell(self.driver.request_finished, context)

    def _touch(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        arguments = (self._make_keys(keys), context)
        call_if_there(self.policy, "touch", arguments[: 2 if self._touch_takes_context else 1])

    def _overrides(self, hook: str) -> bool:
        # The inherited defaults pass touch its two arguments, which it may not take.
        own = getattr(type(self.policy), hook, None)
        return own is not None and own is not getattr(CachePolicy, hook)

    def _call_host(self, operation: op.Operation) -> None:
        match operation:
            case op.SetPositions():
                self.contexts.set_positions(operation)
            case op.NewRequest():
                context = self.contexts.announce(operation)
                self._tell(self.driver.request_started, context)
            case op.AdvanceClock(seconds):
                if self._advance_clock is not None:
                    self._advance_clock(seconds)
            case op.HostEvent():
                self._perform_event(operation)
            case _:
                raise TypeError(f"{operation} is no call to a policy")

    def _perform_event(self, event: op.HostEvent) -> None:
        try:
            self._tell(self.driver.perform_event, event)
        except (AttributeError, TypeError) as error:
            if innermost_code(error) is not _PERFORM_EVENT:
                raise
            # There is no such method, or it takes other values.
            call = f"{event.name}({', '.join(map(repr, event.values))})"
            raise DriverFailedError(f"host_events has {call}: {describe(error)}") from error

    def _evict(
        self, count: int, protected: frozenset[OffloadKey], context: ReqContext
    ) -> Victims | None:
        answer = self._tell(self.driver.evict, count, set(protected), context)
        if answer is None:
            return None
        if not hasattr(answer, "__len__"):
            raise BadAnswerError(f"{type(answer).__name__}, whose length no host can ask for")
        try:
            pairs = list(answer)
            victims = tuple(
                Victim(key, getattr(chunk, self._slot), chunk is self.chunks.get(key))
                for key, chunk in pairs
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise BadAnswerError(f"{answer!r:.200}: {error}") from error
        for victim in victims:
            self.chunks.pop(victim.key, None)
        return Victims(victims)


def context_taken(policy: CachePolicy, types: HostTypes) -> tuple[bool, bool]:
    """Whether a host of these types passes the request's context to `insert` and to `touch`."""
    insert, touch = types.insert_takes_context, types.touch_takes_context
    return (
        _takes(policy.insert, 3) if insert is None else insert,
        _takes(policy.touch, 2) if touch is None else touch,
    )


def _silent(policy: CachePolicy, driver: Driver[P]) -> Iterator[type[op.Operation]]:
    """What comes to no call of anything that the policy, or its driver, defines itself."""
    if not driver.host.marks:
        yield from (op.MarkEvictable, op.MarkNonEvictable)
    for operation, hook in _DEFAULT_IS_NOTHING.items():
        if _is_default(policy, CachePolicy, hook):
            yield operation
    for operation, hook in _TELLS_THE_DRIVER.items():
        if _is_default(driver, Driver, hook):
            yield operation


def _is_default(subject: object, base: type[object], hook: str) -> bool:
    """Whether its class has no hook but that of the base; nothing is asked of the subject."""
    cls = type(subject)
    own: object = getattr(cls, hook, None)
    if own is None:
        return not hasattr(cls, "__getattr__") and cls.__getattribute__ is object.__getattribute__
    return own is getattr(base, hook) and hook not in getattr(subject, "__dict__", ())


def _takes(method: Callable[..., object], arguments: int) -> bool:
    function: object = getattr(method, "__func__", None)
    # Read once a class: reading a signature takes as long as a dozen calls.
    if inspect.isfunction(function):
        return _binds(function, 1 + arguments)
    return _binds.__wrapped__(method, arguments)


@lru_cache(maxsize=64)
def _binds(function: Callable[..., object], arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:
        # No signature to be had; then it is taken to be of the native form.
        return True
    return True
