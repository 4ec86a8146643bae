"""The page about vLLM's manager quotes the tests that the session `peer` runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

import pytest

from spec_tests.built import ROOT

PAGE: Final = (ROOT / "docs" / "vllm-manager.md").read_text(encoding="utf-8")
FILE: Final = (ROOT / "spec_tests" / "peer" / "findings" / "test_cpu_manager.py").read_text(
    encoding="utf-8"
)
QUOTES: Final = re.findall(r"^```py\n(.*?)\n```$", PAGE, re.M | re.S)
MOST_CALLS: Final = 8


def definitions() -> list[ast.FunctionDef | ast.ClassDef]:
    """The tests of the file, and the classes that they use."""
    return [
        node for node in ast.parse(FILE).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    ]


TESTS: Final = [node for node in definitions() if isinstance(node, ast.FunctionDef)]


def test_the_page_quotes_the_whole_file() -> None:
    """Head first, then the tests in their order."""
    assert "\n\n\n".join(QUOTES) + "\n" == FILE


def test_every_finding_has_a_section_and_a_row() -> None:
    """What events piled up take is more calls than a test has."""
    sections = re.split(r"^### ", PAGE.partition("\n## What is no finding")[0], flags=re.M)[1:]
    titles = [section.partition("\n")[0] for section in sections]
    rows = re.findall(r"^\| \[(.+?)\]\(#(.+?)\) \|", PAGE, re.M)
    assert [title.lower() for title in titles] == [title for title, _ in rows]
    assert [title.lower().replace(" ", "-") for title in titles] == [anchor for _, anchor in rows]
    without = [title for title, text in zip(titles, sections, strict=True) if "```py" not in text]
    assert without == ["Events pile up"]
    assert all("*An engine*" in section for section in sections)


def test_the_file_needs_pytest_and_vllm_only() -> None:
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(FILE))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert imported == {"pytest", "vllm"}


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.name)
def test_a_test_has_few_calls_and_says_how_it_fails(test: ast.FunctionDef) -> None:
    assert 1 <= len(list(calls_of(test))) <= MOST_CALLS
    (mark,) = test.decorator_list
    assert isinstance(mark, ast.Call)
    assert ast.unparse(mark.func) == "pytest.mark.xfail"
    given = {each.arg: ast.unparse(each.value) for each in mark.keywords}
    assert given["strict"] == "True"
    assert given.keys() == {"strict", "raises", "reason"}


def calls_of(test: ast.FunctionDef) -> Iterator[str]:
    """The calls of vLLM's that a test makes, but for what builds the manager and requests."""
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            whose = ast.unparse(node.func.value)
            if whose in ("manager", "CachePolicyFactory"):
                yield node.func.attr
