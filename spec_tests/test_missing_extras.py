"""What needs an extra says which one, and how it is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import sys
sys.modules[{library!r}] = None  # which is how Python marks what cannot be imported
try:
    import {module}
except ImportError as error:
    print(error.name, error, sep="\\n")
"""


def import_error(module: str, library: str) -> list[str]:
    """The name and the text of what importing `module` raises where `library` is missing."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module, library=library)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("stateful_models.machines", "hypothesis", "verify"),
        ("kvoffload.prometheus", "prometheus_client", "prometheus"),
        ("kvoffload.canonical.drawing", "matplotlib", "plot"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(module: str, library: str, extra: str) -> None:
    name, sentence = import_error(module, library)
    assert name == library
    assert sentence == f"{module} needs {library}: pip install 'kvoffload[{extra}]'"


@pytest.mark.parametrize(
    ("module", "library"),
    [
        ("stateful_models.machines", "stateful_models.machines.attempts"),
        ("kvoffload.prometheus", "prometheus_client.registry"),
        ("kvoffload.canonical.drawing", "matplotlib.figure"),
    ],
)
def test_what_no_extra_brings_is_not_blamed_on_one(module: str, library: str) -> None:
    if module.startswith("kvoffload."):
        pytest.importorskip(library.partition(".")[0])
    name, sentence = import_error(module, library)
    assert name == library
    assert "pip install" not in sentence


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('half of it')", "cannot be imported: RuntimeError: half of it"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("raise SystemExit(0)", "cannot be imported: SystemExit: 0"),
        ("def (", "cannot be imported: SyntaxError"),
    ],
)
def test_a_library_that_breaks_on_import_is_a_sentence(
    source: str, words: str, tmp_path: Path
) -> None:
    package = tmp_path / "hypothesis"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "kvoffload", "verify", "lru"],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "verify needs hypothesis, which is installed and cannot be imported" in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
