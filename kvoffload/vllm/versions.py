"""What each range of vLLM releases offered to a cache policy, as data.

A range is one in which nothing changed that a policy can see: module paths, classes, signatures,
hooks, how a policy is loaded, request contexts, and the order in which LRU and ARC give victims.
All boundaries are known, none is inferred: every release from 0.19.0 to 0.33.0 was read from its
wheel. That a build from between two releases is like the first of them is inferred.

What changed, by the release that brought it:

- 0.19: cache policies (`cpu/policies`), named by bare block hashes; 0.18 had managers only.
- 0.20: offload keys, and request contexts for managers, with nothing but `kv_transfer_params`.
- 0.21: the modules are called `base` rather than `abstract`.
- 0.22: `clear`; contexts have `req_id`.
- 0.24: `mark_evictable`, `mark_non_evictable`; LRU keeps idle blocks apart (`evictable_blocks`).
- 0.26: `touch` is given the context.
- 0.27: `cache_policy_module_path`; before it a policy had to be put into a table of vLLM's own. The
  base class can be built, and keeps `cache_capacity`; contexts have `set_state`.
- 0.30: blocks are called chunks: `ChunkStatus.chunk_id`, LRU's `chunks` and `evictable_chunks`. ARC
  gives a chunk of T1 where T2 should give one and has none.
- 0.31: `on_store_miss` and `on_request_finished`, and the scheduler touches no more; contexts have
  positions and `kv_hints`; LRU ranks its chunks (`_ranks`, `_evictable`, `_heap`).
- 0.33: `insert` is given the context; `on_request_access`; LRU ranks by request and position.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from attrs import evolve, frozen

from kvoffload.errors import UnknownVLLMError


class Loading(Enum):
    """How a policy that is not vLLM's own gets into the engine. The values are for readers."""

    TABLE = (
        "by an entry in the table `_CACHE_POLICIES` of vllm.v1.kv_offload.cpu.manager, "
        "which nothing but code can make"
    )
    MODULE_PATH = (
        "by `cache_policy_module_path` and the name of the class, or a registered short name; "
        "it must be a subclass of CachePolicy"
    )


class Method(NamedTuple):
    """A method of CachePolicy: its parameters without `self`. One that is not abstract is a hook
    with a default."""

    name: str
    parameters: tuple[str, ...]
    abstract: bool = True


@frozen(kw_only=True)
class VLLMVersion:
    """A range of releases; `name` is its newest minor release, `releases` says which there are."""

    name: str
    releases: str
    minors: tuple[str, ...]
    """All minor releases of the range, the oldest first."""
    variant: int
    """Which of the five interfaces that policies are written for: by block hashes; by keys; with
    contexts; with the hooks of requests; with contexts at insertion. One between two of them has
    the number of the last that it has all of."""
    base_module: str
    """Where keys and contexts are defined."""
    policy_module: str
    """Where `CachePolicy` and the status class are defined."""
    status: str
    slot: str
    """The attribute of a status object that is its slot."""
    methods: tuple[Method, ...]
    """Those of CachePolicy, `__init__` aside."""
    keeps_capacity: bool
    """Whether CachePolicy itself can be initialised, and keeps `cache_capacity`."""
    loading: Loading
    lru_internals: tuple[str, ...]
    """The attributes of its LRU beside those of the base class."""
    arc_internals: tuple[str, ...]
    arc_always_finds: bool
    """Whether ARC gives a chunk of T1 where T2 should give one and has none that is idle."""
    context: tuple[str, ...]
    """The parameters of ReqContext in order; none where there is no such class."""
    positions: bool
    """Whether contexts know the positions of keys."""
    touches_steps: bool
    """Whether the scheduler touches the keys of a request whenever it is scheduled."""

    def __str__(self) -> str:
        return f"vLLM {self.name}"

    @property
    def hooks(self) -> tuple[str, ...]:
        """The methods of CachePolicy that a policy need not have."""
        return tuple(method.name for method in self.methods if not method.abstract)

    @property
    def abstract(self) -> tuple[str, ...]:
        """The methods of CachePolicy that a policy must have."""
        return tuple(method.name for method in self.methods if method.abstract)

    def parameters(self, name: str) -> tuple[str, ...] | None:
        """Those of a method of CachePolicy, without `self`; None if it has no such method."""
        return next((each.parameters for each in self.methods if each.name == name), None)


_KEYS = "vllm.v1.kv_offload.base"
_POLICIES = "vllm.v1.kv_offload.cpu.policies.base"
_ARC: Final = ("t1", "t2", "b1", "b2", "target_t1_size")

_STATE = ("req_id", "kv_transfer_params", "load_tier_filter")

_CLEAR = Method("clear", ())
_MARKS = (
    Method("mark_evictable", ("key",), abstract=False),
    Method("mark_non_evictable", ("key",), abstract=False),
)
_OF_REQUESTS = (
    Method("on_store_miss", ("keys", "req_context"), abstract=False),
    Method(
        "on_request_finished",
        ("key_groups", "insertion_only_keys", "reused_keys", "req_context"),
        abstract=False,
    ),
)
_ACCESS = Method("on_request_access", ("keys", "req_context"), abstract=False)


def _five(
    key: str, keys: str, chunk: str, *, insert: bool = False, touch: bool = False
) -> tuple[Method, ...]:
    """The methods that every version had, with its names and contexts where it gave them."""
    context = ("req_context",)
    return (
        Method("get", (key,)),
        Method("insert", (key, chunk, *(context if insert else ()))),
        Method("remove", (key,)),
        Method("touch", (keys, *(context if touch else ()))),
        Method("evict", ("n", "protected")),
    )


# Each is written as what it had in common with the one before, and what was new.
_V019: Final = VLLMVersion(
    name="0.19",
    releases="0.19.0 and 0.19.1",
    minors=("0.19",),
    variant=1,
    base_module="vllm.v1.kv_offload.abstract",
    policy_module="vllm.v1.kv_offload.cpu.policies.abstract",
    status="BlockStatus",
    slot="block_id",
    methods=_five("block_hash", "block_hashes", "block"),
    keeps_capacity=False,
    loading=Loading.TABLE,
    lru_internals=("blocks",),
    arc_internals=("cache_capacity", *_ARC),
    arc_always_finds=False,
    context=(),
    positions=False,
    touches_steps=True,
)
_V020: Final = evolve(
    _V019,
    name="0.20",
    releases="0.20.0 to 0.20.2",
    minors=("0.20",),
    variant=2,
    methods=_five("key", "keys", "block"),
    context=("kv_transfer_params",),
)
_V021: Final = evolve(
    _V020,
    name="0.21",
    releases="0.21.0",
    minors=("0.21",),
    base_module=_KEYS,
    policy_module=_POLICIES,
)
_V023: Final = evolve(
    _V021,
    name="0.23",
    releases="0.22.0 to 0.23.0",
    minors=("0.22", "0.23"),
    methods=(*_five("key", "keys", "block"), _CLEAR),
    context=("req_id", "kv_transfer_params"),
)
_V025: Final = evolve(
    _V023,
    name="0.25",
    releases="0.24.0 to 0.25.1",
    minors=("0.24", "0.25"),
    methods=(*_V023.methods, *_MARKS),
    lru_internals=("blocks", "evictable_blocks"),
)
_V026: Final = evolve(
    _V025,
    name="0.26",
    releases="0.26.0",
    minors=("0.26",),
    variant=3,
    methods=(*_five("key", "keys", "block", touch=True), _CLEAR, *_MARKS),
)
_V029: Final = evolve(
    _V026,
    name="0.29",
    releases="0.27.0 to 0.29.0",
    minors=("0.27", "0.28", "0.29"),
    keeps_capacity=True,
    loading=Loading.MODULE_PATH,
    arc_internals=_ARC,
    context=_STATE,
)
_V030: Final = evolve(
    _V029,
    name="0.30",
    releases="0.30.0",
    minors=("0.30",),
    status="ChunkStatus",
    slot="chunk_id",
    methods=(*_five("key", "keys", "chunk", touch=True), _CLEAR, *_MARKS),
    lru_internals=("chunks", "evictable_chunks"),
    arc_always_finds=True,
)
_V032: Final = evolve(
    _V030,
    name="0.32",
    releases="0.31.0 and 0.32.0",
    minors=("0.31", "0.32"),
    variant=4,
    methods=(*_V030.methods, *_OF_REQUESTS),
    lru_internals=("chunks", "_ranks", "_evictable", "_heap", "_next_rank"),
    context=("req_id", "kv_transfer_params", "kv_hints", "load_tier_filter"),
    positions=True,
    touches_steps=False,
)
_V033: Final = evolve(
    _V032,
    name="0.33",
    releases="0.33.0",
    minors=("0.33",),
    variant=5,
    methods=(
        *_five("key", "keys", "chunk", insert=True, touch=True),
        _CLEAR,
        *_MARKS,
        *_OF_REQUESTS,
        _ACCESS,
    ),
    lru_internals=(*_V032.lru_internals, "_cache_generation"),
)

VERSIONS: Final = (_V033, _V032, _V030, _V029, _V026, _V025, _V023, _V021, _V020, _V019)
"""All that are known, the newest first."""

NEWEST: Final = VERSIONS[0]


def find_version(name: str) -> VLLMVersion:
    """The range that a release is in, named as "0.28", "0.28.0" or "v0.28.0".

    Raises:
        UnknownVLLMError: no range has it.
    """
    minor = ".".join(name.strip().removeprefix("v").split(".")[:2])
    for version in VERSIONS:
        if minor in version.minors:
            return version
    raise UnknownVLLMError(
        f"vLLM {name} is not known: cache policies are known as they were from "
        f"{VERSIONS[-1].minors[0]} to {NEWEST.name}"
    )
