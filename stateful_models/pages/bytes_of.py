"""Runs written out byte by byte, all at once: index arrays, and normal form the slow way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stateful_models.pages.mapper import DirectCopy, Run

Index: TypeAlias = NDArray[np.int64]


class Pairing(NamedTuple):
    """Bytes that correspond: `left[i]` and `right[i]` are one byte, of run number `run[i]`."""

    left: Index
    right: Index
    run: Index


class RunRow(NamedTuple):
    """A run as plain numbers, both sides alike."""

    left: int
    right: int
    size: int
    fragments: int
    left_step: int
    right_step: int


def row_of(run: Run, left_base: int = 0, right_base: int = 0) -> RunRow:
    """A run, with each side moved by so much."""
    return RunRow(
        run.local_offset + left_base,
        run.canonical_offset + right_base,
        run.fragment_size,
        run.num_fragments,
        run.local_stride,
        run.canonical_stride,
    )


def rows_of_copies(
    copies: Iterable[DirectCopy], source_step: int, target_step: int
) -> list[RunRow]:
    """The runs of direct copies, in memories where each rank's page is so far from the last."""
    return [
        RunRow(
            run.source_offset + copy.source_rank * source_step,
            run.target_offset + copy.target_rank * target_step,
            run.fragment_size,
            run.num_fragments,
            run.source_stride,
            run.target_stride,
        )
        for copy in copies
        for run in copy.runs
    ]


def written_out(rows: Sequence[RunRow]) -> Pairing:
    """Every byte of every run, in order (MAP-1)."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 6)
    run = np.repeat(np.arange(len(table)), np.maximum(table[:, 3], 0))
    which = _places(table[:, 3])
    left = table[run, 0] + which * table[run, 4]
    right = table[run, 1] + which * table[run, 5]
    size = np.maximum(table[run, 2], 0)
    byte = _places(size)
    return Pairing(
        np.repeat(left, size) + byte, np.repeat(right, size) + byte, np.repeat(run, size)
    )


def _places(counts: Index) -> Index:
    """0, 1, ... up to each count in turn."""
    counts = np.maximum(counts, 0)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - counts, counts)


def slow_normal_form(facing: Index) -> list[RunRow]:
    """The normal form of the page whose byte i faces byte `facing[i]` (MAP-7).

    Right because it goes fragment by fragment: a fragment lasts while the next byte faces the next
    byte; a run lasts while the next fragment has its size and its steps.
    """
    if not len(facing):
        return []
    breaks = (np.flatnonzero(np.diff(facing) != 1) + 1).tolist()
    starts: list[int] = [0, *breaks]
    ends: list[int] = [*breaks, len(facing)]
    fragments: list[tuple[int, int, int]] = [
        (start, right, end - start)
        for start, right, end in zip(starts, facing[starts].tolist(), ends, strict=True)
    ]
    found: list[RunRow] = []
    at = 0
    while at < len(fragments):
        left, right, size = fragments[at]
        count = 1
        left_step = right_step = size
        while at + count < len(fragments):
            last = fragments[at + count - 1]
            following = fragments[at + count]
            steps = (following[0] - last[0], following[1] - last[1])
            if following[2] != size or steps[1] < size:
                break
            if count > 1 and steps != (left_step, right_step):
                break
            left_step, right_step = steps
            count += 1
        found.append(RunRow(left, right, size, count, left_step, right_step))
        at += count
    return found
