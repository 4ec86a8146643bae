"""A worker's KV caches in canonical form, from its tensors by name and its groups of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvoffload.canonical.arguments import require_instance
from kvoffload.canonical.derivation import derive_mapping
from kvoffload.canonical.layers import Layer
from kvoffload.canonical.pages import (
    BlockTensor,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CanonicalPageMapping,
)
from kvoffload.canonical.parallel import KVParallelConfig
from kvoffload.canonical.recognition import BlockView, address_of, parts_of, recognise, views_of
from kvoffload.errors import MappingError


def canonical_kv_caches(
    tensors: Mapping[str, BlockTensor | Sequence[BlockTensor]],
    groups: Sequence[Mapping[str, Layer | None]],
    parallel: KVParallelConfig,
) -> CanonicalKVCaches:
    """Tensors, each once, and for each layer of each group where it lies and how it maps.

    `groups[g]` describes the layers of KV-cache group g by name, in their order; `tensors` has the
    tensor of each name, or several as `recognise` takes them. A layer described by None is a page
    of unknown size: its reference has no mapping, and what it covers is what its tensor shows
    (MAP-6). Layers that begin at the same byte and repeat at the same distance share a tensor.
    Raises MappingError where a tensor is missing, belongs to no layer, contradicts its description
    or has no memory, as a meta tensor.
    """
    require_instance("tensors", tensors, Mapping)
    require_instance("groups", groups, Sequence)
    require_instance("parallel", parallel, KVParallelConfig)
    named: set[str] = set()
    for name in tensors:
        require_instance("a name of tensors", name, str)
    for number, group in enumerate(groups):
        require_instance(f"groups[{number}]", group, Mapping)
        for name in group:
            require_instance(f"a name of groups[{number}]", name, str)
            if name not in tensors:
                raise MappingError(f"{name}: no tensor of that name among {sorted(tensors)}")
            if name in named:
                raise MappingError(f"{name}: is in more than one group")
            named.add(name)
    for name in tensors:
        if name not in named:
            raise MappingError(f"{name}: a tensor that no group describes")
    shelf = _Tensors()
    refs = [
        [_reference(shelf, name, layer, tensors[name], parallel) for name, layer in group.items()]
        for group in groups
    ]
    return CanonicalKVCaches(tensors=shelf.tensors, group_data_refs=refs)


class _Tensors:
    """The tensors so far, each once."""

    def __init__(self) -> None:
        self.tensors: list[CanonicalKVCacheTensor] = []
        self._index: dict[tuple[int, int], int] = {}

    def index_of(self, tensor: BlockTensor, address: int, block_step: int) -> int:
        """Where the tensor is in the list, which it is added to if need be."""
        place = address, block_step
        if place not in self._index:
            self._index[place] = len(self.tensors)
            self.tensors.append(CanonicalKVCacheTensor(tensor, block_step))
        return self._index[place]


def _reference(
    shelf: _Tensors,
    name: str,
    layer: Layer | None,
    tensor: BlockTensor | Sequence[BlockTensor],
    parallel: KVParallelConfig,
) -> CanonicalKVCacheRef:
    parts = parts_of(tensor, name)
    if layer is None:
        mapping: CanonicalPageMapping | None = None
        views = views_of(parts, name)
        start = min(view.start for view in views)
        page_size = max(view.start - start + view.extent for view in views)
        padded = None
        for view in views:
            if view.num_blocks > 1 and view.block_step < page_size:
                raise MappingError(
                    f"{name}: blocks lie {view.block_step} bytes apart, each reaches over "
                    f"{page_size}"
                )
    else:
        settled = recognise(layer, parallel, parts, name=name)
        mapping = derive_mapping(settled, parallel, name=name)
        page_size = mapping.local_page_size_bytes
        padded = layer.padded_page_size_bytes
    addresses = [address_of(part, name) for part in parts]
    address = min(addresses)
    if not address:
        raise MappingError(
            f"{name}: data_ptr() is 0: a tensor without memory cannot be told from another"
        )
    first = parts[addresses.index(address)]
    view = BlockView.of(first, name)
    # With a single block nobody can see how far the next one would be.
    block_step = view.block_step if view.num_blocks > 1 else padded or page_size
    return CanonicalKVCacheRef(
        tensor_idx=shelf.index_of(first, address, block_step),
        page_size_bytes=page_size,
        mapping=mapping,
    )
