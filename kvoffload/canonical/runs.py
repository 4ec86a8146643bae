"""Runs in normal form: what is equally spaced on both sides is one run (MAP-7).

Normal form: fragments are as long as they can be, in the order of the worker's page; from the
left, fragments of one size at constant steps on both sides form one run; a lone fragment has
strides equal to its size. Two mappings of the same bytes are then equal as values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from kvoffload.canonical.arguments import tuple_of
from kvoffload.canonical.pages import MAX_PAGE_SIZE_BYTES, CopyRun
from kvoffload.errors import MappingError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Offsets = NDArray[np.int64]


MAX_RUNS: Final = 1 << 18
"""Of all the workers of a layer: beyond, to derive them would take minutes and gigabytes."""
MAX_FRAGMENTS: Final = 1 << 22
"""Written out at once, for the same reason."""


class Axis(NamedTuple):
    """One loop of a nest: `length` places, so many bytes apart in either page."""

    length: int
    local_step: int
    canonical_step: int


class Stride(NamedTuple):
    """Fragments of one size at constant steps; `left` and `right` are the two sides' offsets.

    The fields are those of a CopyRun, by position, with the worker's page on the left.
    """

    left: int
    right: int
    size: int
    num_fragments: int
    left_step: int
    right_step: int


def nested_runs(fragment_size: int, axes: Sequence[Axis]) -> tuple[CopyRun, ...]:
    """The normal form of a nest of loops, outermost first, that starts at offset 0 on both sides.

    Each place of the innermost loop is a fragment of `fragment_size` bytes. The worker's page
    must be walked from its first byte to its last, as every page's axes do. Raises MappingError
    for more than MAX_RUNS.
    """
    size = fragment_size
    kept: list[Axis] = []
    for axis in reversed(axes):
        if axis.length == 1:
            continue
        if not kept and axis.local_step == axis.canonical_step == size:
            size *= axis.length
        elif kept and _continues(axis, kept[-1]):
            inner = kept[-1]
            kept[-1] = inner._replace(length=inner.length * axis.length)
        else:
            kept.append(axis)
    if not kept:
        return (CopyRun(0, 0, size, 1, size, size),)
    innermost, *outer = kept
    require_few_runs(prod(axis.length for axis in outer))
    starts = product(*(_offsets(axis) for axis in reversed(outer)))
    return tuple(
        CopyRun(
            sum(local for local, _ in start),
            sum(canonical for _, canonical in start),
            size,
            innermost.length,
            innermost.local_step,
            innermost.canonical_step,
        )
        for start in starts
    )


def _continues(outer: Axis, inner: Axis) -> bool:
    """Whether the outer loop goes on where the inner one ends, so that both are one loop."""
    return (
        outer.local_step == inner.length * inner.local_step
        and outer.canonical_step == inner.length * inner.canonical_step
    )


def _offsets(axis: Axis) -> list[tuple[int, int]]:
    return [(i * axis.local_step, i * axis.canonical_step) for i in range(axis.length)]


def normal_form(runs: Iterable[CopyRun]) -> tuple[CopyRun, ...]:
    """The same bytes in normal form (MAP-7), whatever the order and the cut of `runs`.

    Raises MappingError for runs that overlap in the worker's page, that end beyond
    MAX_PAGE_SIZE_BYTES, or that have more than MAX_FRAGMENTS fragments.
    """
    import numpy as np

    given = tuple_of("runs", runs, CopyRun)
    for run in given:
        if max(run.local_end, run.canonical_end) > MAX_PAGE_SIZE_BYTES:
            raise MappingError(f"{run} ends beyond {MAX_PAGE_SIZE_BYTES} bytes, no page is as long")
    local, canonical, size = fragments(given)
    order = np.argsort(local, kind="stable")
    local, canonical, size = local[order], canonical[order], size[order]
    overlaps = np.flatnonzero(local[:-1] + size[:-1] > local[1:])
    if len(overlaps):
        first = overlaps[0]
        end = min(local[first] + size[first], local[first + 1] + size[first + 1])
        raise MappingError(f"two fragments cover bytes [{local[first + 1]}, {end}) of the page")
    return tuple(CopyRun(*stride) for stride in strides(local, canonical, size))


def require_few_runs(number: int) -> None:
    """Raise MappingError for more runs than MAX_RUNS."""
    if number > MAX_RUNS:
        raise MappingError(f"{number:,} runs in all, at most {MAX_RUNS:,} are derived")


def require_few_fragments(runs: Iterable[CopyRun]) -> None:
    """Raise MappingError for runs of more fragments than MAX_FRAGMENTS."""
    number = sum(run.num_fragments for run in runs)
    if number > MAX_FRAGMENTS:
        raise MappingError(f"{number:,} fragments, at most {MAX_FRAGMENTS:,} are written out")


def fragments(runs: Sequence[CopyRun]) -> tuple[Offsets, Offsets, Offsets]:
    """Every fragment written out: offsets in the worker's and the canonical page, and sizes.

    Raises MappingError for more than MAX_FRAGMENTS.
    """
    import numpy as np

    require_few_fragments(runs)
    table = np.array(
        [
            (
                run.local_offset,
                run.canonical_offset,
                run.fragment_size,
                run.num_fragments,
                # A lone fragment may say anything of its strides, even what no 64 bits hold.
                run.local_stride if run.num_fragments > 1 else 0,
                run.canonical_stride if run.num_fragments > 1 else 0,
            )
            for run in runs
        ],
        dtype=np.int64,
    ).reshape(-1, 6)
    left, right, size, count, left_step, right_step = table.T
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return (
        np.repeat(left, count) + place * np.repeat(left_step, count),
        np.repeat(right, count) + place * np.repeat(right_step, count),
        np.repeat(size, count),
    )


def strides(left: Offsets, right: Offsets, size: Offsets) -> list[Stride]:
    """The normal form of fragments given by offsets on both sides and sizes, in any order."""
    import numpy as np

    if not len(size):
        return []
    order = np.argsort(left, kind="stable")
    left, right, size = left[order], right[order], size[order]

    joined = (left[:-1] + size[:-1] == left[1:]) & (right[:-1] + size[:-1] == right[1:])
    first = np.flatnonzero(np.concatenate(([True], ~joined)))
    left, right, size = left[first], right[first], np.add.reduceat(size, first)

    left_step, right_step = np.diff(left), np.diff(right)
    # goes_on[i]: fragment i + 1 has the size of fragment i; same[i]: and step i + 1 equals step i
    goes_on = size[:-1] == size[1:]
    same = goes_on[1:] & goes_on[:-1] & np.equal(left_step[1:], left_step[:-1])
    same &= right_step[1:] == right_step[:-1]
    breaks = np.flatnonzero(~same)

    found: list[Stride] = []
    at, last = 0, len(size) - 1
    while at <= last:
        length = int(size[at])
        if at == last or not goes_on[at] or right_step[at] < length:
            found.append(Stride(int(left[at]), int(right[at]), length, 1, length, length))
            at += 1
            continue
        # The first fragment after `at + 1` whose step differs ends the run.
        stop = int(np.searchsorted(breaks, at))
        end = int(breaks[stop]) + 1 if stop < len(breaks) else last
        found.append(
            Stride(
                int(left[at]),
                int(right[at]),
                length,
                end - at + 1,
                int(left_step[at]),
                int(right_step[at]),
            )
        )
        at = end + 1
    return found
