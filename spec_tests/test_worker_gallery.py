"""Every broken worker is convicted under its clause, the odd ones and the reference of nothing."""

from collections.abc import Collection
from functools import cache

import pytest

from kvoffload.copying.worker import CopyWorker
from spec_tests.lots import by_lot
from stateful_models.contract import CLAUSES
from stateful_models.gallery.public_reports import REPORTS
from stateful_models.gallery.workers import BROKEN_WORKERS, LEGAL_WORKERS, OF_OTHER_PARTS
from stateful_models.reach import Reach
from stateful_models.workers import CLAUSES_JUDGED, WorkerFinding, check_worker

FEW = 64
"""Programs that suffice for every exhibit: what convicts a broken worker has to acquit the odd."""


def broken_under(clauses: Collection[str]) -> list[object]:
    """The exhibits of these clauses, drawn for each clause by itself: CI convicts under every one,
    and whoever asks for fewer clauses gets the same exhibits of those."""
    names = [name for name, one in BROKEN_WORKERS.items() if one.clause in clauses]
    return by_lot(names, one_of=4, within=lambda name: BROKEN_WORKERS[name].clause)


@cache
def findings_of(name: str) -> tuple[WorkerFinding, ...]:
    exhibit = BROKEN_WORKERS[name]
    return tuple(check_worker(exhibit.make, programs=FEW, keeps_order=not exhibit.careless_caller))


@pytest.mark.parametrize("name", broken_under(CLAUSES_JUDGED))
def test_a_broken_worker_is_convicted_under_its_clause(name: str) -> None:
    exhibit = BROKEN_WORKERS[name]
    found = {finding.clause: finding for finding in findings_of(name)}
    assert exhibit.clause in found, "\n\n".join(map(str, found.values()))
    assert found.keys() <= {exhibit.clause, *exhibit.also}, "\n\n".join(map(str, found.values()))
    assert found[exhibit.clause].convicts() is not exhibit.careless_caller


@pytest.mark.parametrize("name", by_lot(LEGAL_WORKERS, one_of=3))
def test_an_odd_worker_is_acquitted(name: str) -> None:
    assert check_worker(LEGAL_WORKERS[name].make, programs=FEW) == []


def test_the_reference_is_acquitted() -> None:
    reach = Reach()
    assert check_worker(CopyWorker, reach=reach) == []
    assert check_worker(CopyWorker, judges_order=False) == []
    assert reach["two copies at once"]
    assert reach["a copy that failed was reported"]


RACY = broken_under(["ORD-1", "ORD-3"])


@pytest.mark.parametrize("name", RACY)
def test_a_missing_wait_becomes_wrong_bytes_under_some_order(name: str) -> None:
    """The detector says nothing that bytes do not show: here it is not asked."""
    make = BROKEN_WORKERS[name].make
    # Few at a time: the first to show it is enough.
    assert any(
        check_worker(make, judges_order=False, programs=FEW // 8, seed=seed) for seed in range(48)
    )


@pytest.mark.parametrize("name", RACY)
def test_the_report_of_a_race_names_the_missing_edge(name: str) -> None:
    (finding,) = [one for one in findings_of(name) if one.clause == BROKEN_WORKERS[name].clause]
    assert "the worker should let stream" in finding.report
    assert finding.clause in str(finding)
    assert 1 <= len(finding.program) <= 5, finding.program


def test_the_fault_of_a_careless_caller_is_the_callers() -> None:
    (finding,) = findings_of("Ord4CarelessCaller")
    assert finding.is_the_callers
    assert "the caller should wait for the job" in finding.report


def test_every_exhibit_is_named_for_its_clause() -> None:
    for name, exhibit in BROKEN_WORKERS.items():
        assert name.upper().startswith(exhibit.clause.replace("-", "")), name
        assert not name[len(exhibit.clause) - 1].isdigit(), name
        assert exhibit.clause in CLAUSES_JUDGED
        assert exhibit.mistake


def test_every_clause_has_an_exhibit_or_a_reason() -> None:
    clauses = {clause for clause in CLAUSES if clause.startswith(("COPY-", "ORD-"))}
    shown = {exhibit.clause for exhibit in BROKEN_WORKERS.values()}
    assert shown - {"MAP-3"} | (OF_OTHER_PARTS.keys() & clauses) == clauses
    assert shown.isdisjoint(OF_OTHER_PARTS)
    assert shown == set(CLAUSES_JUDGED)


def test_every_row_of_reported_mistakes_has_an_exhibit_or_a_reason() -> None:
    rows = {row for exhibit in BROKEN_WORKERS.values() for row in exhibit.bug_rows}
    assert rows == {f"W{number}" for number in (1, 2, 3, 4, 5, 7, 8, 10, 11)}
    assert rows <= set(REPORTS)
    assert "W15" in OF_OTHER_PARTS
