"""Runs of what anybody may have written: they come to their end, or to a failure that is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias, TypeVar, runtime_checkable

from attrs import define, frozen
from typing_extensions import override

from kvoffload.judge.blame import spare_the_policy

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Hints: TypeAlias = Mapping[str, object] | None
GiveHints: TypeAlias = Callable[[int], dict[str, object] | None]
"""The hints of an Engine: what the request of a number carries."""

BEFORE: Final = -1
"""In place of a request's number: while a policy is found and built."""
NOWHERE: Final = -2
"""In place of a request's number: while nothing runs that is somebody else's."""
_WORDS: Final = 2_000
"""So many characters of what an exception says are told."""


@frozen
class Failure:
    """A run that did not come to its end: what was raised, in words, and during which request.

    `request` is BEFORE if none had begun, NOWHERE if that is not known.
    """

    what: str
    request: int

    @property
    def where(self) -> str:
        """It, with where it came up, if that is known."""
        if self.request == NOWHERE:
            return self.what
        if self.request < 0:
            return f"{self.what} (before the first request)"
        return f"{self.what} (in request {self.request} of the trace)"


class LostRunError(BrokenExecutor):
    """A run was lost with the process that carried it out, for what the policy did there."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure: Failure = failure

    @override
    def __str__(self) -> str:
        return self.failure.where


@runtime_checkable
class Losable(Protocol[T_co]):
    """A run of a policy, which may take its process along or never come back."""

    def lost(self, failure: Failure, /) -> T_co:
        """Its result then."""
        ...


@define
class Whereabouts:
    """Where in a trace the policy is that this process runs, for those who watch the process.

    `tell` is told the number of each request as it begins, or BEFORE or NOWHERE.
    """

    tell: Callable[[int], object] = lambda request: None


WHEREABOUTS: Final = Whereabouts()


def beforehand(call: Callable[[], T]) -> T:
    """What a call comes to that finds or builds a policy. Raises what that raises."""
    WHEREABOUTS.tell(BEFORE)
    try:
        return call()
    finally:
        WHEREABOUTS.tell(NOWHERE)


@contextmanager
def same_folder() -> Generator[None]:
    """Until the block ends the policy may go to another folder; then names of files mean again what
    they meant."""
    here = os.getcwd()
    try:
        yield
    finally:
        os.chdir(here)


def attempt(play: Callable[[GiveHints], T], hints: Callable[[int], Hints]) -> T | Failure:
    """What `play` comes to, which asks for the hints of each request when that begins.

    Raises HostFailedError, which is no failure of the policy's.
    """
    begun = BEFORE

    def give(number: int) -> dict[str, object] | None:
        nonlocal begun
        begun = number
        given = hints(number)
        return None if given is None else dict(given)

    try:
        with same_folder():
            return play(give)
    except KeyboardInterrupt:
        raise
    # A policy may raise anything, and exit; the other runs go on.
    except BaseException as error:
        spare_the_policy(error)
        return Failure(in_words(error), begun)


def in_words(error: BaseException) -> str:
    """An exception by its kind and what it says, in one line; by its kind alone if it cannot.

    What is not printable, as what no encoding has, is escaped, and what is long cut short.
    """
    try:
        said = " ".join(str(error).split())
    except Exception:
        said = ""
    said = f"{said[:_WORDS]}..." if len(said) > _WORDS else said
    said = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in said
    )
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
