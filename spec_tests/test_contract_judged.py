"""Every clause is judged by something, or there is a reason why nothing here can."""

import pytest

from stateful_models.contract import CLAUSES
from stateful_models.engines.scopes import checks_by_clause, judged_by
from stateful_models.invariants.unjudged import UNJUDGED
from stateful_models.trial.request import Task
from stateful_models.trial.trials import clauses_of


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_clause_is_judged_or_says_why_not(clause: str) -> None:
    judged = clause in checks_by_clause()
    assert judged or UNJUDGED.get(clause), clause
    assert "nothing yet" not in judged_by(clause)


def test_nothing_is_called_unjudged_that_is_judged() -> None:
    assert set(UNJUDGED).isdisjoint(checks_by_clause())


def test_every_clause_in_scope_has_a_check() -> None:
    for task in (Task.POLICY, Task.MANAGER):
        assert set(clauses_of(task)) <= set(checks_by_clause())


def test_every_check_is_of_a_clause() -> None:
    strangers = set(checks_by_clause()) - set(CLAUSES)
    assert strangers <= {"its model", "key blind", "without hints"}
