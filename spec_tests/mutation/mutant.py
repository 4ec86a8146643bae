"""One mutant: a function with one small change."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import unified_diff
from hashlib import sha256
from typing import NamedTuple

from attrs import frozen

DIGEST_LENGTH = 12


class MutantKey(NamedTuple):
    """What names a mutant whatever happens elsewhere in its module."""

    module: str
    function: str
    digest: str

    def __str__(self) -> str:
        return f"{self.module}:{self.function}:{self.digest}"


@frozen
class Source:
    """The text of a module without the decorators of its functions, line for line."""

    module: str
    path: str
    lines: tuple[str, ...]


@frozen
class Mutant:
    """The lines `first` to `last` of `source`, which are `function`, replaced by `changed`.

    Lines count from 1. `diff` is of these lines alone, each with a mark in front.
    """

    key: MutantKey
    source: Source
    first: int
    last: int
    changed: tuple[str, ...]
    diff: tuple[str, ...]

    @property
    def text(self) -> str:
        """The mutated module, without the decorators of its functions."""
        lines = self.source.lines
        return "\n".join([*lines[: self.first - 1], *self.changed, *lines[self.last :], ""])

    @property
    def change(self) -> str:
        """The lines that differ, in one: what goes, an arrow, what comes."""
        gone = " ".join(line[1:].strip() for line in self.diff if line.startswith("-"))
        come = " ".join(line[1:].strip() for line in self.diff if line.startswith("+"))
        return f"{gone} -> {come}"


def line_diff(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """A unified diff without its headers and positions."""
    return tuple(
        line
        for line in unified_diff(before, after, n=2, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    )


def digest_of(diff: Sequence[str], nth: int) -> str:
    """Names the `nth` mutant with this diff in its function, counted from 0."""
    text = "\n".join(diff) + (f"\n{nth}" if nth else "")
    return sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
