"""`kvoffload verify` and what is behind it: verdicts, wording, exit statuses, processes."""

import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from attrs import evolve, frozen

from kvoffload.cli.app import run
from spec_tests.short_trials import shorten
from stateful_models.capabilities import Capabilities
from stateful_models.contract import CLAUSES, Kind, Profile
from stateful_models.trial.request import (
    Answer,
    Digest,
    Progress,
    Request,
    Task,
    Untriable,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from stateful_models.trial.scope import POLICY_SCOPE
from stateful_models.trial.trials import clauses_of, hold_trial
from stateful_models.trial.verdicts import (
    ClauseVerdict,
    MethodReach,
    Outcome,
    Reached,
    Report,
    Verdict,
)

POLICIES = '''
"""Policies of somebody else's."""

import os

from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.invariants import Finding, Invariant


class Fine(LRUCachePolicy):
    def __init__(self, cache_capacity, spare=0):
        super().__init__(cache_capacity)
        self.spare = spare
        if os.environ.get("MOOD") == "bad":
            raise RuntimeError("a bad mood")


class Unprotected(LRUCachePolicy):
    def evict(self, n, protected):
        return super().evict(n, frozenset())


class Refuses(LRUCachePolicy):
    """Of class L and source 0.33."""

    def evict(self, n, protected):
        return None if n > 1 else super().evict(n, protected)


class Prints(LRUCachePolicy):
    def touch(self, keys, req_context):
        print("touched")
        super().touch(keys, req_context)


class Ends(LRUCachePolicy):
    def evict(self, n, protected):
        os._exit(0)


class Hangs(LRUCachePolicy):
    def evict(self, n, protected):
        while n > 1:
            pass
        return super().evict(n, protected)


class NotBuilt(LRUCachePolicy):
    def __init__(self, cache_capacity):
        raise SystemExit(0)


class Half:
    def __init__(self, cache_capacity):
        pass

    def get(self, key):
        return None


class NeverPinned(Invariant):
    """Nothing is ever pinned."""

    clauses = ("OWN-1",)

    def judge(self, step, books):
        if any(count > 0 for count in books.ref_cnt.values()):
            yield Finding("OWN-1", "something is pinned")
'''

Output = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "theirs.py").write_text(POLICIES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reports(arguments: list[str], output: Output, status: int) -> list[dict[str, object]]:
    assert run(["verify", *arguments, "--json", "-"]) == status
    found: list[dict[str, object]] = json.loads(output.readouterr().out)
    return found


def clauses(report: dict[str, object]) -> dict[str, dict[str, object]]:
    listed = report["clauses"]
    assert isinstance(listed, list)
    return {clause["id"]: clause for clause in listed}


@frozen
class Told:
    """What a command has shown, written down, and exported."""

    text: str
    reports: list[dict[str, object]]
    exported: Path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Of a policy with a breach and of one without."""
    place = tmp_path_factory.mktemp("told")
    (place / "theirs.py").write_text(POLICIES)
    targets = ("theirs.py:Unprotected", "theirs.py:Fine")
    written = ("--json", "verdicts.json", "--export", "test_contract.py")
    shown = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(shown):
        patch.chdir(place)
        shorten(patch)
        assert run(["verify", *targets, "--only", "POL-2", *written]) == 1
    found: list[dict[str, object]] = json.loads((place / "verdicts.json").read_text())
    return Told(shown.getvalue(), found, place / "test_contract.py")


def test_a_breach_is_told_with_all_that_helps(told: Told) -> None:
    report, _ = told.reports
    assert report["target"] == "theirs.py:Unprotected"
    assert report["verdict"] == "convicted"
    assert report["profile"] == "vllm"
    assert report["contract"] == "1"
    clause = clauses(report)["POL-2"]
    assert clause["class"] == "S"
    assert clause["source"] == "0.33"
    assert clause["verdict"] == "broken"
    assert clause["seen"] == "the victim a/0 is protected"
    assert clause["consequence"] == "a/0, which the request offered, is gone"
    program = str(clause["program"])
    calls = re.findall(r"' +\d+ \w+\(", program)
    # One store, its end, and an offer that names it again: shorter it cannot be.
    assert len(calls) == 3
    assert "a cache of 1 chunk" in program
    assert "resident pinned pending free" in program


def test_the_tests_that_are_printed_and_exported_fail_as_the_trial_did(told: Told) -> None:
    broken, _ = told.reports
    printed = str(clauses(broken)["POL-2"]["test"])
    assert len(printed.splitlines()) <= 15
    place = told.exported.parent
    (place / "test_theirs.py").write_text(printed)
    files = ("test_theirs.py", "test_contract.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", *files],
        cwd=place,
        env={"PYTHONPATH": f"{place}:{Path(__file__).parents[1]}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    for line, file in zip(failed, files, strict=True):
        assert line.startswith(f"FAILED {file}::")
        assert "BrokenClauseError: POL-2: the victim a/0 is protected" in line


def test_the_table_and_the_breach_can_be_read(told: Told) -> None:
    assert re.search(r"Unprotected +convicted +0 +1 +0 +0", told.text)
    assert re.search(r"Fine +clean +1 +0 +0 +0", told.text)
    assert "theirs.py:Unprotected breaks POL-2" in told.text
    assert "vLLM 0.33 then: a/0, which the request offered, is gone" in told.text


@pytest.mark.usefixtures("short_trials")
def test_what_never_ends_and_what_ends_all_are_convicted(place: Path, capsys: Output) -> None:
    ends, hangs = reports(["theirs.py:Ends", "theirs.py:Hangs", "--only", "POL-7"], capsys, 1)
    assert "exited with status 0" in str(clauses(ends)["POL-7"]["seen"])
    assert "evict did not return" in str(clauses(hangs)["POL-7"]["seen"])


@pytest.mark.usefixtures("short_trials")
def test_what_a_target_prints_is_no_result(place: Path, capsys: Output) -> None:
    (report,) = reports(["theirs.py:Prints", "--only", "POL-3"], capsys, 0)
    assert report["verdict"] == "clean"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("theirs.py:NotBuilt", "cannot be built: SystemExit: 0"),
        ("theirs.py:Half", "no policy, for it lacks insert, remove, touch, evict, clear"),
        ("nobody.py:Fine", "no such file"),
        ("nobody", "not registered (lru, arc, sieve, "),
    ],
)
def test_what_cannot_be_tried_says_why(
    place: Path, capsys: Output, target: str, problem: str
) -> None:
    (report,) = reports([target, "--only", "POL-1"], capsys, 2)
    assert report["verdict"] == "untried"
    # The level by default.
    assert report["level"] == "quick"
    assert problem in str(report["problem"])


@pytest.mark.usefixtures("short_trials")
def test_an_argument_with_several_values_is_a_trial_each(place: Path, capsys: Output) -> None:
    found = reports(
        ["theirs.py:Fine", "--arg", "spare=0,1.5", "--arg", "spare=none", "--only", "POL-9"],
        capsys,
        0,
    )
    assert [report["arguments"] for report in found] == [
        {"spare": 0},
        {"spare": 1.5},
        {"spare": None},
    ]


def test_the_environment_reaches_the_target(place: Path, capsys: Output) -> None:
    (report,) = reports(["theirs.py:Fine", "--env", "MOOD=bad", "--only", "POL-1"], capsys, 2)
    assert "RuntimeError: a bad mood" in str(report["problem"])
    assert report["environment"] == {"MOOD": "bad"}


@pytest.mark.usefixtures("short_trials")
def test_an_invariant_of_ones_own_convicts(place: Path, capsys: Output) -> None:
    own = ["--invariant", "theirs.py:NeverPinned"]
    (report,) = reports(["theirs.py:Fine", *own, "--only", "OWN-*"], capsys, 1)
    clause = clauses(report)["OWN-1"]
    assert clause["source"] == "NeverPinned"
    assert clause["sentence"] == "Nothing is ever pinned."
    assert "invariants=[NeverPinned()]" in str(clause["test"])


@pytest.mark.usefixtures("short_trials")
def test_a_known_failure_does_not_convict(place: Path, capsys: Output) -> None:
    known = place / "known.txt"
    known.write_text("# ours\ntheirs.py:Unprotected POL-2  # since ever\n")
    options = ["--known-failures", str(known), "--only", "POL-2"]
    (report,) = reports(["theirs.py:Unprotected", *options], capsys, 0)
    assert report["verdict"] == "clean"
    assert clauses(report)["POL-2"]["known"] is True


@pytest.mark.usefixtures("short_trials")
def test_a_known_failure_that_is_none_is_told(place: Path, capsys: Output) -> None:
    known = place / "known.txt"
    known.write_text("theirs.py:Fine POL-9\n")
    (report,) = reports(
        ["theirs.py:Fine", "--known-failures", str(known), "--only", "POL-9"], capsys, 0
    )
    notes = report["notes"]
    assert isinstance(notes, list)
    assert "POL-9 is on the list of known failures, and was not seen broken" in notes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name targets, or logs"),
        (["lru", "--only", "POLL-*"], "no clause is called that"),
        (["lru", "--without", "X"], "no clause is called that"),
        (["lru", "--arg", "spare"], "not of the form NAME=VALUE"),
        (["lru", "--arg", "1=2"], "no name of an argument"),
        (["lru", "--env", "=x"], "not of the form NAME=VALUE"),
        (["lru", "--level", "slow"], "slow"),
        (["lru", "--known-failures", "absent.txt"], "absent.txt"),
        (["lru", "--log", "absent.jsonl"], "not both"),
        (["--log", "absent.jsonl"], "absent.jsonl"),
        (["lru", "--json", "."], "not a file"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(
    place: Path, capsys: Output, arguments: list[str], words: str
) -> None:
    assert run(["verify", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert words in told.err


@pytest.mark.parametrize("line", ["one", "a b c", "lru NOPE-1"])
def test_a_list_of_known_failures_is_read_strictly(place: Path, capsys: Output, line: str) -> None:
    (place / "known.txt").write_text(f"\n{line}\n")
    assert run(["verify", "lru", "--known-failures", "known.txt"]) == 2
    assert "line 2" in capsys.readouterr().err


def test_a_clause_is_explained(capsys: Output) -> None:
    assert run(["explain", "store-6"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("STORE-6\n")
    for part in CLAUSES["STORE-6"].parts:
        assert part.sentence in text
    assert "convicts under: reference, vllm" in text
    assert "convicts under: reference\n" in text
    assert "judged by:" in text


def test_all_clauses_are_listed(capsys: Output) -> None:
    assert run(["explain"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CLAUSES)


def test_an_unknown_clause_is_refused(capsys: Output) -> None:
    assert run(["explain", "STORE-99"]) == 2
    assert "no clause is called that" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("clause", "kind", "vllm"),
    [
        ("POL-2", Kind.SAFETY, True),
        ("POL-2", Kind.HOST, True),
        ("POL-4", Kind.LIVENESS, False),
        ("POL-4", Kind.ADVICE, False),
        ("POL-5", Kind.HOST, False),
        ("POL-7", Kind.SAFETY, True),
        ("POL-8", Kind.CLAIM, True),
        ("STORE-6", Kind.REFERENCE, False),
        ("STORE-12", Kind.LIVENESS, True),
    ],
)
def test_what_convicts_under_each_profile(clause: str, kind: Kind, vllm: bool) -> None:
    part = CLAUSES[clause].part(kind)
    assert part.convicts(Profile.VLLM) is vllm
    assert part.convicts(Profile.REFERENCE) is (kind is not Kind.ADVICE)


def test_a_kind_that_a_clause_lacks_is_an_error() -> None:
    with pytest.raises(KeyError, match="POL-1 A"):
        CLAUSES["POL-1"].part(Kind.ADVICE)


def test_messages_come_back_as_they_were_sent() -> None:
    request = Request(task=Task.POLICY, target="lru", arguments={"a": 1.5}, known=("POL-1",))
    assert decode_request(encode_request(request)) == request
    report = Report(
        target="x",
        verdict=Outcome.CLEAN,
        profile="vllm",
        level="quick",
        clauses=(
            ClauseVerdict(
                id="POL-1", kind="S", source="own", verdict=Verdict.HELD, sentence="Words."
            ),
        ),
        reach=Reached(situations={"eviction": 1}, methods=(MethodReach(name="m", ran=1, lines=2),)),
    )
    answers: list[Answer] = [report, Digest("d"), Progress("random", 0.5), Untriable("why")]
    for answer in answers:
        assert decode_answer(encode_answer(answer)) == answer


@pytest.mark.usefixtures("short_trials")
def test_the_verdict_of_a_manager(capsys: Output) -> None:
    (report,) = reports(
        ["--manager", "cpu", "--only", "STORE-1*", "--profile", "reference"], capsys, 0
    )
    assert report["verdict"] == "clean"
    verdicts = {name: clause["verdict"] for name, clause in clauses(report).items()}
    assert verdicts == dict.fromkeys(["STORE-1", "STORE-10", "STORE-12"], "held")


@pytest.mark.usefixtures("short_trials")
def test_a_broken_manager_is_convicted(capsys: Output) -> None:
    target = "stateful_models.gallery.managers:Store7SlotTwice"
    (report,) = reports(["--manager", target, "--only", "STORE-7"], capsys, 1)
    clause = clauses(report)["STORE-7"]
    assert clause["verdict"] == "broken"
    assert clause["class"] == "S"


def test_claims_and_declines_say_what_does_not_apply() -> None:
    lru = Capabilities(lru=True)
    assert POLICY_SCOPE["LRU-1"].not_applicable(lru) == ""
    assert POLICY_SCOPE["ARC-1"].not_applicable(lru) == "not claimed (arc)"
    shy = evolve(lru, may_refuse="it keeps a reserve")
    assert POLICY_SCOPE["POL-3"].not_applicable(shy) == "declined: it keeps a reserve"


@pytest.mark.usefixtures("short_trials")
def test_a_trial_says_what_it_did_not_reach() -> None:
    report = hold_trial(Request(task=Task.POLICY, target="lru", only=("POL-9",)))
    (clause,) = report.clauses
    assert clause.verdict is Verdict.HELD
    assert "POL-9" in clauses_of(Task.POLICY)
    assert report.reach.methods


@pytest.mark.usefixtures("short_trials")
def test_processes_with_other_hash_seeds_are_compared() -> None:
    target = "stateful_models.gallery.broken_policies.determinism:Pol5SetOrder"
    report = hold_trial(Request(task=Task.POLICY, target=target, only=("POL-5",)))
    assert report.verdict is Outcome.CLEAN
    assert any("under other hash seeds" in note for note in report.notes)


DRIVERS = """
from hypothesis import strategies as st

from stateful_models.drivers import Driver
from stateful_models.invariants import Invariant
from stateful_models.operations import HostEvent


class NoHints(Driver):
    def contexts(self):
        return st.integers()


class NoHost(Driver):
    host = "vLLM"


class Claims(Driver):
    capabilities = 7


class Typo(Driver):
    def host_events(self):
        return st.just(HostEvent("clsoe", ()))


class Raises(Driver):
    def evict(self, policy, count, protected, context):
        raise RuntimeError("out of the driver")


class Tired(Driver):
    built = 0

    def build(self, capacity):
        Tired.built += 1
        if Tired.built > 5:
            raise RuntimeError("too tired")
        return super().build(capacity)


class Judging(Invariant):
    def judge(self, step, books):
        raise LookupError("lost")


class Leaving(Invariant):
    def judge(self, step, books):
        raise SystemExit(0)


class Endless(Invariant):
    def judge(self, step, books):
        while True:
            pass
"""


@pytest.mark.parametrize(
    ("option", "name", "problem"),
    [
        ("--driver", "NoHints", "contexts() gives"),
        ("--driver", "NoHost", "host is no HostProtocol"),
        ("--driver", "Claims", "capabilities is no Capabilities"),
        ("--driver", "Typo", "host_events has clsoe"),
        ("--driver", "Raises", "the driver failed: RuntimeError: out of the driver"),
        ("--driver", "Tired", "RuntimeError: too tired"),
        ("--invariant", "Judging", "an invariant failed: raised LookupError: lost"),
        ("--invariant", "Leaving", "SystemExit"),
        ("--invariant", "Endless", "an invariant failed: judging"),
    ],
)
@pytest.mark.usefixtures("short_trials")
def test_what_is_wrong_around_a_policy_is_not_its_fault(
    place: Path, capsys: Output, option: str, name: str, problem: str
) -> None:
    (place / "around.py").write_text(DRIVERS)
    trial = ["theirs.py:Fine", option, f"around.py:{name}", "--only", "POL-3"]
    (report,) = reports(trial, capsys, 2)
    assert report["verdict"] == "untried"
    assert problem in str(report["problem"])
    assert "not asked again" not in str(report["problem"])
