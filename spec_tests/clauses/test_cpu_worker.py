"""The CPU tier's worker: caches as rows of bytes, host memory, and the specification of both."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from numpy.typing import NDArray

from kvoffload import (
    AttentionLayer,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CPULoadStoreSpec,
    CPUOffloadingSpec,
    Encoding,
    GPULoadStoreSpec,
    InvalidValueError,
    KVParallelConfig,
    LatentLayer,
    Layer,
    MappingError,
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
    OffloadingWorker,
    WorkerUnavailableError,
    canonical_kv_caches,
)
from kvoffload.canonical.pages import BlockTensor
from kvoffload.copying.host import HostEvent, HostStream
from kvoffload.copying.layout import CopyLayout, Rows
from kvoffload.copying.locks import missing_support
from kvoffload.copying.memory import HostMemory, PrivateMemory
from kvoffload.copying.region import SharedRegion
from kvoffload.copying.tensors import ArrayTensor, byte_rows
from kvoffload.cpu.worker import CPUOffloadingWorker, host_worker
from kvoffload.errors import MemoryClosedError, RegionMismatchError

ROOT = Path(__file__).resolve().parents[2]
SHARED_MEMORY = Path("/dev/shm")
Array = NDArray[np.generic]
Words = NDArray[np.uint16]
BLOCKS, TOKENS, HEADS, SIZE = 6, 4, 4, 3
POISON = 0xEEEE
MIB = 2**20

needs_shared_memory = pytest.mark.skipif(
    missing_support() is not None or not SHARED_MEMORY.is_dir(),
    reason=f"memory cannot be shared here: {missing_support() or 'no /dev/shm'}",
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in shared memory, in which nothing is left."""
    place = Path(tempfile.mkdtemp(prefix="test-of-workers-", dir=SHARED_MEMORY))
    try:
        yield place
        assert list(place.iterdir()) == []
    finally:
        for path in place.iterdir():
            path.unlink()
        place.rmdir()


# Rows of bytes


def caches_of(
    *tensors: BlockTensor, page: int | None = None, needed: int | None = None
) -> CanonicalKVCaches:
    """Caches of one group, with a layer in each tensor; pages of so many bytes, if not as dense."""
    described: list[CanonicalKVCacheTensor] = []
    refs: list[CanonicalKVCacheRef] = []
    for number, tensor in enumerate(tensors):
        dense = int(np.prod(tensor.shape[1:])) * tensor.element_size()
        described.append(CanonicalKVCacheTensor(tensor, page or dense))
        refs.append(CanonicalKVCacheRef(number, needed or dense))
    return CanonicalKVCaches(described, [refs])


def numbered(*shape: int) -> Words:
    return np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)


@pytest.mark.clause("COPY-3")
@pytest.mark.parametrize(
    "array",
    [
        numbered(5, 3, 2),
        numbered(5, 3, 2).astype(np.float64),
        numbered(5),
        # Any order of what is inside a block.
        numbered(5, 2, 3).transpose(0, 2, 1),
        # Blocks that lie apart: a layer among others, padded ones, every other one.
        numbered(5, 4, 3)[:, 1:3],
        numbered(5, 10)[:, :7],
        numbered(10, 3)[::2],
        numbered(1, 3),
        numbered(5, 1, 3)[:, :, :1],
    ],
)
def test_blocks_are_rows_of_the_very_bytes(array: Array) -> None:
    (rows,) = byte_rows(caches_of(ArrayTensor(array)))
    dense = array[0].size * array.itemsize
    assert rows.dtype == np.uint8
    assert rows.shape == (len(array), dense)
    order = sorted(range(1, array.ndim), key=lambda axis: -array.strides[axis])
    written = array.transpose(0, *order).copy(order="C")
    assert rows.tobytes() == written.tobytes()
    rows[-1] = 0xAB
    written.view(np.uint8).reshape(len(array), -1)[-1] = 0xAB
    assert array.transpose(0, *order).tobytes() == written.tobytes()


@pytest.mark.clause("COPY-3")
def test_padding_belongs_to_the_page_where_it_is_there() -> None:
    whole = numbered(5, 10)
    array = whole[:, :7]
    (rows,) = byte_rows(caches_of(ArrayTensor(array), page=20, needed=14))
    assert rows.shape == (5, 20)
    # Behind the last block there is none.
    array = whole.reshape(-1)[:47].copy()
    view = np.lib.stride_tricks.as_strided(array, shape=(5, 7), strides=(20, 2))
    (rows,) = byte_rows(caches_of(ArrayTensor(array[:40].reshape(4, 10)[:, :7]), page=20))
    assert rows.shape == (4, 20)
    (rows,) = byte_rows(caches_of(OfMemory(view, array), page=20, needed=14))
    assert rows.shape == (5, 14)
    assert rows.tobytes() == view.tobytes()


class OfMemory(ArrayTensor):
    """A tensor as torch shows it: a place in a storage, on a device."""

    def __init__(self, array: Array, storage: Array, device: str = "cpu") -> None:
        super().__init__(array)
        self._storage = storage
        self.device = Device(device)

    def untyped_storage(self) -> Storage:
        return Storage(self._storage)


class Device:
    def __init__(self, kind: str) -> None:
        self.type = kind

    def __str__(self) -> str:
        return f"{self.type}:0"


class Storage:
    def __init__(self, array: Array) -> None:
        self._array = array

    def data_ptr(self) -> int:
        return ArrayTensor(self._array).data_ptr()

    def nbytes(self) -> int:
        return self._array.nbytes


class Unknown:
    """A tensor that tells where it is, and not in which memory."""

    shape = (2, 3)

    def stride(self) -> tuple[int, ...]:
        return 3, 1

    def storage_offset(self) -> int:
        return 0

    def element_size(self) -> int:
        return 1

    def data_ptr(self) -> int:
        return 4096


def frozen_array() -> Array:
    array = numbered(2, 3)
    array.flags.writeable = False
    return array


class OnGPU(Unknown):
    """What torch shows of a tensor on another device; it must not be read here."""

    device = Device("cuda")

    def untyped_storage(self) -> Storage:
        raise NotImplementedError


@pytest.mark.clause("COPY-3")
@pytest.mark.parametrize(
    ("tensor", "options", "why"),
    [
        (ArrayTensor(numbered(5, 3, 4)[:, :, :2]), {}, "do not lie next to each other"),
        (ArrayTensor(numbered(5, 6)[:, ::2]), {}, "do not lie next to each other"),
        (ArrayTensor(numbered(5, 6)[:, ::-1]), {}, "do not lie next to each other"),
        (ArrayTensor(numbered(5, 6)), {"page": 10, "needed": 10}, "12 bytes in pages of 10"),
        (ArrayTensor(numbered(5, 6)), {"page": 13}, "of which one begins every 12"),
        (ArrayTensor(numbered(6, 5).T[:, :1]), {"page": 4}, "of which one begins every 2"),
        (ArrayTensor(numbered(5, 10)[:, 4:]), {"page": 20, "needed": 20}, "12 bytes are there"),
        (ArrayTensor(frozen_array()), {}, "cannot be written"),
        (ArrayTensor(np.empty((5, 1), dtype=np.object_)), {}, "an array of objects"),
        (Unknown(), {}, "a Unknown, which does not tell"),
        (OnGPU(), {}, "in the memory of cuda:0"),
    ],
)
def test_other_tensors_are_refused_by_number(
    tensor: BlockTensor, options: dict[str, int], why: str
) -> None:
    with pytest.raises(MappingError, match=f"tensor 0: .*{why}"):
        byte_rows(caches_of(tensor, **options))


@pytest.mark.clause("COPY-3")
def test_rows_keep_their_tensor() -> None:
    rows = byte_rows(caches_of(ArrayTensor(numbered(50, 300))))[0]
    assert rows.tobytes() == numbered(50, 300).tobytes()


def test_an_array_says_what_a_tensor_says() -> None:
    whole = numbered(5, 4, 3)
    tensor = ArrayTensor(whole[1:, 2:])
    assert list(tensor.shape) == [4, 2, 3]
    assert list(tensor.stride()) == [12, 3, 1]
    assert tensor.storage_offset() == 18
    assert tensor.element_size() == 2
    assert tensor.data_ptr() == whole.ctypes.data + 36
    # Reversed, it begins behind the start of its storage.
    assert ArrayTensor(whole[::-1]).storage_offset() == 48
    backwards = np.ndarray((4,), np.uint16, buffer=bytearray(8), offset=6, strides=(-2,))
    assert ArrayTensor(backwards).storage_offset() == 3
    fields = np.zeros(4, dtype=[("a", np.uint8), ("b", np.uint16)])
    with pytest.raises(MappingError, match="bytes between neighbours"):
        ArrayTensor(fields["b"]).stride()


# The worker


def config(
    extra: Mapping[str, object] | None = None,
    *,
    bytes_per_block: int,
    blocks_per_chunk: int = 1,
    canonical: bool = False,
    parallel: OffloadingParallelConfig | None = None,
    engine_id: str = "engine",
) -> OffloadingConfig:
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block=TOKENS),),
        worker_kv_bytes_per_block=bytes_per_block,
        enable_kv_cache_events=False,
        extra_config={"cpu_bytes_to_use": MIB, **(extra or {})},
        engine_id=engine_id,
        model=OffloadingModelConfig("model", "float16"),
        cache=OffloadingCacheConfig(tokens_per_hash=TOKENS, blocks_per_chunk=blocks_per_chunk),
        parallel=parallel or OffloadingParallelConfig(),
        canonical_layout=canonical,
    )


def blocks(*ids: int, first: int = 0) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(ids, None, [first])


def slots(*ids: int) -> CPULoadStoreSpec:
    return CPULoadStoreSpec(ids)


def copying_threads() -> int:
    return sum(thread.name.startswith("kvoffload-copy") for thread in threading.enumerate())


def finish(worker: OffloadingWorker, *jobs: int) -> None:
    worker.wait(set(jobs))
    results = worker.get_finished()
    assert {result.job_id for result in results} == set(jobs)
    assert all(result.success for result in results)


@pytest.mark.clause("COPY-1")
def test_a_specification_builds_a_worker_that_stores_and_loads() -> None:
    """Two layers in padded pages, two blocks a chunk; nothing but the loaded blocks changes."""
    first, second = numbered(BLOCKS, 2, 5), numbered(BLOCKS, 7)[:, :4]
    caches = caches_of(ArrayTensor(first), ArrayTensor(second))
    extra = {"copy_threads": 2, "host_memory": "private", "copy_device": "host"}
    spec = CPUOffloadingSpec(config(extra, bytes_per_block=28, blocks_per_chunk=2))
    worker = spec.get_worker(caches)
    assert worker is spec.get_worker(caches)
    assert copying_threads() == 2
    assert spec.num_chunks == MIB // 4096
    last = spec.num_chunks - 1
    assert worker.submit_store(1, blocks(0, 1, 4, 5), slots(last, 3))
    finish(worker, 1)
    was = [array.copy() for array in (first, second)]
    assert worker.submit_load(2, slots(3, last), blocks(3, 2, 5, first=1))
    finish(worker, 2)
    for array, before in zip((first, second), was, strict=True):
        # From sub-block 1 of slot 3: blocks 5, 0, 1 of the store.
        before[[3, 2, 5]] = before[[5, 0, 1]]
        assert np.array_equal(array, before)
    worker.shutdown()
    worker.shutdown()
    assert not worker.submit_store(3, blocks(0, 1), slots(0))
    assert copying_threads() == 0


@pytest.mark.clause("COPY-4")
def test_shutdown_gives_the_memory_up() -> None:
    array = numbered(BLOCKS, 8)
    caches = caches_of(ArrayTensor(array))
    memory = PrivateMemory([Rows(4, 16)])
    worker = host_worker(caches, CopyLayout.direct(caches, num_slots=4), memory)
    assert worker.memory is memory
    assert worker.submit_store(1, blocks(5), slots(2))
    kept = memory.rows(0)
    worker.shutdown()
    assert kept[2].tobytes() == array[5].tobytes()
    assert [result.job_id for result in worker.get_finished()] == [1]
    with pytest.raises(MemoryClosedError):
        memory.rows(0)


def test_torch_is_not_imported_for_a_worker() -> None:
    program = """
import sys
import kvoffload
assert "numpy" not in sys.modules
import numpy as np
from kvoffload import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.memory import PrivateMemory
from kvoffload.copying.tensors import ArrayTensor
from kvoffload.cpu.worker import host_worker
tensor = CanonicalKVCacheTensor(ArrayTensor(np.zeros((2, 8))), 64)
caches = CanonicalKVCaches([tensor], [[CanonicalKVCacheRef(0, 64)]])
layout = CopyLayout.direct(caches, num_slots=2)
host_worker(caches, layout, PrivateMemory(layout.host)).shutdown()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT)}, check=True)


# Options


@pytest.mark.clause("SPECS-2")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("copy_threads", 0),
        ("copy_threads", "2"),
        ("copy_threads", True),
        ("copy_device", "tpu"),
        ("copy_device", 1),
        ("host_memory", "pinned"),
        ("host_memory", 3),
        ("host_memory", "shared"),
    ],
)
def test_an_option_that_is_wrong_is_named(option: str, value: object) -> None:
    with pytest.raises(InvalidValueError, match=option) as caught:
        CPUOffloadingSpec(config({option: value}, bytes_per_block=16))
    assert caught.value.value == value


@pytest.mark.clause("SPECS-2")
def test_options_have_defaults() -> None:
    spec = CPUOffloadingSpec(config({"copy_device": None}, bytes_per_block=16))
    shown = (spec.copy_device, spec.copy_threads, spec.host_memory)
    assert shown == ("host", 1, "private")
    canonical = config({"host_memory": None}, bytes_per_block=16, canonical=True)
    assert CPUOffloadingSpec(canonical).host_memory == "shared"
    alone = config({"host_memory": "private"}, bytes_per_block=16, canonical=True)
    assert CPUOffloadingSpec(alone).host_memory == "private"


@pytest.mark.clause("SPECS-2")
def test_canonical_pages_of_several_ranks_are_not_private() -> None:
    two = OffloadingParallelConfig(world_size=2, tp_size=2)
    with pytest.raises(InvalidValueError, match="a page is of several ranks"):
        CPUOffloadingSpec(
            config({"host_memory": "private"}, bytes_per_block=16, canonical=True, parallel=two)
        )


@pytest.mark.clause("SPECS-2")
def test_a_worker_for_a_gpu_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_of_that_name(name: str) -> None:
        return None

    monkeypatch.setattr("kvoffload.cpu.spec.find_spec", nothing_of_that_name)
    spec = CPUOffloadingSpec(config({"copy_device": "cuda"}, bytes_per_block=100))
    assert spec.get_manager().num_chunks == spec.num_chunks
    with pytest.raises(WorkerUnavailableError, match=r"needs torch: pip install 'kvoffload\[torch"):
        spec.get_worker(caches_of(ArrayTensor(numbered(2, 3))))


@pytest.mark.clause("SPECS-2")
def test_caches_are_wanted() -> None:
    spec = CPUOffloadingSpec(config(bytes_per_block=100))
    with pytest.raises(InvalidValueError, match="kv_caches"):
        spec.get_worker([])  # type: ignore[arg-type]  # what is refused


# Ranks


@pytest.mark.clause("SPECS-4")
def test_ranks_with_other_layers_have_as_many_chunks() -> None:
    """The stages of a pipeline: what is reckoned with is the same for all, or it is refused."""
    one = OffloadingParallelConfig(world_size=2, pp_size=2)
    stages = [
        [numbered(BLOCKS, 1024), numbered(BLOCKS, 1024)],
        [numbered(BLOCKS, 1024)],
    ]
    most = 4096
    counts: list[int] = []
    for rank, tensors in enumerate(stages):
        caches = caches_of(*map(ArrayTensor, tensors))
        spec = CPUOffloadingSpec(config(bytes_per_block=most, parallel=evolve(one, rank=rank)))
        counts.append(spec.num_chunks)
        worker = spec.get_worker(caches)
        assert isinstance(worker, CPUOffloadingWorker)
        counts.append(worker.layout.num_slots)
        worker.shutdown()
    assert set(counts) == {MIB // (2 * most)}
    # Had a rank with fewer layers asked for the engine, the others would have too little.
    fewer = CPUOffloadingSpec(config(bytes_per_block=2048, parallel=one))
    with pytest.raises(InvalidValueError, match=r"rank 0 of 2 has layers of 4096 bytes a block"):
        fewer.get_worker(caches_of(*map(ArrayTensor, stages[0])))


@pytest.mark.clause("SPECS-4")
def test_tensors_that_no_group_has_do_not_count() -> None:
    caches = caches_of(ArrayTensor(numbered(BLOCKS, 8)))
    caches.tensors.append(CanonicalKVCacheTensor(ArrayTensor(numbered(BLOCKS, 80)), 160))
    CPUOffloadingSpec(config(bytes_per_block=16)).get_worker(caches).shutdown()


def attention(encoding: Encoding, heads: int = HEADS) -> AttentionLayer:
    return AttentionLayer(
        total_kv_heads=heads, head_size=SIZE, element_size_bytes=2, encoding=encoding
    )


LATENT = LatentLayer(row_elements=5, element_size_bytes=2)


def shown(content: Words, layer: Layer) -> Words:
    """Content (blocks, K or V, tokens, heads, size) as a worker has it in memory, as it shows it.

    Latent rows: (blocks, tokens, elements).
    """
    if not isinstance(layer, AttentionLayer):
        return content.copy()
    if layer.encoding is Encoding.SPLIT_NHD:
        return content.copy()
    if layer.encoding is Encoding.SPLIT_HND:
        return np.ascontiguousarray(content.transpose(0, 1, 3, 2, 4)).transpose(0, 1, 3, 2, 4)
    packed = np.concatenate([content[:, 0], content[:, 1]], axis=-1)
    if layer.encoding is Encoding.PACKED_NHD:
        return np.ascontiguousarray(packed).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(packed.transpose(0, 2, 1, 3))


def content_of(layer: Layer) -> Words:
    """Something else in every element, of all heads."""
    if isinstance(layer, AttentionLayer):
        return numbered(BLOCKS, 2, TOKENS, layer.total_kv_heads, SIZE)
    return numbered(BLOCKS, TOKENS, 5)


def share(content: Words, tp_size: int, rank: int) -> Words:
    """What a tensor-parallel rank keeps of it: its heads; all of latent rows."""
    if content.ndim == 3:
        return content
    heads = content.shape[3]
    local = max(1, heads // tp_size)
    first = rank * heads // tp_size
    return content[:, :, :, first : first + local]


def caches(layer: Layer, memory: Words, tp_size: int, rank: int) -> CanonicalKVCaches:
    parallel = KVParallelConfig(tp_size=tp_size, block_size=TOKENS, rank=rank)
    return canonical_kv_caches({"layer": ArrayTensor(memory)}, [{"layer": layer}], parallel)


def poisoned(memory: Words) -> Words:
    """As large, and ordered in memory as that is."""
    other = np.empty_like(memory)
    other[:] = POISON
    return other


Worker = CPUOffloadingWorker[HostStream, HostEvent]


def canonical_worker(one: CanonicalKVCaches, memory: Callable[[CopyLayout], HostMemory]) -> Worker:
    layout = CopyLayout.canonical_of(one, num_slots=4, blocks_per_chunk=2)
    return host_worker(one, layout, memory(layout))


LAYERS: dict[str, Layer] = {
    **{encoding.value: attention(encoding) for encoding in Encoding},
    # Both ranks keep the same bytes and take turns to write them.
    "one head": attention(Encoding.PACKED_NHD, heads=1),
    "latent": LATENT,
}


@needs_shared_memory
@pytest.mark.clause("COPY-1")
@pytest.mark.parametrize("name", list(LAYERS))
def test_two_ranks_store_what_a_single_one_loads(name: str, place: Path) -> None:
    """Over one region, through real workers, and back again; byte for byte."""
    layer = LAYERS[name]
    content = content_of(layer)

    def attached(rank: int) -> Callable[[CopyLayout], HostMemory]:
        return lambda layout: SharedRegion(
            "engine", layout.host, rank=rank, num_ranks=5, directory=place
        )

    halves = [shown(share(content, 2, rank), layer) for rank in range(2)]
    alone = poisoned(shown(content, layer))
    others = [poisoned(half) for half in halves]
    workers = [
        *(
            canonical_worker(caches(layer, halves[rank], 2, rank), attached(rank))
            for rank in (0, 1)
        ),
        canonical_worker(caches(layer, alone, 1, 0), attached(2)),
        *(
            canonical_worker(caches(layer, others[rank], 2, rank), attached(3 + rank))
            for rank in (0, 1)
        ),
    ]
    # Blocks 0 to 3 of a request, in blocks 5, 2, 0 and 3, and slots 3 and 1.
    for worker in workers[:2]:
        assert worker.submit_store(1, blocks(5, 2, 0, 3), slots(3, 1))
    for worker in workers[:2]:
        finish(worker, 1)
    assert workers[2].submit_load(2, slots(3, 1), blocks(1, 4, 2, first=1))
    finish(workers[2], 2)
    expected = poisoned(alone)
    expected[[1, 4, 2]] = shown(content, layer)[[2, 0, 3]]
    assert np.array_equal(alone, expected)
    # And the single one stores what two load.
    assert workers[2].submit_store(3, blocks(1, 4), slots(0))
    finish(workers[2], 3)
    for worker, other, half in zip(workers[3:], others, halves, strict=True):
        assert worker.submit_load(4, slots(0), blocks(0, 5))
        finish(worker, 4)
        wanted = poisoned(other)
        wanted[[0, 5]] = half[[2, 0]]
        assert np.array_equal(other, wanted)
    for worker in workers:
        worker.shutdown()


Change = Callable[[OffloadingConfig], OffloadingConfig]


def _same(one: OffloadingConfig) -> OffloadingConfig:
    return one


class SpecInPlace(CPUOffloadingSpec):
    """Shares memory in the directory of the test, and waits for nobody."""

    REGION_PATIENCE_S = 0.0


@pytest.fixture
def spec(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CPUOffloadingSpec]:
    """A specification with canonical pages, for two ranks of eight words a head and token."""
    monkeypatch.setattr(SpecInPlace, "REGION_DIRECTORY", str(place))

    def build(rank: int = 0, change: Change = _same) -> CPUOffloadingSpec:
        parallel = OffloadingParallelConfig(rank=rank, world_size=2, tp_size=2)
        one = config(bytes_per_block=192, blocks_per_chunk=2, canonical=True, parallel=parallel)
        return SpecInPlace(change(one))

    return build


def region_of(worker: OffloadingWorker) -> SharedRegion:
    assert isinstance(worker, CPUOffloadingWorker)
    memory: HostMemory = worker.memory
    assert isinstance(memory, SharedRegion)
    return memory


PACKED = attention(Encoding.PACKED_HND)


def memory_of(rank: int, layer: Layer = PACKED) -> Words:
    return shown(share(content_of(layer), 2, rank), layer)


@needs_shared_memory
@pytest.mark.clause("COPY-1")
def test_the_ranks_of_a_specification_share_a_region(
    spec: Callable[..., CPUOffloadingSpec], place: Path
) -> None:
    memories = [memory_of(rank) for rank in range(2)]
    workers = [spec(rank).get_worker(caches(PACKED, memories[rank], 2, rank)) for rank in range(2)]
    assert len(list(place.iterdir())) == 1
    for worker in workers:
        assert region_of(worker).attached_ranks == (0, 1)
        assert worker.submit_store(1, blocks(0, 1), slots(7))
    for worker in workers:
        finish(worker, 1)
    for memory, worker in zip(memories, workers, strict=True):
        expected = memory.copy()
        expected[[4, 3]] = memory[[0, 1]]
        worker.submit_load(2, slots(7), blocks(4, 3))
        finish(worker, 2)
        assert np.array_equal(memory, expected)
        worker.shutdown()
        worker.shutdown()


@needs_shared_memory
@pytest.mark.clause("COPY-1")
def test_ranks_of_another_configuration_are_refused(
    spec: Callable[..., CPUOffloadingSpec],
) -> None:
    living = spec().get_worker(caches(PACKED, memory_of(0), 2, 0))
    other = attention(Encoding.PACKED_HND, heads=2)
    with pytest.raises(RegionMismatchError):
        spec(1).get_worker(caches(other, memory_of(1, other), 2, 1))
    # The same tensor, as that of another group.
    shared = caches(PACKED, memory_of(1), 2, 1)
    with pytest.raises(RegionMismatchError):
        spec(1).get_worker(evolve(shared, group_data_refs=[[], *shared.group_data_refs]))
    caches_of_1 = caches(PACKED, memory_of(1), 2, 1)
    # As many rows of as many bytes, but twice as many blocks a chunk.
    four = OffloadingCacheConfig(tokens_per_hash=TOKENS, blocks_per_chunk=4)
    half = {"cpu_bytes_to_use": MIB // 2}
    tokens = OffloadingParallelConfig(rank=1, world_size=2, pcp_size=2)
    changes: list[Change] = [
        lambda one: evolve(one, kv_cache_layout="NHD"),
        lambda one: evolve(one, model=OffloadingModelConfig("another", "float16")),
        lambda one: evolve(one, cache=four, extra_config=half),
        lambda one: evolve(one, parallel=tokens),
        lambda one: evolve(one, groups=(OffloadingGroupConfig(TOKENS, layer_names=("a",)),)),
        lambda one: evolve(one, extra_config={"cpu_bytes_to_use": 2 * MIB}),
    ]
    for change in changes:
        with pytest.raises(RegionMismatchError):
            spec(1, change).get_worker(caches_of_1)
    spec(1).get_worker(caches_of_1).shutdown()
    living.shutdown()


@needs_shared_memory
@pytest.mark.clause("COPY-1")
def test_replicas_of_an_engine_share_nothing(spec: Callable[..., CPUOffloadingSpec]) -> None:
    workers: list[OffloadingWorker] = []
    for index in range(2):
        parallel = OffloadingParallelConfig(
            world_size=2, tp_size=2, data_parallel_index=index, data_parallel_size=2
        )

        def replica(
            one: OffloadingConfig, parallel: OffloadingParallelConfig = parallel
        ) -> OffloadingConfig:
            return evolve(one, parallel=parallel)

        one = spec(0, replica).get_worker(caches(PACKED, memory_of(0), 2, 0))
        assert region_of(one).created
        workers.append(one)
    for worker in workers:
        worker.shutdown()


@pytest.mark.clause("COPY-3")
@pytest.mark.parametrize("build", [CopyLayout.direct, CopyLayout.canonical_of])
def test_a_tensor_has_blocks(build: Callable[..., CopyLayout]) -> None:
    lone = CanonicalKVCaches(
        [CanonicalKVCacheTensor(ArrayTensor(np.zeros((), dtype=np.uint8)), 1)], [[]]
    )
    with pytest.raises(MappingError, match="tensor 0 has no dimension that counts blocks"):
        build(lone, num_slots=1)


@needs_shared_memory
@pytest.mark.clause("COPY-1")
def test_a_worker_that_cannot_be_built_leaves_nothing(
    spec: Callable[..., CPUOffloadingSpec], place: Path
) -> None:
    memory = memory_of(0)
    unwritable = caches(PACKED, memory, 2, 0)
    memory.flags.writeable = False
    with pytest.raises(MappingError, match="cannot be written") as caught:
        spec().get_worker(unwritable)
    # At once, and not when the error is forgotten.
    assert list(place.iterdir()) == []
    assert caught.traceback


@pytest.mark.clause("MAP-4")
def test_stages_of_a_pipeline_have_no_canonical_pages_in_common() -> None:
    stages = OffloadingParallelConfig(world_size=4, tp_size=2, pp_size=2)
    one = CPUOffloadingSpec(config(bytes_per_block=192, canonical=True, parallel=stages))
    with pytest.raises(MappingError, match="world_size 4 is not tp_size 2"):
        one.get_worker(caches(PACKED, memory_of(0), 2, 0))


@pytest.mark.clause("MAP-6")
def test_a_layer_without_a_mapping_has_no_canonical_page() -> None:
    one = CPUOffloadingSpec(config(bytes_per_block=192, canonical=True))
    with pytest.raises(MappingError, match="without a mapping"):
        one.get_worker(caches_of(ArrayTensor(numbered(BLOCKS, 8))))


@pytest.mark.clause("SPECS-4")
def test_canonical_pages_fit_into_what_all_ranks_have() -> None:
    two = OffloadingParallelConfig(world_size=2, tp_size=2)
    one = CPUOffloadingSpec(config(bytes_per_block=95, canonical=True, parallel=two))
    with pytest.raises(InvalidValueError, match="has layers of 96 bytes a block"):
        one.get_worker(caches(PACKED, memory_of(0), 2, 0))
