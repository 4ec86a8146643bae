"""What the command line is asked to try, and what it says when it cannot."""

import re
import sys
from pathlib import Path

import pytest

from kvoffload.cli import run
from kvoffload.cli.problems import UsageError
from kvoffload.cli.targets import find_policy
from kvoffload.errors import PolicyContractError
from spec_tests.cli_helpers import QUICK, TARGETS, Output, reports
from stateful_models.loading import describe


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    path = tmp_path / "targets.py"
    path.write_text(TARGETS, "utf-8")
    return path


class TestTargets:
    def test_a_class_of_a_file(self, capsys: Output, targets: Path) -> None:
        options = ["--policy", f"{targets}:Fine", "--policy", "lru", "--capacity", "100"]
        assert run(["replay", *QUICK, *options, "--json", "-"]) == 0
        fine, lru = reports(capsys.readouterr().out)
        assert fine.policy == f"{targets}:Fine"
        assert (fine.block_hit_ratio, fine.evicted) == (lru.block_hit_ratio, lru.evicted)

    def test_a_class_of_a_module(self, capsys: Output) -> None:
        options = ["--policy", "kvoffload.policies.arc:ARCCachePolicy", "--capacity", "100"]
        assert run(["replay", *QUICK, *options]) == 0

    def test_a_module_of_the_current_directory(
        self, targets: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(targets.parent)
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
        assert run(["replay", *QUICK, "--policy", "targets:Fine", "--capacity", "100"]) == 0

    def test_files_of_one_name_are_two_modules(self, targets: Path) -> None:
        other = targets.parent / "elsewhere" / targets.name
        other.parent.mkdir()
        other.write_text(TARGETS, "utf-8")
        first, again = find_policy(f"{targets}:Fine"), find_policy(f"{targets}:Fine")
        assert first is again
        assert find_policy(f"{other}:Fine") is not first

    def test_a_policy_that_raises_ends_its_run_only(self, capsys: Output, targets: Path) -> None:
        options = ["--policy", f"{targets}:Raises", "--policy", "lru", "--capacity", "100"]
        assert run(["replay", *QUICK, *options, "--json", "-"]) == 1
        out, err = capsys.readouterr()
        raises, lru = reports(out)
        assert raises.error is not None
        assert "PolicyContractError: Raises.evict broke" in raises.error
        assert "RuntimeError: out of ideas at targets.py:" in raises.error
        assert lru.error is None
        assert "ended with an exception" in err

    @pytest.mark.parametrize(
        ("policy", "words"),
        [
            ("Leaves", r"SystemExit: 0 at targets\.py:\d+ in evict"),
            ("LeavesEarly", r"SystemExit: 0 at targets\.py:\d+ in insert"),
            ("Closes", r"GeneratorExit at targets\.py:\d+ in evict"),
            ("Base", r"BaseException: of no kind at targets\.py:\d+ in evict"),
            ("NoTrace", r".*TraceError: of my own.*"),
        ],
    )
    @pytest.mark.parametrize("check", [[], ["--check"]], ids=["", "checked"])
    def test_no_exception_is_a_way_out(
        self, capsys: Output, targets: Path, policy: str, words: str, check: list[str]
    ) -> None:
        options = ["--policy", f"{targets}:{policy}", "--policy", "lru", "--capacity", "100"]
        assert run(["replay", *QUICK, *options, *check, "--json", "-"]) == 1
        out, err = capsys.readouterr()
        left, lru = reports(out)
        assert left.error is not None
        assert re.fullmatch(words, left.error)
        assert lru.error is None
        if policy != "NoTrace" or not check:
            assert f"ended with an exception\n  raised {left.error}\n" in err

    def test_an_exception_without_words(self, capsys: Output, targets: Path) -> None:
        options = ["--manager", f"{targets}:Speechless", "--policy", "lru", "--capacity", "100"]
        assert run(["replay", *QUICK, *options]) == 1
        words = (
            r"^  raised Silent: \(its words cannot be had: RuntimeError\) at targets\.py:\d+ in "
        )
        assert re.search(words, capsys.readouterr().out, re.MULTILINE)

    def test_a_manager_that_hides_how_it_is_completed(self, capsys: Output, targets: Path) -> None:
        options = ["--manager", f"{targets}:Hiding", "--policy", "lru", "--capacity", "100"]
        assert run(["replay", *QUICK, *options, "--json", "-"]) == 1
        (report,) = reports(capsys.readouterr().out)
        assert report.error is not None
        assert report.error.startswith("SystemExit: 0 at targets.py:")

    def test_what_it_prints_is_kept_off_the_results(self, capsys: Output, targets: Path) -> None:
        targets.write_text(f"{TARGETS}\nprint('a policy is made')\n", "utf-8")
        options = ["--policy", f"{targets}:Talkative", "--capacity", "100", "--json", "-"]
        assert run(["replay", *QUICK, *options]) == 0
        out, err = capsys.readouterr()
        assert len(reports(out)) == 1
        for words in ("a policy is made\n", "built\n", "evicting\n"):
            assert words in err

    def test_a_file_may_import_its_siblings(self, tmp_path: Path) -> None:
        (tmp_path / "beside_the_target.py").write_text(TARGETS, "utf-8")
        path = tmp_path / "mine.py"
        path.write_text("from beside_the_target import Fine\n", "utf-8")
        before = list(sys.path)
        assert find_policy(f"{path}:Fine")
        assert sys.path == before
        other = tmp_path / "other.py"
        other.write_text("import no_sibling\n", "utf-8")
        with pytest.raises(UsageError, match=r"other\.py: cannot be loaded: .*no_sibling"):
            find_policy(f"{other}:Fine")
        assert sys.path == before

    def test_a_constructor_that_raises_is_one_line(self, capsys: Output, targets: Path) -> None:
        policy = f"{targets}:Unready"
        assert run(["replay", *QUICK, "--policy", policy, "--capacity", "100"]) == 2
        assert re.fullmatch(
            rf"kvoffload: error: --policy {policy}: cannot be built: "
            r"ValueError: no 100 chunks at targets\.py:\d+ in __init__\n",
            capsys.readouterr().err,
        )

    def test_what_is_complete_is_shown_before_the_line(
        self, capsys: Output, targets: Path, tmp_path: Path
    ) -> None:
        target = tmp_path / "out.json"
        options = ["--policy", f"{targets}:Unready300", "--capacity", "100", "--capacity", "300"]
        assert run(["replay", *QUICK, *options, "--json", str(target)]) == 2
        out, err = capsys.readouterr()
        assert re.search(r"^ Unready300 +100 ", out, re.MULTILINE)
        assert "ValueError: too many" in err.splitlines()[-1]
        assert [report.capacity for report in reports(target.read_text("utf-8"))] == [100]

    def test_modules_of_files_go_by_the_name_of_the_file(
        self, capsys: Output, targets: Path
    ) -> None:
        options = ["--check", "--policy", f"{targets}:Leaky", "--capacity", "100"]
        assert run(["replay", *QUICK, *options]) == 1
        out = capsys.readouterr().out
        assert "RuntimeError: <class 'targets.py:Leaky'> of targets.py\n" in out
        assert "kvoffload_target" not in out


MISUSES: dict[str, list[str]] = {
    "not registered (lru, arc": ["--policy", "mru"],
    "it lacks get, insert, remove, touch, evict, clear": ["--policy", "{targets}:NoPolicy"],
    "has no Gone": ["--policy", "{targets}:Gone"],
    "is not a class but int": ["--policy", "{targets}:HOLLOW"],
    "no such file": ["--policy", "{targets}.py:Fine"],
    "cannot be imported: No module named 'nowhere'": ["--policy", "nowhere:Fine"],
    "neither pkg.mod:Class nor file.py:Class": ["--manager", "lru"],
    "not a subclass of OffloadingManager": ["--manager", "{targets}:NoPolicy"],
    "Unbuildable: cannot be built with lru: TypeError: ": ["--manager", "{targets}:Unbuildable"],
    "Fine needs --check": ["--invariant", "{targets}:Fine"],
    "not a subclass of stateful_models' Invariant": ["--check", "--invariant", "{targets}:Fine"],
    "it lacks judge": ["--check", "--invariant", "stateful_models.invariants:Invariant"],
    ": cannot be built: RuntimeError: no rules at targets.py:": [
        "--check",
        "--invariant",
        "{targets}:Unruly",
    ],
    "NeverAsked: it is concerned with Evict only, which its subject is never called with": [
        "--check",
        "--invariant",
        "{targets}:NeverAsked",
    ],
    "OfPoliciesToo: it judges the calls of a policy (Invariant[PolicyBooks]), and a replay": [
        "--check",
        "--invariant",
        "{targets}:OfPoliciesToo",
    ],
    "targets.py:NoPolicy is no cache policy": ["--policy", "{targets}:NoPolicy"],
    "it lacks lookup": ["--manager", "kvoffload:OffloadingManager"],
    "error: --capacity 8GiB needs --chunk-bytes\n": ["--capacity", "8GiB"],
    "capacity must be a number of chunks": ["--capacity", "many"],
    "chunk-bytes must be bytes": ["--chunk-bytes", "big"],
    "prefill_rate must be positive": ["--prefill-rate", "0"],
    "resets must be seconds": ["--reset-at", "inf"],
    "--fail-rate": ["--fail-rate", "2"],
    "--limit": ["--limit", "0"],
    "--json": ["--json", "{targets}/out.json"],
    "No such file": ["{targets}.jsonl"],
    "neither a Mooncake": ["{targets}"],
    "csv columns must be": ["--csv-columns", "1,2"],
    "--nonsense": ["--nonsense"],
    "resets must be seconds, finite": ["--limit", "5", "--reset-at", "1", "--reset-at", "inf"],
    "got '99999": ["--capacity", "9" * 5000],
    "got '0.99999": ["--capacity", f"0.{'9' * 5000}%"],
    "got '1,999": ["--capacity", f"1{',999' * 2000}"],
    "chunk-bytes must be bytes, such as": ["--chunk-bytes", "9" * 400],
    "got 'time-col=99999": ["--csv-columns", f"time-col={'9' * 5000},obj-id-col=1"],
    "prefill_rate must be positive and at most 1e+100": ["--prefill-rate", "1e200"],
    "Guarded: RuntimeError: no ": ["--policy", "{targets}:Guarded"],
    "NeverBuilt: cannot be built: SystemExit: 0 at ": ["--policy", "{targets}:NeverBuilt"],
    "NeverBuiltManager: cannot be built with lru: SystemExit: 0 at ": [
        "--manager",
        "{targets}:NeverBuiltManager",
    ],
    "LeavesJudge: cannot be built: SystemExit: 0 at ": [
        "--check",
        "--invariant",
        "{targets}:LeavesJudge",
    ],
}


class TestMisuse:
    @pytest.mark.parametrize("words", MISUSES)
    def test_one_line_and_exit_2(self, capsys: Output, targets: Path, words: str) -> None:
        if words == "neither a Mooncake":
            targets.write_text('{"prompt": "hello"}\n', "utf-8")
        arguments = [argument.format(targets=targets) for argument in MISUSES[words]]
        assert run(["replay", *arguments]) == 2
        out, err = capsys.readouterr()
        # Nothing is announced that then is not done; what is built is, for each run anew.
        assert out == "" or "cannot be built" in err
        assert err.count("\n") == 1, err
        assert err.startswith("kvoffload: error: ")
        assert words in err

    def test_a_file_that_cannot_be_loaded(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.py"
        path.write_text("1 / 0\n", "utf-8")
        with pytest.raises(UsageError, match=r"ZeroDivisionError: .* at broken\.py:1"):
            find_policy(f"{path}:Fine")
        path.write_text("x = 1\ndef f(:\n", "utf-8")
        with pytest.raises(UsageError, match=r"SyntaxError: invalid syntax at broken\.py:2$"):
            find_policy(f"{path}:Fine")
        path.write_text("raise SystemExit(3)\n", "utf-8")
        with pytest.raises(UsageError, match=r"SystemExit: 3 at broken\.py:1"):
            find_policy(f"{path}:Fine")
        path.write_text("raise GeneratorExit\n", "utf-8")
        with pytest.raises(UsageError, match=r"GeneratorExit at broken\.py:1"):
            find_policy(f"{path}:Fine")
        # It is loaded anew once it was mended.
        path.write_text(TARGETS, "utf-8")
        assert find_policy(f"{path}:Fine")

    def test_a_file_that_exits_is_no_success(self, capsys: Output, tmp_path: Path) -> None:
        path = tmp_path / "leaves.py"
        path.write_text("import sys\nsys.exit(0)\n", "utf-8")
        for option in (["--policy"], ["--manager"], ["--check", "--invariant"]):
            assert run(["replay", *QUICK, *option, f"{path}:Fine"]) == 2
            words = f"{path}: cannot be loaded: SystemExit: 0 at leaves.py:2 in <module>"
            assert capsys.readouterr() == ("", f"kvoffload: error: {words}\n")

    def test_our_own_errors_are_shown_with_their_cause(self) -> None:
        try:
            try:
                raise KeyError("k")
            except KeyError as cause:
                raise PolicyContractError("P", "get", "POL-7", "it raised") from cause
        except PolicyContractError as error:
            text = describe(error)
        assert text.startswith("PolicyContractError: P.get broke POL-7: it raised (KeyError: 'k'")
