"""What the clause tests share: keys, requests, whole transfers, and what one can see."""

from collections.abc import Iterable, Sequence

import attrs

from kvoffload import (
    CPULoadStoreSpec,
    CPUOffloadingManager,
    LoadStoreSpec,
    LookupResult,
    OffloadingEvent,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    make_offload_key,
)

USAGE = "vllm:kv_offload_cpu_cache_usage_perc"
WRITE_USAGE = "vllm:kv_offload_cpu_cache_write_usage_perc"
READ_USAGE = "vllm:kv_offload_cpu_cache_read_usage_perc"
ALLOCATION_SIZE = "vllm:kv_offload_cpu_allocation_size"
STORES_SKIPPED = "vllm:kv_offload_stores_skipped"

TOKENS = 16


def key(name: str, group: int = 0) -> OffloadKey:
    return make_offload_key(name.encode(), group)


def many(count: int, prefix: str = "k") -> list[OffloadKey]:
    return [key(f"{prefix}{number}") for number in range(count)]


A, B, C, D, E, F, G, H = LETTERS = tuple(map(key, "ABCDEFGH"))


def request(req_id: str = "r", prompt: Sequence[OffloadKey] = ()) -> ReqContext:
    """A request; key i of `prompt` ends at token 16 * (i + 1)."""
    context = ReqContext(req_id)
    for index, prompt_key in enumerate(prompt, start=1):
        context.set_offload_key_position(prompt_key, TOKENS * index)
    return context


# Whole transfers


def prepare(
    manager: CPUOffloadingManager, keys: Sequence[OffloadKey], context: ReqContext | None = None
) -> PrepareStoreOutput:
    """`prepare_store`, which must not refuse."""
    output = manager.prepare_store(keys, context or request("store"))
    assert output is not None
    return output


def put(
    manager: CPUOffloadingManager, keys: Sequence[OffloadKey], context: ReqContext | None = None
) -> PrepareStoreOutput:
    """Store keys, one by one in this order, so that a policy meets them in it."""
    context = context or request("put")
    output = prepare(manager, keys, context)
    manager.complete_store(output.keys_to_store, context, ticket=output.ticket)
    return output


def put_each(manager: CPUOffloadingManager, keys: Iterable[OffloadKey]) -> None:
    """A request of its own stores each key and finishes."""
    for stored in keys:
        context = request(f"put {stored!r}")
        put(manager, [stored], context)
        manager.on_request_finished(context)


def pin(
    manager: CPUOffloadingManager, keys: Sequence[OffloadKey], context: ReqContext | None = None
) -> CPULoadStoreSpec:
    return manager.prepare_load(keys, context or request("pin"))


# What one can see


def slots(spec: LoadStoreSpec) -> list[int]:
    assert isinstance(spec, CPULoadStoreSpec)
    return [int(slot) for slot in spec.block_ids]


def slot_of(manager: CPUOffloadingManager, ready: OffloadKey) -> int:
    """The slot of a ready key, by a load that is no access of anybody."""
    probe = request("probe")
    spec = manager.prepare_load([ready], probe, record_access=False)
    manager.complete_load([ready], probe, ticket=spec.ticket)
    return slots(spec)[0]


def lookups(manager: CPUOffloadingManager, keys: Iterable[OffloadKey]) -> list[LookupResult]:
    probe = request("probe")
    return [manager.lookup(each, probe) for each in keys]


def resident(manager: CPUOffloadingManager, keys: Iterable[OffloadKey]) -> list[OffloadKey]:
    keys = list(keys)
    found = lookups(manager, keys)
    return [each for each, result in zip(keys, found, strict=True) if result != LookupResult.MISS]


def ready(manager: CPUOffloadingManager, keys: Iterable[OffloadKey]) -> list[OffloadKey]:
    keys = list(keys)
    found = lookups(manager, keys)
    return [each for each, result in zip(keys, found, strict=True) if result == LookupResult.HIT]


def in_flight(manager: CPUOffloadingManager) -> tuple[int, int]:
    """Chunks pending and chunks pinned, recounted from the gauges."""
    figures = manager.get_stats().reduce()
    return tuple_of_counts(figures, manager.num_chunks)


def tuple_of_counts(figures: dict[str, float], num_chunks: int) -> tuple[int, int]:
    return round(figures[WRITE_USAGE] * num_chunks), round(figures[READ_USAGE] * num_chunks)


@attrs.frozen
class Books:
    """All that a manager shows of what it holds."""

    found: list[LookupResult]
    pending: int
    pinned: int
    generation: int


def books(manager: CPUOffloadingManager, keys: Iterable[OffloadKey] = LETTERS) -> Books:
    """What the manager holds, after it has checked itself."""
    manager.check()
    pending, pinned = in_flight(manager)
    return Books(lookups(manager, keys), pending, pinned, manager.generation)


def believed(
    events: Iterable[OffloadingEvent], before: Iterable[OffloadKey] = ()
) -> set[OffloadKey]:
    """What a listener thinks is stored after these events."""
    stored = set(before)
    for event in events:
        if event.removed:
            assert stored.issuperset(event.keys), "removed, but never announced"
            stored.difference_update(event.keys)
        else:
            assert stored.isdisjoint(event.keys), "announced twice"
            stored.update(event.keys)
    return stored


def evict_order(manager: CPUOffloadingManager, count: int) -> list[OffloadKey]:
    """Whom the manager evicts, first to last, when single keys of others come in."""
    evicted: list[OffloadKey] = []
    for number in range(count):
        evicted += put(
            manager, [key(f"newcomer {number}")], request(f"newcomer {number}")
        ).evicted_keys
    return evicted
