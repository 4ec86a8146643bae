"""COPY-1 on every path to a GPU, on the CPU: torch's copies, the driver's call, the Triton kernel.

The kernel runs in Triton's interpreter, where addresses are those of host memory; for the driver's
call something stands in that records its arguments and copies what they say.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvoffload import CPULoadStoreSpec, GPULoadStoreSpec, InvalidValueError
from kvoffload.canonical.pages import CopyRun
from kvoffload.copying.cuda import by_driver, by_kernel, by_torch
from kvoffload.copying.cuda.device import CudaDevice
from kvoffload.copying.cuda.paths import DEFAULT_PATHS, CopyPath, PathRule, PathTable
from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
from kvoffload.copying.plans import CopyPlan, Direction, Memory, PagePlan, plan_load, plan_store
from kvoffload.errors import DeviceError
from spec_tests.clauses.test_copying import Bytes, World, copied, transfers, worlds
from spec_tests.profiles import times

CarryOut = Callable[[CopyPlan, list[Bytes], list[Bytes]], None]


def memories(sides: list[Bytes]) -> list[Memory]:
    return [Memory(side.ctypes.data, side.strides[0]) for side in sides]


def with_torch(plan: CopyPlan, gpu: list[Bytes], host: list[Bytes]) -> None:
    for page in plan.pages:
        by_torch.copy_page(
            page,
            plan.direction,
            [torch.as_tensor(side) for side in gpu],
            [torch.as_tensor(side) for side in host],
        )


def with_driver(plan: CopyPlan, gpu: list[Bytes], host: list[Bytes]) -> None:
    called: list[int] = []

    def call(targets: list[int], sources: list[int], sizes: list[int], stream: int) -> None:
        called.append(stream)
        assert len(targets) == len(sources) == len(sizes) == plan.num_fragments
        assert all(type(number) is int for number in (*targets, *sources, *sizes))
        for target, source, size in zip(targets, sources, sizes, strict=True):
            ctypes.memmove(target, source, size)

    by_driver.copy_pages(plan, memories(gpu), memories(host), 77, call)
    # One call for all of it; none for nothing, which the driver would refuse.
    assert called == ([77] if plan.num_bytes else [])


def with_kernel(plan: CopyPlan, gpu: list[Bytes], host: list[Bytes]) -> None:
    for page in plan.pages:
        by_kernel.copy_page(
            page, plan.direction, memories(gpu), memories(host), torch.device("cpu")
        )


def round_trip(world: World, data: st.DataObject, carry_out: CarryOut) -> None:
    stored = data.draw(transfers(world.layout))
    expected = copied(world, stored, store=True)
    plan = plan_store(world.layout, stored.gpu, stored.cpu, null_blocks=stored.null_blocks)
    carry_out(plan, world.gpu, world.host)
    for found, wanted in zip([*world.gpu, *world.host], [*expected[0], *expected[1]], strict=True):
        np.testing.assert_array_equal(found, wanted)
    loaded = data.draw(transfers(world.layout))
    expected = copied(world, loaded, store=False)
    carry_out(plan_load(world.layout, loaded.cpu, loaded.gpu), world.gpu, world.host)
    for found, wanted in zip([*world.gpu, *world.host], [*expected[0], *expected[1]], strict=True):
        np.testing.assert_array_equal(found, wanted)


@given(worlds(), st.data())
def test_copies_by_torch(world: World, data: st.DataObject) -> None:
    round_trip(world, data, with_torch)


@given(worlds(), st.data())
def test_the_call_of_the_driver(world: World, data: st.DataObject) -> None:
    round_trip(world, data, with_driver)


@given(worlds(), st.data())
# Interpreting a kernel takes its time.
@times(Fraction(1, 4))
def test_the_kernel_interpreted(world: World, data: st.DataObject) -> None:
    assert os.environ.get("TRITON_INTERPRET") == "1", "nox -s torch sets it"
    round_trip(world, data, with_kernel)


@pytest.mark.parametrize("offset", [3, 8])
@pytest.mark.parametrize("size", [1, 8, 1023, 1024, 1025, 8192, 8200, 16_384])
def test_the_kernel_on_fragments_around_its_piece(size: int, offset: int) -> None:
    """By bytes, and by words where all numbers are multiples of 8."""
    rng = np.random.default_rng(size)
    gpu = rng.integers(0, 256, (3, 3 * size + 16), dtype=np.uint8)
    host = np.zeros((4, 4 * size + 16), dtype=np.uint8)
    run = CopyRun(offset, 8, size, 2, 2 * size, 3 * size)
    layout = CopyLayout(
        gpu=[Rows(3, gpu.shape[1])],
        host=[Rows(4, host.shape[1])],
        groups=((PageRuns(0, (run,)),),),
    )
    plan = plan_store(layout, GPULoadStoreSpec([2, 0], None, [0]), CPULoadStoreSpec([1, 3]))
    expected = host.copy()
    for block, slot in ((2, 1), (0, 3)):
        for near, far in ((offset, 8), (offset + 2 * size, 8 + 3 * size)):
            expected[slot, far : far + size] = gpu[block, near : near + size]
    with_kernel(plan, [gpu], [host])
    np.testing.assert_array_equal(host, expected)


# The table


def page_of(*sizes: int) -> PagePlan:
    rows = np.array([0], dtype=np.int64)
    runs = tuple(CopyRun(0, 0, size, 1, size, size) for size in sizes)
    return PagePlan(0, rows, rows, runs)


ALL = frozenset(CopyPath)


@pytest.mark.parametrize(
    ("sizes", "available", "path"),
    [
        ((8192,), ALL, CopyPath.KERNEL),
        ((8193,), ALL, CopyPath.DRIVER),
        ((1 << 20, 512), ALL, CopyPath.KERNEL),
        ((512,), ALL - {CopyPath.KERNEL}, CopyPath.DRIVER),
        ((512,), frozenset({CopyPath.TORCH}), CopyPath.TORCH),
    ],
)
def test_small_fragments_go_by_kernel_and_large_ones_by_the_driver(
    sizes: tuple[int, ...], available: frozenset[CopyPath], path: CopyPath
) -> None:
    assert DEFAULT_PATHS.choose(Direction.STORE, page_of(*sizes), available) is path


def test_a_table_can_be_written_and_read() -> None:
    table = PathTable.parse("load:kernel<=4096, driver")
    assert table.rules == (
        PathRule(CopyPath.KERNEL, 4096, Direction.LOAD),
        PathRule(CopyPath.DRIVER),
    )
    assert PathTable.parse(str(table)) == table
    assert table.choose(Direction.STORE, page_of(1), ALL) is CopyPath.DRIVER
    assert table.choose(Direction.LOAD, page_of(1), ALL) is CopyPath.KERNEL
    assert PathTable.only(CopyPath.TORCH).choose(Direction.LOAD, page_of(1), ALL) is CopyPath.TORCH
    assert str(DEFAULT_PATHS) == "kernel<=8192, driver"
    for wrong in ("", "fast", "kernel<=", "kernel<=0", "up:kernel", "kernel<=x"):
        with pytest.raises(InvalidValueError):
            PathTable.parse(wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_device_says_so() -> None:
    rows = torch.zeros(2, 8, dtype=torch.uint8)
    with pytest.raises(DeviceError, match="torch finds no CUDA device"):
        CudaDevice([rows], [rows])
