"""The reference derivation as a mapper on trial: what broken ones are made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kvoffload.canonical.derivation import derive_mappings
from kvoffload.canonical.identity import layout_id
from kvoffload.canonical.layers import AttentionLayer, Layer
from kvoffload.canonical.pages import CanonicalPageMapping
from kvoffload.canonical.recognition import recognise
from kvoffload.canonical.resharding import PageCopy, Resharding
from stateful_models.models.pages import Spread
from stateful_models.pages import BareAttention, PageMapper, PageMapping, Run, Span, StandInTensor


def derive(layer: Layer, spread: Spread) -> tuple[CanonicalPageMapping, ...]:
    """The mappings of all workers."""
    return derive_mappings(layer, spread.config())


def derive_bare(bare: BareAttention, spread: Spread) -> tuple[CanonicalPageMapping, ...]:
    """The same from bare numbers; whole ones come as an int, as they would from a model's file."""
    element = bare.element_size_bytes
    layer = AttentionLayer(
        total_kv_heads=bare.total_kv_heads,
        head_size=bare.head_size,
        value_head_size=bare.value_head_size,
        # The declared type is int; that something else is refused is what is tried here.
        element_size_bytes=int(element) if element == int(element) else element,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        encoding=bare.encoding,
    )
    return derive_mappings(layer, spread.config())


def spans(run: Run) -> Iterator[Span]:
    """Fragment i lies i strides behind the offset, on either side."""
    for i in range(run.num_fragments):
        yield Span(
            run.local_offset + i * run.local_stride,
            run.canonical_offset + i * run.canonical_stride,
            run.fragment_size,
        )


def reshard(
    source: Sequence[PageMapping], target: Sequence[PageMapping], block_id: int
) -> tuple[PageCopy, ...]:
    """The direct copies for a block, of our own mappings. Raises TypeError for others'."""
    return Resharding(_ours(source), _ours(target)).copies(block_id)


def _ours(mappings: Sequence[PageMapping]) -> tuple[CanonicalPageMapping, ...]:
    ours = tuple(one for one in mappings if isinstance(one, CanonicalPageMapping))
    if len(ours) != len(mappings):
        raise TypeError("resharding takes the mappings of kvoffload")
    return ours


def named(layer: Layer, spread: Spread, rank: int, blocks_per_chunk: int) -> str:
    """The digest of what a worker persists."""
    return layout_id(layer, spread.config(rank), blocks_per_chunk=blocks_per_chunk).digest


def recognised(
    layer: AttentionLayer, spread: Spread, rank: int, tensor: StandInTensor
) -> Layer | None:
    """The layer as the tensor settles it."""
    return recognise(layer, spread.config(rank), tensor)


REFERENCE: Final = PageMapper(
    derive=derive,
    spans=spans,
    derive_bare=derive_bare,
    reshard=reshard,
    layout_id=named,
    recognise=recognised,
)
"""The reference, with everything that can be tried."""
