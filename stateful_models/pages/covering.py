"""Covers: each byte of a worker's page once (MAP-2), and of the canonical page (MAP-3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from stateful_models.pages.bytes_of import Index, RunRow, row_of, written_out
from stateful_models.pages.cases import Case
from stateful_models.pages.findings import PageFinding, on
from stateful_models.pages.mapper import PageMapping, Run

LATER_BLOCKS: Final = 1_000
"""Turns to write come round for ever; they are looked at from here on, too."""


class EveryByte(NamedTuple):
    """All bytes that the mappings of all ranks pair up."""

    rank: Index
    local: Index
    canonical: Index


def all_bytes(mappings: Sequence[PageMapping]) -> EveryByte:
    """The mappings of all ranks, written out."""
    rows: list[RunRow] = []
    whose: list[int] = []
    for rank, mapping in enumerate(mappings):
        rows += map(row_of, mapping.runs)
        whose += [rank] * len(mapping.runs)
    pairing = written_out(rows)
    rank_of_run = np.array(whose, dtype=np.int64)
    return EveryByte(rank_of_run[pairing.run], pairing.left, pairing.right)


def judge_ends(case: Case, mappings: Sequence[PageMapping]) -> Iterator[PageFinding]:
    """Runs that leave a page: nothing can be said of the bytes they name."""
    for rank, mapping in enumerate(mappings):
        for run in mapping.runs:
            row = row_of(run)
            back = max(row.fragments - 1, 0)
            for start, step, page, side in (
                (row.left, row.left_step, mapping.local_page_size_bytes, "local"),
                (row.right, row.right_step, mapping.canonical_page_size_bytes, "canonical"),
            ):
                low = min(start, start + back * step)
                high = max(start, start + back * step) + row.size
                if low < 0 or high > page:
                    yield on(
                        case,
                        "MAP-2" if side == "local" else "MAP-3",
                        f"a run of rank {rank} leaves the {side} page: {written(run)}",
                        expected=f"bytes inside [0, {page})",
                        seen=f"[{low}, {high})",
                    )
                    return
            if row.size < 1 or row.fragments < 1:
                yield on(case, "MAP-1", f"a run of rank {rank} is empty: {written(run)}")
                return


def written(run: Run) -> str:
    """A run in numbers, in the order of its fields."""
    return ", ".join(map(str, row_of(run)))


def judge_local_cover(
    case: Case, mappings: Sequence[PageMapping], every: EveryByte
) -> Iterator[PageFinding]:
    """Whether the runs of each rank cover its page once; no run leaves it."""
    sizes = np.array([mapping.local_page_size_bytes for mapping in mappings], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    covered = np.bincount(every.local + starts[every.rank], minlength=int(sizes.sum()))
    wrong: list[int] = np.flatnonzero(covered != 1).tolist()
    if wrong:
        rank = int(np.searchsorted(starts, wrong[0], side="right")) - 1
        own = covered[starts[rank] : starts[rank] + sizes[rank]]
        yield on(
            case,
            "MAP-2",
            f"the runs of rank {rank} do not cover its page of {sizes[rank]} bytes once",
            expected="each byte once",
            seen=_cover_told(own),
        )


def _cover_told(covered: Index) -> str:
    """`bytes 4-7 never, 16 bytes in all; ...`."""
    told: list[str] = []
    for wrong, often in ((covered == 0, "never"), (covered > 1, "more than once")):
        places = np.flatnonzero(wrong)
        if len(places):
            told.append(f"{_stretch(places)} {often}, {len(places)} bytes in all")
    return "; ".join(told)


def _stretch(places: Index) -> str:
    """The first stretch of places that follow each other."""
    gaps = np.flatnonzero(np.diff(places) != 1)
    last = int(places[gaps[0]]) if len(gaps) else int(places[-1])
    return f"bytes {int(places[0])}-{last}"


def judge_canonical_cover(
    case: Case, mappings: Sequence[PageMapping], every: EveryByte
) -> Iterator[PageFinding]:
    """Whether, whoever's turn it is, those who write tile the canonical page."""
    size = max(mapping.canonical_page_size_bytes for mapping in mappings)
    turns = max(mapping.num_writers for mapping in mappings)
    seen: set[bytes] = set()
    for block_id in (*range(turns), *range(LATER_BLOCKS, LATER_BLOCKS + 2 * turns)):
        elected = np.array([bool(mapping.is_writer(block_id)) for mapping in mappings])
        if elected.tobytes() in seen:
            continue
        seen.add(elected.tobytes())
        covered = np.bincount(every.canonical[elected[every.rank]], minlength=size)
        if (covered != 1).any():
            ranks = np.flatnonzero(elected).tolist()
            yield on(
                case,
                "MAP-3",
                f"for block {block_id} the elected ranks {ranks} do not tile the canonical page "
                f"of {size} bytes",
                expected="each byte once",
                seen=_cover_told(covered),
            )
            return
