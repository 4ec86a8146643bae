"""The factory of policies, since 0.27."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import ClassVar, Final

FACTORY: Final = "vllm.v1.kv_offload.cpu.policies.factory"
BUILT_IN: Final = {"lru": "LRUCachePolicy", "arc": "ARCCachePolicy"}


class PolicyFactory:
    """Finds policies by a short name, or by the name of a class and the path of its module."""

    _registry: ClassVar[dict[str, Callable[[], type]]]
    _standin_base: ClassVar[type]

    @classmethod
    def register_cache_policy(cls, name: str, module_path: str, class_name: str) -> None:
        """Give a class a short name; it is imported when it is asked for.

        Raises ValueError if the name is taken.
        """
        if name in cls._registry:
            raise ValueError(f"the name {name!r} belongs to another cache policy")
        cls._registry[name] = lambda: _named(module_path, class_name)

    @classmethod
    def get_cache_policy_cls(cls, name: str, module_path: str | None = None) -> type:
        """The class of a name. Short names come first, whatever the path.

        Raises:
            ValueError: the name is unknown, and there is no path to find it in.
            AssertionError: what the path has under this name is no subclass of CachePolicy.
        """
        if name in cls._registry:
            return cls._registry[name]()
        if module_path is None:
            raise ValueError(f"no cache policy {name!r}, there are {', '.join(cls._registry)}")
        found = _named(module_path, name)
        if not issubclass(found, cls._standin_base):
            raise AssertionError(f"{module_path}.{name} is no subclass of {cls._standin_base}")
        return found


def _named(module_path: str, name: str) -> type:
    found: object = getattr(importlib.import_module(module_path), name)
    if not isinstance(found, type):
        raise TypeError(f"issubclass() arg 1 must be a class, and {module_path}.{name} is none")
    return found


def policy_factory(base: type) -> type[PolicyFactory]:
    """A factory for subclasses of `base`, which has LRU and ARC."""

    class CachePolicyFactory(PolicyFactory):
        __doc__ = PolicyFactory.__doc__
        _registry: ClassVar[dict[str, Callable[[], type]]] = {}
        _standin_base = base

    CachePolicyFactory.__module__ = FACTORY
    CachePolicyFactory.__qualname__ = "CachePolicyFactory"
    package = FACTORY.rpartition(".")[0]
    for name, class_name in BUILT_IN.items():
        CachePolicyFactory.register_cache_policy(name, f"{package}.{name}", class_name)
    return CachePolicyFactory
