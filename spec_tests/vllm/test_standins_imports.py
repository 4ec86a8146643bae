"""Stand-ins answer imports for one version of vLLM, with what it had and nothing else."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from types import ModuleType

import pytest

from kvoffload.errors import (
    ModuleNotInStandInsError,
    NotInStandInsError,
    NoVLLMError,
    VLLMLoadedError,
)
from kvoffload.vllm.standins import StandIns, installed
from kvoffload.vllm.versions import NEWEST, VERSIONS, Loading, VLLMVersion, find_version
from spec_tests.vllm.reading import MANAGER, POLICIES, a_class, dynamic, every_version, module


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    yield
    assert not [name for name in sys.modules if name.split(".")[0] == "vllm"]


# What some version has under these names, and which.
SINCE = {
    f"{POLICIES}.base.ChunkStatus": ("0.30", "0.33"),
    f"{POLICIES}.base.BlockStatus": ("0.21", "0.29"),
    f"{POLICIES}.base.order_request_keys": ("0.31", "0.33"),
    f"{POLICIES}.factory.CachePolicyFactory": ("0.27", "0.33"),
    f"{POLICIES}.abstract.CachePolicy": ("0.19", "0.20"),
    "vllm.v1.kv_offload.base.ReqContext": ("0.21", "0.33"),
    "vllm.v1.kv_offload.base.LookupResult": ("0.25", "0.33"),
    "vllm.v1.kv_offload.abstract.OffloadKey": ("0.20", "0.20"),
    "vllm.v1.kv_offload.mediums.CPULoadStoreSpec": ("0.19", "0.20"),
    "vllm.v1.kv_hints.KvHintsEnvelope": ("0.31", "0.33"),
    f"{MANAGER}._CACHE_POLICIES": ("0.19", "0.26"),
}


MODULES = {
    f"{POLICIES}.abstract": ("0.19", "0.20"),
    f"{POLICIES}.base": ("0.21", "0.33"),
    f"{POLICIES}.factory": ("0.27", "0.33"),
    f"{POLICIES}.lru": ("0.19", "0.33"),
    "vllm.v1.kv_offload.abstract": ("0.19", "0.20"),
    "vllm.v1.kv_offload.base": ("0.21", "0.33"),
    "vllm.v1.kv_offload.config": ("0.26", "0.33"),
    "vllm.v1.kv_offload.mediums": ("0.19", "0.20"),
    "vllm.v1.kv_offload.reuse_manager": ("0.19", "0.21"),
    "vllm.v1.kv_offload.spec": ("0.19", "0.20"),
    "vllm.v1.kv_offload.cpu.common": ("0.21", "0.33"),
    "vllm.v1.kv_hints": ("0.31", "0.33"),
}


@every_version
def test_modules_are_those_of_the_version(version: VLLMVersion) -> None:
    with StandIns(version) as vllm:
        for name, span in MODULES.items():
            if among(version, span):
                assert module(name).__name__ == name
            else:
                with pytest.raises(ModuleNotFoundError, match=f"^No module named '{name}'$"):
                    module(name)
        assert vllm.absent == tuple(
            name for name, span in MODULES.items() if not among(version, span)
        )


def among(version: VLLMVersion, span: tuple[str, str]) -> bool:
    first, last = (int(minor.split(".")[1]) for minor in span)
    return first <= int(version.name.split(".")[1]) <= last


@pytest.mark.parametrize("full", SINCE)
@every_version
def test_names_of_another_version_are_missing_as_python_says_it(
    version: VLLMVersion, full: str
) -> None:
    module, _, name = full.rpartition(".")
    namespace: dict[str, object] = {}
    with StandIns(version) as vllm:
        if among(version, SINCE[full]):
            exec(f"from {module} import {name}", namespace)
            assert vllm.absent == ()
            assert vllm.asked[-1] == full
            return
        with pytest.raises(ImportError) as caught:
            exec(f"from {module} import {name}", namespace)
        assert not isinstance(caught.value, NotInStandInsError)
        assert "stand-ins" not in str(caught.value)
        there = module in sys.modules
        assert vllm.absent == (full if there else module,)
        if there:
            assert f"cannot import name '{name}' from '{module}'" in str(caught.value)
            assert not hasattr(sys.modules[module], name)
        else:
            assert type(caught.value) is ModuleNotFoundError
            assert str(caught.value) == f"No module named '{module}'"
        assert vllm.unanswered == ()


@every_version
def test_parts_of_packages_can_be_imported_from_them(version: VLLMVersion) -> None:
    parent, _, name = version.policy_module.rpartition(".")
    other = {"base": "abstract", "abstract": "base"}[name]
    namespace: dict[str, object] = {}
    with StandIns(version) as vllm:
        exec(f"from {parent} import {name}", namespace)
        assert namespace[name] is sys.modules[version.policy_module]
        assert not vllm.absent
        with pytest.raises(ImportError, match=f"cannot import name '{other}'"):
            exec(f"from {parent} import {other}", namespace)
        assert vllm.absent == (f"{parent}.{other}",)


def test_what_may_be_there_is_missed_in_a_sentence() -> None:
    with StandIns(NEWEST) as vllm:
        with pytest.raises(
            ModuleNotInStandInsError, match=r"vllm\.foo is not in the stand-ins of vLLM 0\.33"
        ):
            importlib.import_module("vllm.foo.bar")
        with pytest.raises(ModuleNotFoundError, match=r"tiering is not in the stand-ins"):
            importlib.import_module("vllm.v1.kv_offload.tiering.base")
        with pytest.raises(
            NotInStandInsError, match=r"base\.PolicyStats is not in the stand-ins of vLLM 0\.33"
        ):
            exec(f"from {POLICIES}.base import PolicyStats")
        with pytest.raises(NotInStandInsError, match=r"vllm\.LLM is not"):
            exec("from vllm import LLM")
        assert vllm.unanswered == (
            "vllm.foo",
            "vllm.v1.kv_offload.tiering",
            f"{POLICIES}.base.PolicyStats",
            "vllm.LLM",
        )
        assert vllm.absent == ()


def test_a_part_that_the_version_had_and_is_left_out_is_missed_in_a_sentence() -> None:
    for name, missed in (("0.33", True), ("0.20", False)):
        with StandIns(find_version(name)) as vllm:
            with pytest.raises(ImportError) as caught:
                exec("from vllm.v1.kv_offload import tiering")
            assert isinstance(caught.value, NotInStandInsError) == missed
            part = ("vllm.v1.kv_offload.tiering",)
            assert (vllm.unanswered, vllm.absent) == ((part, ()) if missed else ((), part))


def test_classes_in_name_only_can_be_subclassed_and_not_built() -> None:
    with StandIns(NEWEST) as vllm:
        manager = module(MANAGER).CPUOffloadingManager
        spec = module("vllm.v1.kv_offload.base").LoadStoreSpec
        mine = dynamic(type("Mine", (manager,), {}))
        with pytest.raises(
            NotInStandInsError, match=r"manager\.CPUOffloadingManager\(\) is not in the stand-ins"
        ):
            mine(num_chunks=4)
        with pytest.raises(NotInStandInsError, match=r"LoadStoreSpec\.medium is not"):
            _ = spec.medium
        with pytest.raises(NotInStandInsError, match=r"CPUOffloadingManager\.touch is not"):
            manager.touch(None)
        assert not hasattr(spec, "_private")
        assert spec[int] is spec
        assert vllm.unanswered == (
            f"{MANAGER}.CPUOffloadingManager()",
            "vllm.v1.kv_offload.base.LoadStoreSpec.medium",
            f"{MANAGER}.CPUOffloadingManager.touch",
        )


def test_what_is_asked_is_listed_in_order_and_once() -> None:
    with StandIns(find_version("0.21")) as vllm:
        assert not vllm.asked
        exec(
            "import vllm.envs\n"
            "from vllm.v1.kv_offload.base import OffloadKey\n"
            "from vllm.v1.kv_offload.base import OffloadKey, ReqContext"
        )
        asked = vllm.asked
    assert asked == (
        "vllm",
        "vllm.envs",
        "vllm.v1",
        "vllm.v1.kv_offload",
        "vllm.v1.kv_offload.base",
        "vllm.v1.kv_offload.base.OffloadKey",
        "vllm.v1.kv_offload.base.ReqContext",
    )


def test_one_version_at_a_time() -> None:
    with (
        StandIns(NEWEST),
        pytest.raises(
            VLLMLoadedError,
            match=r"of vLLM 0\.32 come alone.*those of vLLM 0\.33 are there already",
        ),
    ):
        StandIns(VERSIONS[1]).install()
    with StandIns(VERSIONS[1]):
        pass


def test_a_vllm_that_is_loaded_is_not_covered_up(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("vllm")
    monkeypatch.setitem(sys.modules, "vllm", other)
    with pytest.raises(VLLMLoadedError, match="vllm is there already"):
        StandIns(NEWEST).install()
    assert sys.modules["vllm"] is other
    monkeypatch.delitem(sys.modules, "vllm")


def test_modules_of_similar_names_are_not_ours() -> None:
    with StandIns(NEWEST) as vllm:
        with pytest.raises(ModuleNotFoundError, match="No module named 'vllm_plugin'"):
            importlib.import_module("vllm_plugin")
        assert vllm.asked == ()


@every_version
def test_patches_are_seen_and_do_not_outlive_the_stand_ins(version: VLLMVersion) -> None:
    with StandIns(version) as vllm:
        manager = module(MANAGER)
        lru = dynamic(a_class(f"{POLICIES}.lru", "LRUCachePolicy"))
        policies, envs = module(version.policy_module), module("vllm.envs")
        lru(4)
        assert vllm.patched == ()
        lru.touch = staticmethod(print)
        manager.CPUOffloadingManager.prepare_store = None
        policies.CachePolicy = object
        envs.environment_variables["MINE"] = str
        if version.loading is Loading.TABLE:
            manager._CACHE_POLICIES["mine"] = lru
            entry = f"{MANAGER}._CACHE_POLICIES['mine']"
        else:
            manager.CachePolicyFactory.register_cache_policy("mine", "my.module", "Mine")
            entry = f"{POLICIES}.factory.CachePolicyFactory._registry['mine']"
        assert set(vllm.patched) == {
            f"{POLICIES}.lru.LRUCachePolicy.touch",
            f"{MANAGER}.CPUOffloadingManager.prepare_store",
            f"{version.policy_module}.CachePolicy",
            "vllm.envs.environment_variables['MINE']",
            entry,
        }
    with StandIns(version) as another:
        assert module(f"{POLICIES}.lru").LRUCachePolicy.touch is not print
        assert another.patched == ()


def test_no_vllm_is_installed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("kvoffload.vllm.standins.real.release_of", nothing)
    with pytest.raises(NoVLLMError, match="no vLLM is installed"):
        installed()


def test_stand_ins_do_not_pass_for_an_installed_vllm() -> None:
    with StandIns(NEWEST):
        importlib.import_module("vllm")
        with pytest.raises(VLLMLoadedError, match="stand-ins answer for vllm"):
            installed().install()


def test_errors_can_be_copied() -> None:
    with StandIns(NEWEST), pytest.raises(ModuleNotInStandInsError) as caught:
        importlib.import_module("vllm.foo")
    twin = copy.copy(caught.value)
    assert (type(twin), str(twin), twin.asked) == (
        ModuleNotInStandInsError,
        str(caught.value),
        "vllm.foo",
    )
