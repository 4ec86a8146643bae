"""Copies from one configuration's pages straight to another's, with no canonical page between.

Where a source worker's run and a target worker's run meet in the canonical page, the bytes can go
directly. Composing all of them gives the same bytes as storing by every source worker and loading
by every target worker (MAP-8).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attrs import field, frozen

from kvoffload.canonical.arguments import tuple_of
from kvoffload.canonical.pages import CanonicalPageMapping
from kvoffload.canonical.runs import fragments, require_few_fragments, strides
from kvoffload.canonical.tiling import verify_tiling
from kvoffload.errors import InvalidValueError, MappingError
from kvoffload.validation import each_instance, instance, int_at_least, require_int

if TYPE_CHECKING:
    from kvoffload.canonical.runs import Offsets


class DirectRun(NamedTuple):
    """Equal fragments at constant steps, in the source's page and in the target's.

    For i in range(num_fragments), fragment i goes from
    [source_offset + i * source_stride, + fragment_size) to
    [target_offset + i * target_stride, + fragment_size). All in bytes.
    """

    source_offset: int
    target_offset: int
    fragment_size: int
    num_fragments: int
    source_stride: int
    target_stride: int


@frozen
class PageCopy:
    """What one target worker's page takes from one source worker's, in normal form (MAP-7).

    Fragments are maximal and in the order of the target's page; equal ones at constant steps are
    one run.
    """

    source_rank: int = field(validator=int_at_least(0))
    target_rank: int = field(validator=int_at_least(0))
    runs: tuple[DirectRun, ...] = field(validator=each_instance(DirectRun))

    @property
    def num_bytes(self) -> int:
        """Bytes that go from the one to the other for a block."""
        return sum(run.fragment_size * run.num_fragments for run in self.runs)


def _source(value: Iterable[CanonicalPageMapping]) -> tuple[CanonicalPageMapping, ...]:
    return tuple_of("source", value, CanonicalPageMapping)


def _target(value: Iterable[CanonicalPageMapping]) -> tuple[CanonicalPageMapping, ...]:
    return tuple_of("target", value, CanonicalPageMapping)


@frozen
class Resharding:
    """The direct copies from the workers of one configuration to those of another.

    `source` and `target` hold the mapping of every worker, in order of rank, of one layer and one
    span. Mappings know their canonical page by its size alone: where the two sides may be of
    different layers or encodings, compare their `layout_id`s first. Raises TilingError for a side
    that is no tiling, and MappingError for sides of different sizes or that others cannot read.
    """

    source: tuple[CanonicalPageMapping, ...] = field(converter=_source)
    target: tuple[CanonicalPageMapping, ...] = field(converter=_target)
    name: str = field(default="layer", validator=instance(str))

    def __attrs_post_init__(self) -> None:
        for side in ("source", "target"):
            if not getattr(self, side):
                raise InvalidValueError(side, (), "the mapping of each worker")
        verify_tiling(self.source, name=f"{self.name}, source")
        verify_tiling(self.target, name=f"{self.name}, target")
        one, other = self.source[0], self.target[0]
        if one.canonical_page_size_bytes != other.canonical_page_size_bytes:
            raise MappingError(
                f"{self.name}: the source's canonical page has {one.canonical_page_size_bytes} "
                f"bytes, the target's {other.canonical_page_size_bytes}"
            )
        if self.source != self.target:
            for side, mapping in (("source", one), ("target", other)):
                if not mapping.parallelism_agnostic:
                    raise MappingError(
                        f"{self.name}: the {side}'s canonical bytes depend on its configuration "
                        "(parallelism_agnostic is False), no other one can read them"
                    )

    def copies(self, block_id: int = 0) -> tuple[PageCopy, ...]:
        """All copies for a block, by target rank and then source rank.

        Every byte of a target's page comes from one source worker. Of those that keep the same
        bytes, the elected one depends on block and target, so that reading is spread over them;
        copies repeat every `num_writers` blocks of the source. Raises InvalidValueError for no
        block, and MappingError for pages of more fragments than can be written out.
        """
        require_int("block_id", block_id, 0)
        turns = self.source[0].num_writers
        copies: list[PageCopy] = []
        elected: dict[int, _Fragments] = {}
        for target_rank, target in enumerate(self.target):
            turn = (block_id + target_rank) % turns
            if turn not in elected:
                elected[turn] = _fragments_of(self.source, turn)
            copies += _page_copies(elected[turn], target_rank, target)
        return tuple(copies)


class _Fragments(NamedTuple):
    """Fragments in canonical order, which they tile: where each lies and in whose page."""

    canonical: Offsets
    local: Offsets
    size: Offsets
    rank: Offsets


def _fragments_of(mappings: Sequence[CanonicalPageMapping], turn: int) -> _Fragments:
    import numpy as np

    require_few_fragments(
        run for mapping in mappings if mapping.is_writer(turn) for run in mapping.runs
    )
    parts = [
        (*fragments(mapping.runs), rank)
        for rank, mapping in enumerate(mappings)
        if mapping.is_writer(turn)
    ]
    local = np.concatenate([part[0] for part in parts])
    canonical = np.concatenate([part[1] for part in parts])
    size = np.concatenate([part[2] for part in parts])
    rank = np.concatenate([np.full(len(part[0]), part[3], dtype=np.int64) for part in parts])
    order = np.argsort(canonical)
    return _Fragments(canonical[order], local[order], size[order], rank[order])


def _page_copies(
    source: _Fragments, target_rank: int, target: CanonicalPageMapping
) -> list[PageCopy]:
    """Cut the target's fragments where the source's end, and sort the pieces by their owner."""
    import numpy as np

    local, canonical, size = fragments(target.runs)
    # Pieces of each target fragment: one more than source fragments begin strictly inside it.
    first = np.searchsorted(source.canonical, canonical, side="right") - 1
    last = np.searchsorted(source.canonical, canonical + size, side="left") - 1
    pieces = last - first + 1
    of_target = np.repeat(np.arange(len(size)), pieces)
    place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    of_source = first[of_target] + place

    start = np.maximum(canonical[of_target], source.canonical[of_source])
    end = np.minimum(
        canonical[of_target] + size[of_target],
        source.canonical[of_source] + source.size[of_source],
    )
    into = local[of_target] + start - canonical[of_target]
    out_of = source.local[of_source] + start - source.canonical[of_source]
    owner = source.rank[of_source]

    copies: list[PageCopy] = []
    for rank in np.unique(owner):
        mine = owner == rank
        runs = tuple(
            DirectRun(
                source_offset=stride.right,
                target_offset=stride.left,
                fragment_size=stride.size,
                num_fragments=stride.num_fragments,
                source_stride=stride.right_step,
                target_stride=stride.left_step,
            )
            for stride in strides(into[mine], out_of[mine], (end - start)[mine])
        )
        copies.append(PageCopy(int(rank), target_rank, runs))
    return copies
