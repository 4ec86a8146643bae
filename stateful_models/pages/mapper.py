"""What is put on trial: how an implementation derives mappings, and what else it can do with them.

The values that it answers with need only these attributes; vLLM's own classes have them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from attrs import frozen

from kvoffload.canonical.layers import AttentionLayer, Encoding, Layer
from kvoffload.canonical.pages import CanonicalPageMapping
from kvoffload.errors import MappingError
from stateful_models.models.pages import Spread


class Run(Protocol):
    """Equal fragments at constant steps, in bytes (MAP-1); `kvoffload.CopyRun` is one."""

    @property
    def local_offset(self) -> int:
        """Where the first fragment is in the worker's page."""
        ...

    @property
    def canonical_offset(self) -> int:
        """Where it is in the canonical page."""
        ...

    @property
    def fragment_size(self) -> int:
        """Bytes of each fragment."""
        ...

    @property
    def num_fragments(self) -> int:
        """How many there are."""
        ...

    @property
    def local_stride(self) -> int:
        """From the start of one to the start of the next in the worker's page."""
        ...

    @property
    def canonical_stride(self) -> int:
        """The same in the canonical page."""
        ...


class MappingLike(Protocol):
    """The mapping of one worker's page, whoever's class it is."""

    @property
    def canonical_page_size_bytes(self) -> int:
        """Bytes of the page that a single worker would hold."""
        ...

    @property
    def local_page_size_bytes(self) -> int:
        """Bytes of this worker's page, without padding."""
        ...

    @property
    def runs(self) -> Sequence[Run]:
        """Where they correspond."""
        ...

    @property
    def num_writers(self) -> int:
        """How many workers keep the same bytes."""
        ...

    @property
    def writer_index(self) -> int:
        """Which of them this one is."""
        ...

    @property
    def parallelism_agnostic(self) -> bool:
        """Whether any other configuration of the same span can read what is written."""
        ...

    def is_writer(self, block_id: int) -> bool:
        """Whether it is this worker's turn."""
        ...


# Named beside the protocol, which it satisfies too: type checkers differ on what the converter of
# its `runs` makes of them.
PageMapping: TypeAlias = CanonicalPageMapping | MappingLike
"""The mapping of one worker's page: kvoffload's, or one with the same attributes."""


class DirectRun(Protocol):
    """Equal fragments at constant steps, from a source's page to a target's, in bytes."""

    @property
    def source_offset(self) -> int:
        """Where the first fragment comes from."""
        ...

    @property
    def target_offset(self) -> int:
        """Where it goes."""
        ...

    @property
    def fragment_size(self) -> int:
        """Bytes of each fragment."""
        ...

    @property
    def num_fragments(self) -> int:
        """How many there are."""
        ...

    @property
    def source_stride(self) -> int:
        """From the start of one to the start of the next in the source's page."""
        ...

    @property
    def target_stride(self) -> int:
        """The same in the target's page."""
        ...


class DirectCopy(Protocol):
    """What one target's page takes from one source's; `kvoffload.PageCopy` is one."""

    @property
    def source_rank(self) -> int:
        """Whose page is read."""
        ...

    @property
    def target_rank(self) -> int:
        """Whose page is written."""
        ...

    @property
    def runs(self) -> Sequence[DirectRun]:
        """Which bytes."""
        ...


class Span(NamedTuple):
    """One fragment, as whoever copies reads it off a run: where it is on both sides, and bytes."""

    local: int
    canonical: int
    size: int


class BareAttention(NamedTuple):
    """Attention as bare numbers, of which nothing has been refused yet."""

    total_kv_heads: int
    head_size: int
    value_head_size: int
    element_size_bytes: float
    encoding: Encoding


@frozen
class StandInTensor:
    """What recognition reads of a torch tensor: its dimensions and place, and no bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int = 2

    def stride(self) -> tuple[int, ...]:
        """Elements between neighbours, for each dimension."""
        return self.strides

    def storage_offset(self) -> int:
        """Elements before the first one: none."""
        return 0

    def element_size(self) -> int:
        """Bytes an element."""
        return self.itemsize

    def data_ptr(self) -> int:
        """An address; there is nothing behind it."""
        return 4096


Derive: TypeAlias = Callable[[Layer, Spread], Sequence[PageMapping]]
"""The mappings of all workers, by rank; an exception for what cannot be mapped."""
Spans: TypeAlias = Callable[[Run], Iterable[tuple[int, int, int]]]
"""The fragments of a run, as the copying code reads them: local offset, canonical offset, size."""
DeriveBare: TypeAlias = Callable[[BareAttention, Spread], object]
"""As `Derive`, from bare numbers: an exception for those that no layer can have."""
Reshard: TypeAlias = Callable[
    [Sequence[PageMapping], Sequence[PageMapping], int], Iterable[DirectCopy]
]
"""The direct copies from all workers of one configuration to all of another, for a block id."""
LayoutIds: TypeAlias = Callable[[Layer, Spread, int, int], Hashable]
"""The id of what a worker persists: layer, configuration, rank, blocks a chunk."""
Recognise: TypeAlias = Callable[[AttentionLayer, Spread, int, StandInTensor], Layer | None]
"""A worker's layer as its tensor settles it: with an encoding, or opaque, or None; by rank."""


@frozen(kw_only=True)
class PageMapper:
    """An implementation on trial: `derive`, and whichever of the others it has.

    `refusals` are the exceptions by which it refuses what cannot be mapped. Any other is a
    finding, and so is a refusal of what can. To map as opaque what should be refused is reported,
    and convicts nobody.
    """

    derive: Derive
    refusals: tuple[type[Exception], ...] = (MappingError,)
    spans: Spans | None = None
    derive_bare: DeriveBare | None = None
    reshard: Reshard | None = None
    layout_id: LayoutIds | None = None
    recognise: Recognise | None = None
