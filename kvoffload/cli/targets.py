"""Policies, managers and invariants as they are named on the command line.

`lru` is a name of the registry, `pkg.mod:Class` a class of an importable module (the current
directory included), `file.py:Class` one of a file, which may import the files beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isabstract
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import frozen

from kvoffload.cli.foreign import failing_as
from kvoffload.cli.problems import UsageError
from kvoffload.cpu.manager import CPUOffloadingManager
from kvoffload.errors import KVOffloadError, UnknownPolicyError
from kvoffload.manager import OffloadingManager
from kvoffload.policies.base import CachePolicy
from kvoffload.policies.factory import CachePolicyFactory, check_policy_cls
from stateful_models.loading import TargetError, find_class, in_one_line

if TYPE_CHECKING:
    from stateful_models.account import Account
    from stateful_models.invariants import Invariant

Policy: TypeAlias = "str | type[CachePolicy]"
ManagerMaker: TypeAlias = Callable[..., OffloadingManager]
DEFAULT_MANAGER = "CPUOffloadingManager"
REGISTERED: Final = ", ".join(CachePolicyFactory.names())
"""The policies that have a name, for help texts."""


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
    found = _class_of(policy)
    with failing_as(f"--policy {policy_name}: may_refuse cannot be read"):
        # A policy need not derive from ours, and then may lack the declaration.
        return bool(getattr(found, "may_refuse", None))


def evicts_more_by_design(policy: Policy) -> bool:
    """Whether the policy declares that its `evict` may give more than it is asked for.

    One that raises instead of telling declares nothing.
    """
    try:
        stated: object = getattr(_class_of(policy), "capabilities", None)
    except Exception:
        return False
    if stated is None:
        return False
    # Whoever states any has imported this too.
    from stateful_models.capabilities import Capabilities

    return isinstance(stated, Capabilities) and stated.may_evict_more is not None


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
    build = _for_more_victims() if ours and evicts_more_by_design(policy) else maker
    with failing_as(f"{whose}: cannot be built{with_what}"):
        return build(chunks, cache_policy=policy, enable_events=True, **options)


def find_invariant(target: str) -> InvariantTarget:
    """The invariant that `target` names, built once to see that it can be.

    Raises UsageError when there is none, or one that a replay has nothing to ask: it judges the
    calls of a manager, not those of a policy.
    """
    # The judge is imported only by those who ask for it.
    from stateful_models.invariants import Invariant, PolicyBooks
    from stateful_models.operations import ManagerOperation
    from stateful_models.own_invariants import check_concerns, is_over

    with failing_as(f"--invariant {target}"):
        found = _find_class(target)
        if not issubclass(found, Invariant):
            raise UsageError(f"--invariant {target}: not a subclass of stateful_models' Invariant")
        # Of which subject's books it is an invariant shows when it judges.
        of_managers: type[Invariant[Account]] = found
        if isabstract(of_managers):
            missing = ", ".join(sorted(of_managers.__abstractmethods__))
            raise UsageError(f"--invariant {target}: it lacks {missing}")
        if is_over(of_managers, PolicyBooks):
            raise UsageError(
                f"--invariant {target}: it judges the calls of a policy (Invariant[PolicyBooks]), "
                "and a replay those of a manager (Invariant[Account]); kvoffload verify tries "
                "policies with it"
            )
    invariant = InvariantTarget(target, of_managers)
    made = make_invariant(invariant)
    try:
        check_concerns(target, made, (ManagerOperation,))
    except TargetError as error:
        raise UsageError(f"--invariant {error}") from error
    return invariant


def make_invariant(target: InvariantTarget) -> Invariant[Account]:
    """A new instance. Raises UsageError when its constructor raises."""
    with failing_as(f"--invariant {target.name}: cannot be built"):
        return target.make()


def _for_more_victims() -> ManagerMaker:
    from stateful_models.generous import GenerousManager

    return GenerousManager


def _class_of(policy: Policy) -> type[CachePolicy]:
    return CachePolicyFactory.get_cache_policy_cls(policy) if isinstance(policy, str) else policy


def _find_class(target: str) -> type[object]:
    try:
        return find_class(target)
    except TargetError as error:
        raise UsageError(str(error)) from error
