"""Watching a live subject: `watch` for one that is there, a class for policies yet to be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeGuard, cast, overload

from attrs import frozen
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadingManager, OffloadKey, ReqContext
from kvoffload.errors import InvalidValueError
from stateful_models.account import Account
from stateful_models.capabilities import Capabilities
from stateful_models.invariants import Invariant, PolicyBooks, manager_invariants
from stateful_models.monitor import Observer, Tally
from stateful_models.operations import Insert, MarkEvictable
from stateful_models.policy_tap import Tap
from stateful_models.watch import WatchedManager
from stateful_models.watch_policy import WatchedPolicy, ignore, slot_of


@overload
def watch(
    subject: OffloadingManager,
    *,
    num_chunks: int | None,
    store_threshold: int = 1,
    enable_events: bool = False,
    may_refuse: bool = False,
    may_evict_more: bool = False,
    invariants: Sequence[Invariant[Account]] = (),
    keep_last: int = 12,
    observers: Sequence[Observer] = (),
    tap: Tap | None = None,
) -> WatchedManager: ...


@overload
def watch(
    subject: CachePolicy,
    *,
    capabilities: Capabilities | None = None,
    invariants: Sequence[Invariant[PolicyBooks]] = (),
    keep_last: int = 12,
    observers: Sequence[Observer] = (),
) -> WatchedPolicy: ...


# The overloads say which options go with which subject, and the makers below check it.
def watch(subject: object, **options: Any) -> WatchedManager | WatchedPolicy:
    """A stand-in for `subject`, a new manager or policy, that judges every call of its host.

    It goes wherever the subject went. `invariants` judge beside the usual ones; the other options
    are those of `WatchedManager` and `WatchedPolicy`. Raises InvalidValueError for a subject that
    is neither, TypeError for options that are not of its kind.
    """
    if _is_manager(subject):
        return _watch_manager(subject, **options)
    if _is_policy(subject):
        return _watched_kind(type(subject))(subject, **options)
    raise InvalidValueError("subject", subject, "a manager or a cache policy")


def _watch_manager(
    manager: OffloadingManager,
    *,
    num_chunks: int | None,
    store_threshold: int = 1,
    enable_events: bool = False,
    may_refuse: bool = False,
    may_evict_more: bool = False,
    invariants: Sequence[Invariant[Account]] = (),
    keep_last: int = 12,
    observers: Sequence[Observer] = (),
    tap: Tap | None = None,
) -> WatchedManager:
    usual = manager_invariants(
        store_threshold=store_threshold,
        enable_events=enable_events,
        may_refuse=may_refuse,
        may_evict_more=may_evict_more,
    )
    return WatchedManager(
        manager,
        num_chunks=num_chunks,
        store_threshold=store_threshold,
        enable_events=enable_events,
        may_refuse=may_refuse,
        may_evict_more=may_evict_more,
        invariants=[*usual, *invariants],
        keep_last=keep_last,
        observers=observers,
        tap=tap,
    )


# Those of others need not derive from our interfaces.
def _is_manager(subject: object) -> TypeGuard[OffloadingManager]:
    return not isinstance(subject, type) and hasattr(subject, "prepare_store")


def _is_policy(subject: object) -> TypeGuard[CachePolicy]:
    return not isinstance(subject, type) and hasattr(subject, "evict")


class _InsertsAll(WatchedPolicy):
    """Of a policy whose own `insert_all` a host would use."""

    @override
    def insert_all(
        self,
        keys: Sequence[OffloadKey],
        chunks: Sequence[ChunkStatus],
        req_context: ReqContext,
    ) -> None:
        request = self._request(req_context)
        operations = [
            Insert(key, slot_of(chunk), request) for key, chunk in zip(keys, chunks, strict=False)
        ]
        fresh = dict(zip(keys, chunks, strict=False))
        self._chunks.update(fresh)
        self._busy.update(fresh)
        self._pass_all_on(operations, self._hooks.insert_all, keys, chunks, req_context)


class _MarksAll(WatchedPolicy):
    """Of a policy whose own `mark_all_evictable` a host would use."""

    @override
    def mark_all_evictable(self, keys: Sequence[OffloadKey]) -> None:
        self._marked = True
        for key in keys:
            self._busy.pop(key, None)
        hook = self._hooks.mark_all_evictable
        self._pass_all_on(list(map(MarkEvictable, keys)), hook or ignore, keys)


class _InsertsAndMarksAll(_InsertsAll, _MarksAll):
    """Of a policy with both."""


_KINDS: Mapping[tuple[bool, bool], type[WatchedPolicy]] = {
    (False, False): WatchedPolicy,
    (True, False): _InsertsAll,
    (False, True): _MarksAll,
    (True, True): _InsertsAndMarksAll,
}


def _watched_kind(policy_cls: type) -> type[WatchedPolicy]:
    """The class to watch policies of `policy_cls` with: it has the bulk forms that this one has.

    A host goes by the class, and calls the single form where the bulk form was written without
    knowing it.
    """
    return _KINDS[
        _is_current(policy_cls, "insert_all", "insert"),
        _is_current(policy_cls, "mark_all_evictable", "mark_evictable"),
    ]


def _is_current(policy_cls: type, bulk: str, single: str) -> bool:
    for cls in policy_cls.__mro__:
        if cls is not CachePolicy and bulk in vars(cls):
            return True
        if cls is CachePolicy or single in vars(cls):
            break
    return False


@frozen(kw_only=True)
class _Watching:
    """How each policy of a watched class is made and watched."""

    make: Callable[..., CachePolicy]
    capabilities: Capabilities | None
    make_invariants: Callable[[int], Sequence[Invariant[PolicyBooks]]]
    make_observers: Callable[[], Sequence[Observer]]
    keep_last: int


class WatchedPolicyClass(WatchedPolicy):
    """What `watched_policy_cls` gives: as many policies as hosts make, under one tally."""

    tally: ClassVar[Tally]
    """What watching all of them came to; their steps are numbered through."""
    _watching: ClassVar[_Watching]

    def __init__(self, cache_capacity: int) -> None:
        watching = self._watching
        super().__init__(
            watching.make(cache_capacity=cache_capacity),
            capabilities=watching.capabilities,
            invariants=watching.make_invariants(cache_capacity),
            keep_last=watching.keep_last,
            observers=watching.make_observers(),
            tally=self.tally,
        )


def watched_policy_cls(
    policy_cls: type[CachePolicy],
    *,
    capabilities: Capabilities | None = None,
    make_invariants: Callable[[int], Sequence[Invariant[PolicyBooks]]] = lambda _: (),
    make_observers: Callable[[], Sequence[Observer]] = lambda: (),
    keep_last: int = 12,
) -> type[WatchedPolicyClass]:
    """A class for hosts that make their policy themselves: `policy_cls`, each object watched.

    `make_invariants` is given the capacity; it and `make_observers` are called for each object,
    since both keep state. What was found is in the `tally` of the class, also after a host has
    replaced a policy.
    """
    name = policy_cls.__name__
    attributes: dict[str, object] = {
        # Hosts name the policy by its class in what they raise.
        "__module__": policy_cls.__module__,
        "__qualname__": f"Watched[{name}]",
        "__doc__": policy_cls.__doc__,
        "may_refuse": getattr(policy_cls, "may_refuse", None),
        "tally": Tally(),
        "_watching": _Watching(
            make=policy_cls,
            capabilities=capabilities,
            make_invariants=make_invariants,
            make_observers=make_observers,
            keep_last=keep_last,
        ),
    }
    bases = (WatchedPolicyClass, _watched_kind(policy_cls))
    # `type` does not say that what it makes derives from its bases.
    return cast("type[WatchedPolicyClass]", type(name, bases, attributes))
