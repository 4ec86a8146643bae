"""The test for a checkout of vLLM: a command writes it, and here stand-ins answer for vLLM."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, cast

import pytest
from attrs import frozen

from kvoffload.cli import run
from spec_tests.built import ROOT
from spec_tests.vllm.in_tree import EVERY, REGISTERED
from stateful_models.vllm.in_tree import NAME, in_tree_test

GALLERY: Final = "stateful_models.gallery"
SOUND: Final = {
    "ours_lru": "LRUCachePolicy",
    "ours_arc": "ARCCachePolicy",
    # Odd in what it does, and within what is documented.
    "s3_fifo": f"{GALLERY}.legal_policies.s3_fifo:S3FIFO",
    # Of what does not repeat its choices, choices are not compared.
    "unseeded": f"{GALLERY}.broken_policies.determinism:Pol5Unseeded",
}
BROKEN: Final = {
    "victims:Pol2TooFew": "not exactly",
    "victims:Pol2PinnedVictim": "protected, in use or absent",
    "victims:Pol2ProtectedVictim": "protected, in use or absent",
    "victims:Pol2SwapsChunks": "has the chunk of another",
    "victims:Pol2RemovesSiblings": "is astray",
    "victims:Pol2LosesWhenRefusing": "is astray",
    "victims:Pol2RefusalReorders": "an eviction that was refused changes later ones",
    "clearing:Pol6OldFrequencies": "what was before a clear changes later evictions",
    "hooks:Pol7UnknownTouch": "KeyError",
    "hooks:Pol7FinishOfTheGone": "KeyError",
}
LIKE_OTHERS: Final = {
    "victims:Pol2PinnedVictim",
    "victims:Pol2LosesWhenRefusing",
    "hooks:Pol7FinishOfTheGone",
}
"""Convicted by the same lines as another."""


@frozen
class Part:
    """Of the programs every so many, with caches of every size, on so many broken policies.

    All of the programs are for vLLM's own policies.
    """

    every: int
    broken: frozenset[str]


FIFTH: Final = Part(5, frozenset(BROKEN))
NINTH: Final = Part(9, FIFTH.broken - LIKE_OTHERS)
PARTS: Final = [NINTH, pytest.param(FIFTH, marks=pytest.mark.nightly)]


def test_the_file_is_short_and_needs_pytest_and_vllm_only() -> None:
    text = in_tree_test()
    lines = text.splitlines()
    assert len(lines) <= 150
    # As vLLM's own style has it.
    assert max(map(len, lines)) <= 88
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert imported == {"random", "pytest", "vllm"}


@pytest.fixture(scope="module")
def part(request: pytest.FixtureRequest) -> Part:
    return cast("Part", request.param)


@pytest.fixture(scope="module")
def printed(part: Part, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of the sound and the broken policies, and of LRU and ARC."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / NAME).write_text(in_tree_test(), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    broken = {
        name.partition(":")[2]: f"{GALLERY}.broken_policies.{name}"
        for name in BROKEN
        if name in part.broken
    }
    registered = "\n".join(f"{name} {target}" for name, target in {**SOUND, **broken}.items())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "spec_tests.vllm.in_tree", NAME],
        cwd=folder,
        env={
            "PYTHONPATH": str(ROOT),
            REGISTERED: registered,
            EVERY: str(part.every),
            "COLUMNS": "400",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def failures(printed: str, policy: str) -> list[list[str]]:
    """What is told of the failures of a policy, each in lines."""
    heading = rf"^_+ test_documented_contract\[{policy}-\w+\] _+$"
    parts = re.split(r"^[_=]{3,} .* [_=]{3,}$", printed, flags=re.M)
    headings = re.findall(r"^[_=]{3,} .* [_=]{3,}$", printed, flags=re.M)
    return [
        part.strip().splitlines()
        for head, part in zip(headings, parts[1:], strict=True)
        if re.match(heading, head)
    ]


@pytest.mark.parametrize("part", PARTS, indirect=True)
def test_sound_policies_pass_by_themselves_and_in_a_manager(part: Part, printed: str) -> None:
    failed = set(re.findall(r"^FAILED .*\[(\w+)-\w+\]", printed, flags=re.M))
    assert failed == {name.partition(":")[2] for name in part.broken}
    assert "error" not in printed.splitlines()[-1]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        *((NINTH, name) for name in BROKEN if name in NINTH.broken),
        *(pytest.param(FIFTH, name, marks=pytest.mark.nightly) for name in BROKEN),
    ],
    indirect=["part"],
)
@pytest.mark.usefixtures("part")
def test_a_broken_policy_is_shown_by_a_short_list_of_calls(printed: str, name: str) -> None:
    told = failures(printed, name.partition(":")[2])
    # The rarest is not met by both in so few programs.
    assert told
    for lines in told:
        assert BROKEN[name] in lines[0]
        assert len(lines) <= 40
        assert all(re.fullmatch(r"  \w+\(.*\)( -> .*)?", line) for line in lines[1:])


def test_the_command_prints_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["in-tree-test"]) == 0
    assert capsys.readouterr().out == in_tree_test()
    assert run(["in-tree-test", "-"]) == 0
    assert capsys.readouterr().out == in_tree_test()


@pytest.mark.parametrize("named", [NAME, "test_of_my_own.py", "."])
def test_the_command_writes_the_file_and_replaces_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    path = tmp_path / (NAME if named == "." else named)
    assert run(["in-tree-test", str(tmp_path / named)]) == 0
    assert path.read_text(encoding="utf-8") == in_tree_test()
    path.write_text("mine", encoding="utf-8")
    assert run(["in-tree-test", str(tmp_path / named)]) == 2
    assert capsys.readouterr().err == f"kvoffload: error: {path}: exists; --force replaces it\n"
    assert path.read_text(encoding="utf-8") == "mine"
    assert run(["in-tree-test", str(tmp_path / named), "--force"]) == 0
    assert path.read_text(encoding="utf-8") == in_tree_test()
    assert list(tmp_path.iterdir()) == [path]


def test_the_command_makes_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["in-tree-test", str(tmp_path / "no" / NAME)]) == 2
    assert "not a file in an existing directory" in capsys.readouterr().err
