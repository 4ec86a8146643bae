"""Whose code a frame is of: the kit's, a library's, or that of whoever is on trial."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from kvoffload import errors

__all__ = ["Place", "innermost", "is_of_the_kit"]

_KIT: Final = f"{Path(__file__).parent}{os.sep}"
_GALLERY: Final = f"{_KIT}gallery{os.sep}"
"""What is there is on trial like anybody's."""
_OURS: Final = f"{Path(errors.__file__).parent}{os.sep}"
_GENERATED: Final = "<attrs generated"
_LIBRARY: Final = tuple(
    {f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")}
)
_PACKAGES: Final = (
    _OURS,
    *{f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib")},
)


class Place(NamedTuple):
    """A line of a file that was being executed, and the function that it is of."""

    file: str
    line: int
    function: str


@lru_cache(maxsize=1024)
def is_of_the_kit(file: str) -> bool:
    """Whether code of this file judges and calls what is on trial, and is not on trial itself."""
    if file.startswith(_GENERATED):
        return True
    return file.startswith(_KIT) and not file.startswith(_GALLERY)


def innermost(places: Iterable[Place]) -> Place | None:
    """Of places, from the outermost call to the innermost, the one that its author should look at.

    That is the last in a file of theirs; where there is none, the last that is neither the kit's
    nor the standard library's; where there is none either, the last.
    """
    best: Place | None = None
    rank = 0
    for place in places:
        known = _rank(place.file)
        if known >= rank:
            best, rank = place, known
    return best


@lru_cache(maxsize=1024)
def _rank(file: str) -> int:
    if is_of_the_kit(file) or file.startswith("<frozen"):
        return 0
    if file.startswith(_PACKAGES):
        return 2
    return 1 if file.startswith(_LIBRARY) else 3
