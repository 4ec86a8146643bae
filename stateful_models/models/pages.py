"""What canonical pages are, by slow and obvious loops: the oracle that judges mappings of pages.

Every byte of a block's KV cache has a number. A page is a list of such numbers, so where a byte
belongs can be read off. Only the descriptions are imported, none of their arithmetic: here tokens
are dealt like cards, and who keeps the same is found by looking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import cycle
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvoffload.canonical.layers import (
    AttentionLayer,
    Encoding,
    LatentLayer,
    Layer,
    OpaqueLayer,
    PackedLayers,
    SingleLayer,
)
from kvoffload.canonical.parallel import KVParallelConfig

Numbers: TypeAlias = NDArray[np.int64]
"""A page as the numbers of its bytes."""


class Spread(NamedTuple):
    """A parallel configuration as bare numbers, which may contradict each other."""

    block_size: int
    tp_size: int = 1
    dcp_size: int = 1
    pcp_size: int = 1
    interleave: int = 1

    @property
    def cp_size(self) -> int:
        """Over how many workers the tokens are spread."""
        return self.dcp_size * self.pcp_size

    @property
    def span(self) -> int:
        """Tokens in a canonical page."""
        return self.block_size * self.cp_size

    @property
    def num_ranks(self) -> int:
        """How many workers there are."""
        return self.tp_size * self.pcp_size

    def config(self, rank: int = 0) -> KVParallelConfig:
        """The same as a checked value. Raises MappingError where it contradicts itself."""
        return KVParallelConfig(**self._asdict(), rank=rank)

    def __str__(self) -> str:
        """`tp 4, dcp 2, interleave 4, block 8`: without what is 1."""
        shown = [
            f"{name} {value}"
            for name, value in (
                ("tp", self.tp_size),
                ("dcp", self.dcp_size),
                ("pcp", self.pcp_size),
                ("interleave", self.interleave),
            )
            if value > 1
        ]
        return ", ".join([*shown, f"block {self.block_size}"])


class Contradiction(NamedTuple):
    """Why a layer cannot be spread like that (MAP-4), and the numbers that show it."""

    reason: str
    numbers: tuple[int, ...]


def contradictions(layer: Layer, spread: Spread) -> list[Contradiction]:
    """All reasons why MAP-4 forbids this; none for what it allows.

    Right because it tries: a number divides another if some multiple of it is that other.
    """
    found: list[Contradiction] = []
    block, interleave = spread.block_size, spread.interleave
    if spread.cp_size > 1 and not _divides(interleave, block):
        found.append(
            Contradiction(
                f"interleave {interleave} does not divide block size {block}", (interleave, block)
            )
        )
    layers = layer.layers if isinstance(layer, PackedLayers) else (layer,)
    counts = [heads_of(one) for one in layers]
    for heads in dict.fromkeys(counts):
        if heads is not None:
            found += _contradictions_of_heads(heads, spread)
    if not found:
        takers = [_num_writers(one, spread) for one in layers]
        if len(set(takers)) > 1:
            found.append(
                Contradiction(
                    f"the layers of a block are kept {takers} times, so their turns differ",
                    tuple(takers),
                )
            )
    return found


def _contradictions_of_heads(heads: int, spread: Spread) -> Iterator[Contradiction]:
    tp, dcp = spread.tp_size, spread.dcp_size
    if not _divides(heads, tp) and not _divides(tp, heads):
        yield Contradiction(f"neither of {heads} heads and tp {tp} divides the other", (heads, tp))
        # How often a head is kept has no answer then: "max(1, tp // heads)" is as good as any.
    kept = max(1, tp // heads)
    if not _divides(dcp, kept):
        yield Contradiction(
            f"dcp {dcp} does not divide the {kept} workers that keep a head", (dcp, kept)
        )


def _divides(number: int, other: int) -> bool:
    return other in range(number, other + 1, number)


def heads_of(layer: SingleLayer) -> int | None:
    """KV heads that are spread: one for a latent; None where nothing is spread (MAP-4, MAP-5)."""
    if isinstance(layer, OpaqueLayer):
        return None
    return 1 if isinstance(layer, LatentLayer) else layer.total_kv_heads


class Share(NamedTuple):
    """What one worker keeps of a layer: tokens of the span and heads of the model, in order."""

    tokens: tuple[int, ...]
    heads: tuple[int, ...]


@lru_cache(maxsize=4096)
def shares(heads: int, spread: Spread) -> tuple[Share, ...]:
    """What each worker keeps, by rank (MAP-4).

    Right because it deals: heads to workers of a tensor group in order, tokens `interleave` at a
    time to one context-parallel worker after another until the span is used up.
    """
    if spread.tp_size >= heads:
        # Neighbours keep the same head.
        often = spread.tp_size // heads
        of_tp_rank: list[tuple[int, ...]] = [(head,) for head in range(heads) for _ in range(often)]
    else:
        each = heads // spread.tp_size
        of_tp_rank = [tuple(range(i, i + each)) for i in range(0, heads, each)]

    hands: list[list[int]] = [[] for _ in range(spread.cp_size)]
    if spread.cp_size == 1:
        hands[0] = list(range(spread.span))
    else:
        receivers = cycle(hands)
        deck = list(range(spread.span))
        while deck:
            next(receivers).extend(deck[: spread.interleave])
            deck = deck[spread.interleave :]

    found: list[Share] = []
    for pcp_rank in range(spread.pcp_size):
        # A prefill group has its own hands, and its tensor ranks take them in turn.
        own = hands[pcp_rank * spread.dcp_size : (pcp_rank + 1) * spread.dcp_size]
        for own_heads, hand in zip(of_tp_rank, cycle(own), strict=False):
            found.append(Share(tuple(hand), own_heads))
    return tuple(found)


def _num_writers(layer: SingleLayer, spread: Spread) -> int:
    heads = heads_of(layer)
    if heads is None:
        return 1
    whose = shares(heads, spread)
    return whose.count(whose[0])


class Layout(NamedTuple):
    """All pages of a layer's block under one configuration.

    `canonical` and `pages` (by rank) hold the numbers of their bytes; `num_writers` workers keep
    the same ones, and `turns` says which of them each worker is. `recognised` is False for opaque
    pages, which no other configuration can read.
    """

    canonical: Numbers
    pages: tuple[Numbers, ...]
    num_writers: int
    turns: tuple[int, ...]
    recognised: bool


def layout(layer: Layer, spread: Spread) -> Layout:
    """The pages that workers hold, and that a single worker would, for what MAP-4 allows.

    A packed block is its layers one after another, on both sides.
    """
    layers = layer.layers if isinstance(layer, PackedLayers) else (layer,)
    parts = [_layout(one, spread) for one in layers]
    if len(parts) == 1:
        return parts[0]
    base = 0
    canonical: list[Numbers] = []
    pages: list[list[Numbers]] = [[] for _ in range(spread.num_ranks)]
    for part in parts:
        canonical.append(part.canonical + base)
        for page, more in zip(pages, part.pages, strict=True):
            page.append(more + base)
        base += len(part.canonical)
    return Layout(
        np.concatenate(canonical),
        tuple(np.concatenate(page) for page in pages),
        parts[0].num_writers,
        parts[0].turns,
        all(part.recognised for part in parts),
    )


def _layout(layer: SingleLayer, spread: Spread) -> Layout:
    heads = heads_of(layer)
    if heads is None or isinstance(layer, OpaqueLayer):
        size, ranks = opaque_size(layer), spread.num_ranks
        canonical = np.arange(ranks * size)
        pages = tuple(canonical[rank * size : (rank + 1) * size] for rank in range(ranks))
        return Layout(canonical, pages, 1, (0,) * ranks, False)
    whose = shares(heads, spread)
    everything = Share(tuple(range(spread.span)), tuple(range(heads)))
    kind = kind_of(layer)
    seen: dict[Share, int] = {}
    turns: list[int] = []
    for share in whose:
        turns.append(seen.get(share, 0))
        seen[share] = turns[-1] + 1
    return Layout(
        page_of(kind, heads, everything),
        tuple(page_of(kind, heads, share) for share in whose),
        seen[whose[0]],
        tuple(turns),
        True,
    )


def opaque_size(layer: SingleLayer) -> int:
    """Bytes of a worker's opaque page. Raises TypeError for a layer that is not opaque."""
    if not isinstance(layer, OpaqueLayer):
        raise TypeError(f"{layer} is not opaque")
    return layer.page_size_bytes


class PageKind(NamedTuple):
    """How the bytes of a page are ordered, apart from how many tokens and heads there are.

    `parts` are the bytes that a token and head have, part after part: K and V, or a latent row
    and what it carries beside it. `encoding` is None where there is one head and one order.
    """

    encoding: Encoding | None
    parts: tuple[int, ...]


def kind_of(layer: AttentionLayer | LatentLayer) -> PageKind:
    """The kind of a layer's page. Raises ValueError for a layer without encoding."""
    if isinstance(layer, LatentLayer):
        row = layer.row_elements * layer.element_size_bytes
        return PageKind(None, (row, layer.second_row_bytes))
    if layer.encoding is None:
        raise ValueError(f"{layer} says nothing of the order of its bytes")
    vector = layer.head_size * layer.element_size_bytes
    return PageKind(layer.encoding, (vector, vector))


FIRST_PART: Final = 0
SECOND_PART: Final = 1


@lru_cache(maxsize=8192)
def page_of(kind: PageKind, total_heads: int, share: Share) -> Numbers:
    """The page that a worker with this share holds, as the numbers of its bytes (MAP-5).

    Right because each encoding is written as the loops that its name says, and the canonical page
    is the same loops with everything for a share.
    """
    tokens, heads = share
    both = (FIRST_PART, SECOND_PART)
    order: Iterable[tuple[int, int, int]]
    if kind.encoding is Encoding.SPLIT_NHD:
        order = ((t, h, part) for part in both for t in tokens for h in heads)
    elif kind.encoding is Encoding.SPLIT_HND:
        order = ((t, h, part) for part in both for h in heads for t in tokens)
    elif kind.encoding is Encoding.PACKED_HND:
        order = ((t, h, part) for h in heads for t in tokens for part in both)
    else:
        order = ((t, h, part) for t in tokens for h in heads for part in both)
    page: list[int] = []
    for token, head, part in order:
        first = (token * total_heads + head) * sum(kind.parts) + sum(kind.parts[:part])
        page.extend(range(first, first + kind.parts[part]))
    numbers = np.array(page, dtype=np.int64)
    numbers.flags.writeable = False
    return numbers


def place_in(canonical: Numbers, numbers: Numbers) -> Numbers:
    """Where each of the bytes is in a canonical page."""
    place = np.full(len(canonical), -1, dtype=np.int64)
    place[canonical] = np.arange(len(canonical))
    return place[numbers]


def chunk(layer: Layer, spread: Spread, blocks_per_chunk: int) -> tuple[object, ...]:
    """What a chunk's bytes mean, one after another: equal exactly when the bytes are (ID-1).

    Tokens are counted through the chunk, so that it does not matter how they are cut into blocks.
    An opaque byte is one of a certain worker of a certain configuration.
    """
    meaning: list[object] = []
    layers = layer.layers if isinstance(layer, PackedLayers) else (layer,)
    for block in range(blocks_per_chunk):
        for index, one in enumerate(layers):
            meaning += (
                (index, *byte) for byte in _meanings(one, spread, first_token=block * spread.span)
            )
    return tuple(meaning)


def _meanings(
    layer: SingleLayer, spread: Spread, *, first_token: int
) -> Iterator[tuple[object, ...]]:
    if isinstance(layer, OpaqueLayer):
        # An interleave of one worker alone plays no part.
        known = spread if spread.cp_size > 1 else spread._replace(interleave=1)
        for rank in range(spread.num_ranks):
            for byte in range(layer.page_size_bytes):
                yield ("opaque", known, first_token, rank, byte)
        return
    heads = heads_of(layer) or 1
    kind = kind_of(layer)
    name = "latent" if isinstance(layer, LatentLayer) else "attention"
    everything = Share(tuple(range(spread.span)), tuple(range(heads)))
    for number in page_of(kind, heads, everything).tolist():
        cell, byte = divmod(number, sum(kind.parts))
        token, head = divmod(cell, heads)
        part = FIRST_PART if byte < kind.parts[0] else SECOND_PART
        place = byte - sum(kind.parts[:part])
        element = divmod(place, layer.element_size_bytes)
        if name == "latent" and part == SECOND_PART:
            element = (place, 0)
        yield (name, first_token + token, head, part, *element)


class ByteName(NamedTuple):
    """What a byte is: which of a token's and head's, or of a rank's opaque page."""

    layer: str
    owner: str
    part: str
    byte: int

    def __str__(self) -> str:
        words = (self.layer, self.owner, self.part, f"byte {self.byte}")
        return " ".join(word for word in words if word)


def names_of_bytes(layer: Layer, spread: Spread) -> Sequence[ByteName]:
    """What the numbers of a canonical page's bytes stand for, in order."""
    layers = layer.layers if isinstance(layer, PackedLayers) else (layer,)
    names: list[ByteName] = []
    for index, one in enumerate(layers):
        names += _names(one, spread, f"layer {index}" if len(layers) > 1 else "")
    return names


def _names(layer: SingleLayer, spread: Spread, layer_name: str) -> Iterator[ByteName]:
    if isinstance(layer, OpaqueLayer):
        for rank in range(spread.num_ranks):
            for byte in range(layer.page_size_bytes):
                yield ByteName(layer_name, f"rank {rank}", "", byte)
        return
    is_latent = isinstance(layer, LatentLayer)
    names = ("row", "second") if is_latent else ("K", "V")
    parts = dict(zip(names, kind_of(layer).parts, strict=True))
    for token in range(spread.span):
        for head in range(heads_of(layer) or 1):
            owner = f"token {token}" if is_latent else f"token {token} head {head}"
            for part, size in parts.items():
                for byte in range(size):
                    yield ByteName(layer_name, owner, part, byte)
