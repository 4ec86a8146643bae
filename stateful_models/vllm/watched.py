"""A policy under watch inside vLLM, by configuration alone.

    "eviction_policy": "WatchedPolicy",
    "cache_policy_module_path": "stateful_models.vllm.watched",

The environment says which policy is watched and how (`stateful_models.vllm.settings`; docs/
in-an-engine.md has a table): `KVOFFLOAD_POLICY`, `KVOFFLOAD_LOG`, `KVOFFLOAD_JUDGE` and others. The
class is made when vLLM asks for it, since it must derive from vLLM's own base class.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence, Set
from functools import wraps
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.errors import UnknownPolicyError
from kvoffload.policies.factory import check_policy_cls
from kvoffload.vllm.interface import Policy
from kvoffload.vllm.policies import find_policy, hosted, vllm_base
from stateful_models.loading import describe, find_class
from stateful_models.monitor import reread
from stateful_models.vllm.live_watch import LOGGER, LiveWatch, close_logs
from stateful_models.vllm.settings import POLICY, Settings, policy_name
from stateful_models.watch_policy import RAISED

__all__ = ["RecordedPolicy", "close_logs", "wrapped_class"]

NAME: Final = "WatchedPolicy"
FACTORY_MODULE: Final = "vllm.v1.kv_offload.cpu.policies.factory"
OWN: Final = frozenset(("policy", "live"))
"""What the stand-in keeps of its own; every other attribute is one of the policy inside."""

Victims: TypeAlias = list[tuple[OffloadKey, ChunkStatus]]


class RecordedPolicy:
    """Stands for the policy that the environment names, with `live` watching over it.

    Attributes that are no hook are those of the policy inside. A method among them that the host
    calls is an extra hook: each call is noted, and the first reading of anything else.
    """

    policy: CachePolicy
    live: LiveWatch

    def __init__(self, cache_capacity: int) -> None:
        self.policy = wrapped_class(policy_name(os.environ))(cache_capacity)
        try:
            settings = Settings.of(os.environ)
        # The policy can be had, and an engine does not stand still for want of a log.
        except Exception as error:
            LOGGER.warning("the policy is not watched: %s", describe(error))
            settings = Settings()
        # Judging never looks at the time; the log says when.
        self.live = LiveWatch(self.policy, cache_capacity, settings, monotonic)

    if not TYPE_CHECKING:
        # For the host only: nobody who is checked may rely on attributes that may not be there.
        def __getattr__(self, name):
            if "live" not in vars(self):
                raise AttributeError(name)
            value = getattr(self.policy, name)
            if name.startswith("__"):
                return value
            if callable(value) and not isinstance(value, type):
                return _noted(self.live, name, value)
            self.live.note_reading(name)
            return value

        def __setattr__(self, name, value):
            if name in OWN:
                vars(self)[name] = value
            else:
                setattr(self.policy, name, value)

    @property
    def cache_capacity(self) -> int:
        """How many chunks there are, in the words of the policy inside."""
        return self.policy.cache_capacity

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """The chunk that is resident under the key."""
        live, hook = self.live, self.policy.get
        return hook(key) if live.watch is None else live.call(live.watch.get, hook, key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        """The key became resident."""
        live, hook = self.live, self.policy.insert
        if live.watch is None:
            hook(key, chunk, req_context)
        else:
            live.call(live.watch.insert, hook, key, chunk, req_context)

    def remove(self, key: OffloadKey) -> None:
        """The store of the key failed."""
        live, hook = self.live, self.policy.remove
        if live.watch is None:
            hook(key)
        else:
            live.call(live.watch.remove, hook, key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """The keys were used."""
        live, hook = self.live, self.policy.touch
        if live.watch is None:
            hook(keys, req_context)
        else:
            live.call(live.watch.touch, hook, reread(keys), req_context)

    def evict(self, n: int, protected: Set[OffloadKey], *more: object) -> Victims | None:
        """Give up `n` idle chunks, none of them protected; `more` is what a host adds."""
        live = self.live
        hook: Callable[..., Victims | None] = self.policy.evict
        if live.watch is None:
            return hook(n, protected, *more)
        return live.call(live.watch.evict, hook, n, protected, *more)

    def clear(self) -> None:
        """Forget everything."""
        live, hook = self.live, self.policy.clear
        if live.watch is None:
            hook()
        else:
            live.call(live.watch.clear, hook)

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """The keys will be stored if there is room."""
        live, hook = self.live, self.policy.on_store_miss
        if live.watch is None:
            hook(keys, req_context)
        else:
            live.call(live.watch.on_store_miss, hook, reread(keys), req_context)

    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """The request sees the keys for the first time."""
        live, hook = self.live, self.policy.on_request_access
        if live.watch is None:
            hook(keys, req_context)
        else:
            live.call(live.watch.on_request_access, hook, reread(keys), req_context)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        """The request is over."""
        live, hook = self.live, self.policy.on_request_finished
        seen = (key_groups, insertion_only_keys, reused_keys, req_context)
        if live.watch is None:
            hook(*seen)
        else:
            live.call(live.watch.on_request_finished, hook, *seen)

    def mark_evictable(self, key: OffloadKey) -> None:
        """The chunk became idle."""
        live, hook = self.live, self.policy.mark_evictable
        if live.watch is None:
            hook(key)
        else:
            live.call(live.watch.mark_evictable, hook, key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """The chunk is about to be pinned."""
        live, hook = self.live, self.policy.mark_non_evictable
        if live.watch is None:
            hook(key)
        else:
            live.call(live.watch.mark_non_evictable, hook, key)


def wrapped_class(name: str) -> Callable[[int], CachePolicy]:
    """What makes the policy that goes by `name`, as vLLM would take it.

    A name that vLLM has registered, or kvoffload; else `pkg.mod:Class`, `pkg.mod.Class` or
    `file.py:Class`. A policy written against kvoffload is put behind vLLM's interface.

    Raises UnknownPolicyError, NotAPolicyError, and TargetError for what cannot be loaded.
    """
    found = _named(name)
    base = vllm_base()
    if issubclass(found, RecordedPolicy):
        raise UnknownPolicyError(f"{POLICY}={name}: that is what watches; name what is watched")
    if issubclass(found, base):
        made: object = found
    else:
        if not issubclass(found, CachePolicy):
            LOGGER.warning(
                "%s is no subclass of %s: vLLM would refuse it where it is not watched",
                name,
                f"{base.__module__}.{base.__qualname__}",
            )
        made = hosted(check_policy_cls(found))
    # vLLM's policies have the methods of ours, and take its chunks and contexts.
    return cast("Callable[[int], CachePolicy]", made)


def _named(name: str) -> type[object]:
    if ":" in name:
        return find_class(name)
    if "." in name:
        module, _, cls = name.rpartition(".")
        return find_class(f"{module}:{cls}")
    vllm_base()
    factory = importlib.import_module(FACTORY_MODULE).CachePolicyFactory
    try:
        found: type[object] = factory.get_cache_policy_cls(name)
    except ValueError as error:
        try:
            return find_policy(name)
        except UnknownPolicyError:
            raise UnknownPolicyError(
                f"{POLICY}={name}: neither vLLM nor kvoffload has a policy registered by that "
                "name; any other is named as pkg.mod:Class"
            ) from error
    return found


def _noted(live: LiveWatch, name: str, hook: Callable[..., object]) -> Callable[..., object]:
    @wraps(hook)
    def call(*arguments: object, **named: object) -> object:
        values = (*arguments, *named.values())
        try:
            answer = hook(*arguments, **named)
        except RAISED as error:
            live.note_event(name, values, error)
            raise
        live.note_event(name, values)
        return answer

    return call


_MADE: Final[dict[type, type[Policy]]] = {}


def __getattr__(name: str) -> type[Policy]:
    if name != NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = vllm_base()
    made = _MADE.get(base)
    if made is None:
        attributes: dict[str, object] = {"__module__": __name__, "__doc__": RecordedPolicy.__doc__}
        # `type` does not say that what it makes derives from its bases.
        made = cast("type[Policy]", type(base)(NAME, (RecordedPolicy, base), attributes))
        _MADE[base] = made
    return made
