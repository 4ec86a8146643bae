"""From a description to the mapping of every worker's page, derived and proved (MAP-4, MAP-5)."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from kvoffload.canonical.arguments import require_instance
from kvoffload.canonical.layers import (
    AttentionLayer,
    LatentLayer,
    Layer,
    OpaqueLayer,
    PackedLayers,
    SingleLayer,
    require_layer,
    require_room,
)
from kvoffload.canonical.pages import CanonicalPageMapping, CopyRun
from kvoffload.canonical.parallel import HeadShare, KVParallelConfig
from kvoffload.canonical.runs import Axis, nested_runs, normal_form, require_few_runs
from kvoffload.canonical.tiling import verify_tiling
from kvoffload.errors import MappingError

MAX_RANKS: Final = 1 << 16
"""More workers than these have nobody's mappings."""


def derive_mapping(
    layer: Layer, parallel: KVParallelConfig, *, name: str = "layer"
) -> CanonicalPageMapping:
    """The mapping of the page of worker `parallel.rank`; proved together with all the others.

    Raises as `derive_mappings`.
    """
    return derive_mappings(layer, parallel, name=name)[parallel.rank]


def derive_mappings(
    layer: Layer, parallel: KVParallelConfig, *, name: str = "layer"
) -> tuple[CanonicalPageMapping, ...]:
    """The mappings of all workers' pages, in order of rank; `parallel.rank` plays no part.

    They are in normal form (MAP-7) and proved to tile the canonical page (MAP-2, MAP-3); `name`
    is used in messages. Raises MappingError, with the arithmetic that failed, where the layer
    cannot be spread like that (MAP-4), has padding for less than its page, has no encoding, or
    would have more workers than MAX_RANKS or more runs than can be made in reasonable time; and
    InvalidValueError for a page of more than MAX_PAGE_SIZE_BYTES.
    """
    require_layer(layer)
    require_instance("parallel", parallel, KVParallelConfig)
    if parallel.num_ranks > MAX_RANKS:
        raise MappingError(
            f"tp_size {parallel.tp_size} x pcp_size {parallel.pcp_size} = {parallel.num_ranks} "
            f"workers, mappings are derived for at most {MAX_RANKS}"
        )
    if isinstance(layer, PackedLayers):
        mappings = _packed(layer, parallel)
    else:
        mappings = _spread(layer, parallel)
    require_room(mappings[0].local_page_size_bytes, layer.padded_page_size_bytes)
    verify_tiling(mappings, name=name)
    return mappings


@frozen
class _Page:
    """A page's shape: what is the same for every worker."""

    fragment_size: int
    axes: tuple[Axis, ...]
    heads: HeadShare
    # How far apart neighbouring tokens, and neighbouring parts of the heads, are canonically.
    token_step: int
    shard_step: int

    @property
    def local_size(self) -> int:
        size = self.fragment_size
        for axis in self.axes:
            size *= axis.length
        return size


def _spread(layer: SingleLayer, parallel: KVParallelConfig) -> tuple[CanonicalPageMapping, ...]:
    if isinstance(layer, OpaqueLayer):
        return _opaque(layer.page_size_bytes, parallel.num_ranks)
    if isinstance(layer, LatentLayer):
        page = _latent_page(layer, parallel)
    else:
        page = _attention_page(layer, parallel)
    heads, local_size = page.heads, page.local_size
    canonical_size = local_size * heads.num_shards * parallel.cp_size
    num_writers, turn = heads.num_writers, parallel.tokens_in_turn
    template = nested_runs(page.fragment_size, page.axes)
    require_few_runs(len(template) * heads.num_shards * parallel.cp_size)
    # Workers that keep the same bytes share their runs.
    placed: dict[int, tuple[CopyRun, ...]] = {}
    mappings: list[CanonicalPageMapping] = []
    for rank in range(parallel.num_ranks):
        tp_rank, first_token = parallel.tp_rank_of(rank), parallel.cp_rank_of(rank) * turn
        start = heads.shard(tp_rank) * page.shard_step + first_token * page.token_step
        if start not in placed:
            placed[start] = _moved(template, 0, start)
        mappings.append(
            CanonicalPageMapping(
                canonical_size,
                local_size,
                placed[start],
                num_writers,
                heads.writer_index(tp_rank),
                parallelism_agnostic=True,
            )
        )
    return tuple(mappings)


def _attention_page(layer: AttentionLayer, parallel: KVParallelConfig) -> _Page:
    """K and V packed or split; tokens outside heads or heads outside tokens (MAP-5)."""
    if layer.encoding is None:
        raise MappingError(
            "encoding is None: a page whose encoding is not known has no mapping; "
            "recognise a tensor of it, or describe it as opaque"
        )
    heads = HeadShare(layer.total_kv_heads, parallel.tp_size, parallel.dcp_size)
    local, total = heads.local_heads, layer.total_kv_heads
    vector = layer.vector_size_bytes
    cell = vector if layer.encoding.is_split else 2 * vector
    if layer.encoding.is_head_major:
        token_step = cell
        head_step = parallel.span * cell
        axes: tuple[Axis, ...] = (
            Axis(local, parallel.block_size * cell, head_step),
            *_token_axes(parallel, cell, token_step),
        )
    else:
        token_step = total * cell
        head_step = cell
        axes = (
            *_token_axes(parallel, local * cell, token_step),
            Axis(local, cell, head_step),
        )
    if layer.encoding.is_split:
        halves = Axis(2, parallel.block_size * local * cell, parallel.span * total * cell)
        axes = (halves, *axes)
    return _Page(
        fragment_size=cell,
        axes=axes,
        heads=heads,
        token_step=token_step,
        shard_step=local * head_step,
    )


def _latent_page(layer: LatentLayer, parallel: KVParallelConfig) -> _Page:
    """One row a token, the same for every head: as attention with a single head."""
    row = layer.row_size_bytes
    return _Page(
        fragment_size=row,
        axes=_token_axes(parallel, row, row),
        heads=HeadShare(1, parallel.tp_size, parallel.dcp_size),
        token_step=row,
        shard_step=0,
    )


def _token_axes(
    parallel: KVParallelConfig, local_step: int, canonical_step: int
) -> tuple[Axis, Axis]:
    """A worker's tokens: turns, and neighbours within a turn (MAP-4)."""
    turn = parallel.tokens_in_turn
    return (
        Axis(
            parallel.block_size // turn,
            turn * local_step,
            turn * parallel.cp_size * canonical_step,
        ),
        Axis(turn, local_step, canonical_step),
    )


def _opaque(page_size: int, num_ranks: int) -> tuple[CanonicalPageMapping, ...]:
    """Every worker's page whole, one after another, each written by its worker alone (MAP-5)."""
    return tuple(
        CanonicalPageMapping(
            canonical_page_size_bytes=num_ranks * page_size,
            local_page_size_bytes=page_size,
            runs=(CopyRun(0, rank * page_size, page_size, 1, page_size, page_size),),
            num_writers=1,
            writer_index=0,
            parallelism_agnostic=False,
        )
        for rank in range(num_ranks)
    )


def _packed(block: PackedLayers, parallel: KVParallelConfig) -> tuple[CanonicalPageMapping, ...]:
    """The layers' pages one after another, on both sides."""
    layers = [_spread(layer, parallel) for layer in block.layers]
    writers = [mappings[0].num_writers for mappings in layers]
    if len(set(writers)) > 1:
        raise MappingError(
            f"the layers of a packed block have {writers} workers that keep the same bytes: "
            "they take turns by block, so it must be the same number for all layers"
        )
    whole: list[CanonicalPageMapping] = []
    for of_layers in zip(*layers, strict=True):
        runs: list[CopyRun] = []
        local = canonical = 0
        for mapping in of_layers:
            runs += _moved(mapping.runs, local, canonical)
            local += mapping.local_page_size_bytes
            canonical += mapping.canonical_page_size_bytes
        whole.append(
            CanonicalPageMapping(
                canonical_page_size_bytes=canonical,
                local_page_size_bytes=local,
                runs=normal_form(runs),
                num_writers=of_layers[0].num_writers,
                writer_index=of_layers[0].writer_index,
                parallelism_agnostic=all(m.parallelism_agnostic for m in of_layers),
            )
        )
    return tuple(whole)


def _moved(runs: tuple[CopyRun, ...], local: int, canonical: int) -> tuple[CopyRun, ...]:
    if not local and not canonical:
        return runs
    return tuple(
        CopyRun(
            run.local_offset + local,
            run.canonical_offset + canonical,
            run.fragment_size,
            run.num_fragments,
            run.local_stride,
            run.canonical_stride,
        )
        for run in runs
    )
