"""What exhibits among mappers are made with: values that check nothing, and ways to spoil one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from attrs import frozen

from kvoffload.canonical.layers import Layer
from stateful_models.contract import Kind
from stateful_models.gallery.broken_mappers.reference import derive
from stateful_models.models.pages import Spread
from stateful_models.pages import PageMapper, PageMapping, Run, Span
from stateful_models.pages.mapper import Derive


@frozen
class BrokenMapper:
    """An exhibit: the clause that it breaks, in which of its demands, and how."""

    clause: str
    mistake: str
    mapper: PageMapper
    kind: Kind | None = None
    bug_rows: tuple[str, ...] = ()


@frozen
class LegalMapper:
    """An oddity that nobody may be convicted of; `reported` is what the reference is held to."""

    oddity: str
    mapper: PageMapper
    reported: tuple[str, ...] = ()


class LooseRun(NamedTuple):
    """A run, whatever its numbers are."""

    local_offset: int
    canonical_offset: int
    fragment_size: int
    num_fragments: int
    local_stride: int
    canonical_stride: int


class LooseMapping(NamedTuple):
    """A mapping, whatever its numbers are."""

    canonical_page_size_bytes: int
    local_page_size_bytes: int
    runs: tuple[LooseRun, ...]
    num_writers: int
    writer_index: int
    parallelism_agnostic: bool

    def is_writer(self, block_id: int) -> bool:
        """By turns."""
        return block_id % self.num_writers == self.writer_index


Spoil: TypeAlias = Callable[[Layer, Spread, int, LooseMapping], PageMapping]
"""What becomes of the right mapping of a rank."""


def loosened(mapping: PageMapping) -> LooseMapping:
    """The same values."""
    return LooseMapping(
        mapping.canonical_page_size_bytes,
        mapping.local_page_size_bytes,
        tuple(
            LooseRun(
                run.local_offset,
                run.canonical_offset,
                run.fragment_size,
                run.num_fragments,
                run.local_stride,
                run.canonical_stride,
            )
            for run in mapping.runs
        ),
        mapping.num_writers,
        mapping.writer_index,
        mapping.parallelism_agnostic,
    )


def spoiled(spoil: Spoil) -> PageMapper:
    """A mapper that is right but for what is done to each mapping in the end."""

    def derived(layer: Layer, spread: Spread) -> list[PageMapping]:
        return [
            spoil(layer, spread, rank, loosened(mapping))
            for rank, mapping in enumerate(derive(layer, spread))
        ]

    return PageMapper(derive=derived)


def mistaking(mistake: Callable[[Layer, Spread], tuple[Layer, Spread]]) -> PageMapper:
    """A mapper that is right, of something else; what is illegal it refuses."""

    def derived(layer: Layer, spread: Spread) -> Sequence[PageMapping]:
        derive(layer, spread)
        return derive(*mistake(layer, spread))

    return PageMapper(derive=derived)


def plain(derived: Derive) -> PageMapper:
    """A mapper that can only derive."""
    return PageMapper(derive=derived)


def in_fragments(mapping: LooseMapping) -> LooseMapping:
    """The same bytes, each fragment a run of its own."""
    runs = [
        LooseRun(local, canonical, size, 1, size, size)
        for run in mapping.runs
        for local, canonical, size in spans_of(run)
    ]
    return mapping._replace(runs=tuple(runs))


def spans_of(run: Run) -> list[Span]:
    """The fragments of a run."""
    return [
        Span(
            run.local_offset + i * run.local_stride,
            run.canonical_offset + i * run.canonical_stride,
            run.fragment_size,
        )
        for i in range(run.num_fragments)
    ]
