"""The documentation is true: its programs run, its clause ids exist, its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvoffload.cli.app import run as run_command
from stateful_models.contract import CLAUSES
from stateful_models.gallery.table import page as gallery_page
from stateful_models.trial.request import Request, Task
from stateful_models.trial.trials import hold_trial
from stateful_models.trial.verdicts import Outcome

ROOT = Path(__file__).resolve().parents[1]
ORDERING_PAGE = ROOT / "docs" / "ordering.md"
POLICY_PAGE = ROOT / "docs" / "writing-a-policy.md"
INVARIANTS_PAGE = ROOT / "docs" / "invariants.md"
DRIVERS_PAGE = ROOT / "docs" / "drivers.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CLAUSE_ID = re.compile(r"\b(?:[A-Z]{2,6})-\d+\b")
# Written like a clause id, and none of ours; OWN is for what a reader adds.
OTHER_NAMES = {"OWN-1", "OWN-2", "OWN-3", "UTF-8"}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def programs(page: Path) -> list[str]:
    """The Python blocks of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", text_of(page), re.M | re.S)


def run(place: Path, *arguments: str, status: int = 0) -> str:
    """What this Python says, with a directory of our own first on its path."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env={"PYTHONPATH": f"{place}:{ROOT}", "NO_COLOR": "1", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, f"{arguments}: {done}"
    return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the policy that the pages speak of."""
    (tmp_path / "fifo.py").write_text(programs(POLICY_PAGE)[0], encoding="utf-8")
    sessions, driver, *_ = programs(DRIVERS_PAGE)
    (tmp_path / "sessions.py").write_text(sessions, encoding="utf-8")
    (tmp_path / "session_driver.py").write_text(driver, encoding="utf-8")
    promise = programs_with("class OpenSessionsStay(")
    (tmp_path / "session_promise.py").write_text(promise, encoding="utf-8")
    return tmp_path


def run_machines(place: Path, file: str) -> None:
    """Run what a page gives to pytest; the same examples every time."""
    assert "1 passed" in run(place, "-m", "pytest", "--hypothesis-seed=0", file)


def test_there_are_pages_to_check() -> None:
    assert len(PAGES) >= 6
    assert sum(bool(programs(page)) for page in PAGES) >= 3


@pytest.mark.parametrize(
    "page",
    # Those of the two are run below.
    [page for page in PAGES if programs(page) and page not in (POLICY_PAGE, ORDERING_PAGE)],
    ids=name_of,
)
def test_the_programs_of_a_page_run_in_order(page: Path, place: Path) -> None:
    program = "".join(programs(page))
    if "prometheus_client" in program:
        pytest.importorskip("prometheus_client")
    (place / "page.py").write_text(program, encoding="utf-8")
    run(place, "page.py")


def test_the_policy_of_the_documentation_passes_both_trials(place: Path) -> None:
    _, machine, use = programs(POLICY_PAGE)
    (place / "use.py").write_text(use, encoding="utf-8")
    run(place, "use.py")
    trial = ("--capacity", "5%", "--fail-rate", "0.02", "--limit", "100", "--check", "--json", "-")
    output = run(place, "-m", "kvoffload", "replay", "--policy", "fifo.py:FIFO", *trial)
    assert '"violations"' in output
    (place / "test_fifo.py").write_text(machine, encoding="utf-8")
    run_machines(place, "test_fifo.py")


def test_the_invariant_of_the_documentation_judges_in_a_machine(place: Path) -> None:
    # Alone, as a reader takes it from the page.
    machine = programs_with("class FIFOMachine(")
    (place / "test_page.py").write_text(machine, encoding="utf-8")
    run_machines(place, "test_page.py")


def test_the_invariant_of_the_documentation_judges_a_replay(place: Path) -> None:
    small_batches = programs(INVARIANTS_PAGE)[0]
    (place / "small_batches.py").write_text(small_batches, encoding="utf-8")
    trial = ("--policy", "lru", "--capacity", "100", "--limit", "100", "--check")
    judge = ("--invariant", "small_batches.py:SmallBatches")
    output = run(place, "-m", "kvoffload", "replay", *trial, *judge, status=1)
    assert "OWN-1" in output


@pytest.mark.usefixtures("short_trials")
def test_the_session_policy_of_the_documentation_keeps_its_promise(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    promise = programs_with("class OpenSessionsStay(")
    assert len(promise.splitlines()) < 40
    chosen = ("--only", "OWN-3")
    # What breaks it is found in a few of the programs of a short trial.
    trial = ("verify", "sessions.py:SessionFIFO", *chosen)
    driver = ("--driver", "session_driver.py:SessionDriver")
    judge = ("--invariant", "session_promise.py:OpenSessionsStay")
    both = ("--arg", "patient=true,false")
    assert run_command([*trial, *driver, *judge, *both]) == 1
    broken = capsys.readouterr().out
    assert broken.count("clean") == 1
    assert "breaks OWN-3" in broken
    assert 'SessionDriver(SessionFIFO, {"patient": False})' in broken
    assert "invariants=[OpenSessionsStay()]" in broken
    with_arguments = programs_with("class OpenSessionsOfPatient(")
    (place / "session_promise.py").write_text(promise + with_arguments, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    request = Request(
        task=Task.POLICY,
        target="sessions:SessionFIFO",
        driver="session_driver:SessionDriver",
        invariants=("session_promise:OpenSessionsOfPatient",),
        arguments={"patient": False},
        only=("OWN-3",),
        level="smoke",
    )
    assert hold_trial(request).verdict is Outcome.CLEAN


def programs_with(text: str) -> str:
    """The one program of the invariants' page that has a text."""
    (found,) = [program for program in programs(INVARIANTS_PAGE) if text in program]
    return found


def test_the_report_of_the_documentation_is_what_is_printed(place: Path) -> None:
    (place / "page.py").write_text("".join(programs(ORDERING_PAGE)), encoding="utf-8")
    (report,) = re.findall(r"^```\n(ORD-1.*?)^```", text_of(ORDERING_PAGE), re.M | re.S)
    assert run(place, "page.py").startswith(report)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_clause_ids_of_a_page_exist(page: Path) -> None:
    assert set(CLAUSE_ID.findall(text_of(page))) - OTHER_NAMES <= set(CLAUSES)


def test_the_map_of_the_contract_shows_every_clause() -> None:
    shown = CLAUSE_ID.findall(text_of(ROOT / "docs" / "contract.md"))
    assert sorted(shown) == sorted(CLAUSES)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_of_a_page_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(page))
    missing = [
        target for target in targets if "://" not in target and not (page.parent / target).is_file()
    ]
    assert missing == []


def test_the_page_of_the_gallery_is_made_from_the_gallery() -> None:
    assert text_of(ROOT / "docs" / "gallery.md") == gallery_page()
