"""Drivers: how one policy is built and called. An author whose policy needs more subclasses it.

class SessionDriver(Driver[SessionPolicy]):
    def build(self, capacity: int) -> SessionPolicy:
        return SessionPolicy(cache_capacity=capacity, sessions=16)

    def contexts(self) -> SearchStrategy[Mapping[str, object] | None]:
        return st.fixed_dictionaries({"session_id": st.sampled_from(["a", "b"])})

    def request_started(self, policy: SessionPolicy, context: ReqContext) -> None:
        policy.open_session(context.req_id)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from typing_extensions import override

from kvoffload import CachePolicy, CachePolicyFactory, ChunkStatus, OffloadKey, ReqContext
from kvoffload.judge.blame import HostFailedError
from stateful_models import operations as op
from stateful_models.capabilities import BUILT_IN, Capabilities, stated_by
from stateful_models.host_types import OWN_TYPES, HostTypes
from stateful_models.hosts import VLLM_033, HostProtocol

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from kvoffload.judge.hints import RequestFuture

P = TypeVar("P", bound=CachePolicy)

COMMON_HINTS: Final[tuple[Mapping[str, object] | None, ...]] = (
    None,
    {},
    {"session_id": "s1", "priority": 1, "last_turn": False},
    {"session_id": "s2", "priority": 0, "last_turn": True},
)
"""What requests carry by default: nothing, or what clients commonly send."""


class DriverFailedError(HostFailedError):
    """A method of a driver raised, which is no fault of the policy."""


class Driver(Generic[P]):
    """Builds and calls the policy that `target` makes. Every method has a default that fits most.

    `host` is the protocol by which it is called, `types` what it is handed. `arguments` go to the
    constructor beside `cache_capacity`.
    """

    host: HostProtocol = VLLM_033
    types: HostTypes = OWN_TYPES

    def __init__(
        self, target: Callable[..., P], arguments: Mapping[str, object] | None = None
    ) -> None:
        self.target: Callable[..., P] = target
        self.arguments: Mapping[str, object] = arguments or {}

    @property
    def capabilities(self) -> Capabilities:
        """What the policy promises or declines; by default what its class states."""
        return stated_by(self.target)

    def build(self, capacity: int) -> P:
        """A new policy for a cache of `capacity` chunks."""
        return self.target(cache_capacity=capacity, **self.arguments)

    def build_around(self, inner: CachePolicy, capacity: int) -> P | None:
        """The policy around `inner`, for one that wraps another; None if it is no wrapper.

        One that is built so is held to pass everything on, once and as it came.
        """
        return None

    def canonical_state(self, policy: P) -> Hashable | None:
        """All that the policy's later choices depend on, equal for states that are alike; None
        if that is not known. By default what its method `canonical_state()` says, if it has one.

        Chunks and contexts stand in it as keys and request ids, and numbers that only ever grow
        by their rank. With it programs can be enumerated until no new state is left.
        """
        tell: Callable[[], Hashable] | None = getattr(policy, "canonical_state", None)
        return None if tell is None else tell()

    def contexts(self) -> SearchStrategy[Mapping[str, object] | None]:
        """The `kv_transfer_params` that requests carry; None for a request without any."""
        from hypothesis import strategies as st

        return st.sampled_from(COMMON_HINTS)

    def hints_for(self, future: RequestFuture) -> Mapping[str, object] | None:
        """What a request with this future would carry, when a trace's future is known; None for
        nothing. By default what clients commonly send: `kvoffload.judge.hints.common_hints`."""
        from kvoffload.judge.hints import common_hints

        return common_hints(future)

    def host_events(self) -> SearchStrategy[op.HostEvent] | None:
        """Calls of extra hooks at any time, None if there are none. Each is a `HostEvent`."""
        return None

    def perform_event(self, policy: P, event: op.HostEvent) -> None:
        """Perform an event of `host_events`: by default the method of its name, which must be."""
        getattr(policy, event.name)(*event.values)

    def request_started(self, policy: P, context: ReqContext) -> None:
        """A request was announced. Called once a request, before anything else about it."""

    def looked_up(self, policy: P, key: OffloadKey, found: bool, context: ReqContext) -> None:
        """A key was looked up, and found or not."""

    def before_store(self, policy: P, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """Keys are about to be offered; before the policy is told of misses."""

    def before_insert(
        self, policy: P, key: OffloadKey, chunk: ChunkStatus, context: ReqContext
    ) -> None:
        """A chunk is about to be inserted."""

    def after_insert(
        self, policy: P, key: OffloadKey, chunk: ChunkStatus, context: ReqContext
    ) -> None:
        """A chunk was inserted."""

    def evict(
        self, policy: P, count: int, protected: Set[OffloadKey], context: ReqContext
    ) -> Iterable[tuple[OffloadKey, ChunkStatus]] | None:
        """Ask for victims, for a store of the request; for policies that take more arguments."""
        return policy.evict(count, protected)

    def request_finished(self, policy: P, context: ReqContext) -> None:
        """A request ended; after the policy was told so."""


def authored(driver: object, base: type = Driver) -> Iterator[tuple[str, object]]:
    """What the classes between the base and the driver define: name and value, the author's own.

    Of a name that several define the last one counts.
    """
    lineage = type(driver).__mro__
    for cls in reversed(lineage[: lineage.index(base)]):
        yield from vars(cls).items()


class RegisteredDriver(Driver[CachePolicy]):
    """A policy of the registry, with what this project claims for it."""

    def __init__(self, name: str, arguments: Mapping[str, object] | None = None) -> None:
        super().__init__(CachePolicyFactory.get_cache_policy_cls(name), arguments)
        self._name = name

    @property
    @override
    def capabilities(self) -> Capabilities:
        return BUILT_IN.get(self._name, super().capabilities)


def registered(name: str, arguments: Mapping[str, object] | None = None) -> Driver[CachePolicy]:
    """The driver of a policy that is named in the registry. Raises UnknownPolicyError."""
    return RegisteredDriver(name, arguments)
