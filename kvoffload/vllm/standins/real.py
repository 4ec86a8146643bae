"""The vLLM that is really installed, behind the interface of the stand-ins."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as release_of
from typing import Self

from typing_extensions import override

from kvoffload.errors import NoVLLMError, UnknownVLLMError, VLLMLoadedError
from kvoffload.vllm.standins.classes import POLICIES, Classes
from kvoffload.vllm.standins.factory import FACTORY
from kvoffload.vllm.standins.modules import VLLM, StandInFinder
from kvoffload.vllm.standins.provider import VLLMProvider
from kvoffload.vllm.versions import VERSIONS, Loading, VLLMVersion, find_version

HINTS = "vllm.v1.kv_hints"


class InstalledVLLM(VLLMProvider):
    """Modules are vLLM's own, and stay loaded; nobody takes note of what is asked of them."""

    @override
    def install(self) -> Self:
        if any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
            raise VLLMLoadedError(f"stand-ins answer for vllm, not the installed {self.version}")
        _class(self.version.policy_module, "CachePolicy")
        return self

    @override
    def uninstall(self) -> None:
        return None

    @property
    @override
    def patched(self) -> tuple[str, ...]:
        return ()

    @property
    @override
    def classes(self) -> Classes:
        version = self.version
        hinted = "kv_hints" in version.context
        by_path = version.loading is Loading.MODULE_PATH
        return Classes(
            status=_class(version.policy_module, version.status),
            policy=_class(version.policy_module, "CachePolicy"),
            lru=_class(f"{POLICIES}.lru", "LRUCachePolicy"),
            arc=_class(f"{POLICIES}.arc", "ARCCachePolicy"),
            context=_class(version.base_module, "ReqContext") if version.context else None,
            factory=_class(FACTORY, "CachePolicyFactory") if by_path else None,
            hint_action=_class(HINTS, "KvHintAction") if hinted else None,
            hints_envelope=_class(HINTS, "KvHintsEnvelope") if hinted else None,
        )


def installed() -> InstalledVLLM:
    """The installed vLLM, or the one that is loaded already under its name.

    One that does not say which it is, or is newer than those known, passes for the newest whose
    policies and contexts have the same methods and parameters.

    Raises:
        NoVLLMError: no vLLM is installed, or it cannot be imported.
        UnknownVLLMError: policies of this release are not known.
    """
    release = _release()
    try:
        return InstalledVLLM(find_version(release))
    except UnknownVLLMError:
        for version in VERSIONS:
            if _has_interface_of(version):
                return InstalledVLLM(version)
        raise


def _release() -> str:
    """What the installed vLLM calls itself, "?" for one that is loaded and does not say."""
    loaded = sys.modules.get(VLLM)
    said: object = getattr(loaded, "__version__", None)
    if isinstance(said, str):
        return said
    try:
        return release_of(VLLM)
    except PackageNotFoundError:
        if loaded is None:
            raise NoVLLMError("no vLLM is installed") from None
        return "?"


def _has_interface_of(version: VLLMVersion) -> bool:
    try:
        classes = InstalledVLLM(version).classes
    except NoVLLMError:
        return False
    context = () if classes.context is None else _parameters(classes.context)
    return context == version.context and all(
        _parameters(getattr(classes.policy, method.name, None)) == ("self", *method.parameters)
        for method in version.methods
    )


def _parameters(of: object) -> tuple[str, ...]:
    return tuple(inspect.signature(of).parameters) if callable(of) else ()


def _class(module: str, name: str) -> type:
    """A class of vLLM's. Raises NoVLLMError if it cannot be had."""
    try:
        found: object = getattr(import_module(module), name, None)
    except Exception as error:
        # Its import does more than to define names, and can fail of anything.
        raise NoVLLMError(f"{module} cannot be imported: {error!r}") from error
    if not isinstance(found, type):
        raise NoVLLMError(f"{module} has no class {name}")
    return found
