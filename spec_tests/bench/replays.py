"""A replay with each call judged, or not: what judging costs."""

from __future__ import annotations

import time
from pathlib import Path

from kvoffload import CPUOffloadingManager
from kvoffload.replay import (
    SAMPLE,
    Capacity,
    CostModel,
    Replay,
    Trace,
    default_chunk_bytes,
    survey,
)
from spec_tests.bench.jobs import ReplayJob, ReplayResult
from stateful_models.watch import WatchedManager


def measure_replay(job: ReplayJob) -> ReplayResult:
    """Carry out one job. Raises TraceError, and InvalidValueError for the capacity."""
    trace = Trace(SAMPLE if job.trace is None else Path(job.trace))
    found = survey(trace)
    model = CostModel(chunk_bytes=default_chunk_bytes(found.block_tokens))
    chunks = Capacity.parse(job.capacity).resolve(found.distinct_blocks, model.chunk_bytes)
    with trace.open() as reading:
        requests = list(reading)
    manager = CPUOffloadingManager(chunks, cache_policy=job.policy, enable_events=True)
    watched = (
        WatchedManager(manager, num_chunks=chunks, enable_events=True) if job.checked else None
    )
    replay = Replay(manager if watched is None else watched, model, signatures=manager)
    begun = time.process_time()
    counts = replay.run(requests)
    seconds = time.process_time() - begun
    return ReplayResult(
        seconds=seconds,
        requests=counts.requests,
        blocks=counts.blocks,
        checks=0 if watched is None else watched.checks,
        violations=0 if watched is None else watched.num_violations,
    )
