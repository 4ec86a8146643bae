"""Which check judges which clause. A clause that none judges has the reason in `UNJUDGED`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from importlib.util import find_spec

from stateful_models.capabilities import Capabilities
from stateful_models.invariants import manager_invariants, policy_invariants
from stateful_models.invariants.unjudged import UNJUDGED
from stateful_models.models import LRUModel
from stateful_models.pages import CLAUSES_JUDGED

_CLAIMING = (
    Capabilities(lru=True),
    Capabilities(arc=True),
    Capabilities(tail_first=True),
    Capabilities(model=LRUModel),
)


@cache
def checks_by_clause() -> Mapping[str, tuple[str, ...]]:
    """The names of the invariants and engines that judge each clause."""
    judges = [(f"invariant {type(one).__name__}", one.clauses) for one in manager_invariants()]
    for claims in _CLAIMING:
        of_policies = policy_invariants(claims, 1)
        judges += [(f"invariant {type(one).__name__}", one.clauses) for one in of_policies]
    judges.append(("trial of page mappings", CLAUSES_JUDGED))
    # Where it is not installed, engines cannot run either.
    if find_spec("hypothesis") is not None:
        from stateful_models.engines.suites import manager_engines, policy_engines

        judges += [(f"engine {one.name}", one.clauses) for one in policy_engines()]
        judges += [(f"engine {one.name} of managers", one.clauses) for one in manager_engines()]
    checks: dict[str, dict[str, None]] = {}
    for name, clauses in judges:
        for clause in clauses:
            checks.setdefault(clause, {})[f"the {name}"] = None
    return {clause: tuple(names) for clause, names in checks.items()}


def engines_of_own(subjects: Collection[str] = ()) -> str:
    """In words the engines whose runs an author's own invariants judge.

    `subjects` are those that they are asked about, "policy" or "manager"; none: both.
    """
    if find_spec("hypothesis") is None:
        return "a trial"
    from stateful_models.engines.suites import manager_engines, policy_engines

    of_policies, of_managers = (
        ", ".join(engine.name for engine in engines if engine.judges_all)
        for engines in (policy_engines(), manager_engines())
    )
    told = {
        "policy": f"the engines {of_policies}",
        "manager": f"the engines {of_managers} of managers",
    }
    return "; ".join(text for subject, text in told.items() if not subjects or subject in subjects)


def judged_by(clause: str) -> str:
    """In words what judges the clause, or why nothing does."""
    names = checks_by_clause().get(clause)
    if names:
        return ", ".join(names)
    return f"nothing here: {UNJUDGED[clause]}" if clause in UNJUDGED else "nothing yet"
