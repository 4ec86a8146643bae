"""The checks on the GPU, then how fast each path copies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import pytest
import torch

from kvoffload import (
    AttentionLayer,
    CopyRun,
    CPULoadStoreSpec,
    Encoding,
    GPULoadStoreSpec,
    KVParallelConfig,
    derive_mapping,
)
from kvoffload.copying.cuda.paths import CopyPath
from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
from spec_tests.cuda.stand import Stand, make_stand

TOTAL_BYTES = 256 << 20
ROUNDS = 9
KIB = 1024


def main() -> int:
    """Run both; the exit status is that of the checks."""
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was checked", file=sys.stderr)
        return 2
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    status = int(pytest.main(["spec_tests/cuda", "-q", "-p", "no:cacheprovider"]))
    print("\nGB/s, medians of", ROUNDS, "(store / load); blocks shuffled, host memory pinned")
    heads = ["pages", "plain", *(path.value for path in CopyPath)]
    print("".join(f"{head:>20}" for head in heads))
    for page in (1, 4, 16, 64, 256, 1024, 4096):
        run = CopyRun(0, 0, page * KIB, 1, page * KIB, page * KIB)
        show(f"direct {page} KiB", page * KIB, page * KIB, (run,))
    for local_heads in (1, 8):
        mapping = derive_mapping(
            AttentionLayer(
                total_kv_heads=2 * local_heads,
                head_size=128,
                element_size_bytes=2,
                encoding=Encoding.PACKED_NHD,
            ),
            KVParallelConfig(block_size=16, tp_size=2),
        )
        show(
            f"canonical, {local_heads} heads",
            mapping.local_page_size_bytes,
            mapping.canonical_page_size_bytes,
            mapping.runs,
        )
    return status


def show(name: str, page: int, host_page: int, runs: tuple[CopyRun, ...]) -> None:
    """One line of the table."""
    number = max(1, TOTAL_BYTES // max(page, 16 * KIB))
    shuffle = np.random.default_rng(20261130)
    layout = CopyLayout([Rows(number, page)], [Rows(number, host_page)], ((PageRuns(0, runs),),))
    blocks = GPULoadStoreSpec(shuffle.permutation(number).astype(np.int32), None, [0])
    slots = CPULoadStoreSpec(shuffle.permutation(number).astype(np.int32))
    host = torch.zeros(number, host_page, dtype=torch.uint8, pin_memory=True)
    pages = np.zeros((number, page), dtype=np.uint8)
    cells = [plain(number * page)]
    for path in CopyPath:
        stand = make_stand(layout, [pages], [host], path)
        cells.append(there_and_back(stand, path, blocks, slots, number * page))
        stand.worker.shutdown()
    print("".join(f"{cell:>20}" for cell in [name, *cells]), flush=True)


def there_and_back(
    stand: Stand,
    path: CopyPath,
    blocks: GPULoadStoreSpec,
    slots: CPULoadStoreSpec,
    num_bytes: int,
) -> str:
    """Both directions of a path, submission included; a dash where it is not available."""
    if path not in stand.device.available:
        return "-"

    def store() -> None:
        stand.worker.submit_store(1, blocks, slots)
        stand.finish(1)

    def load() -> None:
        stand.worker.submit_load(1, slots, blocks)
        stand.finish(1)

    return f"{speed(store, num_bytes)} / {speed(load, num_bytes)}"


def plain(num_bytes: int) -> str:
    """One pinned copy of as many bytes, each way."""
    on_gpu = torch.zeros(num_bytes, dtype=torch.uint8, device="cuda")
    on_host = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)

    def store() -> None:
        on_host.copy_(on_gpu, non_blocking=True)
        torch.cuda.synchronize()

    def load() -> None:
        on_gpu.copy_(on_host, non_blocking=True)
        torch.cuda.synchronize()

    return f"{speed(store, num_bytes)} / {speed(load, num_bytes)}"


def speed(call: Callable[[], None], num_bytes: int) -> str:
    """Gigabytes a second, by the clock; the first round is no measure."""
    seconds: list[float] = []
    for number in range(ROUNDS + 1):
        before = time.perf_counter()
        call()
        if number:
            seconds.append(time.perf_counter() - before)
    return f"{num_bytes / median(seconds) / 1e9:.1f}"
