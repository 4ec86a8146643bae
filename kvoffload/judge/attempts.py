"""Runs of what anybody may have written: they come to their end, or to a failure that is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from attrs import frozen

T = TypeVar("T")

Hints: TypeAlias = Mapping[str, object] | None
GiveHints: TypeAlias = Callable[[int], dict[str, object] | None]
"""The hints of an Engine: what the request of a number carries."""


@frozen
class Failure:
    """A run that did not come to its end: what was raised, in words, and during which request."""

    what: str
    request: int

    @property
    def where(self) -> str:
        """It, with where it came up."""
        if self.request < 0:
            return f"{self.what} (before the first request)"
        return f"{self.what} (in request {self.request} of the trace)"


def attempt(play: Callable[[GiveHints], T], hints: Callable[[int], Hints]) -> T | Failure:
    """What `play` comes to, which asks for the hints of each request when that begins."""
    begun = -1

    def give(number: int) -> dict[str, object] | None:
        nonlocal begun
        begun = number
        given = hints(number)
        return None if given is None else dict(given)

    try:
        return play(give)
    except KeyboardInterrupt:
        raise
    # A policy may raise anything, and exit; the other runs go on.
    except BaseException as error:
        return Failure(in_words(error), begun)


def in_words(error: BaseException) -> str:
    """An exception by its kind and what it says, in one line; by its kind alone if it cannot."""
    try:
        said = " ".join(str(error).split())
    except Exception:
        said = ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
