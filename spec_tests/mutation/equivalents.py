"""Mutants declared equivalent, each with a line of proof: `equivalent.toml`, which is reviewed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from attrs import frozen

from spec_tests.mutation.mutant import Mutant, MutantKey


class DeclarationError(Exception):
    """The file declares a mutant twice, or without a proof."""


@frozen
class Declared:
    """A mutant that nobody can tell from the original; `proof` says why, `change` what it is."""

    key: MutantKey
    change: str
    proof: str


def load_declared(path: Path) -> dict[MutantKey, Declared]:
    """Read the file. Raises DeclarationError."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    declared: dict[MutantKey, Declared] = {}
    for entry in table.get("equivalent", []):
        key = MutantKey(entry["module"], entry["function"], entry["digest"])
        if key in declared:
            raise DeclarationError(f"{key} is declared twice")
        proof = entry["proof"].strip()
        if not proof or "\n" in proof:
            raise DeclarationError(f"{key} needs one line of proof")
        declared[key] = Declared(key, entry["change"], proof)
    return declared


def stale(declared: Mapping[MutantKey, Declared], mutants: Iterable[Mutant]) -> list[Declared]:
    """Declarations that name no mutant, or one that changes something else than they say."""
    changes = {mutant.key: mutant.change for mutant in mutants}
    return [one for key, one in declared.items() if changes.get(key) != one.change]
