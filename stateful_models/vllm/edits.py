"""What an author has to change for one version of vLLM, in words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Final

from attrs import frozen

from kvoffload.errors import NotInStandInsError
from kvoffload.vllm.standins.asked import AskedBook
from kvoffload.vllm.standins.classes import classes_of
from kvoffload.vllm.standins.contents import contents_of
from kvoffload.vllm.versions import VERSIONS, Loading, VLLMVersion
from stateful_models.vllm.source import Import

POLICY: Final = "CachePolicy"
_STATUSES: Final = {"BlockStatus", "ChunkStatus"}
_TABLE: Final = "_CACHE_POLICIES"
_FACTORY: Final = "CachePolicyFactory"
_WITHOUT: Final = "do without it, or try it with --vllm=installed"
_INSTEAD: Final[Sequence[Sequence[str]]] = (
    ("blocks", "chunks"),
    ("evictable_blocks", "evictable_chunks", "_evictable"),
)
"""Attributes of LRU that say the same in different versions."""


@lru_cache(maxsize=len(VERSIONS))
def names_of(version: VLLMVersion) -> dict[str, frozenset[str]]:
    """The names that can be imported of a version, by module."""
    contents = contents_of(version, classes_of(version), AskedBook(version))
    return {module: frozenset(names) for module, names in contents.items()}


@frozen
class Lack:
    """What an import asks for in vain, and the edit."""

    wanted: Import
    what: str
    edit: str


def lack_of(wanted: Import, version: VLLMVersion) -> Lack | None:
    """Why an import fails here and now, where imports are answered for the version; None if it
    does not."""
    try:
        module = import_module(wanted.module)
        if wanted.name is not None and not hasattr(module, wanted.name):
            import_module(str(wanted))
    except NotInStandInsError:
        return Lack(wanted, f"{wanted} is not in the stand-ins", f"{_WITHOUT}, where it is there")
    except ImportError:
        module_is_there = wanted.module in names_of(version)
        gone = f"{wanted.module} has no {wanted.name}" if module_is_there else f"no {wanted.module}"
        return Lack(wanted, gone, edit_for_import(wanted, version))
    return None


def edit_for_error(error: BaseException, version: VLLMVersion) -> str:
    """What helps against what a module raised when it was imported; "" if that is not known."""
    if isinstance(error, NotInStandInsError):
        return f"{_WITHOUT}, where it is there"
    if isinstance(error, AttributeError):
        module: object = getattr(error.obj, "__name__", None)
        if isinstance(module, str) and module in names_of(version):
            return edit_for_import(Import(module, error.name, 0), version)
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"install {error.name.partition('.')[0]}, or import it where it is used"
    return ""


def edit_for_import(wanted: Import, version: VLLMVersion) -> str:
    """How what is imported is had in a version that does not have it there."""
    name, modules = wanted.name, names_of(version)
    if name in _STATUSES and name != version.status:
        return (
            f"import {version.status} instead of {name}{_from(wanted, version.policy_module)}, "
            f"and read {version.slot}"
        )
    if name == _TABLE and version.loading is Loading.MODULE_PATH:
        return "leave it out: the setting cache_policy_module_path names the module of a policy"
    if _FACTORY in (name, wanted.module.rpartition(".")[2]) and version.loading is Loading.TABLE:
        return f"leave it out: there is no factory, {version.loading.value}"
    if name == "OffloadKey" and not version.context:
        return "import BlockHash instead, from vllm.v1.core.kv_cache_utils: keys are block hashes"
    if name == "ReqContext" and not version.context:
        return "leave it out: policies are told nothing of requests"
    if name is not None:
        preferred = (version.base_module, version.policy_module)
        places = [module for module, names in modules.items() if name in names]
        place = next((each for each in preferred if each in places), next(iter(places), None))
        if place is not None and place != wanted.module:
            return f"import {name} from {place}"
    had = [each for each in VERSIONS if _had(wanted, each)]
    if had:
        oldest, newest = had[-1].minors[0], had[0].name
        return f"only vLLM {oldest if oldest == newest else f'{oldest} to {newest}'} had it"
    return f"{_WITHOUT}, if it is there"


def edit_for_call(method: str, called_with: Sequence[str], version: VLLMVersion) -> str:
    """How a method gets to take what it is called with."""
    parameters = ", ".join(("self", *called_with))
    if "req_context" in called_with:
        return f"def {method}({parameters}); with req_context=None it serves older ones too"
    if method in ("touch", "insert"):
        return "give req_context a default, for none is passed: req_context=None"
    return f"def {method}({parameters})"


def edit_for_internals(attribute: str, version: VLLMVersion) -> str:
    """What stands for an attribute of LRU or ARC in a version that has none of this name."""
    there = (*version.lru_internals, *version.arc_internals)
    for alike in _INSTEAD:
        for other in alike:
            if attribute in alike and other in there:
                order = ", a set; the order is in _ranks" if other == "_evictable" else ""
                return f"read {other}{order}"
    return f"keep your own: LRU there has {', '.join(version.lru_internals)}"


def _from(wanted: Import, module: str) -> str:
    return "" if wanted.module == module else f" from {module}"


def _had(wanted: Import, version: VLLMVersion) -> bool:
    names = names_of(version).get(wanted.module)
    return names is not None and (wanted.name is None or wanted.name in names)
