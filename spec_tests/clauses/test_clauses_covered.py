"""Every clause that this code can break is named by a test here, and no test names another."""

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator

import pytest

import spec_tests.clauses
from stateful_models.contract import CLAUSES


def named() -> Iterator[str]:
    """The ids on all tests of this package, once a test."""
    for module_info in pkgutil.iter_modules(spec_tests.clauses.__path__):
        if not module_info.name.startswith("test_"):
            continue
        try:
            module = importlib.import_module(f"spec_tests.clauses.{module_info.name}")
        except pytest.skip.Exception:
            # It needs an extra that is not installed.
            continue
        for name, test in vars(module).items():
            if name.startswith("test_"):
                marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
                yield from (str(mark.args[0]) for mark in marks if mark.name == "clause")


TESTS_OF = Counter(named())


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_clause_has_a_test_of_its_own(clause: str) -> None:
    assert TESTS_OF[clause] > 0


def test_no_test_names_a_clause_that_does_not_exist() -> None:
    assert TESTS_OF.keys() <= CLAUSES.keys()
