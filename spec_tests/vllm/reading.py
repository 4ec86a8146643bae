"""How tests read what is imported under vLLM's names, which no type describes."""

from __future__ import annotations

import importlib
from typing import Any, Final

import pytest

from kvoffload.vllm.versions import VERSIONS

POLICIES: Final = "vllm.v1.kv_offload.cpu.policies"
MANAGER: Final = "vllm.v1.kv_offload.cpu.manager"

every_version = pytest.mark.parametrize("version", VERSIONS, ids=[each.name for each in VERSIONS])


def dynamic(value: object) -> Any:
    """A value whose attributes only some version has: no one type would do."""
    return value


def module(name: str) -> Any:
    """A module, by whoever answers for it."""
    return dynamic(importlib.import_module(name))


def a_class(home: str, name: str) -> type:
    """A class out of a module."""
    found: object = getattr(importlib.import_module(home), name)
    assert isinstance(found, type)
    return found
