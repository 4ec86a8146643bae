"""Failures of machines that are made short as those of trials are, and not by Hypothesis."""

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

    def shorten(self) -> bool:
        """Have the message show the shortest program found; whether there is one."""
        shorter = self._shorter()
        if shorter is None:
            return False
        self._message = shorter
        # What Hypothesis says of the rules that led there is not of this program.
        self.__notes__: list[str] = []
        return True

    def __str__(self) -> str:
        return self._message
