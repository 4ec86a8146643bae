"""Whether something goes on growing: told by slope, since nobody knows what is meant to be kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_STRETCHES: Final = ((1, 2), (2, 4), (4, 8), (6, 7), (7, 8))
"""From after so many eighths of a run to so many.

Of what grows in proportion twice as much is held at the start of the third as of the second, and
the last two show that it goes on.
"""


def grows(samples: Sequence[tuple[int, int]], slack: int) -> bool:
    """Whether in each half of a run twice as much comes to be held as in the half of it before.

    `samples`: what had passed, and what was held then. What is held is the least in a stretch, so
    that one who cleans up now and then is not taken for one who never does. `slack`: what may come
    to be held in half of a run and is no growth yet. False for samples that are too few.
    """
    end = samples[-1][0] if samples else 0
    least: list[int] = []
    for low, high in _STRETCHES:
        stretch = [held for passed, held in samples if low * end < 8 * passed <= high * end]
        if not stretch:
            return False
        least.append(min(stretch))
    before, after, lately = least[1] - least[0], least[2] - least[1], least[4] - least[3]
    grew = before > slack // 4 and after > slack and after > 1.2 * before
    return grew and lately > after / 5
