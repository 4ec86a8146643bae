"""A sketch of how often keys were used lately: the approximate counters of TinyLFU.

A count-min sketch (G. Cormode and S. Muthukrishnan, J. Algorithms 2005) of four rows of counters
of four bits. A key has a counter in each row; the least of them is how often it was used at most,
or less often where others have their counters there as well. When as many uses were counted as
make a sample, all counters are halved, so that what is long past weighs little.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from kvoffload.errors import InvariantError
from kvoffload.keys import OffloadKey

MAX_COUNT: Final = 15
WIDTH_FACTOR: Final = 4
"""Counters a row for each chunk of capacity, at least; rounded up to a power of two."""
MIN_BITS: Final = 4
HASH_BITS: Final = 32
SAMPLE_FACTOR: Final = 10
"""Uses for each chunk of capacity after which counters are halved."""

# Rows hash the checksum of a key by multiplication with these odd numbers, and take the high bits
# of the lower half: no hash of Python's, which another process would take otherwise (POL-5).
_MULTIPLIERS: Final = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)
_HALVED: Final = bytes(count >> 1 for count in range(256))


class FrequencySketch:
    """For a cache of `capacity` chunks. A counter takes a byte, of which it uses four bits."""

    def __init__(self, capacity: int) -> None:
        bits = min(max(MIN_BITS, (WIDTH_FACTOR * capacity - 1).bit_length()), HASH_BITS)
        self._shift = HASH_BITS - bits
        self._rows = [bytearray(1 << bits) for _ in _MULTIPLIERS]
        self._sample = max(1, SAMPLE_FACTOR * capacity)
        self._counted = 0

    def count(self, key: OffloadKey) -> None:
        """The key was used."""
        checksum, shift = crc32(key), self._shift
        for row, multiplier in zip(self._rows, _MULTIPLIERS, strict=True):
            place = (checksum * multiplier & 0xFFFFFFFF) >> shift
            if row[place] < MAX_COUNT:
                row[place] += 1
        self._counted += 1
        if self._counted >= self._sample:
            self._halve()

    def estimate(self, key: OffloadKey) -> int:
        """How often the key was used lately, 0 to 15."""
        checksum, shift = crc32(key), self._shift
        return min(
            row[(checksum * multiplier & 0xFFFFFFFF) >> shift]
            for row, multiplier in zip(self._rows, _MULTIPLIERS, strict=True)
        )

    def clear(self) -> None:
        """Nothing was counted."""
        self._rows = [bytearray(len(row)) for row in self._rows]
        self._counted = 0

    def check(self) -> None:
        """Raise InvariantError if a counter has more than four bits, or halving is overdue."""
        most = max(map(max, self._rows))
        if most > MAX_COUNT or not 0 <= self._counted < self._sample:
            raise InvariantError(
                f"sketch: a counter at {most}, {self._counted} uses of a sample of {self._sample}"
            )

    def _halve(self) -> None:
        # The paper's reset: "halve all counters, and the number of what was counted".
        self._rows = [row.translate(_HALVED) for row in self._rows]
        self._counted >>= 1
