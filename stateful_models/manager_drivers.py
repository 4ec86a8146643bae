"""Drivers of managers: how one is built and called. An author whose manager needs more subclasses.

class TwoTierDriver(ManagerDriver[TwoTierManager]):
    def build(self, options: ManagerOptions) -> TwoTierManager:
        return TwoTierManager(cpu_chunks=options.num_chunks, disk=Path("/dev/null"))

    @property
    def policies(self) -> Sequence[str]:
        return ()
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from attrs import frozen

from kvoffload import CachePolicy, CPUOffloadingManager, OffloadingManager
from kvoffload.errors import InvalidValueError
from stateful_models import operations as op
from stateful_models.drivers import COMMON_HINTS
from stateful_models.signatures import parameters_of
from stateful_models.subjects import call_if_there

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

M = TypeVar("M", bound=OffloadingManager)

BUILT_IN_POLICIES: Final = ("lru", "arc")
"""With which policies managers are tried that can be given one by name."""


@frozen(kw_only=True)
class ManagerCapabilities:
    """What a manager promises beyond the contract, declines of it, or can be built with.

    A manager states them as the class attribute `manager_capabilities`; else what its constructor
    takes tells the last four. Whether it gives tickets is seen from its completions.
    """

    reference: bool = False
    """Every answer is that of the reference model, with the policies "lru" and "arc"."""
    may_refuse: str | None = None
    """Why `prepare_store` may answer None although enough chunks are idle (STORE-4)."""
    events: bool = True
    """Delivers events when it is built with `enable_events`."""
    reuse_threshold: bool = True
    """Can be built with a `store_threshold` (STORE-3)."""
    tracker_size: bool = True
    """Can be built with a `max_tracker_size` (STORE-3)."""
    tap: bool = False
    """Takes a class as `cache_policy`, so that what it tells its policy can be judged."""


REFERENCE: Final = ManagerCapabilities(reference=True, tap=True)
"""What the CPU manager of this project claims."""


OWN_MANAGERS: Final = ("cpu", "CPUOffloadingManager", "kvoffload:CPUOffloadingManager")
"""How the manager of this project is named."""


@frozen(kw_only=True)
class ManagerOptions:
    """How a manager is to be built. A `cache_policy` of None is the one it has by itself."""

    num_chunks: int
    cache_policy: str | type[CachePolicy] | None = None
    store_threshold: int = 1
    enable_events: bool = True
    max_tracker_size: int | None = None


class ManagerDriver(Generic[M]):
    """Builds and calls the manager that `target` makes. Every method has a default that fits most.

    `arguments` go to the constructor beside the number of chunks and the options that it takes.
    `capabilities` are stated in place of the manager.
    """

    def __init__(
        self,
        target: Callable[..., M],
        arguments: Mapping[str, object] | None = None,
        *,
        capabilities: ManagerCapabilities | None = None,
    ) -> None:
        self.target: Callable[..., M] = target
        self.arguments: Mapping[str, object] = arguments or {}
        self._stated = capabilities
        self._parameters = parameters_of(target)

    @property
    def capabilities(self) -> ManagerCapabilities:
        """What the manager promises or declines; by default what it states, else takes."""
        stated: object = self._stated or getattr(self.target, "manager_capabilities", None)
        if isinstance(stated, ManagerCapabilities):
            return stated
        policy = self._parameters.get("cache_policy") if self._takes("cache_policy") else None
        return ManagerCapabilities(
            events=self._takes("enable_events"),
            reuse_threshold=self._takes("store_threshold"),
            tracker_size=self._takes("max_tracker_size"),
            tap=policy is not None and "type[" in str(policy.annotation).lower(),
        )

    @property
    def policies(self) -> Sequence[str]:
        """The cache policies that it is built with in turn; none, and it chooses by itself."""
        return BUILT_IN_POLICIES if self._takes("cache_policy") else ()

    def build(self, options: ManagerOptions) -> M:
        """A new manager, given of the options those that it takes."""
        known: dict[str, object] = {
            "cache_policy": options.cache_policy,
            "enable_events": options.enable_events,
            "store_threshold": options.store_threshold,
            "max_tracker_size": options.max_tracker_size,
        }
        taken = {
            name: value for name, value in known.items() if value is not None and self._takes(name)
        }
        return self.target(options.num_chunks, **{**taken, **self.arguments})

    def judged(self, manager: M) -> object:
        """The object whose code is on trial: the manager, unless it only passes calls on."""
        return manager

    @property
    def remarks(self) -> Sequence[str]:
        """What a reader of the verdict should know of what was tried, a line each."""
        return ()

    def contexts(self) -> SearchStrategy[Mapping[str, object] | None]:
        """The `kv_transfer_params` that requests carry; None for a request without any."""
        from hypothesis import strategies as st

        return st.sampled_from(COMMON_HINTS)

    def host_events(self) -> SearchStrategy[op.HostEvent] | None:
        """Calls of extra methods at any time, None if there are none. Each is a `HostEvent`."""
        return None

    def perform_event(self, manager: M, event: op.HostEvent) -> None:
        """Perform an event of `host_events`: by default the method of its name, if there is one."""
        call_if_there(manager, event.name, event.values)

    def _takes(self, name: str) -> bool:
        if name in self.arguments:
            return False
        kinds = {parameter.kind for parameter in self._parameters.values()}
        return name in self._parameters or inspect.Parameter.VAR_KEYWORD in kinds


def registered_manager(
    name: str, arguments: Mapping[str, object] | None = None
) -> ManagerDriver[OffloadingManager]:
    """The driver of the manager of this project, with what it claims.

    Raises InvalidValueError for another name than one of `OWN_MANAGERS`.
    """
    if name not in OWN_MANAGERS:
        raise InvalidValueError("name", name, f"one of {', '.join(OWN_MANAGERS)}")
    return ManagerDriver(CPUOffloadingManager, arguments, capabilities=REFERENCE)
