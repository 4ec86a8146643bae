"""Cache policies by name: built in, registered, or loaded from a module of somebody else's."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import ClassVar, Final

from kvoffload.errors import DuplicatePolicyError, NotAPolicyError, UnknownPolicyError
from kvoffload.policies.base import CachePolicy

REQUIRED_METHODS = ("get", "insert", "remove", "touch", "evict", "clear")


class CachePolicyFactory:
    """The registry. A registered policy's module is imported when the policy is first asked for."""

    _registry: ClassVar[dict[str, Callable[[], object]]] = {}

    @classmethod
    def register_cache_policy(cls, name: str, module_path: str, class_name: str) -> None:
        """Register `class_name` of the module `module_path` as `name`.

        Raises DuplicatePolicyError if the name is taken.
        """
        if name in cls._registry:
            raise DuplicatePolicyError(f"a cache policy named {name!r} is registered already")
        cls._registry[name] = lambda: _load(module_path, class_name)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The registered names, in the order of registration."""
        return tuple(cls._registry)

    @classmethod
    def get_cache_policy_cls(cls, name: str, module_path: str | None = None) -> type[CachePolicy]:
        """The class registered as `name`, or else the class of that name in `module_path`.

        The class need not derive from `CachePolicy`: having its methods is enough. Raises
        UnknownPolicyError if there is none, NotAPolicyError with what is missing if it is none.
        """
        loader = cls._registry.get(name)
        if loader is not None:
            return check_policy_cls(loader())
        if module_path is None:
            raise UnknownPolicyError(
                f"unknown cache policy {name!r}; registered: {', '.join(cls._registry)}. "
                "For a policy of your own, give cache_policy_module_path too"
            )
        return check_policy_cls(_load(module_path, name))


def check_policy_cls(candidate: object) -> type[CachePolicy]:
    """Return `candidate` if a policy can be made from it, else raise NotAPolicyError."""
    if not isinstance(candidate, type):
        raise NotAPolicyError(f"{candidate!r} is not a class, hence no cache policy")
    abstract: frozenset[str] = getattr(candidate, "__abstractmethods__", frozenset())
    missing = [
        method
        for method in REQUIRED_METHODS
        if method in abstract or not callable(getattr(candidate, method, None))
    ]
    missing += sorted(abstract.difference(missing))
    if missing:
        raise NotAPolicyError(
            f"{candidate.__module__}.{candidate.__qualname__} is no cache policy: "
            f"it lacks {', '.join(missing)}"
        )
    try:
        inspect.signature(candidate).bind(cache_capacity=1)
    except TypeError as mismatch:
        raise NotAPolicyError(
            f"{candidate.__module__}.{candidate.__qualname__} is no cache policy: "
            f"it cannot be called with cache_capacity ({mismatch})"
        ) from None
    except ValueError:
        # No signature to be had, as for some classes made in C; building it will tell.
        pass
    # It has the methods of one, which is all that anybody calls.
    policy_cls: type[CachePolicy] = candidate
    return policy_cls


def _load(module_path: str, class_name: str) -> object:
    module = importlib.import_module(module_path)
    try:
        loaded: object = getattr(module, class_name)
    except AttributeError:
        raise UnknownPolicyError(f"module {module_path!r} has no {class_name!r}") from None
    return loaded


_BUILT_IN: Final = (
    ("lru", "lru", "LRUCachePolicy"),
    ("arc", "arc", "ARCCachePolicy"),
    ("sieve", "sieve", "SIEVECachePolicy"),
    ("sieve-tail", "sieve", "SIEVETailCachePolicy"),
    ("s3fifo", "s3fifo", "S3FIFOCachePolicy"),
    ("s3fifo-tail", "s3fifo", "S3FIFOTailCachePolicy"),
    ("wtinylfu", "wtinylfu", "WTinyLFUCachePolicy"),
    ("wtinylfu-tail", "wtinylfu", "WTinyLFUTailCachePolicy"),
    ("slru", "slru", "SLRUCachePolicy"),
    ("slru-tail", "slru", "SLRUTailCachePolicy"),
)
"""Name, module of this package, class."""

for _name, _module, _class in _BUILT_IN:
    CachePolicyFactory.register_cache_policy(_name, f"kvoffload.policies.{_module}", _class)
