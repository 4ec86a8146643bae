"""Which engines a trial runs, in which order: the quickest to convict first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from stateful_models.engines.base import Engine
from stateful_models.engines.claims import CapacityInclusion, Renaming
from stateful_models.engines.completions import Reinsertion, ReleaseOrder
from stateful_models.engines.cost import Cost
from stateful_models.engines.determinism import Determinism
from stateful_models.engines.exhaustive import Exhaustive
from stateful_models.engines.growth import Growth
from stateful_models.engines.hints import HostileHints
from stateful_models.engines.laws import AskedInVain, ClearedIsNew, WithoutHints
from stateful_models.engines.manager_faults import FaultyPolicies
from stateful_models.engines.manager_laws import AsNew, FreeAgain, SameTwice, Undrained
from stateful_models.engines.manager_small import SmallManagerPrograms
from stateful_models.engines.managers import ManagerEngine, RandomManagerPrograms
from stateful_models.engines.random import RandomPrograms
from stateful_models.engines.readings import LentLists, SingleReadings
from stateful_models.engines.wrapper import Wrapper
from stateful_models.trial.hint_names import HintNames


def policy_engines(
    durations: Sequence[float] = (),
    hints: HintNames | None = None,
    look: Callable[[], Callable[[], list[str]]] = lambda: list,
) -> list[Engine]:
    """The engines for a policy.

    `durations` are spans of time around which it may choose otherwise, `hints` has the names that
    it asks for, and `look` tells what changed outside the policy since it was called.
    """
    spans = tuple(durations)

    def names() -> Collection[str]:
        return () if hints is None else hints.asked

    def reads_hints() -> bool:
        return hints is None or bool(hints.asked) or hints.asked_for_all

    return [
        RandomPrograms(spans),
        Wrapper(spans),
        AskedInVain(spans),
        ClearedIsNew(spans),
        Determinism(look, spans),
        HostileHints(names, spans),
        SingleReadings(spans),
        LentLists(spans),
        Growth(spans, reads_hints),
        Cost(),
        WithoutHints(spans),
        Reinsertion(spans),
        ReleaseOrder(spans),
        Renaming(spans),
        CapacityInclusion(spans),
        # The most programs, and the least likely to find what the others have not.
        Exhaustive(spans),
    ]


def manager_engines(durations: Sequence[float] = ()) -> list[ManagerEngine]:
    """The engines for a manager to which `durations` matter."""
    spans = tuple(durations)
    return [
        RandomManagerPrograms(spans),
        SmallManagerPrograms(),
        SameTwice(),
        AsNew(),
        FreeAgain(),
        Undrained(),
        FaultyPolicies(),
    ]


def policy_law(name: str) -> Engine | None:
    """The engine of this name, if it is one that compares."""
    return next((one for one in policy_engines() if one.compares and one.name == name), None)


def manager_law(name: str) -> ManagerEngine | None:
    """The engine of this name, if it is one that compares."""
    return next((one for one in manager_engines() if one.compares and one.name == name), None)
