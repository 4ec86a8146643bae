"""A colour for each rank, told apart in every common kind of colour blindness.

The palette is that of M. Okabe and K. Ito, "Color Universal Design" (2008), with a dark grey for
its black; in an order that keeps neighbours, and the first four, farthest apart as seen with
normal sight, protanopia and deuteranopia. Of more than eight ranks some share a colour and differ
by a hatch.
"""

from __future__ import annotations

from typing import Final

PALETTE: Final = (
    "#0072B2",  # blue
    "#D55E00",  # vermilion
    "#009E73",  # bluish green
    "#F0E442",  # yellow
    "#CC79A7",  # reddish purple
    "#E69F00",  # orange
    "#56B4E9",  # sky blue
    "#444444",  # dark grey
)
# As matplotlib writes them; one for each time the palette has been used up.
_HATCHES: Final = ("", "//", "..", "xx", "\\\\", "oo", "--", "++")


def colour(rank: int) -> str:
    """The colour of a rank, as `#RRGGBB`."""
    return PALETTE[rank % len(PALETTE)]


def hatch(rank: int) -> str:
    """What tells a rank from others of its colour; nothing for the first eight."""
    return _HATCHES[rank // len(PALETTE) % len(_HATCHES)]


def ink(background: str) -> str:
    """Black or white, whichever can be read on `background` (by relative luminance, WCAG 2)."""
    red, green, blue = (_linear(int(background[at : at + 2], 16) / 255) for at in (1, 3, 5))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#FFFFFF"


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
