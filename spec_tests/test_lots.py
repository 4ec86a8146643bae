"""The part of a family that CI tries is drawn once and for all."""

import pytest

from spec_tests.lots import by_lot, drawn_of

NAMES = [f"case {number}" for number in range(30)]
WithMarks = type(pytest.param(0))


def left_for_the_night(cases: list[object]) -> list[object]:
    return [
        case.values[0]
        for case in cases
        if isinstance(case, WithMarks) and [mark.name for mark in case.marks] == ["nightly"]
    ]


def test_one_in_so_many_is_for_ci_and_all_are_there_in_their_order() -> None:
    cases = by_lot(NAMES, one_of=3)
    assert len(left_for_the_night(cases)) == 20
    assert [case.values[0] if isinstance(case, WithMarks) else case for case in cases] == NAMES


def test_a_small_family_keeps_one() -> None:
    assert len(left_for_the_night(by_lot(NAMES[:2], one_of=5))) == 1
    assert left_for_the_night(by_lot(NAMES[:1], one_of=5)) == []
    assert by_lot([], one_of=5) == []


def test_the_lot_is_drawn_of_names_alone() -> None:
    drawn = set(drawn_of(NAMES, one_of=3))
    assert set(drawn_of(reversed(NAMES), one_of=3)) == drawn
    # One more comes in for one at most, who then has to wait for the night.
    assert len(drawn - set(drawn_of([*NAMES, "another"], one_of=3))) <= 1


def test_a_class_is_drawn_by_its_name() -> None:
    classes = [int, str, float]
    (kept,) = [case for case in by_lot(classes, one_of=3) if isinstance(case, type)]
    assert drawn_of([cls.__name__ for cls in classes], one_of=3) == [kept.__name__]
