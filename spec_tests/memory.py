"""A tensor that is only a place in memory: shape, strides and where it starts."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from attrs import frozen


@frozen
class Place:
    """What describing pages asks of a tensor (`kvoffload.BlockTensor`), without any memory.

    `steps` and `start` count elements of `size` bytes; `address` is that of the storage.
    """

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    size: int = 1
    start: int = 0
    address: int = 4096

    def stride(self) -> tuple[int, ...]:
        return self.steps

    def storage_offset(self) -> int:
        return self.start

    def element_size(self) -> int:
        return self.size

    def data_ptr(self) -> int:
        return self.address + self.start * self.size


def dense(*shape: int, size: int = 1, address: int = 4096) -> Place:
    """A tensor whose elements lie in the order of its dimensions, without gaps."""
    inside = accumulate(reversed(shape[1:]), mul, initial=1)
    return Place(shape, tuple(inside)[::-1], size, address=address)


def permuted(place: Place, *order: int) -> Place:
    """The same memory with its dimensions in another order."""
    return Place(
        tuple(place.shape[i] for i in order),
        tuple(place.steps[i] for i in order),
        place.size,
        place.start,
        place.address,
    )
