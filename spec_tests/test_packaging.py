"""What is built and installed: contents, metadata, import hygiene, with the source absent.

The wheel is built once, from the sdist, and unpacked to an empty place. What runs there runs
without `site`, so no path file of an editable install leads back to the checkout.
"""

import re
from pathlib import Path

import pytest

from spec_tests.built import ROOT, Built

PACKAGES = ("kvoffload", "stateful_models")
CORE = {"attrs", "msgspec", "numpy", "rich", "typer", "typing-extensions"}
EXTRAS = {"cuda", "torch", "verify", "plot", "prometheus", "dask", "zstd", "all", "dev"}
# What an extra brings: a plain install runs its main job without any of them.
OPTIONAL = (
    "hypothesis",
    "matplotlib",
    "prometheus_client",
    "pytest",
    "torch",
    "zstandard",
)
# What the main job has on its command line but a program that imports the library does not want.
TERMINAL = ("rich", "typer")


def source_files(package: str) -> set[str]:
    """The files of a package of the checkout, as relative paths; what tools leave behind aside."""
    relative = (path.relative_to(ROOT) for path in (ROOT / package).rglob("*") if path.is_file())
    return {
        path.as_posix()
        for path in relative
        if not any(part == "__pycache__" or part.startswith(".") for part in path.parts)
    }


def test_wheel_holds_both_packages_whole_and_nothing_else(built: Built) -> None:
    (info,) = {name.partition("/")[0] for name in built.wheel_files} - set(PACKAGES)
    assert re.fullmatch(r"kvoffload-[0-9.]+\.dist-info", info)
    packaged = {name for name in built.wheel_files if not name.startswith(info)}
    expected = {name for package in PACKAGES for name in source_files(package)}
    assert packaged == expected


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_marks_its_packages_as_typed(built: Built, package: str) -> None:
    assert f"{package}/py.typed" in built.wheel_files
    assert f"{package}/__init__.py" in built.wheel_files


def test_sdist_holds_the_tests_and_what_they_read(built: Built) -> None:
    expected = source_files("spec_tests") | source_files("docs")
    expected |= {".ci/run", "README.md", "LICENSE", "noxfile.py", "mypy.ini", "pyproject.toml"}
    assert expected <= built.sdist_files


def test_metadata_names_few_requirements_and_the_extras(built: Built) -> None:
    metadata = built.metadata()
    lines = metadata.get_all("Requires-Dist", [])
    core = {
        re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line
    }
    assert core == CORE
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"


IMPORT_WATCHED = """
import sys

class Watch:
    def __init__(self):
        self.asked = set()

    def find_spec(self, name, path=None, target=None):
        self.asked.add(name.partition(".")[0])
        return None

watch = Watch()
sys.meta_path.insert(0, watch)
{statement}
print(kvoffload.__file__)
print(*sorted(watch.asked))
"""


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("import kvoffload", id="import"),
        pytest.param("import kvoffload; from kvoffload import *", id="every public name"),
    ],
)
def test_importing_the_library_asks_for_no_optional_or_terminal_library(
    built: Built, statement: str
) -> None:
    # Asking is what counts: `try: import torch` leaves no trace where torch is not installed.
    output = built.output("-c", IMPORT_WATCHED.format(statement=statement))
    place, names = output.splitlines()
    assert Path(place).is_relative_to(built.site)
    asked = set(names.split())
    assert "attrs" in asked, "the watch sees imports"
    assert asked.isdisjoint({*OPTIONAL, *TERMINAL, "stateful_models"})


def test_importing_the_library_leaves_numpy_for_later(built: Built) -> None:
    output = built.output("-c", IMPORT_WATCHED.format(statement="import kvoffload"))
    assert "numpy" not in output.splitlines()[1].split()


def test_importing_the_library_leaves_what_copies_for_later(built: Built) -> None:
    program = """
import sys
import kvoffload

def loaded():
    return [name for name in sys.modules if name.startswith("kvoffload.copying")]

assert not loaded(), loaded()
assert {"CopyWorker", "CPUOffloadingWorker", "plan_store"} <= set(dir(kvoffload))
assert not loaded(), loaded()
from kvoffload import CopyWorker, CPUOffloadingWorker
assert issubclass(CPUOffloadingWorker, CopyWorker)
assert kvoffload.CopyWorker is CopyWorker
assert "CopyWorker" in vars(kvoffload), "it is looked up again and again"
try:
    kvoffload.CopyWorkers
except AttributeError as error:
    print(error)
"""
    assert built.output("-c", program) == "module 'kvoffload' has no attribute 'CopyWorkers'\n"


def test_public_names_are_listed_once_and_exist(built: Built) -> None:
    program = """
import kvoffload
names = kvoffload.__all__
assert len(set(names)) == len(names), "a name is listed twice"
missing = [name for name in names if not hasattr(kvoffload, name)]
assert not missing, missing
assert set(names) <= set(dir(kvoffload)), "dir() hides a name"
print(len(names))
"""
    assert int(built.output("-c", program)) >= 30


def test_every_module_imports_with_the_source_absent(built: Built) -> None:
    program = f"""
import importlib, pkgutil
for package in {PACKAGES!r}:
    root = importlib.import_module(package)
    modules = [root.__name__]
    modules += [m.name for m in pkgutil.walk_packages(root.__path__, package + ".")]
    for name in modules:
        # The kernel is Triton's: it is imported where Triton is.
        if not name.endswith((".__main__", ".triton_kernel")):
            print(importlib.import_module(name).__file__)
"""
    places = [Path(line) for line in built.output("-c", program).splitlines()]
    assert all(place.is_relative_to(built.site) for place in places)
    imported = {place.relative_to(built.site).as_posix() for place in places}
    modules = {name for name in built.wheel_files if name.endswith(".py")}
    left_out = {name.rpartition("/")[2] for name in modules - imported}
    # The last is no module of ours: it is written into a checkout of vLLM.
    assert left_out == {"__main__.py", "triton_kernel.py", "test_documented_contract.py"}


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_console_script_does_what_the_module_does(built: Built, argument: str) -> None:
    script = """
import sys
from importlib.metadata import entry_points
(script,) = entry_points(group="console_scripts", name="kvoffload")
sys.argv[0] = "kvoffload"
sys.exit(script.load()())
"""
    by_script = built.output("-c", script, argument)
    assert by_script.strip()
    assert by_script == built.output("-m", "kvoffload", argument)


def test_checked_replay_of_the_packaged_sample_needs_no_extra(built: Built) -> None:
    program = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, Absent())
from kvoffload.cli import main
sys.exit(main())
"""
    options = ("replay", "--policy", "lru", "--capacity", "5%", "--limit", "100", "--check")
    output = built.output("-c", program, *options, "--json", "-")
    assert '"violations"' in output


def readme_commands() -> list[str]:
    """The shell blocks of the README, in order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [block.strip() for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)]


def test_readme_gives_two_commands_of_a_line_each_first() -> None:
    main_job, tests = readme_commands()[:2]
    for command in (main_job, tests):
        assert "\n" not in command
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert "kvoffload replay" in main_job
    assert "--check" in main_job
    assert tests.endswith("nox -s tests")


def test_ci_runs_the_readme_command_as_it_stands() -> None:
    assert readme_commands()[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
