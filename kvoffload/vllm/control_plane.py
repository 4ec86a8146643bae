"""vLLM's own manager and policies, loaded without the rest of vLLM.

`load_control_plane` imports the modules that decide what is offloaded from a checkout, from an
unpacked wheel or from the vLLM that is installed. The rest of vLLM, and libraries that the control
plane names in annotations only, are empty stand-ins, so that no GPU, no torch and no compiled part
of vLLM is needed. The modules stay loaded, under their own names, until `unload_control_plane`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from attrs import frozen
from typing_extensions import override

from kvoffload.errors import NoVLLMError, UnknownVLLMError, VLLMLoadedError
from kvoffload.vllm import interface

VLLM: Final = "vllm"

REAL: Final = (
    "vllm.v1.kv_offload",
    "vllm.v1.kv_hints",
    "vllm.v1.metrics.cache_hit_source",
    "vllm.utils.math_utils",
    "vllm.distributed.kv_transfer.kv_connector.v1.metrics",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading",
)
"""The control plane: these modules and those inside them are vLLM's own."""

NAMED_ONLY: Final = ("torch", "prometheus_client")
"""Libraries that the control plane names in annotations, and does not use. What is imported
already is taken; of what is not, nothing is left after the loading."""

BASE: Final = "vllm.v1.kv_offload.base"
MANAGER: Final = "vllm.v1.kv_offload.cpu.manager"
POLICIES: Final = "vllm.v1.kv_offload.cpu.policies.base"
FACTORY: Final = "vllm.v1.kv_offload.cpu.policies.factory"
LRU: Final = "vllm.v1.kv_offload.cpu.policies.lru"
ARC: Final = "vllm.v1.kv_offload.cpu.policies.arc"
HINTS: Final = "vllm.v1.kv_hints"


@frozen(eq=False, kw_only=True)
class ControlPlane:
    """What is used of vLLM's control plane.

    `root` is the folder that holds `vllm`, `version` what it calls itself, None where it does not
    say. Of the enums, members have the names that those of kvoffload have.
    """

    root: Path
    version: str | None
    manager_class: type[interface.CPUManager]
    context_class: type[interface.Context]
    policy_base: type[interface.Policy]
    lru_class: type[interface.Policy]
    arc_class: type[interface.Policy]
    chunk_status: Callable[[int], interface.Chunk]
    policy_factory: interface.PolicyFactory
    make_offload_key: Callable[[bytes, int], bytes]
    lookup_result: type[Enum]
    medium: type[Enum]
    locality: type[Enum]
    tier_matcher: Callable[[Enum | None, Enum | None], object]
    tier_filter: Callable[[tuple[object, ...]], object]
    all_tiers: object
    schedule_end: Callable[[Collection[str], Collection[str]], object]
    hints_envelope: type
    hint_action: type
    stood_in: tuple[str, ...]
    """The modules in whose place there were empty ones while it was loaded."""

    def __str__(self) -> str:
        return f"vLLM {self.version or 'of unknown version'} at {self.root}"


def load_control_plane(root: Path | None = None) -> ControlPlane:
    """The control plane of the vLLM in `root`, a folder that holds `vllm`.

    None: the one that is loaded already, else that of the installed vLLM. Loading the same once
    more gives what was loaded. Where the vLLM asked for has been imported whole, that is taken as
    it is.

    Raises:
        NoVLLMError: `root` holds no vLLM with offloading in it, or none is installed.
        UnknownVLLMError: this control plane lacks names of the one that is known.
        VLLMLoadedError: other modules are loaded under the name `vllm`.
    """
    finder = _loaded_finder()
    if finder is not None and finder.plane is not None and root is None:
        return finder.plane
    folder = _installed_root() if root is None else root.resolve()
    package = folder / VLLM
    if not (package / "v1" / "kv_offload").is_dir():
        raise NoVLLMError(
            f"{folder} holds no vLLM with offloading: there is no folder "
            f"{Path(VLLM, 'v1', 'kv_offload')} in it"
        )
    if finder is not None and finder.plane is not None and finder.root == folder:
        return finder.plane
    if VLLM in sys.modules:
        where = None if finder is None else finder.root / VLLM
        where = where or _place_of(sys.modules[VLLM])
        if where != package:
            raise VLLMLoadedError(f"vllm is loaded from {where or 'stand-ins'}, not from {package}")
        # Somebody runs the whole of it: its modules are the real ones.
        return _plane(folder, ())
    finder = _Finder(folder)
    sys.meta_path.insert(0, finder)
    try:
        with _named_only() as absent:
            plane = _plane(folder, absent)
        finder.plane = plane
    except BaseException:
        unload_control_plane()
        raise
    return plane


def unload_control_plane() -> None:
    """Take what `load_control_plane` loaded out of the modules; objects made of it stay usable."""
    finder = _loaded_finder()
    if finder is not None:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_in(name, VLLM)]:
            del sys.modules[name]


def _plane(root: Path, absent: tuple[str, ...]) -> ControlPlane:
    version = _version(root)
    parts = _Parts()
    tier_filter = parts.of(BASE, "TierFilter")
    plane = ControlPlane(
        root=root,
        version=version,
        manager_class=parts.of(MANAGER, "CPUOffloadingManager"),
        context_class=parts.of(BASE, "ReqContext"),
        policy_base=parts.of(POLICIES, "CachePolicy"),
        lru_class=parts.of(LRU, "LRUCachePolicy"),
        arc_class=parts.of(ARC, "ARCCachePolicy"),
        chunk_status=parts.of(POLICIES, "ChunkStatus"),
        policy_factory=parts.of(FACTORY, "CachePolicyFactory"),
        make_offload_key=parts.of(BASE, "make_offload_key"),
        lookup_result=parts.of(BASE, "LookupResult"),
        medium=parts.of(BASE, "Medium"),
        locality=parts.of(BASE, "Locality"),
        tier_matcher=parts.of(BASE, "TierMatcher"),
        tier_filter=tier_filter,
        all_tiers=getattr(tier_filter, "ALL", None),
        schedule_end=parts.of(BASE, "ScheduleEndContext"),
        hints_envelope=parts.of(HINTS, "KvHintsEnvelope"),
        hint_action=parts.of(HINTS, "KvHintAction"),
        stood_in=(*sorted(_stood_in()), *absent),
    )
    if parts.missing:
        known = "the control plane of vLLM 0.33"
        raise UnknownVLLMError(
            f"vLLM {version or 'of unknown version'} at {root} lacks names of {known}: "
            f"{', '.join(parts.missing)}"
        )
    return plane


class _Parts:
    """Names of vLLM's modules; those that are not there are listed as `missing`."""

    def __init__(self) -> None:
        self.missing: list[str] = []

    # What it is only vLLM knows; the fields of ControlPlane say what it is taken for.
    def of(self, module: str, name: str) -> Any:
        """The value of a name in a module of vLLM's, None if there is none."""
        try:
            found: object = getattr(import_module(module), name, None)
        except ModuleNotFoundError as error:
            if error.name is None or not _is_in(error.name, VLLM):
                raise
            self.missing.append(error.name)
            return None
        if found is None:
            self.missing.append(f"{module}.{name}")
        return found


class _Finder(MetaPathFinder):
    """Finds the control plane below `root`, and an empty module for whatever else is vLLM's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plane: ControlPlane | None = None

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _is_in(fullname, VLLM):
            return None
        if any(_is_in(fullname, real) for real in REAL):
            parent = self.root.joinpath(*fullname.split(".")[:-1])
            return PathFinder.find_spec(fullname, [str(parent)])
        return ModuleSpec(fullname, _EmptyLoader(), is_package=True)


class _EmptyLoader(Loader):
    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    @override
    def exec_module(self, module: ModuleType) -> None:
        return None


class _Empty(ModuleType):
    """A module whose every name is an empty class, made when it is first asked for."""

    def __getattr__(self, name: str) -> object:
        # Settings are values: a class would pass for one that is switched on.
        if name.startswith("__") or self.__name__ == f"{VLLM}.envs":
            raise AttributeError(f"the stand-in for {self.__name__} has no {name!r}")
        value: object = init_logger if name == "init_logger" else type(name, (_Nothing,), {})
        setattr(self, name, value)
        return value


class _Nothing:
    """Of what is named and not used. It takes type arguments, since annotations give some."""

    def __class_getitem__(cls, item: object) -> type:
        return cls


class _Logger(logging.LoggerAdapter[logging.Logger]):
    """A logger with the methods that vLLM's have in addition, which log every time."""

    def debug_once(self, message: str, *args: object) -> None:
        self.debug(message, *args)

    def info_once(self, message: str, *args: object) -> None:
        self.info(message, *args)

    def warning_once(self, message: str, *args: object) -> None:
        self.warning(message, *args)


def init_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """What vLLM's function of this name does: a logger of this name."""
    return _Logger(logging.getLogger(name), {})


@contextmanager
def _named_only() -> Generator[tuple[str, ...], None, None]:
    """Empty modules for libraries that are named only, and have not been imported; gives which."""
    absent = {name: _Empty(name) for name in NAMED_ONLY if name not in sys.modules}
    sys.modules.update(absent)
    try:
        yield tuple(absent)
    finally:
        for name, module in absent.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _loaded_finder() -> _Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)


def _stood_in() -> Iterator[str]:
    for name, module in sys.modules.items():
        if _is_in(name, VLLM) and isinstance(module, _Empty):
            yield name


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _installed_root() -> Path:
    loaded = sys.modules.get(VLLM)
    if loaded is not None:
        place = _place_of(loaded)
        if place is None:
            raise VLLMLoadedError("under the name vllm there are stand-ins, not the installed one")
        return place.parent
    spec = find_spec(VLLM)
    places = [] if spec is None else spec.submodule_search_locations or []
    if not places:
        raise NoVLLMError("no vLLM is installed; name the folder of a checkout or of a wheel")
    return Path(next(iter(places))).resolve().parent


def _place_of(module: ModuleType) -> Path | None:
    """The folder of a package that was imported from files, None of any other."""
    file: object = getattr(module, "__file__", None)
    return Path(file).resolve().parent if isinstance(file, str) else None


def _version(root: Path) -> str | None:
    """What a vLLM calls itself: in its metadata, or in the file that is made when it is built."""
    for distribution in distributions(path=[str(root)], name=VLLM):
        return distribution.version
    try:
        text = (root / VLLM / "_version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^(?:__version__ = )?version = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found and found[1]
