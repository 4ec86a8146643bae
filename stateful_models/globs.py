"""Choosing names by globs: clauses for a trial, rules for a machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase


def is_chosen(name: str, only: Collection[str], without: Iterable[str]) -> bool:
    """Whether a name fits one of `only`, if there are any, and none of `without`."""
    return (not only or _fits(name, only)) and not _fits(name, without)


def fitting(glob: str, names: Iterable[str]) -> list[str]:
    """The names that a glob fits, in order; none, and whoever wrote it meant something else."""
    return [name for name in names if fnmatchcase(name, glob)]


def _fits(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def none_fits(own: Iterable[str], option: str = "--invariant") -> str:
    """What is said of a glob that fits no clause.

    `own` are those that the author's invariants judge, `option` is how invariants are given.
    """
    judged = ", ".join(dict.fromkeys(own))
    known = (
        f"the invariants given judge {judged}"
        if judged
        else f"`kvoffload explain` lists them; one of your own is known with its {option}"
    )
    return f"no clause is called that ({known})"
