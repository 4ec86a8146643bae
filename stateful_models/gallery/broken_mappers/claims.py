"""Mappers that are wrong about opaque pages, and about who can read a page (MAP-5, MAP-8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kvoffload.canonical.layers import LatentLayer, Layer, OpaqueLayer
from stateful_models.contract import Kind
from stateful_models.gallery.broken_mappers.base import (
    BrokenMapper,
    LooseMapping,
    loosened,
    plain,
    spoiled,
)
from stateful_models.gallery.broken_mappers.reference import derive
from stateful_models.models.pages import Spread
from stateful_models.pages import PageMapping


def _opaque_overlap(layer: Layer, spread: Spread, rank: int, mapping: LooseMapping) -> LooseMapping:
    if not isinstance(layer, OpaqueLayer):
        return mapping
    (run,) = mapping.runs
    return mapping._replace(runs=(run._replace(canonical_offset=rank * (run.fragment_size - 1)),))


def _opaque_replicas(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    if not isinstance(layer, OpaqueLayer):
        return mapping
    (run,) = mapping.runs
    return mapping._replace(
        canonical_page_size_bytes=mapping.local_page_size_bytes,
        runs=(run._replace(canonical_offset=0),),
        num_writers=spread.num_ranks,
        writer_index=rank,
    )


def _everything_agnostic(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    return mapping._replace(parallelism_agnostic=True)


def _nothing_agnostic(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    return mapping._replace(parallelism_agnostic=False)


def _first_rank_agnostic(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    return mapping._replace(parallelism_agnostic=rank == 0)


def _second_row_by_rank(layer: Layer, spread: Spread) -> Sequence[PageMapping]:
    if not isinstance(layer, LatentLayer) or not layer.second_row_bytes:
        return derive(layer, spread)
    size = derive(layer, spread)[0].local_page_size_bytes
    opaque = derive(OpaqueLayer(page_size_bytes=size), spread)
    return [loosened(mapping)._replace(parallelism_agnostic=True) for mapping in opaque]


BROKEN_CLAIMS: Final[Mapping[str, BrokenMapper]] = {
    "Map5OpaqueOverlap": BrokenMapper(
        "MAP-5", "lays opaque pages a byte over each other", spoiled(_opaque_overlap)
    ),
    "Map5OpaqueReplicas": BrokenMapper(
        "MAP-5", "takes the opaque pages of all ranks for the same", spoiled(_opaque_replicas)
    ),
    "Map8OpaqueIsAgnostic": BrokenMapper(
        "MAP-8",
        "says of opaque pages that any configuration can read them",
        spoiled(_everything_agnostic),
    ),
    "Map8NeverAgnostic": BrokenMapper(
        "MAP-8",
        "says of no page that another configuration can read it",
        spoiled(_nothing_agnostic),
        Kind.HOST,
    ),
    "Map8RanksDisagree": BrokenMapper(
        "MAP-8",
        "says on one rank alone that others can read the page",
        spoiled(_first_rank_agnostic),
    ),
    "Map8SecondRowByRank": BrokenMapper(
        "MAP-8",
        "keeps rows that carry a second cache once a rank, and calls them portable",
        plain(_second_row_by_rank),
        bug_rows=("C2",),
    ),
}
"""By name, what each does wrong."""
