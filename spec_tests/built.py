"""What is built from the checkout: once a session, and unpacked to an empty place."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest
from attrs import field, frozen

ROOT = Path(__file__).resolve().parents[1]


@frozen
class Built:
    """An unpacked wheel and the sdist it came from."""

    site: Path
    wheel_files: frozenset[str]
    sdist_files: frozenset[str]
    empty: Path = field(repr=False)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run this Python with the wheel and its libraries, and nothing of the checkout."""
        libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        environment = {key: val for key, val in os.environ.items() if not key.startswith("PYTHON")}
        environment["PYTHONPATH"] = os.pathsep.join([str(self.site), *sorted(libraries)])
        environment["NO_COLOR"] = "1"
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=self.empty,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def output(self, *arguments: str) -> str:
        """Like `run`, for a command that must succeed."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"{arguments}: status {done.returncode}\n{done.stderr}"
        return done.stdout

    def metadata(self) -> Message:
        """The wheel's METADATA."""
        (path,) = self.site.glob("kvoffload-*.dist-info/METADATA")
        return Parser().parsestr(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    place = tmp_path_factory.mktemp("dist")
    site = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"the build failed\n{done.stdout}\n{done.stderr}"
    (sdist,) = place.glob("*.tar.gz")
    (wheel,) = place.glob("*.whl")
    with tarfile.open(sdist) as archive:
        members = [PurePosixPath(member.name) for member in archive if member.isfile()]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        wheel_files = frozenset(archive.namelist())
    return Built(
        site=site,
        wheel_files=wheel_files,
        sdist_files=frozenset(str(PurePosixPath(*path.parts[1:])) for path in members),
        empty=tmp_path_factory.mktemp("empty"),
    )
