"""Which check judges which clause. A clause that none judges has the reason in `UNJUDGED`."""

from __future__ import annotations

from collections.abc import Mapping

from stateful_models.invariants import manager_invariants
from stateful_models.invariants.unjudged import UNJUDGED


def checks_by_clause() -> Mapping[str, tuple[str, ...]]:
    """The names of the invariants and engines that judge each clause."""
    # Engines are imported only by those who ask: they need Hypothesis.
    from stateful_models.engines.suites import policy_engines

    checks: dict[str, list[str]] = {}
    for invariant in manager_invariants():
        for clause in invariant.clauses:
            checks.setdefault(clause, []).append(f"the invariant {type(invariant).__name__}")
    for engine in policy_engines():
        for clause in engine.clauses:
            checks.setdefault(clause, []).append(f"the engine {engine.name}")
    return {clause: tuple(names) for clause, names in checks.items()}


def judged_by(clause: str) -> str:
    """In words what judges the clause, or why nothing does."""
    names = checks_by_clause().get(clause)
    if names:
        return ", ".join(names)
    return f"nothing here: {UNJUDGED[clause]}" if clause in UNJUDGED else "nothing yet"
