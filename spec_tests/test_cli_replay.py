"""`kvoffload replay`: what it prints where, and how it exits."""

import json
import re
import signal
import struct
import subprocess
import sys
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from kvoffload.cli import progress, run
from kvoffload.cli.problems import UsageError, describe
from kvoffload.cli.targets import find_policy
from kvoffload.errors import PolicyContractError
from kvoffload.replay import Counts

QUICK = ["--limit", "150"]

TARGETS = '''
"""Policies and managers of somebody else's."""

import os
import signal

from kvoffload import CPUOffloadingManager, LookupResult
from kvoffload.policies.lru import LRUCachePolicy


class Fine(LRUCachePolicy):
    pass


class Raises(LRUCachePolicy):
    def evict(self, n, protected):
        raise RuntimeError("out of\\nideas")


class Moody(LRUCachePolicy):
    """Refuses every other time, and says so."""

    may_refuse = "it is in two minds"
    asked = 0

    def evict(self, n, protected):
        self.asked += 1
        return super().evict(n, protected) if self.asked % 2 else None


class Sullen(Moody):
    """Does the same, and does not say so."""

    may_refuse = None


class NoPolicy:
    pass


class Eager(CPUOffloadingManager):
    """Answers pending chunks as ready."""

    def lookup(self, key, req_context):
        found = super().lookup(key, req_context)
        return LookupResult.HIT if found is LookupResult.HIT_PENDING else found


class Hushed(CPUOffloadingManager):
    """Announces no removal."""

    def take_events(self):
        return [event for event in super().take_events() if not event.removed]


class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)


class Interrupted(CPUOffloadingManager):
    """Where Python would discard the exception of a Ctrl-C."""

    def on_new_request(self, req_context):
        if req_context.req_id == "request-3":
            Finalised()
        return super().on_new_request(req_context)


class Endless(CPUOffloadingManager):
    """Never comes back; the second Ctrl-C has to be enough."""

    def on_new_request(self, req_context):
        while True:
            os.kill(os.getpid(), signal.SIGINT)


class Exact(CPUOffloadingManager):
    """Changes nothing."""


class Unbuildable(CPUOffloadingManager):
    def __init__(self):
        super().__init__(1)


HOLLOW = 3
'''


class Reported(msgspec.Struct):
    """What these tests read of a report."""

    policy: str
    capacity: int
    requests: int | None
    blocks: int
    block_hit_ratio: float
    token_hit_ratio: float | None
    max_block_hit_ratio: float
    evicted: int
    steps: int
    checks: int
    violations: int
    failed_stores: int
    resets: int
    skipped_lines: int
    violated_clauses: list[str]
    error: str | None


def reports(text: str) -> list[Reported]:
    return msgspec.json.decode(text, type=list[Reported])


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


Output = pytest.CaptureFixture[str]


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

    @pytest.mark.parametrize(("policy", "status"), [("Moody", 0), ("Sullen", 1)])
    def test_refusing_has_to_be_declared(self, targets: Path, policy: str, status: int) -> None:
        options = ["--check", "--capacity", "100", "--policy", f"{targets}:{policy}"]
        assert run(["replay", *QUICK, *options]) == status

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


MISUSES: dict[str, list[str]] = {
    "not registered (lru, arc": ["--policy", "mru"],
    "it lacks get, insert, remove, touch, evict, clear": ["--policy", "{targets}:NoPolicy"],
    "has no Gone": ["--policy", "{targets}:Gone"],
    "is not a class but int": ["--policy", "{targets}:HOLLOW"],
    "no such file": ["--policy", "{targets}.py:Fine"],
    "cannot be imported: No module named 'nowhere'": ["--policy", "nowhere:Fine"],
    "neither pkg.mod:Class nor file.py:Class": ["--manager", "lru"],
    "not a subclass of OffloadingManager": ["--manager", "{targets}:NoPolicy"],
    "cannot be built": ["--manager", "{targets}:Unbuildable"],
    "it lacks lookup": ["--manager", "kvoffload:OffloadingManager"],
    "together with --chunk-bytes": ["--capacity", "8GiB"],
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
}


class TestMisuse:
    @pytest.mark.parametrize("words", MISUSES)
    def test_one_line_and_exit_2(self, capsys: Output, targets: Path, words: str) -> None:
        if words == "neither a Mooncake":
            targets.write_text('{"prompt": "hello"}\n', "utf-8")
        arguments = [argument.format(targets=targets) for argument in MISUSES[words]]
        assert run(["replay", *arguments]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1, err
        assert err.startswith("kvoffload: error: ")
        assert words in err

    def test_a_file_that_cannot_be_loaded(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.py"
        path.write_text("1 / 0\n", "utf-8")
        with pytest.raises(UsageError, match=r"ZeroDivisionError: .* at broken\.py:1"):
            find_policy(f"{path}:Fine")
        # It is loaded anew once it was mended.
        path.write_text(TARGETS, "utf-8")
        assert find_policy(f"{path}:Fine")

    def test_our_own_errors_are_shown_with_their_cause(self) -> None:
        try:
            try:
                raise KeyError("k")
            except KeyError as cause:
                raise PolicyContractError("P", "get", "POL-7", "it raised") from cause
        except PolicyContractError as error:
            text = describe(error)
        assert text.startswith("PolicyContractError: P.get broke POL-7: it raised (KeyError: 'k'")


class TestProgress:
    counts = Counts(requests=5, blocks=10, block_hits=4)

    def shown(self, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
        monkeypatch.setattr(progress, "BAR_SECONDS", 0.0)
        with progress.narrate(console, "lru, [9] chunks", 8) as narrator:
            for _ in range(64):
                narrator(self.counts)

    def test_lines_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        file = StringIO()
        self.shown(Console(file=file, highlight=False), monkeypatch)
        assert file.getvalue() == "lru, [9] chunks: 5 of 8, block hits 0.4000\n" * 2

    def test_a_bar_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        file = StringIO()
        self.shown(Console(file=file, force_terminal=True, width=100), monkeypatch)
        assert "lru, [9] chunks" in file.getvalue()
        assert "5/8" in file.getvalue()
        assert "━" in file.getvalue()


class TestEnds:
    def test_version(self, capsys: Output) -> None:
        assert run(["--version"]) == 0
        assert re.fullmatch(r"kvoffload \S.*\n", capsys.readouterr().out)

    @pytest.mark.parametrize("arguments", [["--help"], ["replay", "--help"], ["replay", "-h"]])
    def test_help(self, capsys: Output, arguments: list[str]) -> None:
        assert run(arguments) == 0
        assert "replay" in capsys.readouterr().out

    @pytest.mark.parametrize("manager", ["Interrupted", "Endless"])
    def test_interrupted(self, capsys: Output, targets: Path, manager: str) -> None:
        assert run(["replay", *QUICK, "--manager", f"{targets}:{manager}"]) == 130
        assert capsys.readouterr().err.strip() == ""
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_a_reader_that_went_away(self) -> None:
        """The reading end is closed before anything is written."""
        program = (
            "import os, sys; read, write = os.pipe(); os.close(read); os.dup2(write, 1); "
            "from kvoffload.cli import main; sys.argv = ['kvoffload', *sys.argv[1:]]; main()"
        )
        for output in ([], ["--json", "-"]):
            done = subprocess.run(
                [sys.executable, "-c", program, "replay", "--limit", "20", *output],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 128 + signal.SIGPIPE
            assert "Traceback" not in done.stderr
            assert "BrokenPipe" not in done.stderr

    def test_python_m(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "kvoffload", "replay", "--limit", "5"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "lru" in done.stdout


def test_replaying_needs_no_terminal_library() -> None:
    program = (
        "import sys, kvoffload.replay; "
        "found = {'typer', 'rich', 'hypothesis', 'pytest', 'torch', 'stateful_models'}; "
        "sys.exit(', '.join(found & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
