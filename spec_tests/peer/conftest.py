"""vLLM's control plane is loaded before any test here is imported, so that tests can import it."""

from __future__ import annotations

import pytest

from kvoffload.vllm.control_plane import ControlPlane
from spec_tests.peer.root import peer

PEER = peer()


@pytest.fixture(scope="session")
def control_plane() -> ControlPlane:
    """vLLM's manager and policies."""
    return PEER
