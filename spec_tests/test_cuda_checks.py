"""The checks for a GPU, where there is none: they are skipped, and say why."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

from spec_tests.built import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


REASON = "no CUDA device" if find_spec("torch") else "torch is not installed"


def test_the_checks_are_skipped() -> None:
    done = run("pytest", "spec_tests/cuda", "-q", "-rs", "-p", "no:cacheprovider")
    assert REASON in done.stdout
    assert "skipped" in done.stdout.splitlines()[-1]
    assert "passed" not in done.stdout
    assert "error" not in done.stdout.lower()


def test_the_script_says_so_too() -> None:
    done = run("spec_tests.cuda")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{REASON}: nothing was checked\n"
