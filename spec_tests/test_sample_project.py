"""A project of somebody else: typed strictly against what is installed, and tried by its tests."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spec_tests.built import Built

SAMPLE = Path(__file__).parent / "sample_project"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, with nothing of this checkout around it."""
    return Path(shutil.copytree(SAMPLE, tmp_path / "project"))


def run(project: Path, built: Built, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python there, with the wheel and its libraries."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env={
            "PYTHONPATH": f"{built.site}:{project}",
            "MYPYPATH": str(built.site),
            "NO_COLOR": "1",
            "COLUMNS": "100",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_typed_strictly_against_the_wheel(project: Path, built: Built) -> None:
    files = sorted(path.name for path in project.glob("*.py"))
    done = run(project, built, "-m", "mypy", "--strict", "--config-file=", *files)
    assert done.returncode == 0, done.stdout
    assert f"no issues found in {len(files)} source files" in done.stdout


def test_a_wrong_type_would_be_seen(project: Path, built: Built) -> None:
    wrong = project / "wrong.py"
    wrong.write_text(
        "from lanes import TwoLanes\n"
        "from stateful_models.drivers import Driver\n"
        "class Wrong(Driver[TwoLanes]):\n"
        "    def build(self, capacity: str) -> TwoLanes:\n"
        "        return TwoLanes(4)\n"
    )
    done = run(project, built, "-m", "mypy", "--strict", "--config-file=", "wrong.py")
    assert done.returncode == 1
    assert "build" in done.stdout


def test_its_tests_pass(project: Path, built: Built) -> None:
    done = run(project, built, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lanes.py")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_the_plugin_gives_a_test_for_each_clause(project: Path, built: Built) -> None:
    trial = ("--kvoffload-policy", "lanes:WithoutLanes", "--kvoffload-driver")
    done = run(
        project,
        built,
        *("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "stateful_models.plugin"),
        *(*trial, "lanes_driver:LanesDriver", "--deselect", "test_lanes.py"),
    )
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout
    assert "POL-2 (S, 0.33): Evicting returns distinct, unprotected" in done.stdout
    assert "is protected" in done.stdout
    assert "vLLM 0.33 then:" in done.stdout
    assert "PASSED lanes:WithoutLanes::POL-1" in done.stdout
