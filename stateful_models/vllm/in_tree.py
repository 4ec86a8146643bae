"""A test for a checkout of vLLM: what vLLM's docstrings promise, of every policy registered there.

It is text here. It needs pytest and vLLM, nothing of this project, and has a place among vLLM's own
tests.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

NAME: Final = "test_documented_contract.py"
"""Under what name pytest finds it."""
PLACE: Final = "tests/v1/kv_offload/cpu/policies"
"""The folder of a checkout where tests of cache policies are."""


def in_tree_test() -> str:
    """The file as a whole."""
    here = files("stateful_models.vllm")
    return here.joinpath("_in_tree", NAME).read_text(encoding="utf-8")
