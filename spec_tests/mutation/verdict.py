"""What a run comes to: counts by module, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final

from attrs import frozen

from spec_tests.mutation.equivalents import Declared
from spec_tests.mutation.mutant import Mutant, MutantKey
from spec_tests.mutation.trial import Fate, Outcome

WANTED: Final = 0.90
"""The share of mutants, those declared equivalent aside, that the engines must kill."""
DECLARABLE: Final = 0.03
"""The share of all mutants that may be declared equivalent."""


@frozen
class Row:
    """Counts of one module, or of all together. A mutant that is declared counts as nothing else.

    `mutants` is how many were tried.
    """

    module: str
    mutants: int
    killed: int
    timeout: int
    survived: int
    declared: int

    @property
    def score(self) -> float:
        """Killed, by time or otherwise, of those not declared; 1 where there are none."""
        judged = self.mutants - self.declared
        return (self.killed + self.timeout) / judged if judged else 1.0


@frozen
class Verdict:
    """The outcomes of a run beside what was declared."""

    outcomes: Sequence[Outcome]
    declared: Mapping[MutantKey, Declared]
    stale: Sequence[Declared]
    num_all: int

    @property
    def rows(self) -> list[Row]:
        """A row for each module, in order."""
        modules = sorted({outcome.mutant.key.module for outcome in self.outcomes})
        return [
            self._row(module, [o for o in self.outcomes if o.mutant.key.module == module])
            for module in modules
        ]

    @property
    def total(self) -> Row:
        return self._row("all", self.outcomes)

    @property
    def survivors(self) -> list[Mutant]:
        """Those that lived and are not declared."""
        return [
            outcome.mutant
            for outcome in self.outcomes
            if outcome.fate is Fate.SURVIVED and outcome.mutant.key not in self.declared
        ]

    @property
    def killed_though_declared(self) -> list[Outcome]:
        return [
            outcome
            for outcome in self.outcomes
            if outcome.fate is not Fate.SURVIVED and outcome.mutant.key in self.declared
        ]

    @property
    def objections(self) -> list[str]:
        """Why the run has failed; empty when it has not."""
        found: list[str] = []
        if self.total.score < WANTED:
            found.append(f"{self.total.score:.1%} killed, {WANTED:.0%} wanted")
        if len(self.declared) > DECLARABLE * self.num_all:
            found.append(
                f"{len(self.declared)} of {self.num_all} declared equivalent, "
                f"more than {DECLARABLE:.0%}"
            )
        found += [f"stale declaration: {one.key}: {one.change}" for one in self.stale]
        found += [
            f"declared equivalent, but {o.engine or 'the clock'} tells it: {o.mutant.key}: {o.said}"
            for o in self.killed_though_declared
        ]
        return found

    def _row(self, module: str, outcomes: Iterable[Outcome]) -> Row:
        outcomes = list(outcomes)
        judged = [o.fate for o in outcomes if o.mutant.key not in self.declared]
        return Row(
            module,
            len(outcomes),
            judged.count(Fate.KILLED),
            judged.count(Fate.TIMEOUT),
            judged.count(Fate.SURVIVED),
            len(outcomes) - len(judged),
        )


def chosen(mutants: Sequence[Mutant], patterns: Collection[str]) -> list[Mutant]:
    """Those whose key has one of `patterns` in it; all where there are none."""
    return [m for m in mutants if not patterns or any(p in str(m.key) for p in patterns)]


def drawn(mutants: Iterable[Mutant], number: int, seed: int) -> list[Mutant]:
    """So many of them, by lot; of each pair the same one comes first whatever the others are.

    So a change of the code, or one more declaration, leaves nearly all of a sample as it was.
    """

    def lot(mutant: Mutant) -> bytes:
        return sha256(f"{seed} {mutant.key}".encode()).digest()

    return sorted(mutants, key=lot)[:number]
