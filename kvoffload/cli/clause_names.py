"""What clauses are called by whoever runs a trial: globs over them, and known failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from attrs import frozen

from kvoffload.cli.problems import UsageError


class ClauseNames:
    """The ids of the contract, the claims, and what `own` gives: ids of the author's invariants.

    `own` loads what is not ours, and is asked only for what is called nothing else.
    """

    def __init__(self, own: Callable[[], Iterable[str]] = tuple) -> None:
        self._ask = own

    def __contains__(self, name: str) -> bool:
        return name in self._ours or name in self._own

    def check_globs(self, option: str, globs: Iterable[str]) -> None:
        """Raise UsageError for one that names no clause: what is judged would not be as meant."""
        from stateful_models.globs import fitting, none_fits

        for glob in globs:
            if not fitting(glob, self._ours) and not fitting(glob, self._own):
                raise UsageError(f"{option} {glob}: {none_fits(self._own)}")

    @cached_property
    def _ours(self) -> tuple[str, ...]:
        from stateful_models.contract import CLAUSES
        from stateful_models.trial.scope import CLAIMS

        return (*CLAUSES, *CLAIMS)

    @cached_property
    def _own(self) -> tuple[str, ...]:
        return tuple(self._ask())


@frozen
class KnownFailures:
    """Breaches that are known of, by target: the clauses that do not convict it."""

    where: str
    clauses: Mapping[str, frozenset[str]]

    @classmethod
    def read(cls, path: Path | None, names: ClauseNames) -> KnownFailures:
        """Those of a file: a target and a clause on each line, `#` begins a comment.

        Raises UsageError, with the line.
        """
        if path is None:
            return cls("", {})
        where = f"--known-failures {path}"
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeError) as error:
            raise UsageError(f"{where}: {error}") from error
        found: dict[str, frozenset[str]] = {}
        for number, line in enumerate(lines, 1):
            name, _, clause = " ".join(line.partition("#")[0].split()).partition(" ")
            if not name:
                continue
            if not clause or (" " in clause and clause not in names):
                raise UsageError(f"{where}: line {number}: not a target and a clause: {line!r}")
            if clause not in names:
                raise UsageError(f"{where}: line {number}: no clause is called {clause}")
            found[name] = found.get(name, frozenset()) | {clause}
        return cls(where, found)

    def of(self, target: str) -> tuple[str, ...]:
        """The clauses that are known to be broken by a target."""
        return tuple(sorted(self.clauses.get(target, ())))

    def check(self, targets: Sequence[str]) -> None:
        """Raise UsageError if the file is about none of the targets: it was named in vain."""
        if self.clauses and self.clauses.keys().isdisjoint(targets):
            names = ", ".join(self.clauses)
            raise UsageError(f"{self.where}: it is about {names}, which are not on trial")


def in_short(ids: Sequence[str]) -> str:
    """`POL-1 to 5, 7; LRU-1; its model`: the ids in their order, what is before a number once."""
    families: dict[str, list[str]] = {}
    for one in ids:
        family, dash, number = one.rpartition("-")
        numbered = dash and number.isdecimal()
        families.setdefault(f"{family}-" if numbered else one, []).extend([number] * bool(numbered))
    return "; ".join(f"{family}{', '.join(_runs(found))}" for family, found in families.items())


def _runs(numbers: Sequence[str]) -> Iterator[str]:
    """Numbers that follow each other as one, where there are more than two of them."""
    run: list[str] = []
    for number in [*numbers, ""]:
        if run and number.isdecimal() and int(number) == int(run[-1]) + 1:
            run.append(number)
            continue
        if len(run) > 2:
            yield f"{run[0]} to {run[-1]}"
        else:
            yield from run
        run = [number]
