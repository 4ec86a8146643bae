"""Policies, managers and invariants as they are named on the command line.

`lru` is a name of the registry, `pkg.mod:Class` a class of an importable module (the current
directory included), `file.py:Class` one of a file, which may import the files beside it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import blake2b
from inspect import isabstract
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from attrs import frozen

from kvoffload.cli.foreign import failing_as
from kvoffload.cli.problems import FILE_MODULE, UsageError, in_one_line
from kvoffload.cpu.manager import CPUOffloadingManager
from kvoffload.errors import KVOffloadError, UnknownPolicyError
from kvoffload.manager import OffloadingManager
from kvoffload.policies.base import CachePolicy
from kvoffload.policies.factory import CachePolicyFactory, check_policy_cls

if TYPE_CHECKING:
    from stateful_models.account import Account
    from stateful_models.invariants import Invariant

Policy: TypeAlias = "str | type[CachePolicy]"
ManagerMaker: TypeAlias = Callable[..., OffloadingManager]
DEFAULT_MANAGER = "CPUOffloadingManager"


@frozen
class InvariantTarget:
    """An invariant by its name on the command line; every run gets one of its own."""

    name: str
    make: Callable[[], Invariant[Account]]


def find_policy(target: str) -> Policy:
    """A registered name as it is, or the class that `target` names.

    Raises UsageError when there is no such policy, or when it is none.
    """
    with failing_as(f"--policy {target}"):
        try:
            if ":" in target:
                return check_policy_cls(_find_class(target))
            CachePolicyFactory.get_cache_policy_cls(target)
        except UnknownPolicyError:
            raise UsageError(
                f"--policy {target}: not registered ({', '.join(CachePolicyFactory.names())} "
                "are); one of your own is named pkg.mod:Class or file.py:Class"
            ) from None
        except KVOffloadError as error:
            raise UsageError(f"--policy {target}: {in_one_line(str(error))}") from error
    return target


def refuses_by_design(policy: Policy, policy_name: str) -> bool:
    """Whether the policy declares that its `evict` may refuse (POL-3).

    Raises UsageError when it raises instead of telling.
    """
    found = CachePolicyFactory.get_cache_policy_cls(policy) if isinstance(policy, str) else policy
    with failing_as(f"--policy {policy_name}: may_refuse cannot be read"):
        # A policy need not derive from ours, and then may lack the declaration.
        return bool(getattr(found, "may_refuse", None))


def find_manager(target: str | None) -> ManagerMaker:
    """What builds the manager that `target` names, by default CPUOffloadingManager.

    Raises UsageError when there is none.
    """
    if target is None:
        return CPUOffloadingManager
    with failing_as(f"--manager {target}"):
        found = _find_class(target)
        if not issubclass(found, OffloadingManager):
            raise UsageError(f"--manager {target}: not a subclass of OffloadingManager")
        if isabstract(found):
            missing = ", ".join(sorted(found.__abstractmethods__))
            raise UsageError(f"--manager {target}: it lacks {missing}")
        return found


def make_manager(
    maker: ManagerMaker,
    manager_name: str,
    chunks: int,
    policy_name: str,
    policy: Policy,
    *,
    store_threshold: int,
) -> OffloadingManager:
    """Build the manager of one run, with events.

    Raises UsageError when it, or the policy that it builds, raises.
    """
    # Ours builds with these arguments, so where it is not built the policy is to blame.
    ours = maker is CPUOffloadingManager
    whose = f"--policy {policy_name}" if ours else f"--manager {manager_name}"
    with_what = "" if ours else f" with {policy_name}"
    # Only what differs from the default, for managers that know fewer options.
    options = {} if store_threshold == 1 else {"store_threshold": store_threshold}
    with failing_as(f"{whose}: cannot be built{with_what}"):
        return maker(chunks, cache_policy=policy, enable_events=True, **options)


def find_invariant(target: str) -> InvariantTarget:
    """The invariant that `target` names, built once to see that it can be.

    Raises UsageError when there is none.
    """
    # The judge is imported only by those who ask for it.
    from stateful_models.invariants import Invariant

    with failing_as(f"--invariant {target}"):
        found = _find_class(target)
        if not issubclass(found, Invariant):
            raise UsageError(f"--invariant {target}: not a subclass of stateful_models' Invariant")
        # Of which subject's books it is an invariant shows when it judges.
        of_managers: type[Invariant[Account]] = found
        if isabstract(of_managers):
            missing = ", ".join(sorted(of_managers.__abstractmethods__))
            raise UsageError(f"--invariant {target}: it lacks {missing}")
    invariant = InvariantTarget(target, of_managers)
    make_invariant(invariant)
    return invariant


def make_invariant(target: InvariantTarget) -> Invariant[Account]:
    """A new instance. Raises UsageError when its constructor raises."""
    with failing_as(f"--invariant {target.name}: cannot be built"):
        return target.make()


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
    with failing_as(f"{name}: cannot be imported"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(f"{name}: cannot be imported: {error}") from error


def _load_file(path: Path) -> ModuleType:
    full = path.resolve()
    # Two files of one name are two modules; one file is one module, however often it is named.
    name = f"{FILE_MODULE}{blake2b(bytes(full), digest_size=6).hexdigest()}"
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
        with failing_as(f"{path}: cannot be loaded"), _first_on_path(str(full.parent)):
            spec.loader.exec_module(module)
    # Only now: until it is described, an error may speak of the module by its name.
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


@contextmanager
def _first_on_path(folder: str) -> Generator[None]:
    """Let what is loaded meanwhile import what lies in `folder`, as a program there could.

    Nothing is written beside it: bytecode is told from newer source by whole seconds, and whoever
    works on a policy saves and tries within one.
    """
    sys.path.insert(0, folder)
    writes_bytecode = not sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = not writes_bytecode
        # The file may have changed the path too.
        if folder in sys.path:
            sys.path.remove(folder)
