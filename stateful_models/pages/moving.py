"""Pairs of configurations: what one stores the other loads, and what goes directly is the same.

Memory is an array of the numbers that the oracle gives to bytes, so that no two bytes are equal.
Every rank has its own stretch of it, with padding after its page and poison around both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from attrs import frozen

from stateful_models.contract import Kind
from stateful_models.models.pages import Layout, Numbers, layout, names_of_bytes
from stateful_models.pages.bytes_of import (
    Index,
    RunRow,
    row_of,
    rows_of_copies,
    written_out,
)
from stateful_models.pages.cases import Case, Pair
from stateful_models.pages.findings import PageFinding
from stateful_models.pages.mapper import PageMapper, PageMapping, Reshard

POISON: Final = -1
GUARD: Final = 8
"""Bytes of poison around everything that may be written."""


@frozen
class Side:
    """One configuration of a pair: its mappings written out, and the oracle's pages in memory.

    `step` is how far apart the ranks' pages are; the first starts after `GUARD` bytes.
    """

    mappings: tuple[PageMapping, ...]
    truth: Layout
    step: int
    rank: Index
    local: Index
    canonical: Index
    memory: Numbers

    def elected(self, block_id: int) -> Index:
        """The bytes, as places in `local` and `canonical`, that it is somebody's turn to write."""
        turns = np.array([bool(mapping.is_writer(block_id)) for mapping in self.mappings])
        return np.flatnonzero(turns[self.rank])

    def empty(self) -> Numbers:
        """As much memory, all poison."""
        return np.full_like(self.memory, POISON)


def side_of(mapper: PageMapper, case: Case) -> Side:
    """A side of a pair. The case must be legal; raises what deriving raises."""
    mappings = tuple(mapper.derive(case.layer, case.spread))
    truth = layout(case.layer, case.spread)
    page = len(truth.pages[0])
    padding = case.layer.padded_page_size_bytes
    step = (page if padding is None else padding) + GUARD
    memory = np.full(GUARD + step * len(truth.pages), POISON, dtype=np.int64)
    for rank, numbers in enumerate(truth.pages):
        start = GUARD + rank * step
        memory[start : start + page] = numbers
    rows: list[RunRow] = []
    whose: list[int] = []
    for rank, mapping in enumerate(mappings):
        base = GUARD + rank * step
        rows += (row_of(run, base, GUARD) for run in mapping.runs)
        whose += [rank] * len(mapping.runs)
    pairing = written_out(rows)
    ranks = np.array(whose, dtype=np.int64)[pairing.run]
    return Side(mappings, truth, step, ranks, pairing.left, pairing.right, memory)


class _Words(NamedTuple):
    """What a finding on a pair is written with."""

    pair: Pair

    def on(
        self,
        clause: str,
        kind: Kind,
        message: str,
        expected: object = "",
        seen: object = "",
    ) -> PageFinding:
        return PageFinding(
            clause, kind, message, str(self.pair), str(expected), str(seen), self.pair.size
        )

    def bytes_of_rank(self, expected: Numbers, seen: Numbers, step: int) -> tuple[str, str]:
        """The first difference of two memories in words."""
        wrong = np.flatnonzero(expected != seen)
        first = int(wrong[0])
        rank, byte = divmod(first - GUARD, step)
        where = f"byte {byte} at the page of rank {rank}"
        return (
            f"{where}: {self._named(expected[first])}",
            f"{self._named(seen[first])}; {len(wrong)} bytes differ",
        )

    def bytes_of_page(self, expected: Numbers, seen: Numbers) -> tuple[str, str]:
        """The same for canonical pages."""
        wrong = np.flatnonzero(expected != seen)
        first = int(wrong[0])
        return (
            f"canonical byte {first - GUARD}: {self._named(expected[first])}",
            f"{self._named(seen[first])}; {len(wrong)} bytes differ",
        )

    def _named(self, number: int) -> str:
        if number == POISON:
            return "nothing written"
        return str(names_of_bytes(self.pair.source.layer, self.pair.source.spread)[int(number)])


def judge_pair(mapper: PageMapper, pair: Pair, source: Side, target: Side) -> list[PageFinding]:
    """What goes wrong where the source stores a block and the target loads it (MAP-8)."""
    words = _Words(pair)
    if not (_claims(source) and _claims(target)) and source.mappings != target.mappings:
        # They do not promise that anybody else can read them.
        return []
    one = source.mappings[0].canonical_page_size_bytes
    other = target.mappings[0].canonical_page_size_bytes
    if one != other:
        return [
            words.on(
                "MAP-8",
                Kind.SAFETY,
                "canonical pages of one span have another size under another configuration",
                f"{len(source.truth.canonical)} bytes for both",
                f"{one} and {other} bytes",
            )
        ]
    return [
        *_judge_way_through(words, pair, source, target),
        *_judge_direct(words, pair, source, target, mapper.reshard),
    ]


def _claims(side: Side) -> bool:
    return all(mapping.parallelism_agnostic for mapping in side.mappings)


def _judge_way_through(
    words: _Words, pair: Pair, source: Side, target: Side
) -> Iterator[PageFinding]:
    size = source.mappings[0].canonical_page_size_bytes
    stored = np.full(size + 2 * GUARD, POISON, dtype=np.int64)
    loaded = target.empty()
    elected = source.elected(pair.block_id)
    try:
        stored[source.canonical[elected]] = source.memory[source.local[elected]]
        loaded[target.local] = stored[target.canonical]
    except IndexError as error:
        yield words.on("MAP-8", Kind.SAFETY, f"a run leaves the memory of all pages: {error}")
        return
    right = np.full_like(stored, POISON)
    # Of another size no page can be right, and the case by itself says so.
    # Nor need it be that of a single worker where no other configuration is promised to read it.
    known = size == len(source.truth.canonical) and _claims(source)
    if known:
        right[GUARD : GUARD + size] = source.truth.canonical
    if known and len(elected) != size:
        yield words.on(
            "MAP-3",
            Kind.SAFETY,
            f"the elected ranks do not write each byte of the canonical page of {size} bytes once",
            f"{size} bytes written",
            len(elected),
        )
    if known and not np.array_equal(stored, right):
        expected, seen = words.bytes_of_page(right, stored)
        yield words.on(
            "MAP-8",
            Kind.SAFETY,
            "the elected ranks store other canonical bytes than a single worker would",
            expected,
            seen,
        )
    if not np.array_equal(loaded, target.memory):
        expected, seen = words.bytes_of_rank(target.memory, loaded, target.step)
        yield words.on(
            "MAP-8",
            Kind.SAFETY,
            "what one configuration stored another loads as something else",
            expected,
            seen,
        )


def _judge_direct(
    words: _Words, pair: Pair, source: Side, target: Side, reshard: Reshard | None
) -> Iterator[PageFinding]:
    """Resharding: every byte once, from one owner, equal to the way through; owners spread."""
    if reshard is None:
        return
    given = np.zeros(len(source.mappings), dtype=np.int64)
    turns = source.mappings[0].num_writers
    wanted = len(target.local)
    for block_id in range(pair.block_id, pair.block_id + turns):
        try:
            copies = tuple(reshard(source.mappings, target.mappings, block_id))
        except Exception as error:
            message = f"resharding for block {block_id} raised {type(error).__name__}: {error}"
            yield words.on("MAP-8", Kind.SAFETY, message, "direct copies")
            return
        rows = rows_of_copies(copies, source.step, target.step)
        pairing = written_out(rows)
        owners = np.array([copy.source_rank for copy in copies for _ in copy.runs], dtype=np.int64)
        given += np.bincount(owners[pairing.run], minlength=len(given))
        moved = target.empty()
        try:
            moved[pairing.right + GUARD] = source.memory[pairing.left + GUARD]
        except IndexError as error:
            yield words.on("MAP-8", Kind.SAFETY, f"a direct copy leaves all memory: {error}")
            return
        # As many writes as there are bytes, and none of them left out: each exactly once.
        if len(pairing.right) != wanted:
            yield words.on(
                "MAP-8",
                Kind.SAFETY,
                f"direct copies for block {block_id} do not write each byte of each target once",
                f"{wanted} bytes written",
                len(pairing.right),
            )
            return
        if not np.array_equal(moved, target.memory):
            expected, seen = words.bytes_of_rank(target.memory, moved, target.step)
            yield words.on(
                "MAP-8",
                Kind.SAFETY,
                f"direct copies for block {block_id} bring other bytes than the way through the "
                "canonical page",
                expected,
                seen,
            )
            return
    share = _shares_of_reading(source, target)
    if (given > share).any():
        rank = int(np.flatnonzero(given > share)[0])
        yield words.on(
            "MAP-3",
            Kind.REFERENCE,
            f"over {turns} block ids rank {rank} gives more than its share",
            f"{int(share[rank])} bytes",
            int(given[rank]),
        )


def _shares_of_reading(source: Side, target: Side) -> Index:
    """Bytes that each source rank gives in as many blocks as there are turns, if all give equally.

    Those that keep a byte give it once for each target that wants it, all turns taken together.
    """
    numbers = np.concatenate(target.truth.pages)
    wanted = np.bincount(numbers, minlength=len(target.truth.canonical))
    return np.array([int(wanted[page].sum()) for page in source.truth.pages], dtype=np.int64)


def judge_pairs(mapper: PageMapper, pairs: Sequence[Pair]) -> Iterator[PageFinding]:
    """What goes wrong in each of these; sides that follow each other are made once."""
    sides: dict[Case, Side | None] = {}
    layer = None
    for pair in pairs:
        bare = pair.source.spread.span, type(pair.source.layer)
        if bare != layer:
            # Pairs of one layer come together: what was kept for another is of no more use.
            sides.clear()
            layer = bare
        made: list[Side] = []
        for case in (pair.source, pair.target):
            if case not in sides:
                sides[case] = _side_or_none(mapper, case)
            side = sides[case]
            if side is not None:
                made.append(side)
        if len(made) == 2:
            yield from judge_pair(mapper, pair, *made)


def _side_or_none(mapper: PageMapper, case: Case) -> Side | None:
    """None for what cannot be moved at all, which judging the case by itself tells better."""
    try:
        side = side_of(mapper, case)
    except Exception:
        return None
    if len(side.mappings) != len(side.truth.pages):
        return None
    return side
