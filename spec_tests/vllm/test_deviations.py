"""The list of deviations, as far as it can be held to without vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from kvoffload import CPUOffloadingManager
from stateful_models.contract import CLAUSES
from stateful_models.engines.manager_runs import options_of
from stateful_models.manager_drivers import ManagerDriver
from stateful_models.policy_tap import Tap
from stateful_models.subjects import ManagerSubject
from stateful_models.vllm.deviations import DEVIATIONS
from stateful_models.vllm.page import page
from stateful_models.vllm.pair import Deviation, Outcome

ROOT = Path(__file__).parents[2]
MOST_CALLS = 8

each = pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda one: one.id)


def test_the_page_is_made_from_the_list() -> None:
    assert (ROOT / "docs" / "deviations.md").read_text(encoding="utf-8") == page()


def test_names_are_given_once() -> None:
    names = [deviation.id for deviation in DEVIATIONS]
    assert len(set(names)) == len(names)


@each
def test_a_deviation_has_its_clauses_and_a_short_program(deviation: Deviation) -> None:
    assert deviation.clauses
    assert set(deviation.clauses) <= set(CLAUSES)
    # What fills a backlog takes one more to see it.
    assert len(deviation.shows) <= MOST_CALLS + (deviation.id == "folded-backlog")


@each
def test_ours_answers_as_the_list_says(deviation: Deviation) -> None:
    program = deviation.shows
    settings = program.settings
    assert settings is not None
    options = options_of(program.capacity, settings)
    tap = Tap(settings.policy) if settings.tapped else None
    if tap is not None:
        options = evolve(options, cache_policy=tap.policy_cls)
    subject = ManagerSubject(ManagerDriver(CPUOffloadingManager).build(options), tap=tap)
    answers = [str(Outcome.of(subject.perform(one))) for one in program.operations]
    assert answers[-1].startswith(deviation.ours)
