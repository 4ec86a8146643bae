"""Clauses of an author's own, in a trial: chosen, known, explained and run again like any other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvoffload.cli.app import run
from spec_tests.cli_helpers import Output
from stateful_models.loading import TargetError
from stateful_models.own_invariants import built_with, class_of_own, find_own

THEIRS = '''
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.account import Account
from stateful_models.invariants import Finding, Invariant, PolicyBooks
from stateful_models.operations import Evict, Insert, PrepareStore


class Fine(LRUCachePolicy):
    def __init__(self, cache_capacity, spare=2):
        super().__init__(cache_capacity)


class FewAtOnce(Invariant):
    """No more than `spare` chunks go at once."""

    clauses = ("OWN-1", "OWN-2")
    concerns = (Evict,)

    def __init__(self, spare, capacity):
        self.spare, self.capacity = spare, capacity

    def judge(self, step, books):
        if len(books.slots) > self.capacity:
            yield Finding("OWN-2", "the capacity is another")
        if step.operation.count > self.spare:
            yield Finding("OWN-1", f"{step.operation.count} of {self.capacity} at once")


class OfPolicies(FewAtOnce, Invariant[PolicyBooks]):
    """Those of a policy."""


class OfManagers(FewAtOnce, Invariant[Account]):
    """Those of a manager."""


class Closes(Invariant):
    """Who closes has closed no more than one."""

    clauses = ("OWN-3",)

    def judge(self, step, books):
        if isinstance(step.operation, PrepareStore) and len(books.slots) > 1:
            yield Finding("OWN-3", "closed")


def few(spare):
    """A factory."""
    return FewAtOnce(spare, 100)


def seven():
    return 7


class Coloured(FewAtOnce):
    def __init__(self, colour):
        super().__init__(1, 1)
'''
CONDITION = "        if isinstance(step.operation, PrepareStore) and len(books.slots) > 1:"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "theirs.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


OWN = ["--invariant", "theirs.py:FewAtOnce"]


def verdicts(arguments: list[str], output: Output, status: int) -> dict[str, dict[str, object]]:
    assert run(["verify", "theirs.py:Fine", *arguments, "--json", "-"]) == status
    (report,) = json.loads(output.readouterr().out)
    return {clause["id"]: clause for clause in report["clauses"]}


@pytest.mark.usefixtures("short_trials")
def test_globs_choose_among_them_alone(place: Path, capsys: Output) -> None:
    found = verdicts([*OWN, "--invariant", "theirs.py:Closes", "--only", "OWN-*"], capsys, 1)
    assert {name: clause["verdict"] for name, clause in found.items()} == {
        "OWN-1": "broken",
        "OWN-2": "held",
        "OWN-3": "not reached",
    }
    line = 1 + THEIRS.splitlines().index(CONDITION)
    assert found["OWN-3"]["reason"] == (
        f"theirs.py, line {line}: `len(books.slots) > 1` was never evaluated "
        "(what stands before it was never true)"
    )
    assert (found["OWN-1"]["invariant"], found["OWN-2"]["programs"]) == ("FewAtOnce", None)
    # What the target is built with by itself, and a test that says so.
    assert str(found["OWN-1"]["seen"]).startswith("3 of ")
    assert "FewAtOnce(spare=2, capacity=3)" in str(found["OWN-1"]["test"])


@pytest.mark.usefixtures("short_trials")
def test_they_follow_the_arguments_of_the_target(place: Path, capsys: Output) -> None:
    few = ["--invariant", "theirs.py:few", "--arg", "spare=4", "--only", "OWN-1"]
    found = verdicts(few, capsys, 1)
    assert found.keys() == {"OWN-1"}
    assert "few(spare=4)" in str(found["OWN-1"]["test"])


@pytest.mark.usefixtures("short_trials")
def test_they_can_be_left_out_and_be_known(place: Path, capsys: Output) -> None:
    assert run(["verify", "theirs.py:Fine", *OWN, "--only", "POL-9"]) == 0
    text = capsys.readouterr().out
    assert "theirs.py:FewAtOnce was not asked: none of its clauses is among those" in text
    assert "OWN-" not in text
    (place / "known.txt").write_text("theirs.py:Fine OWN-1\n")
    options = [*OWN, "--only", "OWN-*", "--known-failures", "known.txt"]
    assert verdicts(options, capsys, 0)["OWN-1"]["known"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--only", "OWN-1"],
            "--only OWN-1: no clause is called that (`kvoffload explain` lists them; one of your "
            "own is known with its --invariant)",
        ),
        (
            [*OWN, "--only", "OWN-3"],
            "no clause is called that (the invariants given judge OWN-1, OWN-2)",
        ),
        (["--invariant", "theirs.py:Lost", "--only", "OWN-1"], "theirs.py has no Lost"),
        (["--invariant", "theirs.py:seven", "--only", "X"], "makes no invariant"),
    ],
)
def test_what_none_of_them_is_called_is_refused(
    place: Path, capsys: Output, arguments: list[str], words: str
) -> None:
    assert run(["verify", "theirs.py:Fine", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("short_trials")
def test_a_parameter_that_nobody_gives_is_told(place: Path, capsys: Output) -> None:
    assert run(["verify", "theirs.py:Fine", "--invariant", "theirs.py:Coloured"]) == 2
    text = capsys.readouterr().out
    assert "theirs.py:Coloured: cannot be built: it takes colour, which is neither" in text


def test_they_are_explained(place: Path, capsys: Output) -> None:
    assert run(["explain", "OWN-1", *OWN]) == 0
    text = capsys.readouterr().out
    assert text.startswith("OWN-1\n  No more than `spare` chunks go at once.\n")
    assert "the invariant FewAtOnce, in every program of the engines random, hostile hints" in text
    assert run(["explain", *OWN]) == 0
    assert "OWN-2     C No more than" in capsys.readouterr().out
    assert run(["explain", "OWN-9", *OWN]) == 2
    assert "no clause is called that (the invariants given judge" in capsys.readouterr().err


def test_whose_calls_they_judge_is_explained(place: Path, capsys: Output) -> None:
    told: dict[str, str] = {}
    for name in ("OfPolicies", "OfManagers", "FewAtOnce"):
        assert run(["explain", "OWN-1", "--invariant", f"theirs.py:{name}"]) == 0
        told[name] = capsys.readouterr().out
    assert {name: "of managers" in text for name, text in told.items()} == {
        "OfPolicies": False,
        "OfManagers": True,
        "FewAtOnce": True,
    }
    assert "hostile hints" in told["OfPolicies"]
    assert "hostile hints" not in told["OfManagers"]


def test_the_plugin_calls_them_by_their_ids(place: Path) -> None:
    plugin = ["-q", "-p", "no:cacheprovider", "-p", "stateful_models.plugin"]
    plugin += ["-p", "spec_tests.short_trials"]
    trial = ["--kvoffload-policy", "theirs.py:Fine", "--kvoffload-invariant", "theirs.py:FewAtOnce"]

    def tested(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *plugin, *trial, *arguments],
            cwd=place,
            env={"PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    of_ones_own = ("--kvoffload-only", "OWN-*")
    listed = tested("--collect-only", *of_ones_own)
    names = [f"theirs.py:Fine::{name}" for name in ("trial", "OWN-1", "OWN-2")]
    assert listed.splitlines()[:3] == names
    assert "no clause is called that" in tested("--kvoffload-only", "OWM-*")
    # Named among the arguments, a target is run without the other tests.
    (place / "test_other.py").write_text("def test_other(): ...\n")
    alone = tested("--collect-only", "theirs.py:Fine")
    assert "theirs.py:Fine::POL-1" in alone
    assert "test_other" not in alone
    # Why one was skipped, and which, is told to whoever asks.
    trial = [*trial, "--kvoffload-invariant", "theirs.py:Closes"]
    failed = tested("-rs", *of_ones_own, "theirs.py:Fine::OWN-1", "theirs.py:Fine::OWN-3")
    assert "1 failed" in failed
    assert "OWN-1 (C, FewAtOnce): No more than `spare` chunks go at once." in failed
    assert "theirs.py:Fine::OWN-3: not reached: theirs.py, line " in failed


def test_a_class_need_not_be_built_to_have_clauses(place: Path) -> None:
    cls, clauses = class_of_own("theirs.py:Coloured")
    assert (clauses, cls.__name__) == (("OWN-1", "OWN-2"), "Coloured")
    with pytest.raises(TargetError, match="it takes spare, which is neither"):
        class_of_own("theirs.py:few")
    assert class_of_own("theirs.py:few", {"spare": 1})[0].__name__ == "FewAtOnce"


def test_what_makes_one_gets_what_it_asks_for(place: Path) -> None:
    own = find_own("theirs.py:FewAtOnce", {"spare": 3, "unasked": 1})
    assert own.arguments(7) == {"spare": 3, "capacity": 7}
    assert own.kind == "FewAtOnce"
    with pytest.raises(TargetError, match="neither a class nor a factory"):
        find_own("theirs.py:__name__")


def test_arguments_stand_over_defaults() -> None:
    def target(cache_capacity: int, spare: int = 2, *, kind: str = "a") -> None: ...

    assert built_with(target, {"spare": 3}) == {"spare": 3, "kind": "a"}
    assert built_with(7, {"x": 1}) == {"x": 1}


ASKING = """
from kvoffload.policies.lru import LRUCachePolicy


def of(context):
    return context.kv_transfer_params.get("session")


class Asks(LRUCachePolicy):
    def insert(self, key, chunk, req_context):
        of(req_context)
        super().insert(key, chunk, req_context)
"""


@pytest.mark.usefixtures("short_trials")
def test_whoever_raises_on_hints_is_told_where_and_what_no_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    (tmp_path / "asks.py").write_text(ASKING)
    monkeypatch.chdir(tmp_path)
    assert run(["verify", "asks.py:Asks", "--only", "POL-7", "--export", "test_asks.py"]) == 1
    text = capsys.readouterr().out
    assert "'NoneType' object has no attribute 'get' at asks.py:6 in of\n" in text
    assert "it asks for hints (session), and no driver says by `contexts` what" in text
    assert text.endswith("test_asks.py: these trials as tests, for `pytest test_asks.py`\n")
