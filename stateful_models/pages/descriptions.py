"""What is settled before any mapping: refused descriptions (MAP-5) and tensors (MAP-6)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations, product
from typing import Final, NamedTuple

from attrs import evolve

from kvoffload.canonical.layers import AttentionLayer, Encoding, OpaqueLayer
from stateful_models.contract import Kind
from stateful_models.models.pages import (
    Spread,
    contradictions,
    kind_of,
    layout,
    page_of,
    shares,
)
from stateful_models.pages.cases import ELEMENT_SIZE, SMALL_GRID, Case, Grid, attention
from stateful_models.pages.findings import PageFinding, on
from stateful_models.pages.mapper import (
    BareAttention,
    DeriveBare,
    PageMapper,
    Recognise,
    StandInTensor,
)


class Unmappable(NamedTuple):
    """Bare numbers that no mapping can be of, and those that a refusal has to name."""

    bare: BareAttention
    named: str
    why: str


UNMAPPABLE: Final = tuple(
    Unmappable(BareAttention(2, 4, v_size, element, encoding), named, why)
    for encoding in Encoding
    for v_size, element, named, why in (
        (4, 0.5, "0.5", "elements of half a byte share bytes"),
        (2, 2.0, "2", "heads of V have another size than those of K"),
        (8, 1.0, "8", "heads of V have another size than those of K"),
    )
)
BARE_SPREADS: Final = (Spread(4), Spread(4, tp_size=2))


def judge_bare(mapper: PageMapper) -> Iterator[PageFinding]:
    """Whether V heads of another size and elements smaller than a byte are refused by name."""
    if mapper.derive_bare is None:
        return
    for spread, unmappable in product(BARE_SPREADS, UNMAPPABLE):
        yield from _judge_unmappable(mapper, mapper.derive_bare, unmappable, spread)
    for spread, encoding in product(BARE_SPREADS, Encoding):
        bare = BareAttention(2, 4, 4, ELEMENT_SIZE, encoding)
        try:
            mapper.derive_bare(bare, spread)
        except Exception as error:
            yield _bare(
                bare,
                spread,
                f"refused what can be mapped: {type(error).__name__}: {error}",
                "mappings",
            )


def _judge_unmappable(
    mapper: PageMapper, derive_bare: DeriveBare, unmappable: Unmappable, spread: Spread
) -> Iterator[PageFinding]:
    bare, named, why = unmappable
    expected = f"a refusal: {why}"
    try:
        derive_bare(bare, spread)
    except mapper.refusals as error:
        if named not in re.findall(r"[\d.]*\d", str(error)):
            message = f"the refusal does not name {named}: {error}"
            yield _bare(bare, spread, message, expected, kind=Kind.REFERENCE)
    except Exception as error:
        yield _bare(bare, spread, f"raised {type(error).__name__}: {error}", expected)
    else:
        yield _bare(bare, spread, "accepted what cannot be mapped", expected)


def _bare(
    bare: BareAttention,
    spread: Spread,
    message: str,
    expected: str,
    *,
    kind: Kind = Kind.HOST,
) -> PageFinding:
    case = (
        f"{bare.total_kv_heads} heads, K of {bare.head_size} and V of {bare.value_head_size} x "
        f"{bare.element_size_bytes} bytes, {bare.encoding.value}; {spread}"
    )
    return PageFinding("MAP-5", kind, message, case, expected, size=spread.num_ranks)


NUM_BLOCKS: Final = 3
RECOGNITION_GRID: Final = SMALL_GRID._replace(
    tp=(1, 2), dcp=(1,), pcp=(1,), interleave=(1,), block=(1, 2, 4), heads=(1, 2, 4)
)
"""Lengths of 2 and of 1, which are what can be mistaken for something else."""


def tensors_of(layer: AttentionLayer, spread: Spread) -> tuple[StandInTensor, ...]:
    """How a worker of this layer can show its blocks, its axes in any order.

    Right because strides are read off the oracle's page: how far apart bytes are that are one
    token, one head or one part apart.
    """
    own = shares(layer.total_kv_heads, spread)[0]
    page = page_of(kind_of(layer), layer.total_kv_heads, own).tolist()
    place = {number: at for at, number in enumerate(page)}
    vector = layer.head_size * layer.element_size_bytes

    def address(token: int, head: int, part: int) -> int:
        number = (own.tokens[token] * layer.total_kv_heads + own.heads[head]) * 2 + part
        return place[number * vector] // layer.element_size_bytes

    def step(token: int, head: int, part: int) -> int:
        # Where there is only one, any stride will do: nobody takes a step.
        there = token < len(own.tokens) and head < len(own.heads)
        return address(token, head, part) if there else len(page) // layer.element_size_bytes

    tokens = (len(own.tokens), step(1, 0, 0))
    heads = (len(own.heads), step(0, 1, 0))
    halves = (2, address(0, 0, 1))
    blocks = (NUM_BLOCKS, len(page) // layer.element_size_bytes)
    views: list[list[tuple[int, int]]] = []
    for *outer, innermost in permutations((tokens, heads, halves)):
        views.append([blocks, *outer, innermost, (layer.head_size, 1)])
        if innermost[1] == layer.head_size:
            # Neighbours in memory may be shown as one vector: K and V, or the heads of a token.
            views.append([blocks, *outer, (innermost[0] * layer.head_size, 1)])
    return tuple(
        StandInTensor(
            tuple(length for length, _ in view),
            tuple(stride for _, stride in view),
            layer.element_size_bytes,
        )
        for view in views
    )


def _what_it_says(tensor: StandInTensor) -> tuple[tuple[int, int], ...]:
    """Lengths and strides; dimensions of one place say nothing."""
    pairs = zip(tensor.shape, tensor.strides, strict=True)
    return tuple((length, stride) for length, stride in pairs if length > 1)


def judge_recognition(mapper: PageMapper, grid: Grid = RECOGNITION_GRID) -> Iterator[PageFinding]:
    """Whether tensors settle encodings as MAP-6 says, on every rank alike.

    Every tensor is one that some layer really has. No other layer may be read into it, whatever
    it looks like.
    """
    if mapper.recognise is None:
        return
    for spread in grid.spreads():
        for heads in grid.heads:
            if contradictions(attention(heads, Encoding.PACKED_NHD), spread):
                continue
            for encoding in Encoding:
                true = attention(heads, encoding)
                for tensor in tensors_of(true, spread):
                    yield from _judge_tensor(mapper, mapper.recognise, true, spread, tensor)


def _judge_tensor(
    mapper: PageMapper,
    recognise: Recognise,
    true: AttentionLayer,
    spread: Spread,
    tensor: StandInTensor,
) -> Iterator[PageFinding]:
    for said in (None, *Encoding):
        described = evolve(true, encoding=said)
        seen = _Seen(true, spread, tensor, said)
        answers: list[object] = []
        for rank in range(spread.num_ranks):
            try:
                answers.append(recognise(described, spread, rank, tensor))
            except mapper.refusals as error:
                answers.append(f"a refusal: {type(error).__name__}")
            except Exception as error:
                yield seen.finding(f"raised {type(error).__name__}: {error}", "an answer")
                return
        answer = answers[0]
        if any(one != answer for one in answers):
            message = "ranks of one layer come to different readings"
            yield seen.finding(message, "one reading", " and ".join(map(_read_as, answers)))
            continue
        read = answer.encoding if isinstance(answer, AttentionLayer) else None
        if read is None:
            if said is not None and said == true.encoding:
                message = "a tensor that is as described is not recognised"
                yield seen.finding(message, said.value, _read_as(answer), kind=Kind.REFERENCE)
        elif said is not None and read is not said:
            expected = f"{said.value}, opaque or a refusal"
            yield seen.finding("the description is overruled", expected, read.value)
        elif not _same_pages(evolve(true, encoding=read), true, spread) and (
            said is None or not _looks_like(evolve(true, encoding=read), spread, tensor)
        ):
            message = "read as something that it is not"
            yield seen.finding(message, "opaque or a refusal", read.value)


def _read_as(answer: object) -> str:
    if isinstance(answer, AttentionLayer):
        return str(answer.encoding.value if answer.encoding is not None else None)
    return "opaque" if isinstance(answer, OpaqueLayer) else str(answer)


class _Seen(NamedTuple):
    """A tensor of a worker of layer `true`, described as `said`."""

    true: AttentionLayer
    spread: Spread
    tensor: StandInTensor
    said: Encoding | None

    def finding(
        self,
        message: str,
        expected: str,
        seen: str = "",
        *,
        kind: Kind = Kind.SAFETY,
    ) -> PageFinding:
        case = Case(self.true, self.spread)
        described = "no layout name" if self.said is None else f"described as {self.said.value}"
        finding = on(
            case,
            "MAP-6",
            message,
            kind=kind,
            expected=expected,
            seen=seen,
        )
        shown = f"tensor {self.tensor.shape} with strides {self.tensor.strides}, {described}"
        return evolve(finding, case=f"{case}; {shown}")


def _same_pages(one: AttentionLayer, other: AttentionLayer, spread: Spread) -> bool:
    """Whether it makes no difference to any worker's page which of the two a layer is."""
    mine, theirs = layout(one, spread), layout(other, spread)
    return (mine.canonical == theirs.canonical).all() and all(
        (page == their_page).all()
        for page, their_page in zip(mine.pages, theirs.pages, strict=True)
    )


def _looks_like(layer: AttentionLayer, spread: Spread, tensor: StandInTensor) -> bool:
    """Whether a worker of this layer could have this tensor; then its name decides."""
    said = _what_it_says(tensor)
    return any(_what_it_says(one) == said for one in tensors_of(layer, spread))
