"""A policy behind its driver as the policy of a manager: called as its host calls it.

The calls of our manager are those of its own protocol. Here they become those of the protocol of
a driver, with the chunks and contexts of that host, and the extra calls that the driver makes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import Final

from typing_extensions import override

from kvoffload import (
    CachePolicy,
    ChunkStatus,
    CPUOffloadingManager,
    LookupResult,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)
from kvoffload.cpu.load_store import CPULoadStoreSpec
from kvoffload.cpu.policy_guard import PolicyGuard
from kvoffload.judge.front import Front
from kvoffload.policies.hooks import PolicyHooks
from kvoffload.requests import PerRequest
from stateful_models.driver_faults import answerable, spare_the_policy
from stateful_models.drivers import Driver, RegisteredDriver, authored
from stateful_models.generous import GenerousGuard
from stateful_models.host_types import OWN_TYPES
from stateful_models.hosts import VLLM_033
from stateful_models.policy_subject import context_taken

MAY_REFUSE: Final = "a manager of vLLM takes a refusal without being told why"


def driven_manager(driver: Driver[CachePolicy], capacity: int) -> CPUOffloadingManager:
    """A manager of `capacity` chunks, with events, whose policy the driver builds and calls.

    Raises what building raises.
    """
    target: object = driver.target
    plain = (
        type(driver) in (Driver, RegisteredDriver)
        and driver.host == VLLM_033
        and driver.types is OWN_TYPES
        and not driver.arguments
    )
    if plain and isinstance(target, type) and issubclass(target, CachePolicy):
        stated = driver.capabilities
        if bool(target.may_refuse) == bool(stated.may_refuse) and stated.may_evict_more is None:
            # It calls as our manager does.
            return CPUOffloadingManager(capacity, target, enable_events=True)
    manager = _LookingManager if _told_of_lookups(driver) else DrivenManager
    return manager(driver, capacity)


class DrivenPolicy(Front):
    """Passes the calls of our manager on to the policy that a driver builds.

    Chunks of another host are kept beside ours, with the same slots and reference counts.
    """

    def __init__(self, cache_capacity: int, driver: Driver[CachePolicy]) -> None:
        super().__init__(cache_capacity)
        self._build = answerable(driver, driver.build)
        self.policy: CachePolicy = self._build(cache_capacity)
        self.tells_lookups: bool = _told_of_lookups(driver)
        self.evicts_more: bool = driver.capabilities.may_evict_more is not None
        self.chunk: type[ChunkStatus] | None = (
            None if driver.types is OWN_TYPES else driver.types.chunk
        )
        self.slot: str = driver.types.slot
        self._driver = driver
        self._tell_started = answerable(driver, driver.request_started)
        self._tell_looked_up = answerable(driver, driver.looked_up)
        self._tell_before_store = answerable(driver, driver.before_store)
        self._tell_before_insert = answerable(driver, driver.before_insert)
        self._tell_after_insert = answerable(driver, driver.after_insert)
        self._ask_victims = answerable(driver, driver.evict)
        self._tell_finished = answerable(driver, driver.request_finished)
        self._host = driver.host
        self._own_types: bool = driver.types is OWN_TYPES
        self._hooks = PolicyHooks(self.policy)
        self._insert_takes_context, self._touch_takes_context = context_taken(
            self.policy, driver.types
        )
        self._chunks: dict[OffloadKey, tuple[ChunkStatus, ChunkStatus]] = {}
        self._contexts: PerRequest[tuple[ReqContext, list[int]]] = PerRequest()
        self._offering = ReqContext("nobody")

    def context(self, ours: ReqContext) -> ReqContext:
        """The context of the host for a request; knows as much as ours does by now."""
        if self._own_types:
            return ours
        kept = self._contexts.get(ours)
        types = self._driver.types
        if kept is None:
            made = types.make_context(ours.req_id)
            types.announce(made, ours.kv_transfer_params, ours.load_tier_filter)
            kept = made, [0]
            self._contexts.set(ours, kept)
        theirs, known = kept
        positions = ours.offload_key_positions
        if len(positions) != known[0]:
            for key, end in positions.items():
                types.set_position(theirs, key, end)
            known[0] = len(positions)
        return theirs

    @override
    def request_started(self, context: ReqContext) -> None:
        """A request was announced to the manager."""
        self._tell_started(self.policy, self.context(context))

    @override
    def looked_up(self, key: OffloadKey, found: bool, context: ReqContext) -> None:
        """A key was looked up."""
        self._tell_looked_up(self.policy, key, found, self.context(context))

    @override
    def offered(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """Keys are about to be offered."""
        self._offering = context
        self._tell_before_store(self.policy, keys, self.context(context))
        self.scheduled(keys, context)

    @override
    def scheduled(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """A request is scheduled, with these keys."""
        if self._host.touches_steps:
            self.touch(keys, context)

    @override
    def request_over(self, context: ReqContext) -> None:
        """A request ended, and the policy has been told."""
        self._tell_finished(self.policy, self.context(context))

    @override
    def host_objects(self) -> Iterable[object]:
        """The chunks of the host, and the contexts of requests that go on."""
        yield from (theirs for _, theirs in self._chunks.values())
        yield from (theirs for theirs, _ in self._contexts.values())

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        kept = self._chunks.get(key)
        return None if kept is None else kept[0]

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        theirs = chunk if self.chunk is None else self.chunk(chunk.chunk_id)
        self._chunks[key] = chunk, theirs
        context = self.context(req_context)
        policy = self.policy
        self._tell_before_insert(policy, key, theirs, context)
        arguments = (key, theirs, context) if self._insert_takes_context else (key, theirs)
        # Which of the two forms it has was found out when it was built.
        insert: Callable[..., None] = policy.insert
        insert(*arguments)
        self._tell_after_insert(policy, key, theirs, context)

    @override
    def remove(self, key: OffloadKey) -> None:
        self.policy.remove(key)
        self._chunks.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        if self._touch_takes_context:
            self.policy.touch(keys, self.context(req_context))
        else:
            self.policy.touch(keys)  # type: ignore[call-arg]  # as at `insert`

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        answer = self._ask_victims(self.policy, n, set(protected), self.context(self._offering))
        if answer is None:
            return None
        victims: list[tuple[OffloadKey, ChunkStatus]] = []
        try:
            for key, chunk in answer:
                # What is not the chunk that was inserted is passed on as it is, for all to see.
                ours, theirs = self._chunks.pop(key, (chunk, chunk))
                victims.append((key, ours if theirs is chunk else chunk))
        except BaseException as error:
            # An answer may do its work only when it is read.
            spare_the_policy(self._driver, error)
            raise
        return victims

    @override
    def clear(self) -> None:
        if self._host.clears:
            self.policy.clear()
        else:
            self.policy = self._build(self.cache_capacity)
            self._hooks = PolicyHooks(self.policy)
        self._chunks.clear()

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        if self._host.tells_misses:
            self._hooks.on_store_miss(list(keys), self.context(req_context))

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        hook = self._hooks.on_request_access
        if self._host.tells_accesses and hook is not None:
            hook(list(keys), self.context(req_context))

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        if self._host.tells_finish:
            self._hooks.on_request_finished(
                key_groups, set(insertion_only_keys), set(reused_keys), self.context(req_context)
            )

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        _, theirs = self._chunks[key]
        if not self._own_types:
            theirs.ref_cnt = 0
        if self._host.marks and self._hooks.mark_all_evictable is not None:
            self._hooks.mark_all_evictable([key])

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        if self._host.marks and self._hooks.mark_all_non_evictable is not None:
            self._hooks.mark_all_non_evictable([key])
        if not self._own_types:
            # Of several pins the first is seen, which is what keeps it.
            self._chunks[key][1].ref_cnt = 1


class DrivenManager(CPUOffloadingManager):
    """Our manager, which tells the driver of what its own policies are not told."""

    def __init__(self, driver: Driver[CachePolicy], capacity: int) -> None:
        name = getattr(driver.target, "__name__", type(driver.target).__name__)
        # A class, for that is what managers take; called like the target, for errors name it.
        declared = driver.capabilities.may_refuse
        may_refuse = declared if driver.types is OWN_TYPES else declared or MAY_REFUSE
        own = {"__init__": _building(driver), "may_refuse": may_refuse}
        policy_cls = type(name, (DrivenPolicy,), own)
        if driver.capabilities.may_evict_more is not None:
            self.guard_cls: type[PolicyGuard] = GenerousGuard
        super().__init__(capacity, policy_cls, enable_events=True)

    @property
    def driven(self) -> DrivenPolicy:
        """What stands before the policy."""
        policy = self.policy
        if not isinstance(policy, DrivenPolicy):
            raise TypeError(f"{policy!r} is no DrivenPolicy")
        return policy

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        answer = super().on_new_request(req_context)
        self.driven.request_started(req_context)
        return answer

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        self.driven.scheduled(list(keys), req_context)
        return super().prepare_load(keys, req_context, record_access=record_access)

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        self.driven.offered(list(dict.fromkeys(keys)), req_context)
        return super().prepare_store(keys, req_context)

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        super().on_request_finished(req_context)
        self.driven.request_over(req_context)


class _LookingManager(DrivenManager):
    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        found = super().lookup(key, req_context)
        self.driven.looked_up(key, found is not LookupResult.MISS, req_context)
        return found


def _told_of_lookups(driver: Driver[CachePolicy]) -> bool:
    return any(name == "looked_up" for name, _ in authored(driver))


def _building(driver: Driver[CachePolicy]) -> object:
    def build(self: DrivenPolicy, cache_capacity: int) -> None:
        DrivenPolicy.__init__(self, cache_capacity, driver)

    return build
