"""Host memory pinned where it is, and caches of torch as rows of bytes; without a GPU."""

from __future__ import annotations

import pytest
import torch

from kvoffload import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    MappingError,
)
from kvoffload.copying.cuda.pinning import PinnedAreas
from kvoffload.copying.cuda.worker import PinnedMemory, byte_rows, require_cuda
from kvoffload.copying.layout import Rows
from kvoffload.copying.memory import PrivateMemory
from kvoffload.errors import DeviceError, MemoryClosedError, WorkerUnavailableError
from spec_tests.memory import dense


class Registry:
    """Records what is pinned, and refuses the area with a number."""

    def __init__(self, refuses: int | None = None) -> None:
        self.pinned: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []
        self._refuses = refuses

    def register(self, address: int, num_bytes: int) -> int:
        self.calls.append(("register", address))
        if len(self.calls) - 1 == self._refuses:
            return 712
        assert address not in self.pinned
        self.pinned[address] = num_bytes
        return 0

    def unregister(self, address: int) -> int:
        self.calls.append(("unregister", address))
        del self.pinned[address]
        return 0


def test_areas_are_pinned_until_they_are_closed() -> None:
    registry = Registry()
    areas = PinnedAreas([(4096, 100), (8192, 0), (12288, 50)], registry)
    assert registry.pinned == {4096: 100, 12288: 50}
    areas.close()
    areas.close()
    assert registry.pinned == {}
    assert [name for name, _ in registry.calls] == ["register"] * 2 + ["unregister"] * 2


def test_what_was_pinned_before_a_failure_is_not_any_more() -> None:
    registry = Registry(refuses=1)
    with pytest.raises(DeviceError, match=r"50 bytes of host memory at 0x3000 .* says 712"):
        PinnedAreas([(4096, 100), (12288, 50)], registry)
    assert registry.pinned == {}


def test_what_was_pinned_before_an_exception_is_not_any_more() -> None:
    class Interrupted(Registry):
        def register(self, address: int, num_bytes: int) -> int:
            if self.pinned:
                raise KeyboardInterrupt
            return super().register(address, num_bytes)

    registry = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        PinnedAreas([(4096, 100), (12288, 50)], registry)
    assert registry.pinned == {}


@pytest.mark.parametrize("raises", [False, True])
def test_what_cannot_be_unpinned_keeps_nothing_else(raises: bool) -> None:
    class Stubborn(Registry):
        def unregister(self, address: int) -> int:
            if self.pinned[address] == 400:
                if raises:
                    raise RuntimeError("no")
                return 713
            return super().unregister(address)

    registry = Stubborn()
    memory = PrivateMemory([Rows(4, 8192), Rows(4, 100)])
    pinned = PinnedMemory(memory, 2, registry)
    with pytest.raises(DeviceError, match=r"stays pinned.*\((no|713)\)"):
        pinned.close()
    assert list(registry.pinned.values()) == [400]
    with pytest.raises(MemoryClosedError):
        memory.rows(0)
    pinned.close()


def test_memory_is_unpinned_before_it_is_given_up() -> None:
    registry = Registry()
    memory = PrivateMemory([Rows(4, 8192), Rows(4, 100)])
    pinned = PinnedMemory(memory, 2, registry)
    assert sorted(registry.pinned.values()) == [400, 32768]
    assert pinned.rows(1).shape == (4, 100)
    pinned.close()
    assert registry.pinned == {}
    with pytest.raises(MemoryClosedError):
        memory.rows(0)


def caches(tensor: torch.Tensor, page: int, padded: int) -> CanonicalKVCaches:
    return CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, padded)], [[CanonicalKVCacheRef(0, page)]]
    )


def test_blocks_are_rows_of_bytes_where_they_are() -> None:
    storage = torch.arange(3 * 40, dtype=torch.int16)
    tensor = storage.as_strided((3, 2, 8), (40, 8, 1), 4)
    rows = byte_rows(caches(tensor, 32, 80), 0)
    assert (rows.shape, rows.stride(), rows.dtype) == ((3, 32), (80, 1), torch.uint8)
    assert rows.data_ptr() == tensor.data_ptr()
    rows[1].zero_()
    assert tensor[1].count_nonzero() == 0
    assert tensor[0].count_nonzero() == tensor[2].count_nonzero() == 16


def test_what_is_no_tensor_of_torch_or_too_short_is_refused() -> None:
    with pytest.raises(MappingError, match="tensor 0: blocks of 32 bytes, 32 apart, for pages of"):
        byte_rows(caches(torch.zeros(3, 2, 8, dtype=torch.int16), 33, 40), 0)
    place = CanonicalKVCaches([CanonicalKVCacheTensor(dense(2, 8), 8)], [])
    with pytest.raises(MappingError, match="a tensor of torch is wanted, not Place"):
        byte_rows(place, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_there_is_no_such_worker() -> None:
    with pytest.raises(WorkerUnavailableError, match="torch finds no CUDA device"):
        require_cuda()
