"""What a request names, found where the target runs: targets, drivers and invariants, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import isabstract
from typing import Any, TypeVar

from kvoffload import CachePolicy, CachePolicyFactory, CPUOffloadingManager, OffloadingManager
from kvoffload.errors import KVOffloadError
from stateful_models.capabilities import Capabilities
from stateful_models.drivers import Driver, RegisteredDriver, authored
from stateful_models.engines.samples import MAX_EXAMPLES, examples
from stateful_models.hosts import HostProtocol
from stateful_models.loading import TargetError, describe, find, find_class
from stateful_models.manager_drivers import OWN_MANAGERS, ManagerDriver, registered_manager
from stateful_models.operations import Operation
from stateful_models.own_invariants import OwnInvariant, built_with, find_own
from stateful_models.trial.driver_methods import check_event
from stateful_models.trial.request import Request
from stateful_models.vllm.manager_target import is_manager_target, manager_driver, manager_maker

DriverT = TypeVar("DriverT")


def find_driver(request: Request) -> Driver[CachePolicy]:
    """The driver of the policy that a request is about. Raises TargetError."""
    target = request.target
    if ":" not in target:
        try:
            make = CachePolicyFactory.get_cache_policy_cls(target)
        except KVOffloadError as error:
            raise TargetError(
                f"{target}: not registered ({', '.join(CachePolicyFactory.names())} are); one of "
                "your own is named pkg.mod:Class or file.py:Class"
            ) from error
        if request.driver is None:
            return RegisteredDriver(target, request.arguments)
        return _driven(request, make, Driver)
    # Whether it makes policies shows when it is called.
    found: Callable[..., CachePolicy] = _callable(target)
    made: object = found
    if isinstance(made, type) and issubclass(made, OffloadingManager):
        raise TargetError(f"{target}: a manager, which is tried with --manager")
    return _driven(request, found, Driver)


def find_manager_driver(request: Request) -> ManagerDriver[OffloadingManager]:
    """The driver of the manager that a request is about. Raises TargetError."""
    target = request.target
    if is_manager_target(target):
        if request.driver is None:
            return manager_driver(target, request.arguments)
        return _driven(request, manager_maker(target), ManagerDriver)
    own = target in OWN_MANAGERS
    if not own and ":" not in target:
        policy = target in CachePolicyFactory.names()
        why = "a policy, which is tried without --manager" if policy else "not registered (cpu is)"
        raise TargetError(
            f"{target}: {why}; a manager of your own is named pkg.mod:Class or file.py:Class"
        )
    if own and request.driver is None:
        return registered_manager(target, request.arguments)
    make: Callable[..., OffloadingManager] = CPUOffloadingManager if own else _callable(target)
    return _driven(request, make, ManagerDriver)


def _driven(request: Request, make: object, usual: type[DriverT]) -> DriverT:
    if request.driver is None:
        return usual(make, request.arguments)  # type: ignore[call-arg]  # both kinds take these
    found = find_class(request.driver)
    if not issubclass(found, usual):
        raise TargetError(
            f"{request.driver}: not a subclass of {usual.__module__}.{usual.__name__}"
        )
    try:
        return found(make, request.arguments)  # type: ignore[call-arg]  # as the line above
    except Exception as error:
        raise TargetError(f"{request.driver}: cannot be built: {describe(error)}") from error


def _callable(target: str) -> Any:
    found = find(target)
    if not callable(found):
        raise TargetError(f"{target}: neither a class nor a factory")
    if isinstance(found, type) and isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise TargetError(f"{target}: it lacks {missing}")
    return found


def check_driver(request: Request, driver: Driver[CachePolicy]) -> None:
    """Raise TargetError if what the driver says of itself is of another type."""
    whose = request.driver or request.target
    stated: object = driver.capabilities
    if not isinstance(stated, Capabilities):
        raise TargetError(f"{whose}: capabilities is no Capabilities but {stated!r:.80}")
    host: object = driver.host
    if not isinstance(host, HostProtocol):
        raise TargetError(f"{whose}: host is no HostProtocol but {host!r:.80}")
    try:
        hints = examples(driver.contexts(), MAX_EXAMPLES, request.seed)
    except Exception as error:
        raise TargetError(f"{whose}: contexts() cannot be drawn: {describe(error)}") from error
    for each in hints:
        as_object: object = each
        if as_object is not None and not isinstance(as_object, dict):
            raise TargetError(f"{whose}: contexts() gives {as_object!r:.80}, no dict and not None")


def check_events(request: Request, driver: Driver[CachePolicy], sample: CachePolicy) -> None:
    """Raise TargetError if an extra call of the host is none that the policy can be given."""
    events = driver.host_events()
    if events is None or any(name == "perform_event" for name, _ in authored(driver)):
        return
    for event in examples(events, MAX_EXAMPLES, request.seed):
        if not callable(getattr(sample, event.name, None)):
            raise TargetError(
                f"{request.driver}: host_events has {event.name}, and {request.target} has no "
                "such method"
            )
        check_event(request.driver or request.target, request.target, sample, event)


def check_manager_events(
    request: Request, driver: ManagerDriver[OffloadingManager], sample: OffloadingManager
) -> None:
    """Raise TargetError if an extra call of the host is none that the manager can be given."""
    events = driver.host_events()
    lineage = type(driver).__mro__
    own = lineage[: lineage.index(ManagerDriver)]
    if events is None or any("perform_event" in vars(cls) for cls in own):
        return
    for event in examples(events, MAX_EXAMPLES, request.seed):
        check_event(request.driver or request.target, request.target, sample, event)


def find_invariants(
    request: Request,
    calls: tuple[type[Operation], ...],
    target: object,
    arguments: Mapping[str, object],
) -> list[OwnInvariant]:
    """What makes the invariants of a request that have a clause which is wanted.

    They get what the target is built with, as far as they ask for it. Raises TargetError, also
    where one is concerned with no call that its subject gets.
    """
    given = built_with(target, arguments)
    found = [find_own(name, given, calls) for name in request.invariants]
    return [own for own in found if not own.clauses or any(map(request.wants, own.clauses))]
