"""Progress, the file of results, and how a command ends."""

import os
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kvoffload.cli import progress, run
from kvoffload.cli.interrupts import deferred_interrupt
from kvoffload.replay import Counts
from spec_tests.cli_helpers import QUICK, TARGETS, Output, reports


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    path = tmp_path / "targets.py"
    path.write_text(TARGETS, "utf-8")
    return path


class TestJsonFile:
    """An old result stays until there is a new one; what cannot be written is found first."""

    OPTIONS = ("--policy", "lru", "--capacity", "100", "--json")

    def test_a_name_that_cannot_be_is_found_before_the_runs(
        self, capsys: Output, tmp_path: Path
    ) -> None:
        target = tmp_path / f"{'x' * 300}.json"
        assert run(["replay", *QUICK, *self.OPTIONS, str(target)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(r"kvoffload: error: --json \S+: .+\n", err)

    def test_an_old_result_stays_until_there_is_a_new_one(
        self, capsys: Output, targets: Path, tmp_path: Path
    ) -> None:
        target = tmp_path / "results" / "out.json"
        target.parent.mkdir()
        target.write_text("old", "utf-8")
        target.chmod(0o640)
        link = tmp_path / "link.json"
        link.symlink_to(target)
        assert run(["replay", *QUICK, "--policy", f"{targets}:Unready", "--json", str(link)]) == 2
        assert target.read_text("utf-8") == "old"
        capsys.readouterr()
        assert run(["replay", *QUICK, *self.OPTIONS, str(link)]) == 0
        assert len(reports(target.read_text("utf-8"))) == 1
        assert link.is_symlink()
        assert target.stat().st_mode & 0o777 == 0o640
        assert list(target.parent.iterdir()) == [target]

    def test_what_fails_at_the_end_leaves_the_old_one(
        self, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = tmp_path / "out.json"
        target.write_text("old", "utf-8")

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device", "somewhere")

        monkeypatch.setattr(Path, "replace", fail)
        assert run(["replay", *QUICK, *self.OPTIONS, str(target)]) == 1
        out, err = capsys.readouterr()
        assert re.search(r"^ lru +100 ", out, re.MULTILINE)
        last = f"kvoffload: error: --json {target}: No space left on device"
        assert err.splitlines()[-1] == last
        assert target.read_text("utf-8") == "old"
        assert list(tmp_path.iterdir()) == [target]

    def test_a_pipe_is_written_as_it_is(self, capsys: Output, tmp_path: Path) -> None:
        """Of one's own: were it replaced, a real device would be lost to the whole machine."""
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert run(["replay", *QUICK, *self.OPTIONS, str(pipe)]) == 0
            assert pipe.is_fifo()
            assert len(reports(os.read(reading, 1 << 16).decode())) == 1
        finally:
            os.close(reading)


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
        out = capsys.readouterr().out
        assert "replay" in out
        if arguments[0] == "replay":
            assert "130 interrupted" in " ".join(out.split())

    @pytest.mark.parametrize("manager", ["Interrupted", "Endless"])
    def test_interrupted(self, capsys: Output, targets: Path, tmp_path: Path, manager: str) -> None:
        old = tmp_path / "out.json"
        old.write_text("old", "utf-8")
        options = ["--manager", f"{targets}:{manager}", "--json", str(old)]
        assert run(["replay", *QUICK, *options]) == 130
        out, err = capsys.readouterr()
        last = "kvoffload: interrupted in lru, 203 chunks; 0 of 4 runs complete"
        assert err.splitlines()[-1] == last
        assert "evicted" not in out
        assert old.read_text("utf-8") == "old"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_what_was_complete_at_an_interruption_is_kept(
        self, capsys: Output, targets: Path, tmp_path: Path
    ) -> None:
        target = tmp_path / "out.json"
        options = ["--policy", "lru", "--policy", f"{targets}:Interrupting", "--capacity", "100"]
        assert run(["replay", *QUICK, *options, "--json", str(target)]) == 130
        out, err = capsys.readouterr()
        assert re.findall(r"^ (lru|Interrupting) ", out, re.MULTILINE) == ["lru"]
        assert [report.policy for report in reports(target.read_text("utf-8"))] == ["lru"]
        last = "kvoffload: interrupted in Interrupting, 100 chunks; 1 of 2 runs complete"
        assert err.splitlines()[-1] == last
        assert run(["replay", *QUICK, *options, "--json", "-"]) == 130
        assert [report.policy for report in reports(capsys.readouterr().out)] == ["lru"]

    def test_an_interruption_at_the_very_end_is_not_lost(self) -> None:
        reached: list[str] = []

        def interrupted() -> None:
            with deferred_interrupt():
                os.kill(os.getpid(), signal.SIGINT)
                reached.append("the end")

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert reached == ["the end"]

    def test_no_arguments_show_the_help(self, capsys: Output) -> None:
        assert run([]) == 0
        out, err = capsys.readouterr()
        assert "Usage: kvoffload" in out
        assert err == ""

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
    @pytest.mark.parametrize(
        "arguments",
        [
            ["replay", "--limit", "20"],
            ["replay", "--limit", "20", "--json", "-"],
            ["--help"],
            ["--version"],
        ],
        ids=" ".join,
    )
    def test_a_full_disk(self, arguments: list[str]) -> None:
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "kvoffload", *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 1
        last = "kvoffload: error: output cannot be written: No space left on device"
        assert done.stderr.splitlines()[-1] == last
        assert "Traceback" not in done.stderr

    def test_a_closed_output(self) -> None:
        program = (
            "import sys; sys.stdout = None; "
            "from kvoffload.cli import run; sys.exit(run(['replay', '--limit', '20']))"
        )
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)

    def test_results_need_an_open_output(self) -> None:
        program = (
            "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', "
            "'kvoffload', 'replay', '--limit', '20', *sys.argv[1:]])"
        )
        for output, status in ([], 0), (["--json", "-"], 2):
            done = subprocess.run(
                [sys.executable, "-c", program, *output],
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            assert done.returncode == status, done.stderr
            assert "Traceback" not in done.stderr
            if status:
                assert done.stderr == "kvoffload: error: --json -: standard output is closed\n"

    def test_a_full_standard_error_leaves_the_status(self) -> None:
        if not Path("/dev/full").exists():
            pytest.skip("there is no /dev/full here")
        command = [sys.executable, "-m", "kvoffload", "replay", "--policy", "mru"]
        with Path("/dev/full").open("w") as full:
            assert subprocess.run(command, stderr=full, check=False).returncode == 2

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
