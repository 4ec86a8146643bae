"""How the suite runs: Hypothesis profiles, and a header that tells which code is under test."""

import gc
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck

import kvoffload
from spec_tests.built import built
from spec_tests.short_trials import short_trials

__all__ = ["built", "short_trials"]

# Somebody else's project, which has its own tests.
collect_ignore = ["sample_project"]
# Without torch they cannot be read; where it is wanted, the session that installs it runs them.
if find_spec("torch") is None:
    collect_ignore += ["with_torch", "cuda"]
# Nor without vLLM, which the session `peer` gets.
if "KVOFFLOAD_PEER_ROOT" not in os.environ:
    collect_ignore += ["peer"]

# No deadline anywhere: a slow machine is not a wrong program. How long drawing an example takes
# says nothing about it either.
hypothesis.settings.register_profile(
    "base", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
BASE = hypothesis.settings.get_profile("base")

# The default: the same examples everywhere and every time.
hypothesis.settings.register_profile(
    "ci",
    BASE,
    derandomize=True,
    database=None,
    max_examples=60,
    stateful_step_count=40,
    print_blob=True,
)
# Other examples every time, many of them; a failure prints the blob that repeats it.
hypothesis.settings.register_profile(
    "nightly",
    BASE,
    derandomize=False,
    max_examples=2_000,
    stateful_step_count=100,
    print_blob=True,
)
# Beside the editor: as many as in CI, other ones every time; failures are remembered in
# .hypothesis.
hypothesis.settings.register_profile(
    "dev", BASE, derandomize=False, max_examples=60, stateful_step_count=40
)
# `pytest --hypothesis-profile=NAME` is applied after this and wins.
hypothesis.settings.load_profile("ci")


def pytest_report_header(config: pytest.Config) -> str:
    """Name the Python and the place of the code under test, and the Hypothesis profile."""
    profile = config.getoption("--hypothesis-profile") or "ci"
    where = Path(kvoffload.__file__).parent
    return f"kvoffload: {where} (Python {sys.version.split()[0]}, Hypothesis profile {profile})"


def pytest_collection_finish() -> None:
    """Have the collector leave alone what is there by now and stays: thousands of tests, and all
    that is imported. What a test makes is collected in a fraction of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def imports_are_left_alone() -> Iterator[None]:
    """Whoever tries a policy of vLLM in this process has its imports answered; not those after."""
    yield
    policies = sys.modules.get("stateful_models.vllm.policies")
    if policies is not None:
        policies.answer_no_more()
