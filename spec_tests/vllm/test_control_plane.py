"""Loading vLLM's control plane, tried on a folder with modules of the same names."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvoffload.errors import NoVLLMError, UnknownVLLMError, VLLMLoadedError
from kvoffload.vllm import control_plane
from kvoffload.vllm.control_plane import load_control_plane, unload_control_plane

FORBIDDEN = "raise RuntimeError('this is none of the control plane')\n"

FILES = {
    "__init__.py": FORBIDDEN,
    "config.py": FORBIDDEN,
    "v1/__init__.py": FORBIDDEN,
    "v1/kv_hints/__init__.py": "class KvHintsEnvelope: ...\nclass KvHintAction: ...\n",
    "v1/kv_offload/__init__.py": "",
    "v1/kv_offload/base.py": """
from enum import Enum
from typing import NamedTuple

import torch

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.kv_hints import KvHintsEnvelope

logger = init_logger(__name__)

class ReqContext:
    kv_hints: KvHintsEnvelope | None
    config: VllmConfig[int]
    tensor: torch.Tensor

class LookupResult(Enum):
    MISS = 1

class Medium(Enum):
    CPU = "CPU"

class Locality(Enum):
    LOCAL = "LOCAL"

class TierMatcher(NamedTuple):
    medium: Medium | None = None

class TierFilter:
    ALL = None

class ScheduleEndContext(NamedTuple):
    new_req_ids: list
    preempted_req_ids: list

def make_offload_key(block_hash, group_idx):
    logger.warning_once("a key of %d", group_idx)
    return block_hash + bytes(4)
""",
    "v1/kv_offload/cpu/__init__.py": "",
    "v1/kv_offload/cpu/manager.py": """
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

class CPUOffloadingManager:
    def __init__(self, num_chunks):
        self.policy = LRUCachePolicy(num_chunks)
""",
    "v1/kv_offload/cpu/policies/__init__.py": "",
    "v1/kv_offload/cpu/policies/base.py": """
class ChunkStatus: ...
class CachePolicy:
    def __init__(self, cache_capacity):
        self.cache_capacity = cache_capacity
""",
    "v1/kv_offload/cpu/policies/factory.py": "class CachePolicyFactory: ...\n",
    "v1/kv_offload/cpu/policies/lru.py": """
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy

class LRUCachePolicy(CachePolicy): ...
""",
    "v1/kv_offload/cpu/policies/arc.py": """
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy

class ARCCachePolicy(CachePolicy): ...
""",
}
BASE = "v1/kv_offload/base.py"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    for name, text in FILES.items():
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    before = {name for name in sys.modules if is_vllms(name)}
    assert not before
    yield tmp_path
    unload_control_plane()
    for name in [name for name in sys.modules if is_vllms(name)]:
        del sys.modules[name]


def is_vllms(name: str) -> bool:
    return name.split(".")[0] == "vllm"


def write(root: Path, name: str, text: str) -> None:
    (root / "vllm" / name).write_text(text, encoding="utf-8")


def install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(root), *sys.path])
    importlib.invalidate_caches()


def test_the_control_plane_is_real_and_the_rest_empty(root: Path) -> None:
    had_torch = "torch" in sys.modules
    plane = load_control_plane(root)
    assert plane.root == root.resolve()
    assert type(plane.manager_class(num_chunks=3)).__name__ == "CPUOffloadingManager"
    assert plane.make_offload_key(b"hash", 0) == b"hash\0\0\0\0"
    assert plane.policy_base in plane.lru_class.__mro__
    assert {"vllm", "vllm.config", "vllm.logger", "vllm.v1"} <= set(plane.stood_in)
    assert ("torch" in plane.stood_in) is not had_torch
    assert ("torch" in sys.modules) is had_torch


def test_loading_it_again_gives_the_same(root: Path) -> None:
    plane = load_control_plane(root)
    assert load_control_plane(root) is plane
    assert load_control_plane() is plane
    unload_control_plane()
    assert not any(map(is_vllms, sys.modules))
    assert load_control_plane(root) is not plane


def test_loggers_of_vllm_have_methods_that_log_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plane = load_control_plane(root)
    with caplog.at_level(logging.WARNING):
        plane.make_offload_key(b"hash", 7)
    assert caplog.messages == ["a key of 7"]
    assert caplog.records[0].name == "vllm.v1.kv_offload.base"


def test_settings_of_vllm_are_not_made_up(root: Path) -> None:
    load_control_plane(root)
    envs = importlib.import_module("vllm.envs")
    with pytest.raises(AttributeError, match=r"the stand-in for vllm\.envs has no 'VLLM_PORT'"):
        _ = envs.VLLM_PORT


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vllm-0.33.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.1\n"),
        ("vllm/_version.py", "__version__ = version = '0.33.1'\n"),
        ("vllm/_version.py", "version = '0.33.1'\n"),
    ],
)
def test_the_version_is_what_it_calls_itself(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    plane = load_control_plane(root)
    assert plane.version == "0.33.1"
    assert str(plane) == f"vLLM 0.33.1 at {root.resolve()}"


def test_a_checkout_need_not_say_its_version(root: Path) -> None:
    assert load_control_plane(root).version is None


def test_a_folder_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoVLLMError, match=r"holds no vLLM with offloading.*v1.kv_offload"):
        load_control_plane(tmp_path)


def test_without_an_installed_vllm_a_folder_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        assert name == "vllm"

    monkeypatch.setattr(control_plane, "find_spec", find_nothing)
    with pytest.raises(NoVLLMError, match="no vLLM is installed; name the folder"):
        load_control_plane()


def test_what_it_lacks_is_named_and_nothing_stays_loaded(root: Path) -> None:
    write(root, BASE, FILES[BASE].replace("class ScheduleEndContext", "class ScheduleEnded"))
    (root / "vllm/v1/kv_offload/cpu/policies/arc.py").unlink()
    with pytest.raises(UnknownVLLMError) as caught:
        load_control_plane(root)
    assert str(caught.value).endswith(
        "lacks names of the control plane of vLLM 0.33: vllm.v1.kv_offload.cpu.policies.arc, "
        "vllm.v1.kv_offload.base.ScheduleEndContext"
    )
    assert not any(map(is_vllms, sys.modules))
    write(root, BASE, FILES[BASE])
    write(root, "v1/kv_offload/cpu/policies/arc.py", "class ARCCachePolicy: ...")
    load_control_plane(root)


def test_a_library_that_it_needs_is_missing_by_its_own_name(root: Path) -> None:
    write(root, "v1/kv_offload/cpu/policies/arc.py", "import no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load_control_plane(root)
    assert not any(map(is_vllms, sys.modules))


def test_there_can_be_only_one(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    load_control_plane(root)
    other = tmp_path_factory.mktemp("other")
    (other / "vllm" / "v1" / "kv_offload").mkdir(parents=True)
    with pytest.raises(VLLMLoadedError) as caught:
        load_control_plane(other)
    assert str(root / "vllm") in str(caught.value)
    assert str(other / "vllm") in str(caught.value)


def test_the_installed_one_is_found_and_not_imported(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(root, monkeypatch)
    plane = load_control_plane()
    assert plane.root == root.resolve()
    assert "vllm.config" in plane.stood_in


def test_one_that_runs_is_taken_as_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__init__.py", "v1/__init__.py"):
        write(root, name, "")
    write(root, "config.py", "class VllmConfig:\n    __class_getitem__ = classmethod(print)\n")
    write(root, "logger.py", "import logging\ninit_logger = logging.getLogger\n")
    write(root, BASE, FILES[BASE].replace("import torch", "").replace("torch.Tensor", "object"))
    install(root, monkeypatch)
    running = importlib.import_module("vllm.v1.kv_offload.base")
    plane = load_control_plane()
    assert plane.context_class is running.ReqContext
    assert plane.stood_in == ()
    unload_control_plane()
    assert sys.modules["vllm.v1.kv_offload.base"] is running
