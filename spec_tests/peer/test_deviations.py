"""Every deviation shows on both sides, explains no more than itself, and is needed."""

from __future__ import annotations

import pytest
from attrs import evolve

from kvoffload.vllm.control_plane import ControlPlane
from stateful_models import operations as op
from stateful_models.programs import Program, keys
from stateful_models.vllm.deviations import DEVIATIONS, QUIET
from stateful_models.vllm.differential import play
from stateful_models.vllm.pair import Deviation

each = pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda one: one.id)


@each
def test_without_it_the_two_differ(control_plane: ControlPlane, deviation: Deviation) -> None:
    others = [one for one in DEVIATIONS if one is not deviation]
    difference = play(control_plane, deviation.shows, others).difference
    assert difference is not None, "it shows no more: take it off the list"
    assert difference.ours.startswith(deviation.ours)
    assert difference.theirs.startswith(deviation.theirs)


@each
def test_with_it_they_do_not(control_plane: ControlPlane, deviation: Deviation) -> None:
    played = play(control_plane, deviation.shows)
    assert played.difference is None
    assert played.explained[deviation.id] == 1


@each
def test_another_policy_makes_no_difference_to_it(
    control_plane: ControlPlane, deviation: Deviation
) -> None:
    settings = deviation.shows.settings
    assert settings is not None
    others = [one for one in DEVIATIONS if one is not deviation]
    program = evolve(deviation.shows, settings=evolve(settings, policy="arc"))
    assert play(control_plane, program, others).difference is not None
    assert play(control_plane, program).difference is None


def test_a_deviation_that_nothing_shows_is_found(control_plane: ControlPlane) -> None:
    bogus = evolve(
        DEVIATIONS[0],
        id="bogus",
        shows=Program(1, (op.PrepareStore("r1", keys("a")),), settings=QUIET),
    )
    with pytest.raises(AssertionError, match="take it off the list"):
        test_without_it_the_two_differ(control_plane, bogus)


NOT_THEIRS: tuple[Program, ...] = (
    # Answers that are near a deviation, and are none of its.
    Program(1, (op.PrepareStore("r1", keys("a")), op.Lookup("r1", keys("a")[0])), settings=QUIET),
    Program(2, (op.PrepareStore("r1", keys("a b")), op.Reset()), settings=QUIET),
    Program(
        1,
        (
            op.PrepareStore("r1", keys("a"), 1),
            op.CompleteStore("r1", keys("a"), True, 1),
            op.PrepareStore("r1", keys("a a")),
            op.CompleteStore("r1", keys("a a")),
            op.PrepareLoad("r1", keys("a a"), 2),
            op.CompleteLoad("r1", keys("a"), 2),
            op.CompleteLoad("r1", keys("a"), 2),
        ),
        settings=QUIET,
    ),
)


@pytest.mark.parametrize("program", NOT_THEIRS)
def test_where_the_two_agree_nothing_is_explained(
    control_plane: ControlPlane, program: Program
) -> None:
    played = play(control_plane, program)
    assert played.difference is None
    assert not played.explained
