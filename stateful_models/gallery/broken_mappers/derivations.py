"""Derivations that are wrong in one way each (MAP-2 to MAP-5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from attrs import evolve

from kvoffload.canonical.layers import AttentionLayer, Encoding, LatentLayer, Layer, OpaqueLayer
from kvoffload.errors import MappingError
from stateful_models.gallery.broken_mappers.base import (
    BrokenMapper,
    LooseMapping,
    in_fragments,
    loosened,
    mistaking,
    plain,
    spoiled,
)
from stateful_models.gallery.broken_mappers.reference import derive
from stateful_models.models.pages import Spread
from stateful_models.pages import PageMapping


def _padded_is_the_page(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    padded = layer.padded_page_size_bytes
    return mapping if padded is None else mapping._replace(local_page_size_bytes=padded)


def _half_the_page(layer: Layer, spread: Spread, rank: int, mapping: LooseMapping) -> LooseMapping:
    runs = in_fragments(mapping).runs
    return mapping._replace(runs=runs[: (len(runs) + 1) // 2]) if len(runs) > 1 else mapping


def _last_run_twice(layer: Layer, spread: Spread, rank: int, mapping: LooseMapping) -> LooseMapping:
    return mapping._replace(runs=(*mapping.runs, mapping.runs[-1]))


def _past_the_end(layer: Layer, spread: Spread, rank: int, mapping: LooseMapping) -> LooseMapping:
    last = mapping.runs[-1]
    return mapping._replace(
        runs=(*mapping.runs[:-1], last._replace(fragment_size=last.fragment_size + 1))
    )


def _own_canonical_size(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    return mapping._replace(
        canonical_page_size_bytes=mapping.canonical_page_size_bytes + rank * mapping.num_writers
    )


def _own_number_of_writers(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    return mapping._replace(num_writers=mapping.num_writers + (rank > 0))


class _Eager(LooseMapping):
    def is_writer(self, block_id: int) -> bool:
        return True


def _everybody_writes(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    return _Eager(*mapping)


class _UpToAHundred(LooseMapping):
    def is_writer(self, block_id: int) -> bool:
        return (
            min(block_id, 100) % self.num_writers == self.writer_index
            if block_id < 100
            else (self.writer_index == 0 and block_id % 2 == 0)
        )


def _stops_writing(layer: Layer, spread: Spread, rank: int, mapping: LooseMapping) -> LooseMapping:
    return _UpToAHundred(*mapping)


def _wrong_quotient(layer: Layer, spread: Spread, rank: int, mapping: LooseMapping) -> LooseMapping:
    # Of those that keep a head, neighbours keep other tokens: the quotient by dcp is the turn.
    return mapping._replace(writer_index=rank % spread.tp_size % mapping.num_writers)


def _replicas_take_turns(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    # dcp left out: workers with other tokens take turns with each other.
    replication = mapping.num_writers * (1 if isinstance(layer, OpaqueLayer) else spread.dcp_size)
    return mapping._replace(
        num_writers=replication, writer_index=rank % spread.tp_size % replication
    )


class _Place(NamedTuple):
    """Which part of the heads and which part of the tokens a worker keeps."""

    shard: int
    cp_rank: int


def _places(layer: Layer, spread: Spread) -> list[_Place]:
    heads = layer.total_kv_heads if isinstance(layer, AttentionLayer) else 1
    replication = max(1, spread.tp_size // heads)
    return [
        _Place(
            rank % spread.tp_size // replication,
            rank // spread.tp_size * spread.dcp_size + rank % spread.tp_size % spread.dcp_size,
        )
        for rank in range(spread.num_ranks)
    ]


def _elsewhere(move: Callable[[Spread, int, int, _Place], _Place]) -> BrokenDerive:
    """A derivation that takes workers for others; `move` is told rank, number of shards, place."""

    def derived(layer: Layer, spread: Spread) -> list[PageMapping]:
        right = [loosened(mapping) for mapping in derive(layer, spread)]
        if not isinstance(layer, AttentionLayer | LatentLayer):
            return [*right]
        places = _places(layer, spread)
        shards = len({place.shard for place in places})
        runs = {place: one.runs for place, one in zip(places, right, strict=True)}
        return [
            mapping._replace(runs=runs[move(spread, rank, shards, places[rank])])
            for rank, mapping in enumerate(right)
        ]

    return derived


BrokenDerive = Callable[[Layer, Spread], Sequence[PageMapping]]


def _swapped_cp_rank(spread: Spread, rank: int, shards: int, place: _Place) -> _Place:
    pcp_rank, dcp_rank = divmod(place.cp_rank, spread.dcp_size)
    return place._replace(cp_rank=dcp_rank * spread.pcp_size + pcp_rank)


def _heads_dealt_round(spread: Spread, rank: int, shards: int, place: _Place) -> _Place:
    return place._replace(shard=rank % spread.tp_size % shards)


def _latent_per_head(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    if not isinstance(layer, LatentLayer):
        return mapping
    tp = spread.tp_size
    base = rank % tp * mapping.canonical_page_size_bytes
    return mapping._replace(
        canonical_page_size_bytes=tp * mapping.canonical_page_size_bytes,
        runs=tuple(
            run._replace(canonical_offset=base + run.canonical_offset) for run in mapping.runs
        ),
        num_writers=1,
        writer_index=0,
    )


def _any_interleave(layer: Layer, spread: Spread) -> Sequence[PageMapping]:
    if spread.block_size % spread.interleave:
        spread = spread._replace(interleave=1)
    return derive(layer, spread)


def _heads_rounded_down(layer: Layer, spread: Spread) -> Sequence[PageMapping]:
    if isinstance(layer, AttentionLayer) and layer.total_kv_heads % spread.tp_size:
        heads = layer.total_kv_heads // spread.tp_size * spread.tp_size
        layer = evolve(layer, total_kv_heads=heads or layer.total_kv_heads)
    return derive(layer, spread)


def _crashes_where_illegal(layer: Layer, spread: Spread) -> Sequence[PageMapping]:
    try:
        return derive(layer, spread)
    except MappingError:
        raise KeyError(spread) from None


def _refuses_replicas(layer: Layer, spread: Spread) -> Sequence[PageMapping]:
    mappings = derive(layer, spread)
    if mappings[0].num_writers > 1:
        raise MappingError("nobody may keep what another keeps")
    return mappings


def _one_rank_too_few(layer: Layer, spread: Spread) -> Sequence[PageMapping]:
    return derive(layer, spread)[: spread.tp_size]


def _interleave_of_one(layer: Layer, spread: Spread) -> tuple[Layer, Spread]:
    return layer, spread._replace(interleave=1)


def _interleave_of_a_block(layer: Layer, spread: Spread) -> tuple[Layer, Spread]:
    return layer, spread._replace(interleave=spread.block_size)


_TOKEN_MAJOR: Final = {
    Encoding.PACKED_HND: Encoding.PACKED_NHD,
    Encoding.SPLIT_HND: Encoding.SPLIT_NHD,
}
_SPLIT: Final = {
    Encoding.PACKED_NHD: Encoding.SPLIT_NHD,
    Encoding.PACKED_HND: Encoding.SPLIT_HND,
}


def _read_as(
    readings: Mapping[Encoding, Encoding],
) -> Callable[[Layer, Spread], tuple[Layer, Spread]]:
    def mistake(layer: Layer, spread: Spread) -> tuple[Layer, Spread]:
        if not isinstance(layer, AttentionLayer) or layer.encoding is None:
            return layer, spread
        read = readings.get(layer.encoding, layer.encoding)
        return evolve(layer, encoding=read), spread

    return mistake


def _halves_of_its_own(
    layer: Layer, spread: Spread, rank: int, mapping: LooseMapping
) -> LooseMapping:
    if (
        not isinstance(layer, AttentionLayer)
        or layer.encoding is None
        or not layer.encoding.is_split
    ):
        return mapping
    whole, own = mapping.canonical_page_size_bytes // 2, mapping.local_page_size_bytes // 2
    runs = tuple(
        run._replace(canonical_offset=run.canonical_offset - whole + own)
        if run.canonical_offset >= whole
        else run
        for run in in_fragments(mapping).runs
    )
    return mapping if len(runs) == 1 else mapping._replace(runs=runs)


def _v_before_k(layer: Layer, spread: Spread, rank: int, mapping: LooseMapping) -> LooseMapping:
    if not isinstance(layer, AttentionLayer) or layer.encoding is not Encoding.SPLIT_NHD:
        return mapping
    size, half = mapping.canonical_page_size_bytes, mapping.canonical_page_size_bytes // 2
    bytes_of = [
        (run.local_offset + i, run.canonical_offset + i)
        for run in in_fragments(mapping).runs
        for i in range(run.fragment_size)
    ]
    run_type = type(mapping.runs[0])
    return mapping._replace(
        runs=tuple(
            run_type(local, (canonical + half) % size, 1, 1, 1, 1) for local, canonical in bytes_of
        )
    )


BROKEN_DERIVATIONS: Final[Mapping[str, BrokenMapper]] = {
    "Map2PaddedIsThePage": BrokenMapper(
        "MAP-2", "takes the padded distance of blocks for the page", spoiled(_padded_is_the_page)
    ),
    "Map2HalfThePage": BrokenMapper(
        "MAP-2", "maps the first half of the fragments only", spoiled(_half_the_page)
    ),
    "Map2LastRunTwice": BrokenMapper("MAP-2", "gives its last run twice", spoiled(_last_run_twice)),
    "Map2PastTheEnd": BrokenMapper("MAP-2", "ends a byte after its page", spoiled(_past_the_end)),
    "Map3OwnSizes": BrokenMapper(
        "MAP-3", "ranks have canonical pages of different sizes", spoiled(_own_canonical_size)
    ),
    "Map3OwnWriters": BrokenMapper(
        "MAP-3", "ranks count different numbers of writers", spoiled(_own_number_of_writers)
    ),
    "Map3EverybodyWrites": BrokenMapper(
        "MAP-3", "all that keep the same bytes write them, every time", spoiled(_everybody_writes)
    ),
    "Map3StopsWriting": BrokenMapper(
        "MAP-3", "elects nobody for some of the later blocks", spoiled(_stops_writing)
    ),
    "Map3WrongQuotient": BrokenMapper(
        "MAP-3",
        "elects writers by the remainder of what the quotient is asked of",
        spoiled(_wrong_quotient),
    ),
    "Map3OtherTokensTakeTurns": BrokenMapper(
        "MAP-3",
        "lets workers with other tokens take turns with each other",
        spoiled(_replicas_take_turns),
    ),
    "Map4InterleaveIgnored": BrokenMapper(
        "MAP-4", "deals tokens one by one, whatever the interleave", mistaking(_interleave_of_one)
    ),
    "Map4TokensInBlocks": BrokenMapper(
        "MAP-4", "deals tokens a whole block at a time", mistaking(_interleave_of_a_block)
    ),
    "Map4CpRankSwapped": BrokenMapper(
        "MAP-4",
        "counts context-parallel workers with pcp inside dcp",
        plain(_elsewhere(_swapped_cp_rank)),
    ),
    "Map4HeadsDealtRound": BrokenMapper(
        "MAP-4",
        "gives heads to tensor ranks in turn instead of to neighbours",
        plain(_elsewhere(_heads_dealt_round)),
    ),
    "Map4LatentPerHead": BrokenMapper(
        "MAP-4", "writes a latent row once for each tensor rank", spoiled(_latent_per_head)
    ),
    "Map4AnyInterleave": BrokenMapper(
        "MAP-4", "takes an interleave that does not divide the block for 1", plain(_any_interleave)
    ),
    "Map4HeadsRoundedDown": BrokenMapper(
        "MAP-4", "leaves out the heads that do not divide", plain(_heads_rounded_down)
    ),
    "Map4CrashesOnIllegal": BrokenMapper(
        "MAP-4", "crashes over what is illegal", plain(_crashes_where_illegal)
    ),
    "Map4RefusesReplicas": BrokenMapper(
        "MAP-4", "refuses workers that keep the same bytes", plain(_refuses_replicas)
    ),
    "Map4OnePrefillGroup": BrokenMapper(
        "MAP-4", "knows the ranks of one prefill group only", plain(_one_rank_too_few)
    ),
    "Map5HeadMajorAsTokenMajor": BrokenMapper(
        "MAP-5", "reads head-major pages as token-major", mistaking(_read_as(_TOKEN_MAJOR))
    ),
    "Map5PackedAsSplit": BrokenMapper(
        "MAP-5",
        "reads packed K and V as split ones",
        mistaking(_read_as(_SPLIT)),
    ),
    "Map5HalvesOfItsOwn": BrokenMapper(
        "MAP-5",
        "takes the halves of its own page for those of the canonical one",
        spoiled(_halves_of_its_own),
    ),
    "Map5VBeforeK": BrokenMapper("MAP-5", "puts V before K canonically", spoiled(_v_before_k)),
}
"""By name, what each does wrong."""
