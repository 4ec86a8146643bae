"""Mappers that are odd and right; some of them the reference may not be like."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from kvoffload.canonical.layers import AttentionLayer, Layer, OpaqueLayer
from kvoffload.canonical.resharding import PageCopy
from kvoffload.errors import MappingError
from stateful_models.gallery.broken_mappers.base import (
    LegalMapper,
    LooseMapping,
    in_fragments,
    plain,
    spoiled,
)
from stateful_models.gallery.broken_mappers.others import copying, naming, seeing
from stateful_models.gallery.broken_mappers.reference import REFERENCE, derive, named, reshard
from stateful_models.models.pages import Spread
from stateful_models.pages import PageMapper, PageMapping, StandInTensor


def _fragment_by_fragment(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    return in_fragments(mapping)


def _backwards(layer: Layer, spread: Spread, rank: int, mapping: LooseMapping) -> LooseMapping:
    return mapping._replace(runs=mapping.runs[::-1])


def _lone_strides_of_zero(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    return mapping._replace(
        runs=tuple(
            run._replace(local_stride=0, canonical_stride=0) if run.num_fragments == 1 else run
            for run in mapping.runs
        )
    )


def _last_writes_first(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    return mapping._replace(writer_index=mapping.num_writers - 1 - mapping.writer_index)


class _FirstOnly(LooseMapping):
    def is_writer(self, block_id: int) -> bool:
        return self.writer_index == 0


def _first_always_writes(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    return _FirstOnly(*mapping)


def _agnostic_without_cp(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    agnostic = mapping.parallelism_agnostic and spread.cp_size == 1
    return mapping._replace(parallelism_agnostic=agnostic)


def _says_only_no(layer: Layer, spread: Spread) -> Sequence[PageMapping]:
    try:
        return derive(layer, spread)
    except MappingError:
        raise MappingError("no") from None


def _opaque_where_illegal(layer: Layer, spread: Spread) -> Sequence[PageMapping]:
    try:
        return derive(layer, spread)
    except MappingError:
        return derive(OpaqueLayer(page_size_bytes=8), spread._replace(interleave=1))


def _raises_value_errors(layer: Layer, spread: Spread) -> Sequence[PageMapping]:
    try:
        return derive(layer, spread)
    except MappingError as error:
        raise ValueError(str(error)) from error


def _from_the_first_owner(
    source: Sequence[PageMapping], target: Sequence[PageMapping], block_id: int
) -> tuple[PageCopy, ...]:
    turns = source[0].num_writers
    ranks = range(len(target))
    # Target r is told what it would be told for a block whose turn takes r back.
    told = {turn: reshard(source, target, turn) for turn in {-rank % turns for rank in ranks}}
    return tuple(copy for rank in ranks for copy in told[-rank % turns] if copy.target_rank == rank)


def _with_encoding(layer: Layer, spread: Spread, rank: int, blocks_per_chunk: int) -> Hashable:
    encoding = layer.encoding if isinstance(layer, AttentionLayer) else None
    return named(layer, spread, rank, blocks_per_chunk), encoding


def _sees_nothing(
    layer: AttentionLayer, spread: Spread, rank: int, tensor: StandInTensor
) -> Layer | None:
    return OpaqueLayer(page_size_bytes=1)


LEGAL_MAPPERS: Final[Mapping[str, LegalMapper]] = {
    "the reference": LegalMapper("what all others are made from", REFERENCE),
    "fragment by fragment": LegalMapper(
        "every fragment is a run of its own", spoiled(_fragment_by_fragment), ("MAP-7",)
    ),
    "backwards": LegalMapper("the runs come last first", spoiled(_backwards), ("MAP-7",)),
    "strides of zero": LegalMapper(
        "a lone fragment has strides of 0", spoiled(_lone_strides_of_zero), ("MAP-7",)
    ),
    "last writes first": LegalMapper(
        "workers take turns in the opposite order", spoiled(_last_writes_first), ("MAP-4",)
    ),
    "first always writes": LegalMapper(
        "one of those that keep the same bytes writes every block",
        spoiled(_first_always_writes),
        ("MAP-3",),
    ),
    "agnostic without cp": LegalMapper(
        "pages are called portable only without context parallelism, as vLLM 0.33 does",
        spoiled(_agnostic_without_cp),
        ("MAP-8",),
    ),
    "says only no": LegalMapper("a refusal does not say why", plain(_says_only_no), ("MAP-4",)),
    "opaque where illegal": LegalMapper(
        "what MAP-4 forbids is mapped as opaque, as vLLM 0.33 does",
        plain(_opaque_where_illegal),
        ("MAP-4",),
    ),
    "value errors": LegalMapper(
        "it refuses with ValueError, and says so",
        PageMapper(derive=_raises_value_errors, refusals=(ValueError,)),
    ),
    "from the first owner": LegalMapper(
        "direct copies come from one worker of those that keep the bytes",
        copying(_from_the_first_owner),
        ("MAP-3",),
    ),
    "ids with encodings": LegalMapper(
        "the id has the encoding even where all come to the same bytes",
        naming(_with_encoding),
        ("ID-1",),
    ),
    "sees nothing": LegalMapper("every tensor is opaque", seeing(_sees_nothing), ("MAP-6",)),
}
"""By name, what is unusual."""
