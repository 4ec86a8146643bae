"""The proof that workers' pages fit together: every byte covered, and none twice (MAP-2, MAP-3).

Works on runs, by arithmetic. Strips (one side of a run) that do not overlap pairwise and have as
many bytes as the page tile it, and two strips overlap where two arithmetic progressions come close,
which Euclid's algorithm decides. Strips that lie apart, or side by side within one step, need no
comparing; so the cost is at most the square of the number of runs, whatever they hold, and for
derived mappings that of sorting them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvoffload.canonical.arguments import require_instance, require_name, tuple_of
from kvoffload.canonical.pages import CanonicalPageMapping, CopyRun
from kvoffload.errors import InvalidValueError, TilingError


def verify_tiling(mappings: Iterable[CanonicalPageMapping], *, name: str = "layer") -> None:
    """Prove the mappings of all workers of a layer, given in order of rank.

    Each worker's runs cover its page once (MAP-2); on every turn the elected writers together
    cover the canonical page once (MAP-3); and all agree on the canonical page's size, on the
    number of writers (MAP-3) and on whether other configurations can read it (MAP-8). Raises
    TilingError, with the bytes that are missing or doubled, and InvalidValueError for no workers.
    """
    mappings = tuple_of("mappings", mappings, CanonicalPageMapping)
    require_name(name)
    if not mappings:
        raise InvalidValueError("mappings", mappings, "the mapping of each worker")
    first = mappings[0]
    for rank, mapping in enumerate(mappings):
        _require_agreement(name, first, rank, mapping)
    for rank, mapping in enumerate(mappings):
        _require_cover_of_page(name, rank, mapping)
    turns: dict[int, list[Strip]] = {}
    for rank, mapping in enumerate(mappings):
        turns.setdefault(mapping.writer_index, []).extend(
            _canonical_strip(run, rank) for run in mapping.runs
        )
    for turn in range(first.num_writers):
        if turn not in turns:
            raise TilingError(
                name,
                "MAP-3",
                (),
                f"of {first.num_writers} turns to write, no worker takes turn {turn}",
                missing=(0, first.canonical_page_size_bytes),
            )
        fault = _fault(turns[turn], first.canonical_page_size_bytes)
        if fault is not None:
            raise fault.of_canonical_page(name, turn)


def verify_page(mapping: CanonicalPageMapping, *, name: str = "layer", rank: int = 0) -> None:
    """Prove of one worker's mapping what can be said without the others'.

    Its runs cover its page once (MAP-2), and no two of them meet in the canonical page. Raises
    TilingError.
    """
    require_instance("mapping", mapping, CanonicalPageMapping)
    require_name(name)
    _require_cover_of_page(name, rank, mapping)
    strips = [_canonical_strip(run, rank) for run in mapping.runs]
    doubled = _first_doubled(strips)
    if doubled is not None:
        raise doubled.of_canonical_page(name, mapping.writer_index)


def doubled_bytes(runs: Iterable[CopyRun], *, local: bool) -> tuple[int, int] | None:
    """The first bytes [start, end) that two fragments cover on one side; None where none do."""
    strips = [_strip(run, 0, local=local) for run in runs]
    doubled = _first_doubled(strips)
    return None if doubled is None else (doubled.start, doubled.end)


class Strip(NamedTuple):
    """One side of a run: `num_fragments` fragments of `size` bytes, each `step` after the last."""

    start: int
    size: int
    num_fragments: int
    step: int
    rank: int

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.start + (self.num_fragments - 1) * self.step + self.size

    def bytes_before(self, offset: int) -> int:
        """How many of its bytes lie before `offset`."""
        if offset <= self.start:
            return 0
        whole, part = divmod(offset - self.start, self.step)
        if whole >= self.num_fragments:
            return self.num_fragments * self.size
        return whole * self.size + min(part, self.size)

    def first_at_or_after(self, offset: int) -> int | None:
        """The first of its bytes that is not before `offset`, None if there is none."""
        if offset >= self.end:
            return None
        if offset <= self.start:
            return self.start
        whole, part = divmod(offset - self.start, self.step)
        return offset if part < self.size else self.start + (whole + 1) * self.step


class Fault(NamedTuple):
    """What is wrong with a cover: bytes of two ranks at once, or bytes of nobody."""

    start: int
    end: int
    # Two ranks (perhaps one and the same) for doubled bytes, none for missing ones.
    ranks: tuple[int, ...]
    # For missing ones how many in all, if nothing is doubled besides.
    missing_in_all: int = 0

    def of_canonical_page(self, name: str, turn: int) -> TilingError:
        """The error that says so of a canonical page."""
        there = f"[{self.start}, {self.end}) of the canonical page on turn {turn}"
        if self.ranks:
            one, other = self.ranks
            whose = f"rank {one} writes twice" if one == other else f"ranks {one} and {other} write"
            return TilingError(
                name, "MAP-3", self.ranks, f"{whose} bytes {there}", doubled=(self.start, self.end)
            )
        return TilingError(
            name,
            "MAP-3",
            (),
            f"no elected writer writes bytes {there}, {self.missing_in_all} bytes are missing",
            missing=(self.start, self.end),
        )

    def of_own_page(self, name: str, rank: int) -> TilingError:
        """The error that says so of a worker's page."""
        there = f"bytes [{self.start}, {self.end}) of the page of rank {rank}"
        if self.ranks:
            what = f"two fragments cover {there}"
            return TilingError(name, "MAP-2", (rank,), what, doubled=(self.start, self.end))
        what = f"no run covers {there}, {self.missing_in_all} bytes are missing"
        return TilingError(name, "MAP-2", (rank,), what, missing=(self.start, self.end))


def _require_agreement(
    name: str, first: CanonicalPageMapping, rank: int, mapping: CanonicalPageMapping
) -> None:
    if (
        mapping.canonical_page_size_bytes == first.canonical_page_size_bytes
        and mapping.num_writers == first.num_writers
        and mapping.parallelism_agnostic == first.parallelism_agnostic
    ):
        return
    for what, clause, expected, seen in (
        (
            "a canonical page of",
            "MAP-3",
            f"{first.canonical_page_size_bytes} bytes",
            f"{mapping.canonical_page_size_bytes} bytes",
        ),
        ("num_writers", "MAP-3", first.num_writers, mapping.num_writers),
        (
            "parallelism_agnostic",
            "MAP-8",
            first.parallelism_agnostic,
            mapping.parallelism_agnostic,
        ),
    ):
        if expected != seen:
            raise TilingError(
                name, clause, (0, rank), f"rank 0 has {what} {expected}, rank {rank} {seen}"
            )


def _require_cover_of_page(name: str, rank: int, mapping: CanonicalPageMapping) -> None:
    if _is_gapless(mapping):
        return
    strips = [_strip(run, rank, local=True) for run in mapping.runs]
    fault = _fault(strips, mapping.local_page_size_bytes)
    if fault is not None:
        raise fault.of_own_page(name, rank)


def _is_gapless(mapping: CanonicalPageMapping) -> bool:
    """Whether the runs, as they stand, go through the page from end to end, as normal ones do."""
    position = 0
    for run in mapping.runs:
        if run.local_offset != position:
            return False
        if run.num_fragments > 1 and run.local_stride != run.fragment_size:
            return False
        position += run.num_fragments * run.fragment_size
    return position == mapping.local_page_size_bytes


def _canonical_strip(run: CopyRun, rank: int) -> Strip:
    return _strip(run, rank, local=False)


def _strip(run: CopyRun, rank: int, *, local: bool) -> Strip:
    start = run.local_offset if local else run.canonical_offset
    # The stride of a lone fragment may be anything, even 0: it is its size that counts.
    step = run.local_stride if local else run.canonical_stride
    if run.num_fragments == 1:
        step = run.fragment_size
    return Strip(start, run.fragment_size, run.num_fragments, step, rank)


def _fault(strips: list[Strip], page_size: int) -> Fault | None:
    """The first byte that is covered twice or not at all; None for a tiling.

    The strips lie inside the page: a mapping cannot be built otherwise.
    """
    doubled = _first_doubled(strips)
    if doubled is not None:
        return doubled
    in_all = sum(strip.size * strip.num_fragments for strip in strips)
    if in_all == page_size:
        return None
    start = _first_missing(strips, page_size)
    following = (strip.first_at_or_after(start) for strip in strips)
    end = min((byte for byte in following if byte is not None), default=page_size)
    return Fault(start, end, (), page_size - in_all)


def _first_doubled(strips: list[Strip]) -> Fault | None:
    for strips_there in _overlapping_extents(strips):
        doubled = None if _side_by_side(strips_there) else _doubled(strips_there)
        if doubled is not None:
            return doubled
    return None


def _overlapping_extents(strips: list[Strip]) -> Iterator[list[Strip]]:
    """The strips in order of offsets, apart where one ends before the next begins."""
    there: list[Strip] = []
    end = 0
    for strip in sorted(strips):
        if there and strip.start >= end:
            yield there
            there = []
        there.append(strip)
        end = max(end, strip.end)
    if there:
        yield there


def _side_by_side(strips: list[Strip]) -> bool:
    """Whether all have one step and lie one after another within it, so that no two overlap."""
    first, last = strips[0], strips[-1]
    if last.start + last.size - first.start > first.step:
        return len(strips) == 1
    position = first.start
    for strip in strips:
        if strip.start < position or strip.step != first.step:
            return False
        position = strip.start + strip.size
    return True


def _doubled(strips: list[Strip]) -> Fault | None:
    """The first doubled bytes of the first pair that has any, in order of offsets."""
    open_strips: list[Strip] = []
    for strip in strips:
        open_strips = [other for other in open_strips if other.end > strip.start]
        for other in open_strips:
            common = common_bytes(other, strip)
            if common is not None:
                return Fault(*common, tuple(sorted((other.rank, strip.rank))))
        open_strips.append(strip)
    return None


def _first_missing(strips: list[Strip], page_size: int) -> int:
    """The first byte of nobody, in strips that do not overlap: where counting falls behind."""
    covered, short = 0, page_size
    while short - covered > 1:
        middle = (covered + short) // 2
        if sum(strip.bytes_before(middle) for strip in strips) == middle:
            covered = middle
        else:
            short = middle
    return covered


def common_bytes(one: Strip, other: Strip) -> tuple[int, int] | None:
    """Bytes [start, end) that both have, None if they share none."""
    # Fragments of `one` that reach into the extent of `other`; of these, one shares a byte with
    # `other` exactly if it shares one with the endless progression that `other` is part of.
    low = max(0, -((one.start + one.size - 1 - other.start) // one.step))
    high = min(one.num_fragments - 1, (other.end - 1 - one.start) // one.step)
    # Fragment i of `one` shares a byte with a fragment of `other` where
    # (ahead + i * step) mod other.step <= window: the distance of its end to the last start.
    ahead = one.start + one.size - 1 - other.start + low * one.step
    window = one.size + other.size - 2
    if one.step == other.step:
        hit = 0 if ahead % other.step <= window else None
    else:
        hit = _first_within(one.step, other.step, -ahead % other.step, window)
    if hit is None or low + hit > high:
        return None
    start = one.start + (low + hit) * one.step
    end = start + one.size
    place = min(max((end - 1 - other.start) // other.step, 0), other.num_fragments - 1)
    facing = other.start + place * other.step
    return max(start, facing), min(end, facing + other.size)


def _first_within(step: int, modulus: int, low: int, width: int) -> int | None:
    """The smallest i >= 0 with step * i mod modulus in [low, low + width], wrapping round.

    Euclid's algorithm on the multiples that step over the modulus: as many rounds as the greatest
    common divisor takes.
    """
    if low == 0 or low + width >= modulus:
        return 0
    return _first_in_range(step % modulus, modulus, low, low + width)


def _first_in_range(step: int, modulus: int, low: int, high: int) -> int | None:
    """The same for a range [low, high] that neither wraps nor holds 0, and step < modulus."""
    if step == 0:
        return None
    if 2 * step > modulus:
        return _first_in_range(modulus - step, modulus, modulus - high, modulus - low)
    quotient = -(-low // step)
    if quotient * step <= high:
        return quotient
    # No multiple of the step lies in the range itself: the first hit comes after some wraps.
    wraps = _first_in_range(-modulus % step, step, low % step, high % step)
    return None if wraps is None else -(-(low + modulus * wraps) // step)
