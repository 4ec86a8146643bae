"""Whatever is wrong with what `kvoffload verify` is given is one sentence, and exit status 2."""

from pathlib import Path

import pytest

from kvoffload.cli.app import run

SOUND = """
from kvoffload.policies.lru import LRUCachePolicy


class Fine(LRUCachePolicy):
    pass


class NoPolicy:
    pass


class NoDriver:
    def __init__(self, *arguments):
        pass


class NoInvariant:
    def judge(self, step, books):
        return ()


value = 3
"""
FILES = {
    "theirs.py": SOUND,
    "syntax.py": "class Fine(\n",
    "raising.py": 'raise RuntimeError("of two\\nlines")\n',
    "lacking.py": "import nothing_like_it\n",
    "exiting.py": 'import sys\n\nsys.exit("bye")\n',
    "ending.py": "import os\n\nos._exit(3)\n",
    "nul.py": "x = 1\0",
}
MANAGER = "kvoffload:CPUOffloadingManager"

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.py").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["syntax.py:X"], "syntax.py: cannot be loaded: SyntaxError: '(' was never closed at sy"),
        # Some releases of Python say SyntaxError, others ValueError.
        (["nul.py:X"], "Error: source code string cannot contain null bytes"),
        (["raising.py:X"], "raising.py: cannot be loaded: RuntimeError: of two lines at raising"),
        (["lacking.py:X"], "lacking.py: cannot be loaded: ModuleNotFoundError: No module named"),
        (["lacking:X"], "lacking: cannot be imported: No module named 'nothing_like_it'"),
        (["exiting.py:X"], "exiting.py: cannot be loaded: SystemExit: bye at exiting.py:3"),
        (["ending.py:X"], "cannot be loaded: the process of the trial exited with status 3"),
        (["theirs.py:Fin"], "theirs.py has no Fin"),
        (["theirs.py"], "slru-tail are); one of your own is named pkg.mod:Class"),
        (["folder.py:X"], "folder.py: not a file"),
        (["theirs.py:NoPolicy"], "cannot be built: TypeError: NoPolicy() takes no arguments"),
        (["theirs.py:value"], "neither a class nor a factory"),
        ([MANAGER], "a manager, which is tried with --manager"),
        (["--manager", "lru"], "a policy, which is tried without --manager; a manager of your own"),
        (["--manager", "cpuu"], "not registered (cpu is); a manager of your own is named pkg.mod"),
        (["--manager", "theirs.py:Fine"], "no manager, for it is no OffloadingManager"),
        (
            ["theirs.py:Fine", "--driver", "theirs.py:NoDriver"],
            "theirs.py:NoDriver: not a subclass of stateful_models.drivers.Driver",
        ),
        (
            ["--manager", "cpu", "--driver", "stateful_models.drivers:Driver"],
            "not a subclass of stateful_models.manager_drivers.ManagerDriver",
        ),
        (["theirs.py:Fine", "--driver", "theirs.py:No"], "theirs.py has no No"),
        (
            ["theirs.py:Fine", "--driver", "ending.py:D"],
            "theirs.py:Fine, ending.py:D: cannot be loaded: the process of the trial exited",
        ),
        (
            ["theirs.py:Fine", "--invariant", "theirs.py:NoInvariant"],
            "theirs.py:NoInvariant: not a subclass of stateful_models' Invariant",
        ),
        (["theirs.py:Fine", "--invariant", "theirs.py:value"], "theirs.py:value: neither a class"),
    ],
)
def test_what_cannot_be_tried_is_said_in_one_sentence(
    arguments: list[str], sentence: str, capsys: Output
) -> None:
    assert run(["verify", *arguments]) == 2
    told = capsys.readouterr()
    assert told.err == ""
    (line,) = (one for one in told.out.splitlines() if "could not be tried" in one)
    target = next(one for one in arguments if one != "--manager")
    assert line.startswith(f"{target} could not be tried: ")
    # The target is named once.
    assert f"{target}: " not in line.replace(f"{target} could not be tried: ", "", 1)
    assert sentence in line


def test_what_a_constructor_takes_is_said_of_an_argument_that_it_does_not(capsys: Output) -> None:
    strange = ["theirs.py:Fine", "--arg", "window=8"]
    sentence = "cannot be built: it takes cache_capacity, and no window\n"
    assert run(["verify", *strange]) == 2
    assert f"theirs.py:Fine window=8 could not be tried: {sentence}" in capsys.readouterr().out
    assert run(["judge", *strange]) == 2
    # After what is to come.
    assert capsys.readouterr().err.endswith(f"\nkvoffload: error: theirs.py:Fine: {sentence}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--json", "nowhere/x.json"], "--json nowhere/x.json: not a file in an existing"),
        (["--json", "folder.py"], "--json folder.py: not a file in an existing directory"),
        (["--export", "nowhere/x.py"], "--export nowhere/x.py: not a file in an existing"),
        (["--export", "folder.py"], "--export folder.py: not a file in an existing directory"),
        (["--export", ""], "--export : not a file in an existing directory"),
        (["--driver", "fi\udcffle.py:D"], r"'fi\udcffle.py:D': it is no text"),
        (["--invariant", "fi\udcffle.py:D"], r"'fi\udcffle.py:D': it is no text"),
        (["--env", "A=\udcff"], r"'A=\udcff': it is no text"),
        (["--arg", "a=\udcff"], r"'a=\udcff': it is no text"),
        ([""], "a target without a name"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_is_tried(
    options: list[str], sentence: str, capsys: Output
) -> None:
    assert run(["verify", "theirs.py:Fine", *options]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("kvoffload: error: ")
    assert sentence in line


@pytest.mark.usefixtures("short_trials")
def test_claims_are_chosen_and_known_by_their_names(place: Path, capsys: Output) -> None:
    (place / "known.txt").write_text("lru  key blind # in two words\nlru POL-1\n")
    options = ["--only", "key *", "--known-failures", "known.txt"]
    assert run(["verify", "lru", *options]) == 0
    text = capsys.readouterr().out
    assert "key blind is on the list of known failures, and was not seen broken" in text
    (place / "known.txt").write_text("lru key blinds\n")
    assert run(["verify", "lru", *options]) == 2
    assert "line 1: not a target and a clause" in capsys.readouterr().err
