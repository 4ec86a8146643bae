"""Cache policies of kvoffload inside vLLM's own manager, by configuration alone.

    "eviction_policy": "LRUCachePolicy",
    "cache_policy_module_path": "kvoffload.vllm.policies",

vLLM asks the module for an attribute of that name and takes subclasses of its own base class only,
so each class is made when it is asked for. Names are `LRUCachePolicy` and `ARCCachePolicy`, what
`kvoffload.CachePolicyFactory` has registered, and `pkg.mod:Class` of any policy written against
kvoffload. A name that vLLM has registered itself (`lru`, `arc`) gives vLLM's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn, TypeAlias, cast

from kvoffload.errors import InvalidValueError, NoVLLMError, UnknownPolicyError, UnknownVLLMError
from kvoffload.keys import OffloadKey
from kvoffload.policies.base import CachePolicy, ChunkStatus
from kvoffload.policies.factory import CachePolicyFactory
from kvoffload.policies.hooks import PolicyHooks
from kvoffload.vllm.contexts import BorrowedContext
from kvoffload.vllm.interface import Context, Policy
from kvoffload.vllm.versions import NEWEST, VERSIONS, Loading

BASE_CLASS: Final = "CachePolicy"

# Not the classes themselves: as globals of this module they would be found instead of those made.
_BUILT_IN: Final = {"LRUCachePolicy": "lru", "ARCCachePolicy": "arc"}

_OWN: Final = frozenset(("policy", "_hooks", "_get", "_mark_idle", "_mark_busy"))
"""What stands before a policy keeps of its own; every other attribute is one of the policy."""

Victims: TypeAlias = Sequence[tuple[OffloadKey, ChunkStatus]]


class HostedPolicy:
    """A policy of kvoffload behind the interface of vLLM's.

    Calls arrive as they are, with two exceptions. Contexts are those of kvoffload
    (`BorrowedContext`). An offer that names a key twice makes vLLM insert it twice; of a policy
    that refuses the second (InvalidValueError, as LRU and ARC do) it is removed first. Chunks are
    vLLM's own and have the attributes of ours; victims go back as the objects that came. Bulk forms
    are not called. What is no hook is an attribute of the policy inside.
    """

    policy_cls: ClassVar[type[CachePolicy]]

    def __init__(self, cache_capacity: int) -> None:
        self.policy: CachePolicy = self.policy_cls(cache_capacity=cache_capacity)
        policy = self.policy
        self._hooks = PolicyHooks(policy)
        self._get: Callable[[OffloadKey], ChunkStatus | None] = policy.get
        # Classes that do not derive from `CachePolicy` may lack these two.
        self._mark_idle: Callable[[OffloadKey], object] | None
        self._mark_idle = getattr(policy, "mark_evictable", None)
        self._mark_busy: Callable[[OffloadKey], object] | None
        self._mark_busy = getattr(policy, "mark_non_evictable", None)

    if not TYPE_CHECKING:
        # For the host only: nobody who is checked may rely on attributes that may not be there.
        def __getattr__(self, name):
            if "policy" not in vars(self):
                raise AttributeError(name)
            return getattr(self.policy, name)

        def __setattr__(self, name, value):
            if name in _OWN:
                vars(self)[name] = value
            else:
                setattr(self.policy, name, value)

    @property
    def cache_capacity(self) -> int:
        """How many chunks there are, in the words of the policy inside."""
        return self.policy.cache_capacity

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """The chunk that is resident under the key."""
        return self._get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: Context) -> None:
        """The key became resident."""
        context = BorrowedContext.borrow(req_context)
        try:
            self._hooks.insert(key, chunk, context)
        except InvalidValueError:
            if self._get(key) is None:
                raise
            self.policy.remove(key)
            self._hooks.insert(key, chunk, context)

    def remove(self, key: OffloadKey) -> None:
        """The store of the key failed."""
        self.policy.remove(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: Context) -> None:
        """The keys were used."""
        self._hooks.touch(_listed(keys), BorrowedContext.borrow(req_context))

    def evict(self, n: int, protected: set[OffloadKey]) -> Victims | None:
        """Give up `n` idle chunks, none of them protected."""
        return self._hooks.evict(n, protected)

    def clear(self) -> None:
        """Forget everything."""
        self.policy.clear()

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: Context) -> None:
        """The keys will be stored if there is room."""
        self._hooks.on_store_miss(_listed(keys), BorrowedContext.borrow(req_context))

    def on_request_access(self, keys: Iterable[OffloadKey], req_context: Context) -> None:
        """The request sees the keys for the first time."""
        hook = self._hooks.on_request_access
        if hook is not None:
            hook(_listed(keys), BorrowedContext.borrow(req_context))

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: Context,
    ) -> None:
        """The request is over."""
        self._hooks.on_request_finished(
            key_groups, insertion_only_keys, reused_keys, BorrowedContext.borrow(req_context)
        )

    def mark_evictable(self, key: OffloadKey) -> None:
        """The chunk became idle."""
        if self._mark_idle is not None:
            self._mark_idle(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """The chunk is about to be pinned."""
        if self._mark_busy is not None:
            self._mark_busy(key)


def hosted(policy_cls: type[CachePolicy]) -> type[Policy]:
    """The class that makes vLLM use `policy_cls`: a subclass of vLLM's own base class.

    A class that is one already is returned as it is. The same is returned each time. Raises
    NoVLLMError, UnknownVLLMError.
    """
    base = vllm_base()
    if issubclass(policy_cls, base):
        return cast("type[Policy]", policy_cls)
    made = _MADE.get((policy_cls, base))
    if made is None:
        attributes: dict[str, object] = {
            "__module__": __name__,
            "__doc__": policy_cls.__doc__,
            "policy_cls": policy_cls,
        }
        # `type` does not say that what it makes derives from its bases.
        made = cast(
            "type[Policy]", type(base)(policy_cls.__name__, (HostedPolicy, base), attributes)
        )
        _MADE[policy_cls, base] = made
    return made


_MADE: Final[dict[tuple[type[CachePolicy], type], type[Policy]]] = {}


def find_policy(name: str) -> type[CachePolicy]:
    """The policy class that goes by `name`, as the module docstring says.

    Raises UnknownPolicyError if there is none, NotAPolicyError for what is none, and what importing
    its module raises.
    """
    registered = _BUILT_IN.get(name, name)
    if registered in CachePolicyFactory.names():
        return CachePolicyFactory.get_cache_policy_cls(registered)
    module_path, separator, class_name = name.partition(":")
    if separator:
        return CachePolicyFactory.get_cache_policy_cls(class_name, module_path)
    known = ", ".join((*_BUILT_IN, *CachePolicyFactory.names()))
    raise UnknownPolicyError(
        f"{__name__} knows no policy {name!r}: it has {known}, and takes pkg.mod:Class"
    )


def vllm_base() -> type:
    """vLLM's `CachePolicy`. Raises NoVLLMError without vLLM, UnknownVLLMError for an older one."""
    try:
        module = importlib.import_module(NEWEST.policy_module)
    except ModuleNotFoundError as error:
        if error.name == "vllm":
            raise NoVLLMError(
                f"{__name__} makes policies for vLLM, and there is no vLLM here to make them for; "
                "kvoffload itself has them in kvoffload.CachePolicyFactory"
            ) from error
        if error.name is not None and error.name.startswith("vllm."):
            _refuse(f"has no {error.name}", error)
        # A library that vLLM itself needs.
        raise
    base: object = getattr(module, BASE_CLASS, None)
    if not isinstance(base, type):
        _refuse(f"has no {BASE_CLASS} in {NEWEST.policy_module}", None)
    lacking = [method.name for method in NEWEST.methods if not hasattr(base, method.name)]
    if lacking:
        _refuse(f"calls no {', '.join(lacking)} of its policies", None)
    return base


def _refuse(lack: str, cause: Exception | None) -> NoReturn:
    by_path = [each for each in VERSIONS if each.loading is Loading.MODULE_PATH]
    raise UnknownVLLMError(
        f"this vLLM {lack}: policies of kvoffload need {NEWEST} or later. "
        f"cache_policy_module_path itself came with vLLM {by_path[-1].minors[0]}"
    ) from cause


def _listed(keys: Iterable[OffloadKey]) -> Sequence[OffloadKey]:
    return keys if isinstance(keys, (list, tuple)) else list(keys)


class _NoSuchNameError(UnknownPolicyError, AttributeError):
    """Also what Python expects of a module that lacks a name."""


def __getattr__(name: str) -> type[Policy]:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        policy_cls = find_policy(name)
    except UnknownPolicyError as error:
        raise _NoSuchNameError(*error.args) from error.__cause__
    return hosted(policy_cls)
