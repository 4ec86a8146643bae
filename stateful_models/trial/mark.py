"""A mark: what a process is doing, written where it can be read when the process is gone.

A message for each call would cost more than most calls; this is a page of memory that two
processes share.
"""

from __future__ import annotations

import os
from mmap import mmap
from typing import Final

__all__ = ["Mark"]

SIZE: Final = 1024
_END: Final = b"\0"
_TURNS: Final = 256


class Mark:
    """A short text in shared memory, of which only the last that was set is known.

    `descriptor` is that of a file of at least `SIZE` bytes, and need not stay open. It is set by
    one process only.
    """

    def __init__(self, descriptor: int) -> None:
        self._page = mmap(descriptor, SIZE)
        self._turn = 0

    @classmethod
    def made_in(cls, descriptor: int) -> Mark:
        """One in an empty file, with no text yet."""
        os.ftruncate(descriptor, SIZE)
        return cls(descriptor)

    def set(self, text: bytes) -> None:
        """Set the text; what is too long is cut."""
        self._turn = (self._turn + 1) % _TURNS
        marked = bytes((self._turn,)) + text[: SIZE - 2] + _END
        self._page[: len(marked)] = marked

    def get(self) -> bytes:
        """The text that was set last."""
        return self._page[1:].partition(_END)[0]

    def turn(self) -> int:
        """A number that is another one whenever a text was set, be it the same."""
        return self._page[0]
