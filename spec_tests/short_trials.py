"""Trials at the level smoke: for tests of what is told of a trial, and not of what it finds.

The fixture shortens those that a command holds which runs in this process. For a pytest of its own
there is `-p spec_tests.short_trials`, and `COMMAND_LINE` for a command.
"""

from typing import Final

import pytest
from attrs import evolve

from stateful_models.trial.request import Request, encode_request

COMMAND_LINE: Final = (
    "-c",
    "from kvoffload.cli import main; from spec_tests.short_trials import pytest_configure; "
    "pytest_configure(); main()",
)
"""In place of `-m kvoffload`."""


def encode_short(request: Request) -> bytes:
    """What is sent to the process of a trial, which then says in its report how short it was."""
    return encode_request(evolve(request, level="smoke"))


def shorten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("stateful_models.trial.trials.encode_request", encode_short)


@pytest.fixture
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


def pytest_configure() -> None:
    shorten(pytest.MonkeyPatch())
