"""`kvoffload replay`: what it reports, and whom it convicts."""

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvoffload.cli import run
from kvoffload.cli.targets import find_policy, refuses_by_design
from spec_tests.cli_helpers import QUICK, TARGETS, Output, reports


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    path = tmp_path / "targets.py"
    path.write_text(TARGETS, "utf-8")
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests and a bad line."""
    path = tmp_path / "trace.jsonl"
    request = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}
    lines = [json.dumps(request | {"timestamp": t}) for t in (0, 9000)]
    path.write_text("\n".join([*lines, "{bad", lines[-1]]), "utf-8")
    return path


class TestResults:
    def test_without_a_trace_the_sample_under_lru_and_arc(self, capsys: Output) -> None:
        assert run(["replay", *QUICK]) == 0
        out, err = capsys.readouterr()
        assert "mooncake_conversation_1000.jsonl.gz (mooncake): 150 requests" in out
        assert "tokens/s" in out
        rows = re.findall(r"^ (lru|arc) +([\d,]+) ", out, re.MULTILINE)
        assert rows == [("lru", "203"), ("arc", "203"), ("lru", "813"), ("arc", "813")]
        assert "lru, 203 chunks: 150 of 150" in err

    def test_room_for_everything_hits_all_that_repeats(self, capsys: Output) -> None:
        assert run(["replay", "--capacity", "infinite", "--json", "-"]) == 0
        lru, arc = reports(capsys.readouterr().out)
        assert (lru.policy, arc.policy) == ("lru", "arc")
        for report in (lru, arc):
            assert report.capacity == 21514
            assert report.block_hit_ratio == report.max_block_hit_ratio == 0.212086
            assert report.evicted == 0

    def test_one_object_for_each_policy_and_capacity(self, capsys: Output, tmp_path: Path) -> None:
        target = tmp_path / "out.json"
        capacities = ["--capacity", "100", "--capacity", "300"]
        assert run(["replay", *QUICK, "--policy", "arc", *capacities, "--json", str(target)]) == 0
        found = reports(target.read_text("utf-8"))
        assert [(report.policy, report.capacity) for report in found] == [
            ("arc", 100),
            ("arc", 300),
        ]
        assert "arc" in capsys.readouterr().out

    def test_json_alone_goes_to_standard_output(self, capsys: Output) -> None:
        assert run(["replay", *QUICK, "--capacity", "100", "--json", "-"]) == 0
        out, err = capsys.readouterr()
        assert len(reports(out)) == 2
        assert "policy" in err

    def test_a_size_in_bytes(self, capsys: Output) -> None:
        options = ["--capacity", "8GiB", "--chunk-bytes", "64MiB", "--policy", "lru"]
        assert run(["replay", *QUICK, *options, "--json", "-"]) == 0
        assert reports(capsys.readouterr().out)[0].capacity == 128

    def test_what_the_format_does_not_know_is_null(self, capsys: Output, tmp_path: Path) -> None:
        path = tmp_path / "accesses"
        path.write_bytes(b"".join(struct.pack("<IQIq", t, t % 3, 1, -1) for t in range(9)))
        options = ["--format", "oracleGeneral", "--capacity", "infinite", "--json", "-"]
        assert run(["replay", str(path), *options]) == 0
        for report in reports(capsys.readouterr().out):
            assert (report.requests, report.token_hit_ratio) == (None, None)
            assert (report.blocks, report.block_hit_ratio) == (9, 0.666667)

    def test_csv_by_name_only(self, capsys: Output, tmp_path: Path) -> None:
        path = tmp_path / "accesses.csv"
        path.write_text("what;when\na;1\nb;2\na;3\n", "utf-8")
        options = ["--csv-columns", "time-col=2,obj-id-col=1", "--csv-delimiter", ";"]
        assert run(["replay", str(path), *options]) == 2
        capsys.readouterr()
        options += ["--format", "csv", "--capacity", "infinite", "--json", "-"]
        assert run(["replay", str(path), *options]) == 0
        assert reports(capsys.readouterr().out)[0].block_hit_ratio == 0.333333

    def test_failures_and_resets_happen_when_asked_for(self, capsys: Output) -> None:
        options = ["--fail-rate", "0.2", "--reset-at", "20", "--reset-at", "30.5"]
        assert run(["replay", *QUICK, *options, "--capacity", "infinite", "--json", "-"]) == 0
        for report in reports(capsys.readouterr().out):
            assert report.resets == 2
            assert report.failed_stores > 0
            assert report.block_hit_ratio < report.max_block_hit_ratio

    @pytest.mark.parametrize("width", [80, 120])
    def test_fits_the_terminal(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch, width: int
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        assert run(["replay", *QUICK, "--check", "--fail-rate", "0.1", "--reset-at", "9"]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= width
        assert "…" not in out

    def test_policies_of_one_name_are_told_apart(
        self, capsys: Output, targets: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        other = targets.parent / "elsewhere" / targets.name
        other.parent.mkdir()
        other.write_text(TARGETS, "utf-8")
        names = [f"{targets}:Fine", f"{other}:Fine", f"{targets}:Moody", "lru"]
        options = [f"--policy={name}" for name in names]
        assert run(["replay", *QUICK, "--check", "--capacity", "1000", *options]) == 0
        out = capsys.readouterr().out
        rows = re.findall(r"^ (\S.*?) +1,000 ", out, re.MULTILINE)
        assert rows == ["Fine (1)", "Fine (2)", "Moody", "lru"]
        assert f"\nFine (1) is {names[0]}\nFine (2) is {names[1]}\n" in out

    def test_a_name_that_nearly_fits_is_folded(
        self, capsys: Output, targets: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        text = targets.read_text("utf-8") + "\n\nclass SessionSegmentedLRU(Fine):\n    pass\n"
        targets.write_text(text, "utf-8")
        options = [f"--policy={targets}:SessionSegmentedLRU", "--capacity", "1000"]
        assert run(["replay", *QUICK, "--check", *options]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        (row,) = re.findall(r"^ (\S+) +1,000 .*\n (\S+) *$", out, re.MULTILINE)
        assert "".join(row) == "SessionSegmentedLRU"
        assert "(1)" not in out

    @pytest.mark.parametrize(("width", "folded"), [("80", True), ("200", False)])
    def test_a_long_name_is_never_cut(
        self,
        capsys: Output,
        targets: Path,
        monkeypatch: pytest.MonkeyPatch,
        width: str,
        folded: bool,
    ) -> None:
        monkeypatch.setenv("COLUMNS", width)
        name = "ANameThatIsLongerThanWhatATableOfEightyColumnsHasRoomFor"
        options = [f"--policy={targets}:{name}", "--policy", "lru", "--capacity", "20%"]
        assert run(["replay", *QUICK, "--check", *options]) == 0
        out = capsys.readouterr().out
        rows = re.findall(r"^ (\S+) +813 ", out, re.MULTILINE)
        assert rows == ["(1)" if folded else name, "lru"]
        assert (f"\n(1) is {targets}:{name}\n" in out) is folded


class TestBadLines:
    def test_stop_with_file_and_line(self, capsys: Output, trace: Path) -> None:
        assert run(["replay", str(trace)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(r"kvoffload: error: \S+/trace\.jsonl:3: .+\n", err)

    def test_or_are_counted(self, capsys: Output, trace: Path) -> None:
        options = ["--skip-bad-lines", "--capacity", "infinite", "--json", "-"]
        assert run(["replay", str(trace), *options]) == 0
        for report in reports(capsys.readouterr().out):
            assert (report.requests, report.skipped_lines) == (3, 1)
            # Two of three prompts were there; each has 512 and 488 tokens.
            assert (report.block_hit_ratio, report.token_hit_ratio) == (0.666667, 0.666667)


HUGE = "9" * 400
DEEP = "[" * 100_000 + "]" * 100_000


class TestHostileLines:
    """The trace is to blame, not the manager; and never with a traceback."""

    FIRST = '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}'

    @pytest.mark.parametrize(
        "bad",
        [
            FIRST.replace("1000", HUGE),
            FIRST.replace("5", HUGE, 1),
            FIRST.replace("0", "1e308", 1),
            FIRST.replace("[1, 2]", f"[{HUGE}, 2]"),
            FIRST.replace('{"', f'{{"x": {DEEP}, "', 1),
        ],
        ids=["input", "output", "time", "id", "depth"],
    )
    def test_a_number_or_a_depth_beyond_bounds_is_a_bad_line(
        self, capsys: Output, tmp_path: Path, bad: str
    ) -> None:
        path = tmp_path / "trace.jsonl"
        for place, lines in ((2, [self.FIRST, bad]), (1, [bad, self.FIRST])):
            path.write_text("\n".join(lines), "utf-8")
            assert run(["replay", str(path)]) == 2
            err = capsys.readouterr().err
            assert re.fullmatch(rf"kvoffload: error: \S+/trace\.jsonl:{place}: .+\n", err)
            assert len(err) < 500
            options = ["--skip-bad-lines", "--policy", "lru", "--capacity", "2", "--json", "-"]
            assert run(["replay", str(path), *options]) == 0
            (report,) = reports(capsys.readouterr().out)
            assert (report.requests, report.skipped_lines) == (1, 1)


class TestChecked:
    def test_ours_hold(self, capsys: Output) -> None:
        options = ["--check", "--fail-rate", "0.05", "--reset-at", "40", "--capacity", "5%"]
        assert run(["replay", "--limit", "400", *options, "--json", "-"]) == 0
        for report in reports(capsys.readouterr().out):
            assert report.violations == 0
            assert report.checks >= 3 * report.steps > 0
            assert min(report.evicted, report.failed_stores, report.resets) > 0

    def test_checking_changes_nothing(self, capsys: Output) -> None:
        common = ["replay", *QUICK, "--capacity", "100", "--fail-rate", "0.1", "--json", "-"]
        assert run(common) == 0
        plain = reports(capsys.readouterr().out)
        assert run([*common, "--check"]) == 0
        for before, after in zip(plain, reports(capsys.readouterr().out), strict=True):
            assert msgspec.structs.replace(after, checks=0) == before

    @pytest.mark.parametrize(("manager", "clause"), [("Eager", "LOOK-1"), ("Hushed", "EVT-1")])
    def test_a_broken_manager_is_convicted_by_clause(
        self, capsys: Output, targets: Path, manager: str, clause: str
    ) -> None:
        options = ["--check", "--capacity", "100", "--policy", "lru", "--fail-rate", "0.2"]
        options += ["--manager", f"{targets}:{manager}"]
        assert run(["replay", *QUICK, *options]) == 1
        out = capsys.readouterr().out
        assert f"targets.py:{manager} with lru at 100 chunks breaks {clause}\n" in out
        assert "last calls:" in out

    def test_a_right_manager_of_somebody_else_is_not(self, targets: Path) -> None:
        options = ["--check", "--capacity", "100", "--fail-rate", "0.2", "--reset-at", "20"]
        assert run(["replay", *QUICK, *options, "--manager", f"{targets}:Exact"]) == 0

    def test_an_exception_is_told_once_and_with_short_keys(
        self, capsys: Output, targets: Path
    ) -> None:
        options = ["--check", "--policy", "lru", "--capacity", "100"]
        assert run(["replay", *QUICK, *options, "--manager", f"{targets}:Emptying"]) == 1
        out = capsys.readouterr().out
        message = "prepare_load raised ChunkNotFoundError: prepare_load: 0/0 is not resident"
        assert f"  found: {message}\n  the run ended there\n" in out
        assert "ended with an exception" not in out
        assert "\\x00" not in out
        options.remove("--check")
        assert run(["replay", *QUICK, *options, "--manager", f"{targets}:Emptying"]) == 1
        out = capsys.readouterr().out
        assert out.count("ChunkNotFoundError: prepare_load: 0/0 is not resident\n") == 1

    def test_the_place_of_a_cause_is_told_with_it(self, capsys: Output, targets: Path) -> None:
        options = ["--check", "--policy", f"{targets}:Raises", "--capacity", "100"]
        assert run(["replay", *QUICK, *options]) == 1
        out = capsys.readouterr().out
        assert "it raised RuntimeError: out of ideas\n" in out
        assert re.search(r"^  the run ended there; raised at targets\.py:\d+ in evict$", out, re.M)
        # In the violation, and in the last of the calls.
        assert out.count("out of ideas") == 2

    def test_one_s_own_invariants_judge_beside_the_others(
        self, capsys: Output, targets: Path
    ) -> None:
        names = [f"--invariant={targets}:{name}" for name in ("SmallBatches", "Unlisted")]
        options = ["--check", "--policy", "lru", "--capacity", "300", *names]
        assert run(["replay", *QUICK, *options, "--json", "-"]) == 1
        out, err = capsys.readouterr()
        (report,) = reports(out)
        assert report.violated_clauses == ["OWN-1", "OWN-2"]
        assert report.checks >= 3 * report.steps > 0
        assert "lru at 300 chunks breaks OWN-1\n  promised: No offer evicts more than" in err
        assert re.search(
            r"breaks OWN-2\n  promised: Names another .*\n"
            r"  found: \d+ at once \(found by Unlisted, which does not list OWN-2\)\n",
            err,
        )
        options += ["--manager", f"{targets}:Eager", "--json", "-"]
        assert run(["replay", *QUICK, *options]) == 1
        assert "LOOK-1" in reports(capsys.readouterr().out)[0].violated_clauses

    def test_an_invariant_that_raises_is_reported_and_the_run_goes_on(
        self, capsys: Output, targets: Path
    ) -> None:
        options = ["--check", "--policy", "lru", "--capacity", "1"]
        options += ["--invariant", f"{targets}:Fails", "--json", "-"]
        assert run(["replay", *QUICK, *options]) == 1
        out, err = capsys.readouterr()
        (report,) = reports(out)
        assert (report.requests, report.violations) == (150, 1)
        assert report.violated_clauses == ["Fails"]
        assert re.search(
            r"^the invariant Fails failed while it judged \S+ with lru at 1 chunk\n"
            r"  found: raised KeyError: 0/0 in Fails\.judge \(targets\.py:\d+\)",
            err,
            re.MULTILINE,
        )

    @pytest.mark.parametrize(("policy", "status"), [("Moody", 0), ("Sullen", 1)])
    def test_refusing_has_to_be_declared(self, targets: Path, policy: str, status: int) -> None:
        options = ["--check", "--capacity", "100", "--policy", f"{targets}:{policy}"]
        assert run(["replay", *QUICK, *options]) == status

    @pytest.mark.parametrize("check", [[], ["--check"]])
    @pytest.mark.parametrize(
        ("policy", "status"),
        [("stateful_models.gallery.legal_policies.group_evictor:GroupEvictor", 0), ("Discreet", 1)],
    )
    def test_giving_more_than_asked_for_has_to_be_declared(
        self, capsys: Output, targets: Path, check: list[str], policy: str, status: int
    ) -> None:
        name = policy if ":" in policy else f"{targets}:{policy}"
        # So few chunks that something has to go.
        options = ["--limit", "100", "--capacity", "60", "--policy", name]
        assert run(["replay", *check, *options]) == status
        told = capsys.readouterr()
        assert ("instead of" in told.out + told.err) == bool(status)

    @pytest.mark.parametrize("policy", ["Sullen", "Empty", "False_"])
    def test_no_reason_is_no_declaration(self, targets: Path, policy: str) -> None:
        assert not refuses_by_design(find_policy(f"{targets}:{policy}"), policy)
        assert refuses_by_design(find_policy(f"{targets}:Moody"), "Moody")

    def test_unchecked_a_broken_manager_passes(self, targets: Path) -> None:
        """What did not run is not called held: the report says 0 checks."""
        options = ["--capacity", "100", "--manager", f"{targets}:Hushed"]
        assert run(["replay", *QUICK, *options]) == 0

    def test_works_without_hypothesis(self) -> None:
        program = (
            "import sys; sys.modules['hypothesis'] = sys.modules['pytest'] = None; "
            "from kvoffload.cli import run; "
            "sys.exit(run(['replay', '--limit', '20', '--check']))"
        )
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
