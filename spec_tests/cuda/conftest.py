"""Without torch the checks are skipped, and say so."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest


class WithoutTorch(pytest.Module):
    """A module of checks that is not imported."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip("torch is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """pytest's own choice where torch is."""
    if find_spec("torch") is not None:
        return None
    # pytest leaves the type of what it passes on open.
    return WithoutTorch.from_parent(parent, path=module_path)  # pyright: ignore[reportUnknownMemberType]
