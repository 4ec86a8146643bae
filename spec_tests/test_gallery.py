"""Every broken manager is convicted under its clause, and the odd ones are not."""

import pytest

from kvoffload import CPUOffloadingManager
from spec_tests.gallery_trials import (
    CAPACITY,
    ROUNDS,
    first_conviction,
    make_trial,
    setup_of,
    worked,
)
from stateful_models.contract import CLAUSES
from stateful_models.gallery import BREAKS, ODDITIES
from stateful_models.gallery.managers import (
    BUG_ROWS,
    ELSEWHERE,
    SETUPS,
    Evt3DeliversWhenRead,
    Evt4NeverFolds,
    Evt5SilentReset,
    Gen1KeepsCounting,
    Key2ValidatesAsItGoes,
    Load4ForgivesReleases,
    Look2TouchesWhatItFinds,
    Pin2ListsLoadsOnly,
    Store6CountsTheOffer,
)
from stateful_models.gallery.oddities import ODD_SETUPS
from stateful_models.gallery.setups import GalleryWorkload, Setup
from stateful_models.invariants import UNJUDGED, manager_invariants
from stateful_models.subjects import ManagerSubject
from stateful_models.watch import WatchedManager
from stateful_models.workload import Workload

OF_POLICIES = ("POL-", "LRU-", "ARC-")
OF_MAPPINGS = ("MAP-", "ID-")

# What these break binds the reference alone.
REPORTED_ONLY: tuple[type[CPUOffloadingManager], ...] = (
    Evt3DeliversWhenRead,
    Evt4NeverFolds,
    Evt5SilentReset,
    Gen1KeepsCounting,
    Key2ValidatesAsItGoes,
    Load4ForgivesReleases,
    Look2TouchesWhatItFinds,
    Pin2ListsLoadsOnly,
    Store6CountsTheOffer,
)


@pytest.mark.parametrize("manager_cls", BREAKS)
@pytest.mark.parametrize("policy", [None, "arc"])
def test_a_broken_manager_is_convicted_under_its_clause(
    manager_cls: type[CPUOffloadingManager], policy: str | None
) -> None:
    trial = first_conviction(manager_cls, policy, BREAKS[manager_cls])
    assert BREAKS[manager_cls] in trial.clauses(), str(trial)


@pytest.mark.parametrize("manager_cls", REPORTED_ONLY)
def test_what_binds_the_reference_alone_is_reported_only(
    manager_cls: type[CPUOffloadingManager],
) -> None:
    trial = worked(manager_cls)
    assert BREAKS[manager_cls] in trial.clauses()
    assert trial.convictions == [], str(trial)


@pytest.mark.parametrize("manager_cls", ODDITIES)
@pytest.mark.parametrize("seed", range(3))
def test_an_odd_manager_is_acquitted(manager_cls: type[CPUOffloadingManager], seed: int) -> None:
    trial = worked(manager_cls, seed=seed)
    assert trial.convictions == [], "\n\n".join(map(str, trial.convictions[:3]))


@pytest.mark.parametrize("policy", [None, "lru", "arc"])
@pytest.mark.parametrize(
    ("threshold", "tracker"),
    [(0, 64_000), (1, 64_000), (2, 64_000), (2, 4), (2, 0), (3, 64_000), (3, 4)],
)
def test_the_reference_is_acquitted(policy: str | None, threshold: int, tracker: int) -> None:
    setup = Setup(store_threshold=threshold, max_tracker_size=tracker)
    trial = worked(CPUOffloadingManager, policy, seed=threshold, setup=setup)
    assert trial.violations == [], str(trial)
    assert trial.judge.checks >= 3 * trial.steps


@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("threshold", [1, 2])
def test_the_reference_is_acquitted_under_watch(policy: str, threshold: int) -> None:
    """A watched manager has no tap, and whoever listens to its policy is not asked."""
    manager = CPUOffloadingManager(CAPACITY, policy, enable_events=True, store_threshold=threshold)
    watched = WatchedManager(
        manager, num_chunks=CAPACITY, store_threshold=threshold, enable_events=True
    )
    Workload(ManagerSubject(watched), seed=threshold).run(ROUNDS)
    assert watched.violations == []


def test_without_a_tap_nothing_is_held_against_what_cannot_be_seen() -> None:
    trial = make_trial(CPUOffloadingManager)
    trial.subject = ManagerSubject(CPUOffloadingManager(CAPACITY, enable_events=True))
    GalleryWorkload(trial).run(ROUNDS)
    assert trial.violations == [], str(trial)


def test_every_exhibit_is_named_for_its_clause() -> None:
    assert set(BREAKS.values()) <= set(CLAUSES)
    for manager_cls, clause in BREAKS.items():
        name = manager_cls.__name__.upper()
        assert name.startswith(clause.replace("-", "")), name
        assert not name[len(clause) - 1].isdigit(), name
        assert manager_cls.__doc__


def test_every_clause_has_an_exhibit_or_a_reason() -> None:
    clauses = {clause for clause in CLAUSES if not clause.startswith((*OF_POLICIES, *OF_MAPPINGS))}
    assert set(BREAKS.values()) | set(UNJUDGED) | {"SPECS-3"} == clauses
    assert set(BREAKS.values()).isdisjoint(UNJUDGED)
    assert all(UNJUDGED.values())


def test_every_clause_with_an_exhibit_is_one_that_an_invariant_names() -> None:
    judged = {clause for one in manager_invariants() for clause in one.clauses}
    assert set(BREAKS.values()) <= judged
    assert judged.isdisjoint(UNJUDGED)


def test_every_row_of_reported_mistakes_has_an_exhibit_or_a_reason() -> None:
    assert set(BUG_ROWS.values()) <= set(BREAKS)
    assert set(BUG_ROWS).isdisjoint(ELSEWHERE)
    assert len(BUG_ROWS) == 15


def test_every_setup_is_of_an_exhibit() -> None:
    assert set(SETUPS) <= set(BREAKS)
    assert set(ODD_SETUPS) <= set(ODDITIES)
    assert setup_of(CPUOffloadingManager) == Setup()
