"""A name for a layout of persisted pages, which changes exactly when their bytes do (ID-1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from attrs import field, frozen

from kvoffload.canonical.derivation import derive_mappings
from kvoffload.canonical.layers import LatentLayer, Layer, OpaqueLayer, PackedLayers, SingleLayer
from kvoffload.canonical.parallel import KVParallelConfig
from kvoffload.errors import MappingError
from kvoffload.validation import each_instance, instance, require_int

FORMAT: Final = "1"
"""Version of the canonical format; another one whenever the same description gives other bytes."""


@frozen
class LayoutId:
    """A layout's name: `digest`, 32 hexadecimal digits, of `fields`, which can be read.

    Equal ids mean that pages of one model can be loaded from each other. The model's name, its
    weights and the type of its elements are no part of it.
    """

    digest: str = field(validator=instance(str))
    fields: tuple[tuple[str, str], ...] = field(validator=each_instance(tuple))

    def __str__(self) -> str:
        return self.digest


def layout_id(layer: Layer, parallel: KVParallelConfig, *, blocks_per_chunk: int = 1) -> LayoutId:
    """The id of a chunk of `blocks_per_chunk` canonical pages of `layer`, one after another.

    What changes no byte is left out: ranks and replication, padding, how tokens and heads are
    spread, and the order of axes where only one of them is longer than 1. An opaque page stays
    one worker's, so there the configuration counts. Raises MappingError as `derive_mappings` does.
    """
    require_int("blocks_per_chunk", blocks_per_chunk, 1)
    derive_mappings(layer, parallel)
    layers = layer.layers if isinstance(layer, PackedLayers) else (layer,)
    fields = [("format", FORMAT)]
    if len(layers) == 1:
        page = _page(layers[0], parallel)
        axes = _chunk_axes(page.axes, parallel.span, blocks_per_chunk)
        fields += [("axes", _written(axes)), ("innermost", page.innermost)]
    else:
        fields.append(("axes", _written([("block", blocks_per_chunk), ("layer", len(layers))])))
        for index, one in enumerate(layers):
            page = _page(one, parallel)
            fields.append((f"layers[{index}].axes", _written(page.axes)))
            fields.append((f"layers[{index}].innermost", page.innermost))
    if any(isinstance(one, OpaqueLayer) for one in layers):
        fields += _configuration(parallel)
    written = "\n".join(f"{name}={value}" for name, value in fields)
    return LayoutId(sha256(written.encode()).hexdigest()[:32], tuple(fields))


class _Page(NamedTuple):
    """A canonical page's axes longer than 1, from the outermost in, and what is inside them."""

    axes: tuple[tuple[str, int], ...]
    innermost: str


def _page(layer: SingleLayer, parallel: KVParallelConfig) -> _Page:
    if isinstance(layer, OpaqueLayer):
        return _Page((), f"{layer.page_size_bytes} opaque bytes of every worker")
    tokens = ("token", parallel.span)
    if isinstance(layer, LatentLayer):
        row = f"latent of {layer.row_elements} x {layer.element_size_bytes} bytes"
        if layer.second_row_bytes:
            row += f", then {layer.second_row_bytes} bytes"
        return _Page(_longer([tokens]), row)
    if layer.encoding is None:
        raise MappingError("encoding is None: the pages of an unknown encoding have no id")
    heads, halves = ("head", layer.total_kv_heads), ("kv", 2)
    axes = [heads, tokens] if layer.encoding.is_head_major else [tokens, heads]
    axes = [halves, *axes] if layer.encoding.is_split else [*axes, halves]
    return _Page(_longer(axes), f"{layer.head_size} x {layer.element_size_bytes} bytes")


def _chunk_axes(
    axes: tuple[tuple[str, int], ...], span: int, blocks_per_chunk: int
) -> tuple[tuple[str, int], ...]:
    """The axes with that of a chunk's blocks outside; next to tokens it is just more tokens."""
    if span == 1:
        return _longer([("token", blocks_per_chunk), *axes])
    if axes and axes[0][0] == "token":
        return (("token", span * blocks_per_chunk), *axes[1:])
    return _longer([("block", blocks_per_chunk), *axes])


def _longer(axes: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple((name, length) for name, length in axes if length > 1)


def _written(axes: Iterable[tuple[str, int]]) -> str:
    return " ".join(f"{name}:{length}" for name, length in _longer(axes)) or "none"


def _configuration(parallel: KVParallelConfig) -> Iterator[tuple[str, str]]:
    """What decides which bytes an opaque page of each worker holds."""
    yield "tp_size", str(parallel.tp_size)
    yield "dcp_size", str(parallel.dcp_size)
    yield "pcp_size", str(parallel.pcp_size)
    yield "block_size", str(parallel.block_size)
    if parallel.cp_size > 1:
        yield "interleave", str(parallel.interleave)
