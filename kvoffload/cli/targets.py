"""Policies and managers as they are named on the command line.

`lru` is a name of the registry, `pkg.mod:Class` a class of an importable module (the current
directory included), `file.py:Class` one of a file.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from hashlib import blake2b
from inspect import isabstract
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from kvoffload.cli.problems import UsageError, describe
from kvoffload.cpu.manager import CPUOffloadingManager
from kvoffload.errors import KVOffloadError, UnknownPolicyError
from kvoffload.manager import OffloadingManager
from kvoffload.policies.base import CachePolicy
from kvoffload.policies.factory import CachePolicyFactory, check_policy_cls

Policy: TypeAlias = "str | type[CachePolicy]"
ManagerMaker: TypeAlias = Callable[..., OffloadingManager]


def find_policy(target: str) -> Policy:
    """A registered name as it is, or the class that `target` names.

    Raises UsageError when there is no such policy, or when it is none.
    """
    try:
        if ":" in target:
            return check_policy_cls(_find_class(target))
        CachePolicyFactory.get_cache_policy_cls(target)
    except UnknownPolicyError:
        raise UsageError(
            f"--policy {target}: not registered ({', '.join(CachePolicyFactory.names())} are); "
            "one of your own is named pkg.mod:Class or file.py:Class"
        ) from None
    except KVOffloadError as error:
        raise UsageError(f"--policy {target}: {error}") from error
    return target


def refuses_by_design(policy: Policy) -> bool:
    """Whether the policy declares that its `evict` may refuse (POL-3)."""
    found = CachePolicyFactory.get_cache_policy_cls(policy) if isinstance(policy, str) else policy
    # A policy need not derive from ours, and then may lack the declaration.
    return getattr(found, "may_refuse", None) is not None


def find_manager(target: str | None) -> ManagerMaker:
    """What builds the manager that `target` names, by default CPUOffloadingManager.

    Raises UsageError when there is none.
    """
    if target is None:
        return CPUOffloadingManager
    found = _find_class(target)
    if not issubclass(found, OffloadingManager):
        raise UsageError(f"--manager {target}: not a subclass of OffloadingManager")
    if isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise UsageError(f"--manager {target}: it lacks {missing}")
    return found


def make_manager(
    maker: ManagerMaker, chunks: int, policy: Policy, *, store_threshold: int
) -> OffloadingManager:
    """Build the manager of one run, with events.

    Raises UsageError when it refuses its arguments.
    """
    try:
        # Only what differs from the default, for managers that know fewer options.
        options = {} if store_threshold == 1 else {"store_threshold": store_threshold}
        return maker(chunks, cache_policy=policy, enable_events=True, **options)
    except (TypeError, KVOffloadError) as error:
        raise UsageError(f"the manager cannot be built: {describe(error)}") from error


def _find_class(target: str) -> type[object]:
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(f"{target}: neither pkg.mod:Class nor file.py:Class")
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place)
    try:
        found: object = attrgetter(name)(module)
    except AttributeError:
        raise UsageError(f"{target}: {place} has no {name}") from None
    if not isinstance(found, type):
        raise UsageError(f"{target}: {name} is not a class but {type(found).__name__}")
    return found


def _import(name: str) -> ModuleType:
    # `python -m` puts the current directory here; the console script does not.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f"{name}: cannot be imported: {error}") from error
    # Somebody else's module may raise anything while it is imported.
    except Exception as error:
        raise UsageError(f"{name}: cannot be imported: {describe(error)}") from error


def _load_file(path: Path) -> ModuleType:
    full = path.resolve()
    # Two files of one name are two modules; one file is one module, however often it is named.
    name = f"kvoffload_target_{full.stem}_{blake2b(bytes(full), digest_size=6).hexdigest()}"
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    if not full.is_file():
        raise UsageError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Classes look their own module up there while they are being made.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    # As above.
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{path}: cannot be loaded: {describe(error)}") from error
    return module
