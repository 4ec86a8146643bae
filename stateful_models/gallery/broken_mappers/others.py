"""What else mappers do wrongly: reading runs, descriptions, tensors, copies and ids."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from attrs import evolve

from kvoffload.canonical.layers import AttentionLayer, Encoding, LatentLayer, Layer, OpaqueLayer
from kvoffload.canonical.resharding import PageCopy
from stateful_models.gallery.broken_mappers.base import BrokenMapper
from stateful_models.gallery.broken_mappers.reference import (
    derive,
    derive_bare,
    named,
    recognised,
    reshard,
)
from stateful_models.models.pages import Spread
from stateful_models.pages import (
    BareAttention,
    PageMapper,
    PageMapping,
    Run,
    Span,
    StandInTensor,
)
from stateful_models.pages.descriptions import tensors_of
from stateful_models.pages.mapper import LayoutIds, Recognise, Reshard, Spans


def reading(spans: Spans) -> PageMapper:
    """A mapper that derives well, with this way of reading runs."""
    return PageMapper(derive=derive, spans=spans)


def copying(copies: Reshard) -> PageMapper:
    """The same with these direct copies."""
    return PageMapper(derive=derive, reshard=copies)


def naming(layout_id: LayoutIds) -> PageMapper:
    """The same with these ids."""
    return PageMapper(derive=derive, layout_id=layout_id)


def seeing(recognise: Recognise) -> PageMapper:
    """The same with this recognition."""
    return PageMapper(derive=derive, recognise=recognise)


def _strides_as_gaps(run: Run) -> Iterator[Span]:
    size = run.fragment_size
    for i in range(run.num_fragments):
        yield Span(
            run.local_offset + i * (run.local_stride + size),
            run.canonical_offset + i * (run.canonical_stride + size),
            size,
        )


def _one_stride_for_both(run: Run) -> Iterator[Span]:
    for i in range(run.num_fragments):
        step = i * run.local_stride
        yield Span(run.local_offset + step, run.canonical_offset + step, run.fragment_size)


def _first_fragment_only(run: Run) -> Iterator[Span]:
    yield Span(run.local_offset, run.canonical_offset, run.fragment_size)


def _rounds_up(bare: BareAttention, spread: Spread) -> object:
    return derive_bare(bare._replace(element_size_bytes=max(1, bare.element_size_bytes)), spread)


def _v_like_k(bare: BareAttention, spread: Spread) -> object:
    return derive_bare(bare._replace(value_head_size=bare.head_size), spread)


def _what_it_shows(tensor: StandInTensor) -> tuple[tuple[int, int], ...]:
    pairs = zip(tensor.shape, tensor.strides, strict=True)
    return tuple((length, stride) for length, stride in pairs if length > 1)


def _fitting(layer: AttentionLayer, spread: Spread, tensor: StandInTensor) -> list[AttentionLayer]:
    readings = [evolve(layer, encoding=encoding) for encoding in Encoding]
    shown = _what_it_shows(tensor)
    return [one for one in readings if shown in map(_what_it_shows, tensors_of(one, spread))]


def _guesses(
    layer: AttentionLayer, spread: Spread, rank: int, tensor: StandInTensor
) -> Layer | None:
    if layer.encoding is not None:
        return recognised(layer, spread, rank, tensor)
    return next(iter(_fitting(layer, spread, tensor)), None)


def _trusts_the_name(
    layer: AttentionLayer, spread: Spread, rank: int, tensor: StandInTensor
) -> Layer | None:
    return layer if layer.encoding is not None else recognised(layer, spread, rank, tensor)


def _overrules_the_name(
    layer: AttentionLayer, spread: Spread, rank: int, tensor: StandInTensor
) -> Layer | None:
    return next(iter(_fitting(layer, spread, tensor)), None)


def _first_rank_looks(
    layer: AttentionLayer, spread: Spread, rank: int, tensor: StandInTensor
) -> Layer | None:
    return recognised(layer, spread, rank, tensor) if rank == 0 else None


def _from_every_owner(
    source: Sequence[PageMapping], target: Sequence[PageMapping], block_id: int
) -> list[PageCopy]:
    turns = range(source[0].num_writers)
    return [copy for turn in turns for copy in reshard(source, target, block_id + turn)]


def _for_one_target(
    source: Sequence[PageMapping], target: Sequence[PageMapping], block_id: int
) -> list[PageCopy]:
    """The copies of another target, whose page is as long."""
    last = len(target) - 1
    return [
        evolve(copy, target_rank=last - copy.target_rank)
        for copy in reshard(source, target, block_id)
    ]


class _Without(NamedTuple):
    """What an id is made of when something is put in place of what it should say."""

    layer: Layer
    spread: Spread
    blocks_per_chunk: int


def _id_of(forget: Callable[[_Without], _Without]) -> LayoutIds:
    def layout_id(layer: Layer, spread: Spread, rank: int, blocks_per_chunk: int) -> Hashable:
        without = forget(_Without(layer, spread, blocks_per_chunk))
        return named(without.layer, without.spread, 0, without.blocks_per_chunk)

    return layout_id


def _no_encoding(what: _Without) -> _Without:
    if isinstance(what.layer, AttentionLayer):
        return what._replace(layer=evolve(what.layer, encoding=Encoding.PACKED_NHD))
    return what


def _no_span(what: _Without) -> _Without:
    if isinstance(what.layer, OpaqueLayer):
        return what
    return what._replace(spread=Spread(1))


def _no_second_row(what: _Without) -> _Without:
    if isinstance(what.layer, LatentLayer):
        return what._replace(layer=evolve(what.layer, second_row_bytes=0))
    return what


def _no_chunks(what: _Without) -> _Without:
    return what._replace(blocks_per_chunk=1)


def _opaque_alone(what: _Without) -> _Without:
    return what._replace(spread=Spread(4)) if isinstance(what.layer, OpaqueLayer) else what


def _with_rank(layer: Layer, spread: Spread, rank: int, blocks_per_chunk: int) -> Hashable:
    return named(layer, spread, rank, blocks_per_chunk), rank


def _with_tp(layer: Layer, spread: Spread, rank: int, blocks_per_chunk: int) -> Hashable:
    return named(layer, spread, rank, blocks_per_chunk), spread.tp_size


def _with_padding(layer: Layer, spread: Spread, rank: int, blocks_per_chunk: int) -> Hashable:
    return named(layer, spread, rank, blocks_per_chunk), layer.padded_page_size_bytes


OTHER_BROKEN: Final[Mapping[str, BrokenMapper]] = {
    "Map1StridesAsGaps": BrokenMapper(
        "MAP-1", "takes strides for what lies between fragments", reading(_strides_as_gaps)
    ),
    "Map1OneStrideForBoth": BrokenMapper(
        "MAP-1", "takes the local stride on both sides", reading(_one_stride_for_both)
    ),
    "Map1FirstFragmentOnly": BrokenMapper(
        "MAP-1", "copies the first fragment of a run only", reading(_first_fragment_only)
    ),
    "Map5RoundsUp": BrokenMapper(
        "MAP-5",
        "takes elements smaller than a byte for bytes",
        PageMapper(derive=derive, derive_bare=_rounds_up),
    ),
    "Map5VLikeK": BrokenMapper(
        "MAP-5",
        "takes V heads for as long as K heads",
        PageMapper(derive=derive, derive_bare=_v_like_k),
    ),
    "Map6Guesses": BrokenMapper(
        "MAP-6",
        "takes the first encoding that fits a tensor",
        seeing(_guesses),
        bug_rows=("C1",),
    ),
    "Map6TrustsTheName": BrokenMapper(
        "MAP-6", "never looks whether a tensor is as described", seeing(_trusts_the_name)
    ),
    "Map6OverrulesTheName": BrokenMapper(
        "MAP-6", "never minds how a tensor is described", seeing(_overrules_the_name)
    ),
    "Map6FirstRankLooks": BrokenMapper(
        "MAP-6", "decides otherwise on other ranks", seeing(_first_rank_looks)
    ),
    "Map8FromEveryOwner": BrokenMapper(
        "MAP-8", "copies bytes from all that keep them", copying(_from_every_owner)
    ),
    "Map8ForAnotherTarget": BrokenMapper(
        "MAP-8", "copies to targets in the wrong order", copying(_for_one_target)
    ),
    "Id1WithoutEncoding": BrokenMapper(
        "ID-1", "leaves the encoding out", naming(_id_of(_no_encoding)), bug_rows=("C7",)
    ),
    "Id1WithoutSpan": BrokenMapper("ID-1", "leaves the span out", naming(_id_of(_no_span))),
    "Id1WithoutSecondRow": BrokenMapper(
        "ID-1", "leaves out what rows carry beside the latent", naming(_id_of(_no_second_row))
    ),
    "Id1WithoutChunks": BrokenMapper(
        "ID-1", "leaves out how many blocks a chunk has", naming(_id_of(_no_chunks))
    ),
    "Id1OpaqueAlone": BrokenMapper(
        "ID-1", "leaves the configuration of opaque pages out", naming(_id_of(_opaque_alone))
    ),
    "Id1WithRank": BrokenMapper("ID-1", "has another id on every rank", naming(_with_rank)),
    "Id1WithTp": BrokenMapper(
        "ID-1", "has another id under another tensor parallelism", naming(_with_tp)
    ),
    "Id1WithPadding": BrokenMapper("ID-1", "has another id with padding", naming(_with_padding)),
}
"""By name, what each does wrong."""
