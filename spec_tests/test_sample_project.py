"""A project of somebody else: typed strictly against what is installed, and tried by its tests."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spec_tests import short_trials
from spec_tests.built import Built

SAMPLE = Path(__file__).parent / "sample_project"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, with nothing of this checkout around it."""
    return Path(shutil.copytree(SAMPLE, tmp_path / "project"))


@pytest.fixture
def hurried(project: Path) -> Path:
    """The same, with what makes the trials of its pytest short."""
    shutil.copy(short_trials.__file__, project)
    return project


PYTEST = ("-m", "pytest", "-p", "no:cacheprovider")
SHORT = ("-p", "short_trials")


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


WRONG = """
from lanes import TwoLanes
from stateful_models.drivers import Driver
class Wrong(Driver[TwoLanes]):
    def build(self, capacity: str) -> TwoLanes:
        return TwoLanes(4)
"""


def test_it_is_typed_strictly_against_the_wheel_and_a_wrong_type_is_seen(
    project: Path, built: Built
) -> None:
    (project / "wrong.py").write_text(WRONG)
    files = sorted(path.name for path in project.glob("*.py"))
    done = run(project, built, "-m", "mypy", "--strict", "--config-file=", *files)
    assert done.returncode == 1, done.stdout
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert {line.partition(":")[0] for line in found} == {"wrong.py"}, done.stdout
    assert "build" in found[0]
    told = f"Found {len(found)} error{'s' * (len(found) > 1)} in 1 file"
    assert f"{told} (checked {len(files)} source files)" in done.stdout


def test_its_tests_pass(hurried: Path, built: Built) -> None:
    done = run(hurried, built, *PYTEST, *SHORT, "-q", "test_lanes.py")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


PLUGIN = (*PYTEST, "-rA", "-p", "stateful_models.plugin")
TRIAL = ("--kvoffload-driver", "lanes_driver:LanesDriver", "--kvoffload-policy")


def test_the_plugin_gives_a_test_for_each_clause(hurried: Path, built: Built) -> None:
    trial = (*PLUGIN, *SHORT, *TRIAL, "lanes:WithoutLanes")
    done = run(hurried, built, *trial, "--kvoffload-only", "POL-[123]", "lanes:WithoutLanes")
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout
    assert "POL-2 (S, 0.33): Evicting returns distinct, unprotected" in done.stdout
    assert "is protected" in done.stdout
    assert "vLLM 0.33 then:" in done.stdout
    assert "PASSED lanes:WithoutLanes::POL-1\n" in done.stdout
    assert "FAILED lanes:WithoutLanes::POL-2 " in done.stdout
    assert "collected 0 items" not in done.stdout


def test_a_test_of_the_plugin_is_run_again_by_its_id(hurried: Path, built: Built) -> None:
    both = (*PLUGIN, *SHORT, *TRIAL, "lanes:WithoutLanes", "--kvoffload-policy", "lanes:TwoLanes")
    trial = (*both, "--kvoffload-only", "POL-[13]")
    done = run(hurried, built, *trial, "lanes:WithoutLanes::POL-1")
    assert done.returncode == 0, done.stdout
    assert "collected 1 item\n" in done.stdout
    assert "PASSED lanes:WithoutLanes::POL-1\n" in done.stdout
    done = run(hurried, built, *trial, "lanes:WithoutLanes::POL-77")
    assert done.returncode != 0
    assert "not found: lanes:WithoutLanes::POL-77" in done.stdout


def test_the_plugin_judges_what_was_chosen(hurried: Path, built: Built) -> None:
    chosen = ("--kvoffload-only", "POL-[12]", "--kvoffload-without", "POL-2")
    trial = (*PLUGIN, *SHORT, *TRIAL, "lanes:TwoLanes", "lanes:TwoLanes")
    argument = ("--kvoffload-arg", "spare_priority=2")
    done = run(hurried, built, *trial, *chosen, *argument)
    assert done.returncode == 0, done.stdout
    assert "collected 2 items\n" in done.stdout
    assert "PASSED lanes:TwoLanes::trial\n" in done.stdout
    assert "PASSED lanes:TwoLanes::POL-1\n" in done.stdout


def test_the_plugin_tells_once_that_a_target_cannot_be_tried(project: Path, built: Built) -> None:
    trial = (*PLUGIN, *TRIAL, "lanes:TwoLanes", "--kvoffload-arg", "lanes=2,true")
    why = (
        "could not be tried: cannot be built: it takes cache_capacity, spare_priority, and no lanes"
    )
    # Each combination is tried by itself, and named among the arguments as it is called.
    done = run(project, built, *trial, "lanes:TwoLanes[lanes=true]", "lanes:TwoLanes::POL-1")
    assert done.returncode == 1, done.stdout
    assert "FAILED lanes:TwoLanes[lanes=true]::trial - could not" in done.stdout
    assert "FAILED lanes:TwoLanes[lanes=2]::POL-1 - could not" in done.stdout
    assert done.stdout.count(why) == 2
    assert "= 2 failed, 19 skipped in" in done.stdout
    done = run(project, built, *trial, "--collect-only", "lanes:TwoLanes[lanes=7]::POL-1")
    assert "not found: lanes:TwoLanes[lanes=7]::POL-1" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--kvoffload-only", "POX-*", "--kvoffload-only POX-*: no clause is called that"),
        ("--kvoffload-arg", "n", "--kvoffload-arg n: not of the form NAME=VALUE"),
    ],
)
def test_the_plugin_refuses_what_means_nothing(
    option: str, value: str, message: str, project: Path, built: Built
) -> None:
    done = run(project, built, *PLUGIN, *TRIAL, "lanes:TwoLanes", option, value)
    assert done.returncode == 4, done.stdout
    assert message in done.stderr
