"""vLLM's offload manager without vLLM: a few of its modules, and stand-ins for all others.

The manager and its policies are plain Python, but what they import leads to an engine, to torch
and to a compiler. None of that runs when chunks are counted, so a module that is not among those
wanted is replaced by one that has whatever name is asked of it.
"""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from typing_extensions import override

VERSION = "0.33.0"
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1"
WANTED = (
    "vllm.v1.kv_offload",
    "vllm.v1.kv_hints",
    "vllm.v1.metrics.cache_hit_source",
    "vllm.utils.math_utils",
    f"{CONNECTOR}.offloading",
    f"{CONNECTOR}.metrics",
)
"""The modules that are taken as they are, each with all that is in it."""
STOOD_IN_FOR = ("vllm", "torch", "prometheus_client")
"""Top-level packages whose other modules are replaced, installed or not."""


class VLLMMissingError(Exception):
    """vLLM's modules are not where they should be, or cannot be fetched."""


class _Logger(logging.Logger):
    """vLLM's loggers also have the methods `info_once`, `warning_once` and the like."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.endswith("_once"):
            log: Callable[..., None] = getattr(self, name.removesuffix("_once"))
            return log
        raise AttributeError(name)


class _StandIn(ModuleType):
    """Has every name: an empty class, which may be subclassed, subscripted and annotated with."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "init_logger":
            return _Logger

        def subscripted(cls: type, item: object) -> type:
            return cls

        made = type(name, (), {"__class_getitem__": classmethod(subscripted)})
        setattr(self, name, made)
        return made


class _StandInLoader(Loader):
    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    @override
    def exec_module(self, module: ModuleType) -> None:
        return None


class _Finder(MetaPathFinder):
    """Finds the wanted modules below a root, and stand-ins for the rest of their packages."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @override
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in STOOD_IN_FOR:
            return None
        if _is_wanted(fullname):
            place = self._root.joinpath(*fullname.split(".")[:-1])
            return PathFinder.find_spec(fullname, [str(place)])
        return ModuleSpec(fullname, _StandInLoader(), is_package=True)


def _is_wanted(name: str) -> bool:
    return any(name == wanted or name.startswith(f"{wanted}.") for wanted in WANTED)


def check_root(root: Path) -> Path:
    """`root` if vLLM's offload manager lies below it, else VLLMMissingError."""
    manager = root.joinpath("vllm", "v1", "kv_offload", "cpu", "manager.py")
    if not manager.is_file():
        raise VLLMMissingError(f"{root}: no vllm/v1/kv_offload/cpu/manager.py in it")
    return root


def load_vllm(root: Path) -> tuple[ModuleType, ModuleType]:
    """vLLM's modules `kv_offload.base` and `kv_offload.cpu.manager`, from below `root`.

    For a process that wants neither vLLM nor torch otherwise. Raises VLLMMissingError.
    """
    sys.meta_path.insert(0, _Finder(check_root(root)))
    # The manager's imports are a circle that can be entered at its base only.
    base = importlib.import_module("vllm.v1.kv_offload.base")
    return base, importlib.import_module("vllm.v1.kv_offload.cpu.manager")


def fetch_vllm(cache: Path) -> Path:
    """The wanted modules of vLLM `VERSION` below `cache`, downloaded unless they are there.

    The wheel is large and goes again once they are out of it. Raises VLLMMissingError.
    """
    root = cache / f"vllm-{VERSION}"
    if not root.is_dir():
        wheels = cache / "wheels"
        unpacked = cache / "unpacking"
        unpack_wheel(_download(wheels), unpacked)
        # Under its own name only when it is whole.
        check_root(unpacked).rename(root)
        for wheel in wheels.iterdir():
            wheel.unlink()
    return check_root(root)


def _download(place: Path) -> Path:
    # Only Python files are read, so the wheel of one platform serves on every other.
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        *("--only-binary=:all:", "--platform", "manylinux_2_28_x86_64"),
        *("--implementation", "cp", "--abi", "abi3", "--python-version", "3.12"),
        *("--dest", str(place), f"vllm=={VERSION}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VLLMMissingError(f"vllm=={VERSION} cannot be downloaded:\n{done.stderr.strip()}")
    (wheel,) = place.glob(f"vllm-{VERSION}-*.whl")
    return wheel


def unpack_wheel(wheel: Path, place: Path) -> None:
    """Write the wanted modules of a wheel below `place`, and nothing else of it."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py") and _is_wanted(name.removesuffix(".py").replace("/", ".")):
                archive.extract(name, place)
