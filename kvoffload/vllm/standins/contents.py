"""What each module of a version holds: names and values."""

from __future__ import annotations

import os
from enum import Enum
from functools import cache
from typing import Final, TypeAlias

from kvoffload.keys import OffloadKey
from kvoffload.lookup import LookupResult
from kvoffload.tiers import Locality, Medium, TierFilter, TierMatcher
from kvoffload.vllm.standins.asked import AskedBook
from kvoffload.vllm.standins.catalogue import (
    UNANSWERED,
    CataloguedModule,
    answered,
    has,
    manager_methods,
)
from kvoffload.vllm.standins.classes import POLICIES, Classes, classes_of
from kvoffload.vllm.standins.contexts import KvHintAction, KvHintsEnvelope, order_request_keys
from kvoffload.vllm.standins.factory import BUILT_IN, FACTORY
from kvoffload.vllm.standins.keys import (
    BlockHash,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)
from kvoffload.vllm.standins.logger import ONCE, ONCE_SINCE_030, logger_maker
from kvoffload.vllm.standins.math_utils import cdiv, next_power_of_2, round_down, round_up
from kvoffload.vllm.standins.placeholders import placeholder
from kvoffload.vllm.versions import VERSIONS, VLLMVersion

Names: TypeAlias = dict[str, object]

MANAGER: Final = "vllm.v1.kv_offload.cpu.manager"


def contents_of(version: VLLMVersion, classes: Classes, book: AskedBook) -> dict[str, Names]:
    """The names of every module that the stand-ins of a version have.

    What is done with a placeholder is noted in `book`.
    """
    modules = answered(version.name)
    found = {name: _placeholders(module, version.name, book) for name, module in modules.items()}
    init_logger = logger_maker((*ONCE, *(ONCE_SINCE_030 if has(version.name, "0.30") else ())))
    found["vllm"]["__version__"] = f"{version.name}.0"
    found["vllm.logger"]["init_logger"] = init_logger
    found["vllm.envs"]["environment_variables"] = {"VLLM_LOGGING_LEVEL": _logging_level}
    for function in (cdiv, next_power_of_2, round_down, round_up):
        found["vllm.utils.math_utils"][function.__name__] = function
    found["vllm.v1.core.kv_cache_utils"]["BlockHash"] = BlockHash
    if "vllm.v1.kv_hints" in found:
        hints: Names = {"KvHintAction": KvHintAction, "KvHintsEnvelope": KvHintsEnvelope}
        found["vllm.v1.kv_hints"] |= {**hints, "__all__": list(hints)}
        found["vllm.v1.kv_hints.protocol"] |= hints
    vocabulary = _vocabulary(version.name, classes)
    found[version.base_module] |= vocabulary
    _add_policies(found, version, classes, vocabulary)
    if FACTORY in found:
        found[FACTORY]["logger"] = init_logger(FACTORY)
    return found


def _add_policies(
    found: dict[str, Names], version: VLLMVersion, classes: Classes, vocabulary: Names
) -> None:
    """Policies where they are defined and, as policies do import them, where they are used."""
    policies: Names = {version.status: classes.status, "CachePolicy": classes.policy}
    touching = version.parameters("touch") or ()
    for name in (
        "BlockHash",
        "OffloadKey",
        *(("ReqContext",) if "req_context" in touching else ()),
    ):
        if name in vocabulary:
            policies[name] = vocabulary[name]
    ordering: Names = {"order_request_keys": order_request_keys} if version.positions else {}
    built_in: Names = {"LRUCachePolicy": classes.lru, "ARCCachePolicy": classes.arc}
    found[version.policy_module] |= {**policies, **ordering}
    for short, name in BUILT_IN.items():
        found[f"{POLICIES}.{short}"] |= {**policies, **ordering, name: built_in[name]}
    found[MANAGER] |= policies
    if "ReqContext" in vocabulary:
        found[MANAGER]["ReqContext"] = vocabulary["ReqContext"]
    if classes.factory is None:
        table = {short: built_in[name] for short, name in BUILT_IN.items()}
        found[MANAGER] |= {"_CACHE_POLICIES": table, **built_in}
    else:
        found[MANAGER]["CachePolicyFactory"] = classes.factory
        found[FACTORY] |= {
            "CachePolicyFactory": classes.factory,
            "CachePolicy": classes.policy,
        }


@cache
def known_names() -> dict[str, frozenset[str]]:
    """By module, the names that the stand-ins of any version have of it, parts of packages too.

    Which versions had these is known; of another name it is not known whether any had it.
    """
    found: dict[str, set[str]] = {}
    for version in VERSIONS:
        for module, names in contents_of(version, classes_of(version), AskedBook(version)).items():
            found.setdefault(module, set()).update(names)
            package, _, part = module.rpartition(".")
            found.setdefault(package, set()).add(part)
    for module, _, _ in UNANSWERED:
        package, _, part = module.rpartition(".")
        found[package].add(part)
    return {module: frozenset(names) for module, names in found.items()}


def _placeholders(module: CataloguedModule, minor: str, book: AskedBook) -> Names:
    methods = tuple(manager_methods(minor)) if module.name == MANAGER else ()
    return {
        name: placeholder(module.name, name, book, methods) for name in module.classes_in(minor)
    }


def _vocabulary(minor: str, classes: Classes) -> Names:
    """What the module of keys and contexts holds beside placeholders."""
    if not has(minor, "0.20"):
        return {"BlockHash": BlockHash}
    found: Names = {
        "OffloadKey": OffloadKey,
        "make_offload_key": make_offload_key,
        "get_offload_block_hash": get_offload_block_hash,
        "get_offload_group_idx": get_offload_group_idx,
        "ReqContext": classes.context,
    }
    if has(minor, "0.23"):
        level = "CHUNK_LEVEL" if has(minor, "0.30") else "BLOCK_LEVEL"
        members = {name: name.lower() for name in (level, "REQUEST_LEVEL")}
        found["OffloadPolicy"] = Enum("OffloadPolicy", members)
    if has(minor, "0.25"):
        found["LookupResult"] = LookupResult
    if has(minor, "0.26"):
        found["Locality"] = Locality
    if has(minor, "0.27"):
        found |= {"Medium": Medium, "TierMatcher": TierMatcher, "TierFilter": TierFilter}
    return found


def _logging_level() -> str:
    return os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper()
