"""Which layers and configurations a mapper is tried on: data, small ones first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from random import Random
from typing import Final, NamedTuple, TypeAlias

from attrs import evolve

from kvoffload.canonical.layers import (
    AttentionLayer,
    Encoding,
    LatentLayer,
    Layer,
    OpaqueLayer,
    PackedLayers,
    SingleLayer,
)
from stateful_models.models.pages import Spread, contradictions, heads_of

HEAD_SIZE: Final = 3
ELEMENT_SIZE: Final = 2
"""Bytes; more than one, so that elements and bytes are told apart, and few, so pages stay small."""
LATENT_ELEMENTS: Final = 3


class Case(NamedTuple):
    """A layer under a configuration."""

    layer: Layer
    spread: Spread

    @property
    def size(self) -> int:
        """Bytes and workers to look at: what makes a case a small one."""
        return page_bytes(self.layer, self.spread) + self.spread.num_ranks

    @property
    def is_legal(self) -> bool:
        """Whether MAP-4 allows it."""
        return not contradictions(self.layer, self.spread)

    def __str__(self) -> str:
        return f"{told(self.layer)}; {self.spread}"


class Pair(NamedTuple):
    """Two configurations of one layer and one span: what one stores the other loads.

    `source` and `target` may differ in padding. `block_id` says whose turn it is to write.
    """

    source: Case
    target: Case
    block_id: int

    @property
    def size(self) -> int:
        """What makes a pair a small one."""
        return self.source.size + self.target.spread.num_ranks

    def __str__(self) -> str:
        return f"{self.source} -> {self.target.spread}; block id {self.block_id}"


def page_bytes(layer: Layer, spread: Spread) -> int:
    """About as many bytes as a canonical page has."""
    if isinstance(layer, PackedLayers):
        return sum(page_bytes(one, spread) for one in layer.layers)
    if isinstance(layer, OpaqueLayer):
        return layer.page_size_bytes * spread.num_ranks
    if isinstance(layer, LatentLayer):
        row = layer.row_elements * layer.element_size_bytes + layer.second_row_bytes
    else:
        row = 2 * layer.total_kv_heads * layer.head_size * layer.element_size_bytes
    return row * spread.span


def told(layer: Layer) -> str:
    """A layer in a few words."""
    if isinstance(layer, PackedLayers):
        text = " + ".join(told(one) for one in layer.layers)
    elif isinstance(layer, OpaqueLayer):
        text = f"opaque page of {layer.page_size_bytes} bytes"
    elif isinstance(layer, LatentLayer):
        text = f"latent rows of {layer.row_elements} x {layer.element_size_bytes} bytes"
        if layer.second_row_bytes:
            text += f" and {layer.second_row_bytes} more"
    else:
        encoding = "unknown encoding" if layer.encoding is None else layer.encoding.value
        heads = "1 head" if layer.total_kv_heads == 1 else f"{layer.total_kv_heads} heads"
        text = f"{heads} of {layer.head_size} x {layer.element_size_bytes} bytes, {encoding}"
    if layer.padded_page_size_bytes is not None:
        text += f", padded to {layer.padded_page_size_bytes}"
    return text


def padded(layer: Layer, spread: Spread) -> Layer:
    """The same layer with blocks further apart than any worker's page is long."""
    return evolve(layer, padded_page_size_bytes=page_bytes(layer, spread) + 8)


Axes: TypeAlias = Sequence[int]


class Grid(NamedTuple):
    """All combinations of these, whether MAP-4 allows them or not."""

    tp: Axes = range(1, 9)
    dcp: Axes = (1, 2, 4, 8)
    pcp: Axes = (1, 2, 4)
    interleave: Axes = (1, 2, 4, 8, 16)
    block: Axes = (1, 8, 16, 32)
    heads: Axes = range(1, 17)

    def spreads(self) -> list[Spread]:
        """The configurations, those with few workers and tokens first."""
        found = [
            Spread(block, tp, dcp, pcp, interleave)
            for tp, dcp, pcp, interleave, block in product(
                self.tp, self.dcp, self.pcp, self.interleave, self.block
            )
        ]
        return sorted(found, key=lambda one: (one.span * one.num_ranks, one.interleave, one))

    def layers(self) -> list[SingleLayer]:
        """Four encodings with each number of heads, and a latent, which has none to vary."""
        return [latent(), *(attention(h, e) for h in self.heads for e in Encoding)]

    def of(self, spread: Spread) -> Iterator[Case]:
        """The cases of one configuration, with and without padding."""
        for layer in self.layers():
            yield Case(layer, spread)
            yield Case(padded(layer, spread), spread)

    def cases(self) -> Iterator[Case]:
        """All of them."""
        for spread in self.spreads():
            yield from self.of(spread)


GRID: Final = Grid()
SMALL_GRID: Final = Grid(
    tp=(1, 2, 3, 4, 8), dcp=(1, 2), pcp=(1, 2), interleave=(1, 2), block=(1, 4), heads=(1, 2, 3, 4)
)
"""What shows every kind of mistake that we know of, in a second."""


def attention(heads: int, encoding: Encoding) -> AttentionLayer:
    """An attention layer as small as it may be."""
    return AttentionLayer(
        total_kv_heads=heads,
        head_size=HEAD_SIZE,
        element_size_bytes=ELEMENT_SIZE,
        encoding=encoding,
    )


def latent(second_row_bytes: int = 0) -> LatentLayer:
    """A latent layer as small as it may be."""
    return LatentLayer(
        row_elements=LATENT_ELEMENTS,
        element_size_bytes=ELEMENT_SIZE,
        second_row_bytes=second_row_bytes,
    )


def unusual(grid: Grid = SMALL_GRID) -> Iterator[Case]:
    """Second caches beside the latent, opaque pages and packed blocks, under each configuration."""
    layers: list[Layer] = [
        OpaqueLayer(page_size_bytes=5),
        latent(second_row_bytes=3),
        PackedLayers(layers=(attention(2, Encoding.PACKED_NHD), attention(2, Encoding.SPLIT_HND))),
        PackedLayers(layers=(latent(), latent(second_row_bytes=1))),
        PackedLayers(layers=(attention(4, Encoding.SPLIT_NHD), OpaqueLayer(page_size_bytes=3))),
        PackedLayers(layers=(attention(2, Encoding.PACKED_HND), latent())),
        AttentionLayer(
            total_kv_heads=2, head_size=3, element_size_bytes=1, encoding=Encoding.PACKED_HND
        ),
    ]
    for spread in grid.spreads():
        for layer in layers:
            yield Case(layer, spread)
            yield Case(padded(layer, spread), spread)


def sample(cases: Iterable[Case], *, one_in: int, seed: int = 0) -> Iterator[Case]:
    """About one in so many of the cases, drawn with a seed, in their order."""
    random = Random(seed)
    return (case for case in cases if random.randrange(one_in) == 0)


def drawn_pairs(count: int, *, seed: int = 0, grid: Grid = GRID) -> list[Pair]:
    """Ordered pairs of legal configurations of one span, drawn with a seed.

    Any configuration of the grid is as likely as another to be the source; the target is any of
    those with its span. Pairs of one layer and span come together.
    """
    random = Random(seed)
    by_span: dict[tuple[int, int | None], list[Spread]] = defaultdict(list)
    sources: list[tuple[SingleLayer, Spread]] = []
    for layer in grid.layers():
        heads = heads_of(layer)
        for spread in grid.spreads():
            if not contradictions(layer, spread):
                sources.append((layer, spread))
                by_span[spread.span, heads].append(spread)
    # Encodings and latents share a list: what matters is that each spread is in it once.
    partners = {key: sorted(set(spreads)) for key, spreads in by_span.items()}
    pairs: list[Pair] = []
    for _ in range(count):
        layer, spread = random.choice(sources)
        other = random.choice(partners[spread.span, heads_of(layer)])
        source, target = (
            Case(padded(layer, one) if random.randrange(2) else layer, one)
            for one in (spread, other)
        )
        pairs.append(Pair(source, target, random.randrange(1_000)))
    return sorted(pairs, key=_together)


def _together(pair: Pair) -> tuple[int, str, Spread, Spread, int]:
    layer = evolve(pair.source.layer, padded_page_size_bytes=None)
    return pair.source.spread.span, told(layer), pair.source.spread, pair.target.spread, pair.size
