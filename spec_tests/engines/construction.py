"""How managers, policies and specifications are made, against arithmetic and tables of our own.

Right values are kept and wrong ones refused by name (SPECS-2, SPECS-4, MET-1); a policy is found
by name, by module or as a class, and one that lacks something is refused with what it lacks.
"""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from kvoffload import (
    CachePolicy,
    CachePolicyFactory,
    CPUOffloadingManager,
    CPUOffloadingSpec,
    InvalidValueError,
    LookupResult,
    OffloadingConfig,
    OffloadingWorker,
    ReqContext,
    make_offload_key,
)
from kvoffload.config import (
    OffloadingCacheConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from kvoffload.cpu.load_store import CPULoadStoreSpec
from kvoffload.errors import (
    DuplicatePolicyError,
    InvalidKeyError,
    NotAPolicyError,
    UnknownPolicyError,
    UnknownTicketError,
)
from kvoffload.metrics import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
)
from kvoffload.tiers import Medium
from kvoffload.transfers import GPULoadStoreSpec, LoadStoreSpec, TransferResult
from spec_tests.engines import shapes
from spec_tests.engines.workers import PAGE, try_workers

HERE: Final = "spec_tests.engines.construction"
SHAPES_MODULE: Final = "spec_tests.engines.shapes"
NAMES: Final = ("get", "insert", "remove", "touch", "evict", "clear")
BUILT_IN: Final = {"lru": "LRUCachePolicy", "arc": "ARCCachePolicy"}


class Needs(shapes.Foreign):
    """Cannot be made from a capacity alone."""

    def __init__(self, cache_capacity: int, more: int) -> None:
        super().__init__(cache_capacity + more)


class Takes(shapes.Foreign):
    """Takes no capacity by that name."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)


NO_CLASS: Final = 7


def demand(holds: bool, what: object) -> None:
    """Raise AssertionError unless something holds."""
    if not holds:
        raise AssertionError(what)


def demand_same(one: object, other: object) -> None:
    """Raise AssertionError unless both are the same object."""
    demand(one is other, f"{one!r} is not {other!r}")


def refused(call: Callable[[], object], *errors: type[Exception]) -> Exception:
    """The error of a call, which must be of just one of these types."""
    try:
        made = call()
    except Exception as error:
        demand(type(error) in errors, repr(error))
        return error
    raise AssertionError(f"made {made!r}")


def refused_value(call: Callable[[], object], field: str, value: object) -> None:
    """A call must refuse `value` under the name `field`."""
    error = refused(call, InvalidValueError)
    named = isinstance(error, InvalidValueError) and (error.field, error.value) == (field, value)
    demand(named, f"{error!r} instead of a refusal of {field}={value!r}")


def try_managers() -> None:
    """Arguments of the manager."""
    plain = CPUOffloadingManager(3)
    kept = (plain.num_chunks, plain.store_threshold, plain.max_tracker_size, plain.medium)
    demand(kept == (3, 1, 64_000, Medium.CPU), kept)
    demand(type(plain.policy).__name__ == "LRUCachePolicy", plain.policy)
    demand((plain.generation, plain.stale_completions) == (0, 0), "a new manager has a history")
    demand(plain.take_events() == [], "a manager without events has some")
    _try_quiet(plain)
    for field, least in (("num_chunks", 0), ("store_threshold", 0), ("max_tracker_size", 0)):
        made = _builder({"num_chunks": 2, field: least})()
        demand(getattr(made, field) == least, f"{field} is not {least}")
        wrong: object
        for wrong in (least - 1, True, 1.0, "1", None):
            refused_value(_builder({"num_chunks": 2, field: wrong}), field, wrong)
    for wrong in (1, None, "yes"):
        refused_value(_builder({"num_chunks": 2, "enable_events": wrong}), "enable_events", wrong)
    for name, cls in BUILT_IN.items():
        demand(type(CPUOffloadingManager(2, name).policy).__name__ == cls, name)
    by_path = CPUOffloadingManager(2, "Native", SHAPES_MODULE).policy
    demand(isinstance(by_path, shapes.Native), by_path)
    demand(by_path.cache_capacity == 2, f"its capacity is {by_path.cache_capacity}")
    demand(isinstance(CPUOffloadingManager(2, shapes.Native).policy, shapes.Native), "a class")
    refused(_builder({"num_chunks": 2, "cache_policy": "nameless"}), UnknownPolicyError)
    refused(_builder({"num_chunks": 2, "cache_policy": Needs}), NotAPolicyError)


def _try_quiet(manager: CPUOffloadingManager) -> None:
    """Without events none are made, though there is something to tell."""
    key, context = make_offload_key(b"a", 0), ReqContext("r")
    demand(manager.prepare_store([key], context) is not None, "an empty cache refuses")
    manager.complete_store([key], context)
    demand(manager.take_events() == [], "a manager without events has some")
    # Success is one of two things, and nothing that is merely true.
    for wrong in (1, None, "yes"):
        complete: Callable[..., None] = manager.complete_store
        refused_value(lambda: complete([key], context, wrong), "success", wrong)  # noqa: B023


def _builder(
    arguments: Mapping[str, object], build: Callable[..., object] = CPUOffloadingManager
) -> Callable[[], object]:
    return lambda: build(**arguments)


def try_factory() -> None:
    """The registry, and what is taken for a policy."""
    factory = CachePolicyFactory
    for name, cls in BUILT_IN.items():
        found = factory.get_cache_policy_cls(name)
        demand(found.__name__ == cls and issubclass(found, CachePolicy), found)
        refused(lambda: factory.register_cache_policy(name, HERE, cls), DuplicatePolicyError)  # noqa: B023
        # A name that is registered goes before one in a module.
        demand(factory.get_cache_policy_cls(name, SHAPES_MODULE) is found, name)
    before = factory.names()
    demand(before[:2] == ("lru", "arc"), before)
    mine = f"mine-{len(before)}"
    factory.register_cache_policy(mine, SHAPES_MODULE, "Native")
    demand(factory.names() == (*before, mine), factory.names())
    demand_same(factory.get_cache_policy_cls(mine), shapes.Native)
    lazy = f"lazy-{len(before)}"
    # Looked for when it is asked for, and not before.
    factory.register_cache_policy(lazy, "no.such.module", "Native")
    refused(lambda: factory.get_cache_policy_cls(lazy), ModuleNotFoundError)
    absent = f"absent-{len(before)}"
    factory.register_cache_policy(absent, SHAPES_MODULE, "Absent")
    refused(lambda: factory.get_cache_policy_cls(absent), UnknownPolicyError)
    refused(lambda: factory.get_cache_policy_cls("nameless"), UnknownPolicyError)
    refused(lambda: factory.get_cache_policy_cls("Absent", SHAPES_MODULE), UnknownPolicyError)
    demand_same(factory.get_cache_policy_cls("Foreign", SHAPES_MODULE), shapes.Foreign)
    for name in ("Needs", "Takes", "NO_CLASS"):
        refused(lambda: factory.get_cache_policy_cls(name, HERE), NotAPolicyError)  # noqa: B023
    _try_lacking()


def _try_lacking() -> None:
    """A class without one of the methods, with one that cannot be called, or an abstract one."""
    class_of: Callable[..., type] = type

    def initialise(self: object, cache_capacity: int) -> None:
        pass

    for lacking in NAMES:
        methods: dict[str, object] = {
            name: getattr(shapes.Foreign, name) for name in NAMES if name != lacking
        }
        methods["__init__"] = initialise
        extras: tuple[dict[str, object], ...] = ({}, {lacking: 7})
        for extra in extras:
            cls = class_of("Lacking", (), {**methods, **extra})
            error = refused(_builder({"num_chunks": 2, "cache_policy": cls}), NotAPolicyError)
            demand(lacking in str(error), f"{error} does not say that {lacking} is lacking")
        derived = class_of("Abstract", (CachePolicy,), dict(methods))
        error = refused(_builder({"num_chunks": 2, "cache_policy": derived}), NotAPolicyError)
        named = [name for name in NAMES if name in str(error).rpartition("lacks")[2]]
        demand(named == [lacking], f"{error} instead of {lacking} alone")


def try_specs(seeds: Iterable[int]) -> None:
    """Specifications of the CPU tier."""
    for seed in seeds:
        chance = random.Random(seed)
        options: dict[str, object] = {"cpu_bytes_to_use": chance.choice((1, 4096, 10**6, 10**9))}
        threshold = chance.choice((0, 1, 2, 5))
        if chance.random() < 0.7:
            options["store_threshold"] = threshold
        else:
            threshold = 0
        policy = chance.choice(("lru", "arc", None, "Native", ""))
        if policy is not None:
            options["eviction_policy"] = policy
        if policy == "Native":
            options["cache_policy_module_path"] = SHAPES_MODULE
        size = chance.choice((64_000, 0, 17))
        if size != 64_000:
            options["max_tracker_size"] = size
        block = chance.choice((0, 1, mmap.PAGESIZE, mmap.PAGESIZE + 1, 12_345))
        world, per_chunk = chance.choice((1, 2, 3)), chance.choice((1, 2, 4))
        events = chance.random() < 0.5
        config = _config(options, block, world, per_chunk, events)
        spec = CPUOffloadingSpec(config)
        pages, rest = divmod(block * world * per_chunk, mmap.PAGESIZE)
        chunk = (pages + (rest > 0)) * mmap.PAGESIZE
        budget = options["cpu_bytes_to_use"]
        fits = budget // chunk if chunk and isinstance(budget, int) else 0
        shown = (spec.cpu_bytes_to_use, spec.kv_bytes_per_chunk, spec.num_chunks)
        demand(shown == (budget, chunk, fits), f"{shown}, expected {(budget, chunk, fits)}")
        demand((spec.store_threshold, spec.max_tracker_size) == (threshold, size), options)
        demand(spec.config is config, "another configuration")
        _try_spec(spec, policy or "lru", events)
        _try_definitions(options, threshold)


def _try_spec(spec: CPUOffloadingSpec, policy: str, events: bool) -> None:
    """One specification: the manager that it makes, and the worker that somebody brings."""
    if spec.num_chunks < 10**7:
        manager = spec.get_manager()
        demand(manager is spec.get_manager(), "another manager at every call")
        made = (manager.num_chunks, manager.store_threshold, manager.max_tracker_size)
        wanted = (spec.num_chunks, spec.store_threshold, spec.max_tracker_size)
        demand(made == wanted, f"{made}, expected {wanted}")
        name = type(manager.policy).__name__
        demand(name == BUILT_IN.get(policy, policy), f"{name} for {policy}")
        key, context = make_offload_key(b"a", 0), ReqContext("r")
        for _ in range(spec.store_threshold):
            manager.prepare_store([key], context)
        manager.prepare_store([key], context)
        manager.complete_store([key], context)
        told = manager.take_events()
        # Where nothing is remembered, nothing comes to a threshold.
        stores = spec.num_chunks > 0 and (spec.store_threshold < 2 or spec.max_tracker_size > 0)
        demand(bool(told) == (events and stores), f"{told}, events: {events}")
    caches = object()
    refused_value(lambda: _worker_of(spec, caches), "kv_caches", caches)
    asked: list[object] = []

    class WithWorker(CPUOffloadingSpec):
        """Brings a worker of its own."""

        def create_worker(self, kv_caches: object) -> OffloadingWorker:
            asked.append(kv_caches)
            return NoWorker()

    own = WithWorker(spec.config)
    demand(_worker_of(own, caches) is _worker_of(own, caches), "another worker each time")
    demand(asked == [caches], f"a worker for {asked}")


class NoWorker(OffloadingWorker):
    """Does nothing, and is asked for nothing."""

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return False

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return False

    def get_finished(self) -> list[TransferResult]:
        return []

    def wait(self, job_ids: set[int]) -> None:
        pass


def _worker_of(spec: CPUOffloadingSpec, caches: object) -> object:
    get: Callable[[object], object] = spec.get_worker  # type: ignore[assignment]
    return get(caches)


def _try_definitions(options: Mapping[str, object], threshold: int) -> None:
    """The figures that a manager reports are those that are defined, of their kinds."""
    definitions = CPUOffloadingSpec.build_metric_definitions(options)
    kinds = {name: type(metadata) for name, metadata in definitions.items()}
    gauge, counter = OffloadingGaugeMetadata, OffloadingCounterMetadata
    prefix = "vllm:kv_offload_"
    wanted: dict[str, type] = {
        f"{prefix}cpu_cache_usage_perc": gauge,
        f"{prefix}cpu_cache_write_usage_perc": gauge,
        f"{prefix}cpu_cache_read_usage_perc": gauge,
        f"{prefix}cpu_allocation_size": OffloadingHistogramMetadata,
    }
    if threshold >= 2:
        wanted[f"{prefix}stores_skipped"] = counter
    demand(kinds == wanted, f"{kinds}, expected {wanted}")
    for metadata in definitions.values():
        demand(bool(metadata.documentation.strip()), "a figure that nobody explains")
        if isinstance(metadata, OffloadingHistogramMetadata):
            demand(metadata.buckets == tuple(4**n for n in range(10)), metadata.buckets)


def try_options() -> None:
    """Options of the wrong type or out of range are refused by name."""
    right: dict[str, object] = {"cpu_bytes_to_use": 4096}
    for name, wrong in (
        ("cpu_bytes_to_use", (0, -1, "4096", 1.5, True, None)),
        ("store_threshold", (-1, "1", True, None)),
        ("max_tracker_size", (-1, "1", True, None)),
        ("eviction_policy", (1, b"lru", True)),
        ("cache_policy_module_path", (1, b"m", True)),
    ):
        for value in wrong:
            config = _config({**right, name: value}, 1, 1, 1, False)
            refused_value(lambda: CPUOffloadingSpec(config), name, value)  # noqa: B023
            if name == "store_threshold":
                build = CPUOffloadingSpec.build_metric_definitions
                refused_value(lambda: build({name: value}), name, value)  # noqa: B023
    error = refused(lambda: CPUOffloadingSpec(_config({}, 1, 1, 1, False)), InvalidValueError)
    demand(getattr(error, "field", None) == "cpu_bytes_to_use", error)
    for least in ("store_threshold", "max_tracker_size"):
        spec = CPUOffloadingSpec(_config({**right, least: 0}, 1, 1, 1, False))
        demand(getattr(spec, least) == 0, f"{least} is not 0")
    spec = CPUOffloadingSpec(_config({"cpu_bytes_to_use": 1}, 1, 1, 1, False))
    demand(spec.cpu_bytes_to_use == 1, "not a byte")
    nowhere = {**right, "cache_policy_module_path": "no.such.module", "eviction_policy": "lru"}
    named = CPUOffloadingSpec(_config(nowhere, 1, 1, 1, False)).get_manager().policy
    demand(type(named).__name__ == "LRUCachePolicy", "a module goes before a name")


def try_load_store_specs() -> None:
    """Specs of slots: int32, with the ticket that they are given."""
    for slots, ticket in (([], None), ([3, 0, 3], None), ([5], 7), (list(range(9)), 0)):
        for spec in (CPULoadStoreSpec(slots, ticket), CPULoadStoreSpec.of_slots(slots, ticket)):
            shown = (spec.block_ids.tolist(), str(spec.block_ids.dtype), spec.ticket)
            demand(shown == (slots, "int32", ticket), shown)
            demand(spec.chunk_ids is spec.block_ids, "chunk ids of its own")
    demand(CPULoadStoreSpec([1]).ticket is None, "a ticket that nobody gave")
    demand(CPULoadStoreSpec.of_slots([1]).ticket is None, "a ticket that nobody gave")
    refused(lambda: CPULoadStoreSpec([-1]), InvalidValueError)


def try_keys() -> None:
    """What is no key is refused by every call that takes keys, by name, and changes nothing."""
    manager, context = CPUOffloadingManager(4, enable_events=True), ReqContext("r")
    key = make_offload_key(b"a", 0)
    manager.prepare_store([key], context)
    manager.complete_store([key], context)
    calls: tuple[Callable[..., object], ...] = (
        manager.prepare_store,
        manager.prepare_load,
        manager.touch,
        manager.complete_store,
        manager.complete_load,
    )
    lookup = _unchecked(manager.lookup)
    bad: object
    for bad in (b"abcd", b"", "abcde", bytearray(b"abcde"), 7, None, (1, 2, 3, 4, 5)):
        attempts = [partial(lookup, bad, context)]
        attempts += [partial(call, [key, bad], context) for call in calls]
        for attempt in attempts:
            error = refused(attempt, InvalidKeyError)
            named = isinstance(error, InvalidKeyError) and error.key is bad
            demand(named, f"{error!r} does not name {bad!r}")
    derived = type("Derived", (bytes,), {})(key)
    for same in (key, derived):
        demand(lookup(same, context) is LookupResult.HIT, f"{same!r} is not found")
    absent = type("Derived", (bytes,), {})(b"absent")
    demand(lookup(absent, context) is LookupResult.MISS, "what is absent is found")
    manager.check()


def _unchecked(call: Callable[..., object]) -> Callable[..., object]:
    """A call as those see it who have no type checker."""
    return call


def try_tickets() -> None:
    """A ticket that was never given out is refused by name (DONE-4)."""
    manager, context = CPUOffloadingManager(4), ReqContext("r")
    key = make_offload_key(b"a", 0)
    refused(lambda: manager.complete_store([key], context, ticket=0), UnknownTicketError)
    stored = manager.prepare_store([key], context)
    ticket = None if stored is None else stored.ticket
    demand(ticket is not None, "no ticket")
    completions: tuple[Callable[..., object], ...] = (
        manager.complete_store,
        manager.complete_load,
    )
    for wrong in ((ticket or 0) + 1, -1, True, "0", 0.0):
        for complete in completions:
            error = refused(partial(complete, [key], context, ticket=wrong), UnknownTicketError)
            named = isinstance(error, UnknownTicketError) and error.ticket is wrong
            demand(named, f"{error!r} does not name {wrong!r}")
            demand(complete.__name__ in str(error).split(":")[0].split(), error)
    demand(manager.stale_completions == 0, "what was refused is counted")
    manager.complete_store([key], context, ticket=ticket)
    demand(manager.lookup(key, context) is LookupResult.HIT, "the right ticket is not taken")


def try_construction(seeds: Iterable[int]) -> None:
    """Everything here. Raises AssertionError."""
    try_managers()
    try_keys()
    try_tickets()
    try_factory()
    try_options()
    try_load_store_specs()
    try_specs(seeds)
    try_workers(_config({"cpu_bytes_to_use": 4096 * 8}, PAGE, 1, 1, False))


def _config(
    options: Mapping[str, object], block: int, world: int, per_chunk: int, events: bool
) -> OffloadingConfig:
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block=16),),
        worker_kv_bytes_per_block=block,
        enable_kv_cache_events=events,
        extra_config={"self_describing_kv_events": False, **options},
        engine_id="engine",
        model=OffloadingModelConfig(name="model", dtype="float16"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=per_chunk),
        parallel=OffloadingParallelConfig(world_size=world),
    )
