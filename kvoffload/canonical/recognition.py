"""What a tensor says of a described layer: it confirms, contradicts, or neither (MAP-6).

The description decides the encoding, for the same tensor can be read in several ways: with two
heads, pages of packed K and V have the shape of split ones, and a dimension of size 1, such as the
single head of a worker, fits any order. Decisions rest on the description, and on shape, strides
and element size, which are the same for every worker of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import prod
from operator import index as as_index
from typing import Final, NamedTuple

from attrs import evolve

from kvoffload.canonical.arguments import require_instance, require_name
from kvoffload.canonical.identity import layout_id
from kvoffload.canonical.layers import (
    AttentionLayer,
    Encoding,
    LatentLayer,
    Layer,
    OpaqueLayer,
    PackedLayers,
    SingleLayer,
    require_layer,
)
from kvoffload.canonical.pages import BlockTensor, require_tensor
from kvoffload.canonical.parallel import HeadShare, KVParallelConfig
from kvoffload.errors import InvalidValueError, MappingError
from kvoffload.validation import require_int


def recognise(
    layer: Layer,
    parallel: KVParallelConfig,
    tensor: BlockTensor | Sequence[BlockTensor],
    *,
    name: str = "layer",
) -> Layer:
    """The description that the tensor leaves standing (MAP-6).

    The first dimension of `tensor` counts blocks. Layers packed in one block have a tensor each,
    in order; the parts of an opaque page may have one each. The answer is `layer` where the tensor
    fits it, with the encoding filled in where there was none and only one way to read the tensor,
    or several that come to the same canonical page; and an opaque layer where the tensor fits
    nothing that is known, or several things and nobody says which. Raises MappingError where the
    tensor contradicts the description, and InvalidValueError for what is no tensor.
    """
    require_layer(layer)
    require_instance("parallel", parallel, KVParallelConfig)
    require_name(name)
    views = views_of(parts_of(tensor, name), name)
    if isinstance(layer, PackedLayers):
        return _recognise_packed(layer, parallel, views, name)
    return _recognise_single(layer, parallel, views, name)


class Dimension(NamedTuple):
    """A dimension of a block: how many places, how many bytes apart."""

    length: int
    step: int


class BlockView(NamedTuple):
    """A tensor in bytes, one block of it: what is compared with a description."""

    shape: tuple[int, ...]
    num_blocks: int
    element_size: int
    # Bytes from one block to the next, and from the start of the storage to the first.
    block_step: int
    start: int
    # Without those of length 1; the last one counts the bytes of what lies next to each other.
    dimensions: tuple[Dimension, ...]

    @classmethod
    def of(cls, tensor: BlockTensor, name: str) -> BlockView:
        """The tensor in bytes.

        Raises MappingError for one without blocks or elements, or that runs backwards in memory,
        and InvalidValueError for sizes that are no ints.
        """
        shape = _ints(f"{name}: shape", tensor.shape)
        strides = _ints(f"{name}: stride()", tensor.stride())
        size = require_int(f"{name}: element_size()", tensor.element_size(), 1)
        if len(shape) < 2 or min(shape) < 1:
            raise MappingError(
                f"{name}: a tensor of shape {shape} has no blocks: its first dimension counts "
                "them, the others are one block"
            )
        if len(strides) != len(shape):
            raise MappingError(f"{name}: a tensor of shape {shape} has the strides {strides}")
        if any(step < 0 < length - 1 for length, step in zip(shape, strides, strict=True)):
            raise MappingError(f"{name}: strides {strides} run backwards in memory")
        steps = [step * size for step in strides]
        dimensions = [
            Dimension(length, step)
            for length, step in zip(shape[1:], steps[1:], strict=True)
            if length > 1
        ]
        if dimensions and dimensions[-1].step == size:
            dimensions[-1] = Dimension(dimensions[-1].length * size, 1)
        elif size > 1:
            dimensions.append(Dimension(size, 1))
        return cls(
            shape=shape,
            num_blocks=shape[0],
            element_size=size,
            block_step=steps[0],
            start=_storage_offset(tensor, name) * size,
            dimensions=tuple(dimensions),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements of a block."""
        return prod(self.shape[1:]) * self.element_size

    @property
    def extent(self) -> int:
        """Bytes from the first to the last one of a block."""
        return sum((length - 1) * step for length, step in self.dimensions) + 1

    def __str__(self) -> str:
        steps = [axis.step for axis in self.dimensions]
        return (
            f"shape {self.shape}, elements of {self.element_size} bytes, "
            f"{steps} bytes between neighbours in a block"
        )

    def fits(self, axes: Sequence[Dimension]) -> bool:
        """Whether the block has just these axes, in this order; those of length 1 say nothing."""
        return self.dimensions == tuple(axis for axis in axes if axis.length > 1)


def parts_of(tensor: BlockTensor | Sequence[BlockTensor], name: str) -> tuple[BlockTensor, ...]:
    """One tensor or several, as several.

    Raises MappingError for none, and InvalidValueError for what is no tensor.
    """
    parts = tuple(tensor) if isinstance(tensor, Sequence) else (tensor,)
    if not parts:
        raise MappingError(f"{name}: no tensor")
    for part in parts:
        require_tensor(f"{name}: tensor", part)
    return parts


def views_of(parts: Sequence[BlockTensor], name: str) -> list[BlockView]:
    """The tensors of one page, in bytes. Raises MappingError if they have not one storage."""
    views = [BlockView.of(part, name) for part in parts]
    if len(parts) == 1:
        return views
    # Where each one's storage begins; tensors without memory have no address.
    storages = {
        address - view.start
        for part, view in zip(parts, views, strict=True)
        if (address := address_of(part, name))
    }
    if len(storages) > 1:
        raise MappingError(
            f"{name}: {len(parts)} tensors in {len(storages)} storages, a page is in one"
        )
    return views


def address_of(tensor: BlockTensor, name: str) -> int:
    """Address of the first element. Raises InvalidValueError for what is none."""
    return require_int(f"{name}: data_ptr()", tensor.data_ptr(), 0)


def _ints(field: str, value: object) -> tuple[int, ...]:
    given = value
    if isinstance(given, Sequence):
        lengths: Sequence[int] = given
        if all(type(length) is int for length in lengths):
            return tuple(lengths)
    raise InvalidValueError(field, value, "a sequence of ints")


def _storage_offset(tensor: BlockTensor, name: str) -> int:
    offset, field = tensor.storage_offset(), f"{name}: storage_offset()"
    try:
        return require_int(field, as_index(offset), 0)
    except TypeError as error:
        raise InvalidValueError(field, offset, "an int >= 0") from error


def _page_size(layer: SingleLayer, parallel: KVParallelConfig) -> int:
    """Bytes of a worker's page, by the description alone. Raises MappingError (MAP-4)."""
    if isinstance(layer, OpaqueLayer):
        return layer.page_size_bytes
    if isinstance(layer, LatentLayer):
        return parallel.block_size * layer.row_size_bytes
    heads = HeadShare(layer.total_kv_heads, parallel.tp_size, parallel.dcp_size)
    return 2 * parallel.block_size * heads.local_heads * layer.vector_size_bytes


def _require_blocks(
    views: Sequence[BlockView], page_size: int, padded: int | None, name: str
) -> None:
    """Raise MappingError unless the tensors' blocks lie in one page, and pages in their blocks."""
    first = min(view.start for view in views)
    for view in views:
        reach = view.start - first + view.extent
        if reach > page_size:
            raise MappingError(
                f"{name}: a block of the tensor reaches over {reach} bytes, its page has "
                f"{page_size} ({view})"
            )
        if view.num_blocks == 1:
            continue
        if view.block_step < page_size:
            raise MappingError(
                f"{name}: blocks lie {view.block_step} bytes apart, a page has {page_size}"
            )
        if padded is not None and view.block_step != padded:
            raise MappingError(
                f"{name}: blocks lie {view.block_step} bytes apart, padded_page_size_bytes says "
                f"{padded}"
            )
        inside = first % view.block_step
        if inside + page_size > view.block_step:
            raise MappingError(
                f"{name}: a page of {page_size} bytes that starts {inside} bytes into its block "
                f"leaves the block, which has {view.block_step}"
            )


def _recognise_single(
    layer: SingleLayer, parallel: KVParallelConfig, views: Sequence[BlockView], name: str
) -> SingleLayer:
    page_size = _page_size(layer, parallel)
    if isinstance(layer, OpaqueLayer):
        _require_blocks(views, page_size, layer.padded_page_size_bytes, name)
        return layer
    if len(views) != 1:
        raise MappingError(f"{name}: {len(views)} tensors for one layer that is not opaque")
    (view,) = views
    if view.num_bytes != page_size:
        raise MappingError(
            f"{name}: a block of the tensor has {view.num_bytes} bytes, the description's page "
            f"{page_size} ({view})"
        )
    _require_blocks(views, page_size, layer.padded_page_size_bytes, name)
    if view.extent != page_size:
        raise MappingError(
            f"{name}: the {page_size} bytes of a block lie within {view.extent}, on top of each "
            f"other ({view})"
        )
    if isinstance(layer, AttentionLayer):
        settled = _settled(layer, parallel, view, name)
        if settled is not None:
            return settled
    elif view.fits(_latent_axes(layer, parallel)):
        return layer
    return OpaqueLayer(
        page_size_bytes=page_size, padded_page_size_bytes=layer.padded_page_size_bytes
    )


def _latent_axes(layer: LatentLayer, parallel: KVParallelConfig) -> tuple[Dimension, ...]:
    row = layer.row_size_bytes
    return Dimension(parallel.block_size, row), Dimension(row, 1)


def _settled(
    layer: AttentionLayer, parallel: KVParallelConfig, view: BlockView, name: str
) -> AttentionLayer | None:
    if layer.encoding is not None and _can_be(layer.encoding, layer, parallel, view):
        return layer
    fitting = [encoding for encoding in Encoding if _can_be(encoding, layer, parallel, view)]
    if layer.encoding is None:
        read = [evolve(layer, encoding=encoding) for encoding in fitting]
        # The same canonical page, that is: a single worker's runs are the same for any encoding.
        same = len({layout_id(one, parallel) for one in read}) == 1
        return read[0] if same else None
    if fitting:
        raise MappingError(
            f"{name}: the description says {layer.encoding.value}, the tensor is "
            f"{' or '.join(encoding.value for encoding in fitting)} ({view})"
        )
    return None


def _can_be(
    encoding: Encoding, layer: AttentionLayer, parallel: KVParallelConfig, view: BlockView
) -> bool:
    return any(view.fits(axes) for axes in _readings(layer, encoding, parallel))


# The dimensions outside a vector, in any order, as only their lengths can tell which is which; what
# engines use most comes first: packed with heads before tokens, and split.
_USUAL: Final = (("head", "token", "kv"), ("kv", "token", "head"))
_ORDERS: Final = tuple(dict.fromkeys((*_USUAL, *permutations(_USUAL[0]))))


def _readings(
    layer: AttentionLayer, encoding: Encoding, parallel: KVParallelConfig
) -> Iterator[tuple[Dimension, ...]]:
    """Every list of dimensions under which engines show a page of this encoding.

    K and V, tokens and heads in any order; neighbours in memory may be one dimension with the
    elements of a vector: K and V of a packed page, the heads of a split token-major one.
    """
    heads = HeadShare(layer.total_kv_heads, parallel.tp_size, parallel.dcp_size).local_heads
    tokens, vector = parallel.block_size, layer.vector_size_bytes
    lengths = {"kv": 2, "token": tokens, "head": heads}
    inner = 1 if encoding.is_split else 2
    if encoding.is_head_major:
        steps = {"token": inner * vector, "head": tokens * inner * vector}
    else:
        steps = {"token": heads * inner * vector, "head": inner * vector}
    steps["kv"] = tokens * heads * vector if encoding.is_split else vector
    axes = {axis: Dimension(lengths[axis], steps[axis]) for axis in lengths}
    for first, second, third in _ORDERS:
        innermost = axes[third]
        if innermost.step == vector:
            yield axes[first], axes[second], Dimension(innermost.length * vector, 1)
        yield axes[first], axes[second], innermost, Dimension(vector, 1)


def _recognise_packed(
    block: PackedLayers, parallel: KVParallelConfig, views: Sequence[BlockView], name: str
) -> PackedLayers:
    if len(views) != len(block.layers):
        raise MappingError(
            f"{name}: {len(block.layers)} layers packed in a block, {len(views)} tensors"
        )
    first = views[0]
    expected = first.start
    settled: list[SingleLayer] = []
    for index, (layer, view) in enumerate(zip(block.layers, views, strict=True)):
        one = f"{name}[{index}]"
        if view.start != expected:
            raise MappingError(
                f"{one}: starts {view.start} bytes into the storage, after the layers before it "
                f"in the block it would be {expected}"
            )
        if (view.num_blocks, view.block_step) != (first.num_blocks, first.block_step):
            raise MappingError(
                f"{one}: {view.num_blocks} blocks {view.block_step} bytes apart, the first layer "
                f"of the block has {first.num_blocks} blocks {first.block_step} bytes apart"
            )
        settled.append(_recognise_single(layer, parallel, [view], one))
        expected += _page_size(layer, parallel)
    _require_blocks([first], expected - first.start, block.padded_page_size_bytes, name)
    return PackedLayers(layers=tuple(settled), padded_page_size_bytes=block.padded_page_size_bytes)
