"""Every broken mapper is convicted under its clause, and the odd ones are not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from kvoffload.canonical.derivation import derive_mappings
from spec_tests.canonical.in_parts import findings_in_parts
from spec_tests.lots import by_lot
from stateful_models.contract import CLAUSES, Profile
from stateful_models.gallery.mappings import BROKEN_MAPPERS, LEGAL_MAPPERS, OF_OTHER_PARTS
from stateful_models.gallery.public_reports import REPORTS
from stateful_models.models.pages import chunk
from stateful_models.pages import CLAUSES_JUDGED, check_mapper


@pytest.fixture(scope="module", autouse=True)
def each_case_is_worked_out_once() -> Iterator[None]:
    """All mappers are asked for the same cases; what is right there, and what those derive that are
    made from the reference, depends on the case alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stateful_models.pages.naming.chunk", cache(chunk))
        patch.setattr(
            "stateful_models.gallery.broken_mappers.reference.derive_mappings",
            cache(derive_mappings),
        )
        yield


# Drawn for each clause by itself, so that CI convicts under every one.
@pytest.mark.parametrize(
    "name", by_lot(BROKEN_MAPPERS, one_of=3, within=lambda name: BROKEN_MAPPERS[name].clause)
)
def test_a_broken_mapper_is_convicted_under_its_clause(name: str) -> None:
    broken = BROKEN_MAPPERS[name]
    kind = CLAUSES[broken.clause].part(broken.kind).kind
    convictions = (
        one
        for one in findings_in_parts(broken.mapper)
        if one.convicts() and (one.clause, one.kind) == (broken.clause, kind)
    )
    found = next(convictions, None)
    assert found is not None, broken.mistake
    assert found.expected
    assert found.case


@pytest.mark.parametrize("name", by_lot(LEGAL_MAPPERS, one_of=5))
def test_an_odd_mapper_is_acquitted(name: str) -> None:
    odd = LEGAL_MAPPERS[name]
    found = check_mapper(odd.mapper)
    assert [one for one in found if one.convicts(Profile.VLLM)] == []
    held = tuple(one.clause for one in found if one.convicts(Profile.REFERENCE))
    assert held == odd.reported


def test_every_clause_has_an_exhibit() -> None:
    exhibited = {broken.clause for broken in BROKEN_MAPPERS.values()}
    for odd in LEGAL_MAPPERS.values():
        exhibited.update(odd.reported)
    assert exhibited == set(CLAUSES_JUDGED)


def test_every_exhibit_is_named_for_its_clause() -> None:
    for name, broken in BROKEN_MAPPERS.items():
        assert name.upper().startswith(broken.clause.replace("-", "")), name
        assert broken.mistake


def test_every_row_of_reported_mistakes_has_an_exhibit_or_a_reason() -> None:
    rows = [row for broken in BROKEN_MAPPERS.values() for row in broken.bug_rows]
    assert sorted([*rows, *OF_OTHER_PARTS]) == ["C1", "C18", "C2", "C7"]
    assert set(rows) <= set(REPORTS)
