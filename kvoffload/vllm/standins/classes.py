"""The classes of a version, put together from what the version had.

They are made anew each time, so that what a policy patches does not outlive the stand-ins.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, new_class
from typing import Final

from attrs import frozen

from kvoffload.vllm.standins import facets
from kvoffload.vllm.standins.arc import RequestARC, ResortingARC, TouchedARC
from kvoffload.vllm.standins.contexts import CONTEXTS, KvHintAction, KvHintsEnvelope
from kvoffload.vllm.standins.factory import policy_factory
from kvoffload.vllm.standins.lru_listed import ListedLRU
from kvoffload.vllm.standins.lru_parted import PartedBlocks, PartedChunks
from kvoffload.vllm.standins.lru_ranked import NumberRankedLRU, RequestRankedLRU
from kvoffload.vllm.standins.status import BlockStatus, ChunkStatus, SlotStatus
from kvoffload.vllm.versions import Loading, VLLMVersion

POLICIES: Final = "vllm.v1.kv_offload.cpu.policies"


@frozen
class _Form:
    """A form of a method: what CachePolicy has of it, and what LRU and ARC have."""

    declared: type
    done: type | None = None


_FORMS: Final[Mapping[tuple[str, tuple[str, ...]], _Form]] = MappingProxyType(
    {
        ("get", ("block_hash",)): _Form(facets.NamedByHash, facets.ShelfByHash),
        ("get", ("key",)): _Form(facets.NamedByKey, facets.ShelfByKey),
        ("insert", ("block_hash", "block")): _Form(facets.InsertsHash, facets.ShelvesHash),
        ("insert", ("key", "block")): _Form(facets.InsertsBlock, facets.ShelvesBlock),
        ("insert", ("key", "chunk")): _Form(facets.InsertsChunk, facets.ShelvesChunk),
        ("insert", ("key", "chunk", "req_context")): _Form(
            facets.InsertsForRequest, facets.ShelvesForRequest
        ),
        ("touch", ("block_hashes",)): _Form(facets.TouchesHashes, facets.RenewsHashes),
        ("touch", ("keys",)): _Form(facets.TouchesKeys, facets.RenewsKeys),
        ("touch", ("keys", "req_context")): _Form(
            facets.TouchesForRequest, facets.RenewsForRequest
        ),
        ("clear", ()): _Form(facets.Clears, facets.Empties),
        ("mark_evictable", ("key",)): _Form(facets.Marks),
        ("on_store_miss", ("keys", "req_context")): _Form(facets.TellsRequests),
        ("on_request_access", ("keys", "req_context")): _Form(facets.TellsAccesses),
    }
)
"""`remove` and `evict` come with `get`, the second mark and the end of a request with the first."""

_LRU: Final[Mapping[tuple[str, ...], type]] = MappingProxyType(
    {
        ("blocks",): ListedLRU,
        ("blocks", "evictable_blocks"): PartedBlocks,
        ("chunks", "evictable_chunks"): PartedChunks,
        ("chunks", "_ranks", "_evictable", "_heap", "_next_rank"): NumberRankedLRU,
        (
            "chunks",
            "_ranks",
            "_evictable",
            "_heap",
            "_next_rank",
            "_cache_generation",
        ): RequestRankedLRU,
    }
)
"""LRU by the attributes that it has."""

_STATUS: Final[Mapping[str, type[SlotStatus]]] = MappingProxyType(
    {"BlockStatus": BlockStatus, "ChunkStatus": ChunkStatus}
)


@frozen(eq=False, kw_only=True)
class Classes:
    """The classes of some vLLM; those that it has not are None.

    They have the same names in every version, but for the status class.
    """

    status: type
    policy: type
    lru: type
    arc: type
    context: type | None
    factory: type | None
    hint_action: type | None
    hints_envelope: type | None


def classes_of(version: VLLMVersion) -> Classes:
    """New classes of a version, called and placed as its own are."""
    forms = [_FORMS.get((each.name, each.parameters)) for each in version.methods]
    built = facets.BuiltWithCapacity if version.keeps_capacity else facets.BuiltAbstractly
    declared = [built, *(form.declared for form in forms if form is not None)]
    done = [form.done for form in forms if form is not None and form.done is not None]
    policy = _made("CachePolicy", version.policy_module, declared)
    lru = _made("LRUCachePolicy", f"{POLICIES}.lru", [_LRU[version.lru_internals], *done, policy])
    arc = _made("ARCCachePolicy", f"{POLICIES}.arc", [_arc(version), *done, policy])
    context = CONTEXTS.get(version.context)
    hinted = "kv_hints" in version.context
    return Classes(
        status=_made(version.status, version.policy_module, [_STATUS[version.status]]),
        policy=policy,
        lru=lru,
        arc=arc,
        context=context and _made("ReqContext", version.base_module, [context]),
        factory=policy_factory(policy) if version.loading is Loading.MODULE_PATH else None,
        hint_action=KvHintAction if hinted else None,
        hints_envelope=KvHintsEnvelope if hinted else None,
    )


def _arc(version: VLLMVersion) -> type:
    if "on_request_finished" in version.hooks:
        return RequestARC
    return ResortingARC if version.arc_always_finds else TouchedARC


def _made(name: str, module: str, bases: list[type]) -> type:
    """A class of these bases; of those that others derive from, the others suffice."""
    distinct = list(dict.fromkeys(bases))
    needed = [
        base
        for base in distinct
        if not any(other is not base and issubclass(other, base) for other in distinct)
    ]
    doc = "\n\n".join(base.__doc__ for base in needed if base.__doc__)
    namespace = {"__module__": module, "__qualname__": name, "__doc__": doc}
    return new_class(name, tuple(needed), exec_body=lambda body: body.update(namespace))
