"""Layout ids: equal exactly when the bytes of a chunk mean the same (ID-1)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from attrs import evolve

from kvoffload.canonical.layers import Encoding, Layer, OpaqueLayer, PackedLayers
from stateful_models.contract import CLAUSES, Kind
from stateful_models.models.pages import Spread, chunk, contradictions
from stateful_models.pages.cases import attention, latent, padded, page_bytes, told
from stateful_models.pages.findings import PageFinding
from stateful_models.pages.mapper import PageMapper


class Persisted(NamedTuple):
    """What a worker persists: the chunks of a layer under a configuration, as its rank."""

    layer: Layer
    spread: Spread
    rank: int = 0
    blocks_per_chunk: int = 1

    @property
    def size(self) -> int:
        """What makes it a small one."""
        return page_bytes(self.layer, self.spread) * self.blocks_per_chunk + self.rank

    def __str__(self) -> str:
        text = f"{told(self.layer)}; {self.spread}"
        if self.rank:
            text += f", rank {self.rank}"
        if self.blocks_per_chunk > 1:
            text += f"; {self.blocks_per_chunk} blocks a chunk"
        return text


def persisted() -> Iterator[Persisted]:
    """Layers of every kind, with each of their fields varied, under configurations that vary too.

    Among them are many that come to the same bytes.
    """
    heads = [attention(h, encoding) for h in (1, 2, 4) for encoding in Encoding]
    wider = [evolve(one, head_size=one.head_size + 1) for one in heads[:8]]
    finer = [evolve(one, element_size_bytes=1) for one in heads[:8]]
    latents = [latent(), latent(2), evolve(latent(), row_elements=4)]
    opaque = [OpaqueLayer(page_size_bytes=size) for size in (5, 6)]
    packed = [
        PackedLayers(layers=layers)
        for layers in (
            (heads[0],),
            (heads[4], heads[4]),
            (heads[4], heads[5]),
            (heads[5], heads[4]),
            (heads[4], heads[4], heads[4]),
            (latents[0], latents[1]),
            (latents[1], latents[0]),
            (heads[4], opaque[0]),
            (opaque[0],),
        )
    ]
    layers: list[Layer] = [*heads, *wider, *finer, *latents, *opaque, *packed]
    for layer in layers:
        for spread in _SPREADS:
            if contradictions(layer, spread):
                continue
            for blocks in (1, 2):
                yield Persisted(layer, spread, blocks_per_chunk=blocks)
            yield Persisted(layer, spread, rank=spread.num_ranks - 1)
            yield Persisted(padded(layer, spread), spread)


_SPREADS = (
    Spread(1),
    Spread(2),
    Spread(4),
    Spread(4, interleave=2),
    Spread(4, tp_size=2),
    Spread(2, tp_size=2),
    Spread(2, tp_size=2, dcp_size=2),
    Spread(2, pcp_size=2),
    Spread(2, pcp_size=2, interleave=2),
    Spread(2, tp_size=4),
    Spread(2, tp_size=4, dcp_size=2),
    Spread(1, tp_size=4, dcp_size=4),
    Spread(1, tp_size=2, dcp_size=2, pcp_size=2),
)


def judge_ids(
    mapper: PageMapper, described: Iterable[Persisted] | None = None
) -> list[PageFinding]:
    """Where two descriptions share an id but not their bytes, or their bytes but not an id.

    Of each kind of breach the smallest pair is told. Right because it looks at what each byte
    means; no field of any description is ever compared.
    """
    if mapper.layout_id is None:
        return []
    found: dict[Kind, PageFinding] = {}
    by_id: dict[Hashable, tuple[Persisted, tuple[object, ...]]] = {}
    by_bytes: dict[tuple[object, ...], tuple[Persisted, Hashable]] = {}
    for one in sorted(persisted() if described is None else described, key=_small_first):
        meaning = chunk(one.layer, one.spread, one.blocks_per_chunk)
        try:
            name = mapper.layout_id(one.layer, one.spread, one.rank, one.blocks_per_chunk)
        except Exception as error:
            finding = _on(one, None, f"raised {type(error).__name__}: {error}", "an id", "")
            found.setdefault(finding.kind, finding)
            continue
        first, its_meaning = by_id.setdefault(name, (one, meaning))
        if its_meaning != meaning:
            finding = _on(first, one, "other bytes have the same id", "two ids", name)
            found.setdefault(finding.kind, finding)
        other, its_name = by_bytes.setdefault(meaning, (one, name))
        if its_name != name:
            kind = Kind.SAFETY if _differ_by_place_only(other, one) else Kind.REFERENCE
            finding = _on(other, one, "the same bytes have two ids", str(its_name), name, kind=kind)
            found.setdefault(kind, finding)
    return list(found.values())


def _small_first(one: Persisted) -> tuple[int, str]:
    return one.size, str(one)


def _differ_by_place_only(one: Persisted, other: Persisted) -> bool:
    """Whether both describe one layer, and only who keeps what of it and where differs."""
    bare = {evolve(each.layer, padded_page_size_bytes=None) for each in (one, other)}
    return len(bare) == 1 and one.blocks_per_chunk == other.blocks_per_chunk


def _on(
    one: Persisted,
    other: Persisted | None,
    message: str,
    expected: object,
    seen: object,
    *,
    kind: Kind | None = None,
) -> PageFinding:
    case = str(one) if other is None else f"{one} / {other}"
    return PageFinding(
        "ID-1",
        kind or CLAUSES["ID-1"].kind,
        message,
        case,
        str(expected),
        str(seen),
        one.size if other is None else max(one.size, other.size),
    )
