"""Workers of the CPU tier, made by specifications: what they move, and what they refuse."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from kvoffload import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CanonicalPageMapping,
    CopyRun,
    CPULoadStoreSpec,
    CPUOffloadingSpec,
    GPULoadStoreSpec,
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingParallelConfig,
    OffloadingWorker,
)
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.locks import missing_support
from kvoffload.copying.memory import PrivateMemory
from kvoffload.copying.tensors import ArrayTensor
from kvoffload.cpu import spec as made_by
from kvoffload.errors import (
    InvalidValueError,
    MappingError,
    MemoryClosedError,
    RegionMismatchError,
    WorkerUnavailableError,
)

Bytes = NDArray[np.uint8]
PAGE: Final = 6
BLOCKS: Final = 4
SHARED: Final = Path("/dev/shm")
TWO: Final = OffloadingParallelConfig(world_size=2, tp_size=2)


def try_workers(plain: OffloadingConfig) -> None:
    """All of it. `plain` is a configuration of one rank, with pages of 6 bytes in one group."""
    options: dict[str, object] = {"copy_threads": 2, "copy_device": "host"}
    for config in (plain, _with(plain, **options, host_memory="private")):
        _try_moving(CPUOffloadingSpec(config))
    canonical = evolve(plain, canonical_layout=True)
    _try_moving(CPUOffloadingSpec(_with(canonical, host_memory="private")))
    for config in (plain, _with(canonical, host_memory="private")):
        cache = OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=2)
        _try_moving(CPUOffloadingSpec(evolve(config, cache=cache)))
    _try_options(plain, canonical)
    _try_cuda(plain)
    _try_refusals(plain, canonical)
    if missing_support() is None and SHARED.is_dir():
        with tempfile.TemporaryDirectory(dir=SHARED) as place:
            _try_sharing(evolve(canonical, parallel=TWO), Path(place))


def _with(config: OffloadingConfig, **options: object) -> OffloadingConfig:
    return evolve(config, extra_config={**config.extra_config, **options})


def _caches(memory: Bytes, half: int | None = None) -> CanonicalKVCaches:
    """One tensor; its page is all of the canonical one, or one of two halves."""
    size = memory.shape[1]
    at, whole = (0, size) if half is None else (half * size, 2 * size)
    run = CopyRun(0, at, size, 1, size, size)
    mapping = CanonicalPageMapping(whole, size, (run,), 1, 0, True)
    tensor = CanonicalKVCacheTensor(ArrayTensor(memory), size)
    return CanonicalKVCaches([tensor], [[CanonicalKVCacheRef(0, size, mapping)]])


def _memory(size: int = PAGE) -> Bytes:
    return np.arange(BLOCKS * size, dtype=np.uint8).reshape(BLOCKS, size)


def _demand(holds: bool, what: object) -> None:
    if not holds:
        raise AssertionError(what)


def _refused(call: Callable[[], object], error: type[Exception], *words: str) -> None:
    try:
        made = call()
    except Exception as raised:
        _demand(type(raised) is error, repr(raised))
        _demand(all(word in str(raised) for word in words), f"{raised} does not say {words}")
        return
    raise AssertionError(f"made {made!r}")


def _run(worker: OffloadingWorker, store: bool, blocks: list[int], slots: list[int]) -> None:
    gpu, host = GPULoadStoreSpec(blocks, None, [0]), CPULoadStoreSpec(slots)
    taken = worker.submit_store(1, gpu, host) if store else worker.submit_load(1, host, gpu)
    _demand(taken, "a job that was not taken")
    worker.wait({1})
    results = worker.get_finished()
    _demand([one.success for one in results] == [True], results)


def _try_moving(spec: CPUOffloadingSpec) -> None:
    memory = _memory()
    worker = spec.get_worker(_caches(memory))
    _demand(worker is spec.get_worker(_caches(memory)), "another worker at every call")
    own: object = getattr(worker, "memory", None)
    _demand(isinstance(own, PrivateMemory), "memory that others can see")
    last = spec.num_chunks - 1
    if spec.blocks_per_chunk == 1:
        _run(worker, True, [1], [last])
        _run(worker, False, [3], [last])
    else:
        _run(worker, True, [2, 1], [last])
        _run(worker, False, [0, 3], [last])
    expected = _memory()
    expected[3] = expected[1]
    if spec.blocks_per_chunk == 2:
        expected[0] = expected[2]
    _demand(memory.tolist() == expected.tolist(), memory)
    outside = CPULoadStoreSpec([last + 1])
    try:
        worker.submit_load(2, outside, _some_blocks())
    except ValueError as error:
        _demand(f"slot {last + 1}" in str(error), error)
    else:
        raise AssertionError("a slot more than there are")
    worker.shutdown()
    _demand(not worker.submit_load(3, outside, _some_blocks()), "taken after the end")


def _some_blocks() -> GPULoadStoreSpec:
    return GPULoadStoreSpec([0], None, [0])


def _try_options(plain: OffloadingConfig, canonical: OffloadingConfig) -> None:
    made = CPUOffloadingSpec(plain)
    shown = (made.copy_device, made.copy_threads, made.host_memory)
    _demand(shown == ("host", 1, "private"), shown)
    _demand(CPUOffloadingSpec(canonical).host_memory == "shared", "canonical pages are private")
    _demand(CPUOffloadingSpec(_with(plain, copy_threads=3)).copy_threads == 3, "other threads")
    _demand(CPUOffloadingSpec(_with(plain, copy_device="cuda")).copy_device == "cuda", "no cuda")
    empty = CPUOffloadingSpec(_with(plain, copy_device="", host_memory=""))
    _demand((empty.copy_device, empty.host_memory) == ("host", "private"), "nothing is something")
    wrong: dict[str, tuple[object, ...]] = {
        "copy_threads": (0, True, "1"),
        "copy_device": ("tpu", 1),
        "host_memory": ("pinned", 1),
    }
    for name, values in wrong.items():
        for value in values:
            config = _with(plain, **{name: value})
            _refused(partial(CPUOffloadingSpec, config), InvalidValueError, name, repr(value))
    shared = _with(plain, host_memory="shared")
    _refused(partial(CPUOffloadingSpec, shared), InvalidValueError, "host_memory", "got 'shared'")
    alone = _with(evolve(canonical, parallel=TWO), host_memory="private")
    _refused(partial(CPUOffloadingSpec, alone), InvalidValueError, "host_memory", "got 'private'")


def _try_cuda(plain: OffloadingConfig) -> None:
    """What the worker of a GPU is made of, where there is none; its memory is given back."""
    made: list[tuple[object, ...]] = []

    def no_gpu(*parts: object) -> None:
        made.append(parts)
        raise LookupError("no GPU")

    caches = _caches(_memory())
    cuda = CPUOffloadingSpec(_with(plain, copy_device="cuda"))
    with (
        patch.object(made_by, "find_spec", str),
        patch.object(made_by, "_cuda_worker", no_gpu),
    ):
        _refused(lambda: cuda.get_worker(caches), LookupError, "no GPU")
    ((given, layout, memory),) = made
    _demand(given is caches, "other caches")
    _demand(isinstance(layout, CopyLayout), "no layout")
    if not isinstance(memory, PrivateMemory):
        raise AssertionError(f"{memory!r} for memory")
    _refused(partial(memory.rows, 0), MemoryClosedError)


def _try_refusals(plain: OffloadingConfig, canonical: OffloadingConfig) -> None:
    caches = _caches(_memory())
    cuda = CPUOffloadingSpec(_with(plain, copy_device="cuda"))
    _refused(lambda: cuda.get_worker(caches), WorkerUnavailableError, "cuda")
    large = _caches(_memory(PAGE + 1))
    field = "worker_kv_bytes_per_block"
    private = _with(canonical, host_memory="private")
    for config in (plain, private):
        spec = CPUOffloadingSpec(config)
        words = field, f"{PAGE + 1} bytes", f"got {PAGE}"
        _refused(partial(spec.get_worker, large), InvalidValueError, *words)
    # Half a byte more than there is, of two workers.
    pair = _caches(_memory(PAGE + 1), half=0)
    spec = CPUOffloadingSpec(evolve(canonical, parallel=TWO))
    _refused(lambda: spec.get_worker(pair), InvalidValueError, field, f"{PAGE + 1} bytes")
    # Only what a group has is counted.
    more = CanonicalKVCaches([*caches.tensors, *large.tensors], caches.group_data_refs)
    CPUOffloadingSpec(plain).get_worker(more).shutdown()
    stages = OffloadingParallelConfig(world_size=2, pp_size=2)
    pipeline = CPUOffloadingSpec(evolve(canonical, parallel=stages))
    _refused(lambda: pipeline.get_worker(caches), MappingError, "world_size 2")


def _try_sharing(config: OffloadingConfig, place: Path) -> None:
    """Two ranks keep halves of one page; whoever has another layout or replica is apart."""

    class InPlace(CPUOffloadingSpec):
        """With its region where nothing else is."""

        REGION_DIRECTORY = str(place)
        REGION_PATIENCE_S = 0.0

    def worker(rank: int, config: OffloadingConfig, memory: Bytes) -> OffloadingWorker:
        own = evolve(config, parallel=evolve(config.parallel, rank=rank))
        return InPlace(own).get_worker(_caches(memory, half=rank))

    def files() -> list[str]:
        return sorted(os.listdir(place))

    memories = [_memory(), _memory() + 100]
    workers = [worker(rank, config, memories[rank]) for rank in range(2)]
    _demand(len(files()) == 1, files())
    for one in workers:
        _run(one, True, [0], [2])
    for one in workers:
        _run(one, False, [1], [2])
    for memory in memories:
        _demand(memory[1].tolist() == memory[0].tolist(), memory)
    workers.pop().shutdown()
    for other in (
        evolve(config, kv_cache_layout="other"),
        evolve(config, groups=(OffloadingGroupConfig(16, layer_names=("other",)),)),
        evolve(config, parallel=OffloadingParallelConfig(world_size=2, pcp_size=2)),
    ):
        _refused(partial(worker, 1, other, memories[1]), RegionMismatchError)
    grouped = _caches(memories[1], half=1)
    grouped = evolve(grouped, group_data_refs=[[], *grouped.group_data_refs])
    second = evolve(config, parallel=evolve(TWO, rank=1))
    _refused(lambda: InPlace(second).get_worker(grouped), RegionMismatchError)
    workers.append(worker(1, config, memories[1]))
    replica = evolve(config.parallel, data_parallel_size=2, data_parallel_index=1)
    workers.append(worker(0, evolve(config, parallel=replica), _memory()))
    _demand(len(files()) == 2, files())
    for one in workers:
        one.shutdown()
    _demand(files() == [], files())
    nameless = evolve(config, engine_id="")
    _refused(lambda: worker(0, nameless, _memory()), InvalidValueError, "engine_id")
    replicas = evolve(nameless, parallel=replica)
    _refused(lambda: worker(0, replicas, _memory()), InvalidValueError, "engine_id")
    # What cannot be read is refused after the region was made, which must not stay.
    frozen = _memory()
    frozen.flags.writeable = False
    _refused(lambda: worker(0, config, frozen), MappingError)
    _demand(files() == [], files())
