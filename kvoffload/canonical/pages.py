"""Canonical pages: how a worker's page relates to the page of a worker without parallelism.

The values only; what they are for is in the MAP clauses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, SupportsIndex

from attrs import field, frozen

from kvoffload.canonical.arguments import tuple_of
from kvoffload.errors import InvalidValueError, MappingError
from kvoffload.validation import (
    each_instance,
    instance,
    int_at_least,
    optional_instance,
    require_each,
    require_int,
)

if TYPE_CHECKING:
    from attrs import Attribute

MAX_PAGE_SIZE_BYTES: Final = 1 << 62
"""No page is larger, so that sums of two offsets fit into 64 bits."""


class BlockTensor(Protocol):
    """The part of `torch.Tensor` that describing pages takes: shape and place in memory.

    A protocol, so that the vocabulary needs no torch; torch tensors satisfy it as they are.
    """

    @property
    def shape(self) -> Sequence[int]:
        """Size of each dimension; the first counts blocks."""
        ...

    def stride(self) -> Sequence[int]:
        """Elements between neighbours, for each dimension."""
        ...

    def storage_offset(self) -> SupportsIndex:
        """Elements before the first one in the underlying storage.

        torch declares that it may be symbolic, which a tensor in memory never is.
        """
        ...

    def element_size(self) -> int:
        """Bytes an element."""
        ...

    def data_ptr(self) -> int:
        """Address of the first element."""
        ...


_METHODS: Final = ("stride", "storage_offset", "element_size", "data_ptr")


def require_tensor(field: str, value: object) -> None:
    """Raise InvalidValueError for what says nothing of its shape and place in memory."""
    if not hasattr(value, "shape") or not all(
        callable(getattr(value, name, None)) for name in _METHODS
    ):
        expected = f"something with shape, {', '.join(f'{name}()' for name in _METHODS)}"
        # What an array shows of itself would drown the rest.
        raise InvalidValueError(field, type(value), expected)


def _tensor(_: object, attribute: Attribute[BlockTensor], value: object) -> None:
    require_tensor(attribute.name, value)


def _page_size(_: object, attribute: Attribute[int], value: object) -> None:
    if type(value) is not int or not 1 <= value <= MAX_PAGE_SIZE_BYTES:
        require_int(attribute.name, value, 1, MAX_PAGE_SIZE_BYTES)


@frozen
class CanonicalKVCacheTensor:
    """A KV-cache tensor of shape (num_blocks, ...); `page_size_bytes` a block, padding included.

    Equal are those of one tensor; its elements are not looked at.
    """

    tensor: BlockTensor = field(validator=_tensor, eq=id)
    page_size_bytes: int = field(validator=int_at_least(1))


@frozen
class CopyRun:
    """Equal fragments at constant steps, in the worker's page and in the canonical one (MAP-1).

    For i in range(num_fragments), fragment i spans
    [local_offset + i * local_stride, + fragment_size) in the worker's page and
    [canonical_offset + i * canonical_stride, + fragment_size) in the canonical page. All in
    bytes. Fragments of a run never overlap: MappingError if the strides would make them.
    """

    local_offset: int = field(validator=int_at_least(0))
    canonical_offset: int = field(validator=int_at_least(0))
    fragment_size: int = field(validator=int_at_least(1))
    num_fragments: int = field(validator=int_at_least(1))
    local_stride: int = field(validator=int_at_least(0))
    canonical_stride: int = field(validator=int_at_least(0))

    def __attrs_post_init__(self) -> None:
        if self.num_fragments > 1:
            for name in ("local_stride", "canonical_stride"):
                stride: int = getattr(self, name)
                if stride < self.fragment_size:
                    raise MappingError(
                        f"{name} {stride} < fragment_size {self.fragment_size}: "
                        f"the {self.num_fragments} fragments would overlap"
                    )

    @property
    def local_end(self) -> int:
        """Offset after the run's last byte in the worker's page."""
        return self.local_offset + (self.num_fragments - 1) * self.local_stride + self.fragment_size

    @property
    def canonical_end(self) -> int:
        """Offset after the run's last byte in the canonical page."""
        return (
            self.canonical_offset
            + (self.num_fragments - 1) * self.canonical_stride
            + self.fragment_size
        )


def _runs(value: Iterable[CopyRun]) -> tuple[CopyRun, ...]:
    return tuple_of("runs", value, CopyRun)


@frozen
class CanonicalPageMapping:
    """Where each byte of this worker's page belongs in the canonical page (MAP-2, MAP-3).

    Values in one process; what is printed is for display. Sizes are in bytes and the local one
    is without padding. `num_writers` ranks hold the same bytes and take turns to write them;
    this one is number `writer_index`. `parallelism_agnostic` promises that any configuration of
    the same block span writes the same canonical bytes (MAP-8). Raises MappingError for a run
    that leaves a page, or a writer that does not exist; sizes are at most MAX_PAGE_SIZE_BYTES.
    """

    canonical_page_size_bytes: int = field(validator=_page_size)
    local_page_size_bytes: int = field(validator=_page_size)
    runs: tuple[CopyRun, ...] = field(converter=_runs)
    num_writers: int = field(validator=int_at_least(1))
    writer_index: int = field(validator=int_at_least(0))
    parallelism_agnostic: bool = field(validator=instance(bool))

    def __attrs_post_init__(self) -> None:
        if self.writer_index >= self.num_writers:
            raise MappingError(
                f"writer_index {self.writer_index} is not below num_writers {self.num_writers}"
            )
        for run in self.runs:
            if run.local_end > self.local_page_size_bytes:
                raise MappingError(
                    f"{run} ends at {run.local_end}, past the local page of "
                    f"{self.local_page_size_bytes} bytes"
                )
            if run.canonical_end > self.canonical_page_size_bytes:
                raise MappingError(
                    f"{run} ends at {run.canonical_end}, past the canonical page of "
                    f"{self.canonical_page_size_bytes} bytes"
                )

    def is_writer(self, block_id: int) -> bool:
        """Whether it is this worker's turn to write the canonical page of `block_id` (MAP-3).

        Raises InvalidValueError for what is no block: a negative number, and one of numpy's, which
        may have overflowed.
        """
        if type(block_id) is not int or block_id < 0:
            require_int("block_id", block_id, 0)
        return block_id % self.num_writers == self.writer_index


@frozen
class CanonicalKVCacheRef:
    """One layer's (or group of layers') part of a tensor.

    `tensor_idx` counts in `CanonicalKVCaches.tensors`; `page_size_bytes` is a block without
    padding; `mapping` is None where the layout could not be certified (MAP-6).
    """

    tensor_idx: int = field(validator=int_at_least(0))
    page_size_bytes: int = field(validator=int_at_least(1))
    mapping: CanonicalPageMapping | None = field(
        default=None, validator=optional_instance(CanonicalPageMapping)
    )


@frozen
class CanonicalKVCaches:
    """A worker's KV caches, block by block.

    `tensors`: each tensor once. `group_data_refs[g]`: for each layer of KV-cache group g, which
    tensor holds it. Raises MappingError for a reference to a tensor that is not there or
    whose page does not fit into the tensor's.
    """

    tensors: list[CanonicalKVCacheTensor] = field(validator=each_instance(CanonicalKVCacheTensor))
    group_data_refs: list[list[CanonicalKVCacheRef]] = field(validator=each_instance((list, tuple)))

    def __attrs_post_init__(self) -> None:
        for group, refs in enumerate(self.group_data_refs):
            require_each(f"group_data_refs[{group}]", refs, CanonicalKVCacheRef)
            for ref in refs:
                if ref.tensor_idx >= len(self.tensors):
                    raise MappingError(
                        f"group {group} refers to tensor {ref.tensor_idx}, "
                        f"there are {len(self.tensors)}"
                    )
                padded = self.tensors[ref.tensor_idx].page_size_bytes
                if ref.page_size_bytes > padded:
                    raise MappingError(
                        f"group {group}: a page of {ref.page_size_bytes} bytes in tensor "
                        f"{ref.tensor_idx}, whose pages have {padded}"
                    )
