"""Every broken manager is convicted under its clause, and the odd ones are not."""

from collections.abc import Iterable

import pytest

from kvoffload import CPUOffloadingManager
from stateful_models.contract import CLAUSES
from stateful_models.gallery import BREAKS, ODDITIES
from stateful_models.subjects import ManagerSubject
from stateful_models.watch import WatchedManager
from stateful_models.workload import Workload

CAPACITY = 9
ROUNDS = 600


def watch(
    manager_cls: type[CPUOffloadingManager],
    policy: str = "lru",
    *,
    seed: int = 0,
    threshold: int = 1,
    mistakes: bool = True,
) -> WatchedManager:
    manager = manager_cls(CAPACITY, policy, enable_events=True, store_threshold=threshold)
    watched = WatchedManager(
        manager, num_chunks=CAPACITY, store_threshold=threshold, enable_events=True
    )
    Workload(ManagerSubject(watched), seed=seed, mistakes=mistakes).run(ROUNDS)
    return watched


def texts(watched: WatchedManager) -> Iterable[str]:
    return "\n\n".join(map(str, watched.violations[:3]))


@pytest.mark.parametrize("manager_cls", BREAKS)
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_broken_manager_is_convicted_under_its_clause(
    manager_cls: type[CPUOffloadingManager], policy: str
) -> None:
    clause = BREAKS[manager_cls]
    threshold = 2 if clause == "STORE-3" else 1
    watched = watch(manager_cls, policy, threshold=threshold)
    assert clause in {violation.clause for violation in watched.violations}, texts(watched)


@pytest.mark.parametrize("manager_cls", ODDITIES)
@pytest.mark.parametrize("seed", range(4))
def test_an_odd_manager_is_acquitted(manager_cls: type[CPUOffloadingManager], seed: int) -> None:
    watched = watch(manager_cls, seed=seed)
    assert watched.num_violations == 0, texts(watched)


@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("threshold", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_reference_is_acquitted(policy: str, threshold: int, seed: int) -> None:
    watched = watch(CPUOffloadingManager, policy, seed=seed, threshold=threshold)
    assert watched.num_violations == 0, texts(watched)
    assert watched.checks >= 3 * watched.steps


def test_every_exhibit_is_named_for_its_clause() -> None:
    assert set(BREAKS.values()) <= set(CLAUSES)
    for manager_cls, clause in BREAKS.items():
        assert manager_cls.__name__.upper().startswith(clause.replace("-", ""))
