"""One manager under the generated traffic: its speed, and the memory of a full cache."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

from spec_tests.bench import providers
from spec_tests.bench.jobs import ManagerJob, ManagerResult, Whose
from spec_tests.bench.providers import ContextT, Manager, Provider
from spec_tests.bench.vllm_modules import VLLMMissingError
from spec_tests.bench.workload import BLOCK_TOKENS, Workload, make_workload

FILL_BATCH = 4096


def measure_manager(job: ManagerJob) -> ManagerResult:
    """Carry out one job. Raises VLLMMissingError."""
    match job.whose:
        case Whose.OURS:
            return measure(providers.ours(), job)
        case Whose.BARE:
            return measure(providers.bare(), job)
        case Whose.VLLM:
            if job.vllm_root is None:
                raise VLLMMissingError("the job does not say where vLLM's modules are")
            return measure(providers.vllm(Path(job.vllm_root)), job)


def measure(provider: Provider[ContextT], job: ManagerJob) -> ManagerResult:
    """Fill a cache of the provider, then send the traffic through it."""
    # All keys are made first: what the cache adds to the process is then the manager's own.
    workload = make_workload(provider.make_key, job.requests, job.capacity)
    gc.collect()
    before = _resident_bytes()
    manager = provider.make_manager(job.capacity, job.policy)
    _fill(provider, manager, workload)
    gc.collect()
    after = _resident_bytes()
    added = None if before is None or after is None else after - before
    return _drive(provider, manager, workload, added)


def _fill(provider: Provider[ContextT], manager: Manager[ContextT], workload: Workload) -> None:
    for first in range(0, len(workload.fill), FILL_BATCH):
        keys = workload.fill[first : first + FILL_BATCH]
        context = provider.make_context(f"fill-{first}")
        manager.on_new_request(context)
        manager.prepare_store(keys, context)
        manager.complete_store(keys, context)
        manager.on_request_finished(context)


def _drive(
    provider: Provider[ContextT],
    manager: Manager[ContextT],
    workload: Workload,
    added_bytes: int | None,
) -> ManagerResult:
    """Make the calls of a scheduler for each request, one request after the other."""
    lookup, hit = manager.lookup, provider.hit
    total_hits = stored = evicted = refused = 0
    begun = time.process_time()
    for number, keys in enumerate(workload.requests):
        context = provider.make_context(f"request-{number}")
        place = context.set_offload_key_position
        for index, key in enumerate(keys, 1):
            place(key, index * BLOCK_TOKENS)
        manager.on_new_request(context)
        hits = 0
        for key in keys:
            if lookup(key, context) is not hit:
                break
            hits += 1
        if hits:
            manager.prepare_load(keys[:hits], context)
            manager.complete_load(keys[:hits], context)
        manager.touch(keys, context)
        output = manager.prepare_store(keys[hits:], context)
        if output is None:
            refused += 1
        elif output.keys_to_store:
            manager.complete_store(output.keys_to_store, context)
            stored += len(output.keys_to_store)
            evicted += len(output.evicted_keys)
        manager.on_request_finished(context)
        total_hits += hits
    seconds = time.process_time() - begun
    return ManagerResult(
        seconds=seconds,
        blocks=workload.blocks,
        hits=total_hits,
        stored=stored,
        evicted=evicted,
        refused=refused,
        added_bytes=added_bytes,
    )


def _resident_bytes() -> int | None:
    """Memory of this process that is in RAM, None where the system does not tell it so."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGESIZE")
