"""Failures of machines that can be made short: by Hypothesis first, then as trials do it."""

from __future__ import annotations

from collections.abc import Callable


class BrokenRunError(AssertionError):
    """A run broke something; the message has what, and the program.

    `shorter` plays shorter programs and gives the message on the shortest that breaks the same;
    None where none of the host's calls alone shows it again. It takes some time, and is for what
    is reported in the end.
    """

    def __init__(self, message: str, shorter: Callable[[], str | None]) -> None:
        super().__init__(message)
        self._message = message
        self._shorter = shorter

    def shorten(self) -> None:
        """Have the message show the shortest program found."""
        self._message = self._shorter() or self._message

    def __str__(self) -> str:
        return self._message


def shorten_all(several: ExceptionGroup[Exception]) -> None:
    """Shorten each failure of a group."""

    def shorten(error: BaseException) -> bool:
        if isinstance(error, BrokenRunError):
            error.shorten()
        return False

    # Asked of every group and of all that is in it.
    several.subgroup(shorten)
