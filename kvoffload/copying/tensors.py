"""KV-cache tensors as rows of bytes, where they are: nothing is copied, no library imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from kvoffload.canonical.pages import BlockTensor, CanonicalKVCaches, CanonicalKVCacheTensor
from kvoffload.errors import MappingError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Array = NDArray[np.generic]


class ArrayTensor:
    """A numpy array, of any type, as the tensor that describes pages: a `BlockTensor`."""

    def __init__(self, array: Array) -> None:
        self.array = array

    @property
    def shape(self) -> Sequence[int]:
        return self.array.shape

    def stride(self) -> Sequence[int]:
        """Elements between neighbours. Raises MappingError where that is no whole number."""
        size = self.array.itemsize
        if any(step % size for step in self.array.strides):
            raise MappingError(
                f"an array of {self.array.strides} bytes between neighbours, of {size} bytes each"
            )
        return [step // size for step in self.array.strides]

    def storage_offset(self) -> int:
        """Elements before the first one in the array that this one is a view of."""
        return (self.data_ptr() - _span(_owner(self.array)).start) // self.array.itemsize

    def element_size(self) -> int:
        """Bytes an element."""
        return self.array.itemsize

    def data_ptr(self) -> int:
        """Address of the first element."""
        address: int = self.array.__array_interface__["data"][0]
        return address


def byte_rows(kv_caches: CanonicalKVCaches) -> list[Bytes]:
    """For each tensor its blocks as rows of bytes: shape (blocks, bytes a page), uint8, writable.

    Tensors are `ArrayTensor`s, or those of torch in the memory of the CPU. The first dimension
    counts blocks, however far apart they are; the bytes of a block lie next to each other, in any
    order of the other dimensions. Raises MappingError, with the number of the tensor, for one whose
    blocks have holes, overlap, or are longer than its pages or its memory, for one that cannot be
    written, and for one in other memory.
    """
    return [
        _rows(one, size, f"tensor {number}")
        for number, (one, size) in enumerate(
            zip(kv_caches.tensors, bytes_needed(kv_caches), strict=True)
        )
    ]


def bytes_needed(kv_caches: CanonicalKVCaches) -> list[int]:
    """The longest page that a reference has in each tensor; 1 for a tensor without references."""
    needed = [1] * len(kv_caches.tensors)
    for refs in kv_caches.group_data_refs:
        for ref in refs:
            needed[ref.tensor_idx] = max(needed[ref.tensor_idx], ref.page_size_bytes)
    return needed


class _Span(NamedTuple):
    """Addresses [start, end)."""

    start: int
    end: int


class _Device(Protocol):
    @property
    def type(self) -> str: ...


class _Storage(Protocol):
    def data_ptr(self) -> int: ...

    def nbytes(self) -> int: ...


class _TorchTensor(BlockTensor, Protocol):
    """What torch's tensors have beyond a `BlockTensor`."""

    @property
    def device(self) -> _Device: ...

    def untyped_storage(self) -> _Storage: ...


class _Rows:
    """Memory as numpy is told of it; whoever has the array keeps the tensor alive."""

    def __init__(
        self, tensor: BlockTensor, address: int, shape: tuple[int, int], step: int
    ) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": shape,
            "strides": (step, 1),
            "data": (address, False),
        }


def _rows(one: CanonicalKVCacheTensor, needed: int, name: str) -> Bytes:
    import numpy as np

    tensor, page = one.tensor, one.page_size_bytes
    memory = _memory_of(tensor, name)
    num_blocks, *shape = tensor.shape
    block_step, *steps = [step * tensor.element_size() for step in tensor.stride()]
    dense = _dense_bytes(shape, steps, tensor.element_size(), name)
    if dense > page:
        raise MappingError(f"{name}: blocks of {dense} bytes in pages of {page}")
    if num_blocks > 1 and block_step < page:
        raise MappingError(f"{name}: pages of {page} bytes, of which one begins every {block_step}")
    address = tensor.data_ptr()
    # The padding of the last block may be missing, as nobody reads or writes it.
    room = memory.end - address - max(num_blocks - 1, 0) * block_step
    if num_blocks and (address < memory.start or room < needed):
        raise MappingError(
            f"{name}: of the last of {num_blocks} pages {room} bytes are there, and {needed} needed"
        )
    width = min(page, room) if num_blocks else page
    return np.asarray(_Rows(tensor, address, (num_blocks, width), block_step))


def _dense_bytes(shape: Sequence[int], steps: Sequence[int], size: int, name: str) -> int:
    """Bytes of a block. Raises MappingError unless they lie next to each other."""
    dense = size
    for step, length in sorted(zip(steps, shape, strict=True)):
        if length == 1:
            continue
        if step != dense:
            raise MappingError(
                f"{name}: the bytes of a block do not lie next to each other: shape "
                f"{tuple(shape)} of {size} bytes each, {tuple(steps)} bytes between neighbours"
            )
        dense *= length
    return dense


def _memory_of(tensor: BlockTensor, name: str) -> _Span:
    """The memory that a tensor is a view of. Raises MappingError if it is not the CPU's."""
    if isinstance(tensor, ArrayTensor):
        if tensor.array.dtype.hasobject:
            raise MappingError(f"{name}: an array of objects, whose bytes are not its own")
        if not tensor.array.flags.writeable:
            raise MappingError(f"{name}: an array that cannot be written")
        return _span(_owner(tensor.array))
    if not (hasattr(tensor, "device") and hasattr(tensor, "untyped_storage")):
        raise MappingError(
            f"{name}: a {type(tensor).__name__}, which does not tell whose memory it is in; "
            "wanted are tensors of torch, and of numpy as ArrayTensor"
        )
    # As was just seen; torch itself is not there where types are checked.
    torch_tensor = cast("_TorchTensor", tensor)
    if torch_tensor.device.type != "cpu":
        raise MappingError(
            f"{name}: in the memory of {torch_tensor.device}, which the host device cannot reach"
        )
    try:
        storage = torch_tensor.untyped_storage()
    except RuntimeError as error:
        raise MappingError(f"{name}: a tensor without memory of its own ({error})") from error
    return _Span(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _owner(array: Array) -> Array:
    """The array that this one is a view of, or itself."""
    import numpy as np

    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _span(array: Array) -> _Span:
    """From the first to the last byte of an array."""
    start = end = ArrayTensor(array).data_ptr()
    for length, step in zip(array.shape, array.strides, strict=True):
        if step < 0:
            start += max(length - 1, 0) * step
        else:
            end += max(length - 1, 0) * step
    return _Span(start, end + array.itemsize)
