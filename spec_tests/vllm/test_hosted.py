"""Policies of kvoffload as vLLM loads them, under the stand-ins of vLLM 0.33."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Final, cast
from weakref import ref

import pytest
from typing_extensions import override

from kvoffload import (
    CachePolicy,
    CachePolicyFactory,
    ChunkStatus,
    CPUOffloadingManager,
    OffloadKey,
    ReqContext,
    make_offload_key,
)
from kvoffload.errors import NotAPolicyError, NoVLLMError, UnknownPolicyError, UnknownVLLMError
from kvoffload.vllm import interface, policies
from kvoffload.vllm.contexts import BorrowedContext
from kvoffload.vllm.standins import StandIns
from kvoffload.vllm.standins.factory import PolicyFactory
from kvoffload.vllm.versions import NEWEST, VERSIONS, VLLMVersion
from spec_tests.clauses.policies import FIFOPolicy, RecordingPolicy, Victims
from spec_tests.vllm.rounds import Called, Rounds
from stateful_models.subjects import ManagerSubject
from stateful_models.workload import Workload

SEEDS: Final = 40
MOVES: Final = 120
HERE: Final = __name__
MODULE: Final = "kvoffload.vllm.policies"

A, B = (make_offload_key(name, 0) for name in (b"a", b"b"))


@pytest.fixture
def vllm() -> Iterator[StandIns]:
    with StandIns(NEWEST) as standins:
        yield standins


def loaded(vllm: StandIns, name: str, module: str = MODULE) -> type:
    """The class that vLLM's own factory gives for this configuration."""
    factory = vllm.classes.factory
    assert factory is not None
    assert issubclass(factory, PolicyFactory)
    return factory.get_cache_policy_cls(name, module)


def context_of(vllm: StandIns, *arguments: object, **named: object) -> interface.Context:
    make: Callable[..., object] = vllm.make_context
    return cast("interface.Context", make(*arguments, **named))


@pytest.mark.parametrize(("name", "theirs"), [("LRUCachePolicy", "lru"), ("ARCCachePolicy", "arc")])
def test_ours_choose_as_theirs_do(vllm: StandIns, name: str, theirs: str) -> None:
    """On vLLM's status objects and contexts, which are no attrs classes of ours."""
    reach: Counter[str] = Counter()
    for seed in range(SEEDS):
        sides = (
            Called(vllm, loaded(vllm, name)),
            Called(vllm, getattr(vllm.classes, theirs)),
        )
        rounds = Rounds(seed, sides, clears=True)
        rounds.play(MOVES)
        reach += rounds.reach
    wanted = ("victims: 1", "victims: 2", "refused", "loads", "failed stores", "resets")
    assert all(reach[what] >= 10 for what in wanted), reach


@pytest.mark.parametrize("name", CachePolicyFactory.names())
def test_a_manager_does_the_same_with_a_hosted_policy(vllm: StandIns, name: str) -> None:
    """Single calls in place of bulk ones change nothing, through mistakes and resets."""
    policy_cls = CachePolicyFactory.get_cache_policy_cls(name)
    programs: list[list[str]] = []
    for cls in (policy_cls, cast("type[CachePolicy]", policies.hosted(policy_cls))):
        manager = CPUOffloadingManager(9, cache_policy=cls, enable_events=True)
        workload = Workload(ManagerSubject(manager), seed=4)
        workload.run(400)
        manager.check()
        programs.append(list(map(str, workload.steps)))
    assert programs[0] == programs[1]
    assert "evicted [" in "".join(programs[0])


def test_every_hook_arrives_with_our_context_and_their_chunks(vllm: StandIns) -> None:
    hosted = loaded(vllm, f"{HERE}:Noting")
    side = Called(vllm, hosted)
    Rounds(3, (side,), clears=True).play(60)
    inner = cast("policies.HostedPolicy", side.policy).policy
    assert isinstance(inner, Noting)
    hooks = {call.hook for call in inner.calls}
    assert hooks >= {
        "insert",
        "touch",
        "evict",
        "on_store_miss",
        "on_request_access",
        "on_request_finished",
        "mark_evictable",
        "mark_non_evictable",
    }
    assert {type(context) for context in inner.contexts} == {BorrowedContext}
    assert {type(chunk) for chunk in inner.given} == {vllm.chunk_status}


class Noting(RecordingPolicy):
    """Keeps what it is given."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.contexts: list[ReqContext] = []
        self.given: list[ChunkStatus] = []

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.contexts.append(req_context)
        self.given.append(chunk)
        super().insert(key, chunk, req_context)

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.contexts.append(req_context)
        super().on_request_access(keys, req_context)


class Plain:
    """To an older interface and of no base class, which kvoffload serves: so it must here."""

    def __init__(self, cache_capacity: int) -> None:
        self.inner = FIFOPolicy(cache_capacity)
        self.touched = 0

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.inner.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        self.inner.insert(key, chunk, ReqContext(""))

    def remove(self, key: OffloadKey) -> None:
        self.inner.remove(key)

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        self.touched += len(list(keys))

    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.inner.evict(n, protected)

    def clear(self) -> None:
        self.inner.clear()


def test_what_kvoffload_serves_is_served_in_vllm(vllm: StandIns) -> None:
    side = Called(vllm, loaded(vllm, f"{HERE}:Plain"))
    Rounds(3, (side,), clears=True).play(60)
    # Of its hooks it has none: misses and the ends of requests are touches.
    assert getattr(side.policy, "touched", 0) > 20


def test_a_key_that_is_inserted_twice_has_the_second_chunk(vllm: StandIns) -> None:
    """vLLM does so where an offer names a key twice; an engine must not die of it here."""
    for name in ("LRUCachePolicy", "ARCCachePolicy"):
        side = Called(vllm, loaded(vllm, name))
        side.begin("r", {})
        side.insert(A, 0, "r")
        side.insert(A, 1, "r")
        assert side.call("get", A) is side.statuses[A]
        side.references(A, 0)
        assert side.evict(1, []) == [A]
        assert side.evict(1, []) is None


def test_the_class_is_made_once_and_is_one_of_theirs(vllm: StandIns) -> None:
    made = loaded(vllm, "LRUCachePolicy")
    assert made is loaded(vllm, "LRUCachePolicy")
    assert made is loaded(vllm, "kvoffload.policies.lru:LRUCachePolicy")
    assert issubclass(made, vllm.base_policy)
    assert (made.__name__, made.__module__) == ("LRUCachePolicy", MODULE)
    theirs = cast("type[CachePolicy]", vllm.classes.lru)
    assert policies.hosted(theirs) is vllm.classes.lru


def test_names_are_classes_short_names_and_paths(
    vllm: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loaded(vllm, "ARCCachePolicy").__name__ == "ARCCachePolicy"
    # vLLM's own short names come first.
    assert loaded(vllm, "arc") is vllm.classes.arc
    registry: dict[str, object] = {}
    monkeypatch.setattr(CachePolicyFactory, "_registry", registry)
    CachePolicyFactory.register_cache_policy("fifo", HERE, "Noting")
    made = loaded(vllm, "fifo")
    assert made.__name__ == "Noting"
    assert made(3).cache_capacity == 3


def test_a_name_that_is_none_is_refused_in_words(vllm: StandIns) -> None:
    with pytest.raises(UnknownPolicyError, match=r"no policy 'MRU'.*LRUCachePolicy, ARC") as raised:
        loaded(vllm, "MRU")
    # As Python expects of a module.
    assert isinstance(raised.value, AttributeError)
    assert not hasattr(policies, "MRU")
    assert not hasattr(policies, "__nothing__")
    with pytest.raises(UnknownPolicyError, match="has no 'MRU'"):
        loaded(vllm, f"{HERE}:MRU")
    with pytest.raises(NotAPolicyError, match="lacks get"):
        loaded(vllm, "kvoffload.requests:ReqContext")


def test_without_vllm_the_error_says_so() -> None:
    with pytest.raises(NoVLLMError, match="there is no vLLM here"):
        _ = policies.LRUCachePolicy


@pytest.mark.parametrize("version", VERSIONS[1:], ids=str)
def test_an_older_vllm_is_refused(version: VLLMVersion) -> None:
    said = r"need vLLM 0\.33 or later\. cache_policy_module_path itself came with vLLM 0\.27"
    with StandIns(version), pytest.raises(UnknownVLLMError, match=said):
        _ = policies.LRUCachePolicy


class Shared:
    """State that parts of the engine keep for a request."""


def test_a_borrowed_context_is_that_of_vllm(vllm: StandIns) -> None:
    params: dict[str, object] = {"session": "s"}
    hints = vllm.make_hints({"pin": {"seconds": 3}})
    theirs = context_of(vllm, "r", params, {A: 16}, kv_hints=hints)
    ours = BorrowedContext.borrow(theirs)
    assert BorrowedContext.borrow(theirs) is ours
    assert isinstance(ours, ReqContext)
    assert (ours.req_id, ours.kv_transfer_params) == ("r", params)
    assert ours.kv_transfer_params is params
    assert getattr(ours, "kv_hints", None) is hints
    assert not hasattr(ours, "unheard_of")
    assert ours.get_offload_key_position(A) == 16
    assert ours.get_offload_key_positions([A, B]) is None
    theirs.set_offload_key_position(B, 32)
    assert ours.get_offload_key_positions([B, A]) == [32, 16]
    ours.set_offload_key_position(B, 33)
    assert theirs.get_offload_key_position(B) == 33
    assert dict(ours.offload_key_positions) == {A: 16, B: 33}
    state = Shared()
    theirs.set_state(state)
    assert ours.get_state(Shared) is state
    ours.set_state(other := Shared())
    assert theirs.get_state(Shared) is other


def test_hints_that_are_no_mapping_are_none(vllm: StandIns) -> None:
    for sent in ([1], "text", 3):
        assert BorrowedContext.borrow(context_of(vllm, "r", sent)).kv_transfer_params is None


def test_a_borrowed_context_does_not_keep_the_other_alive(vllm: StandIns) -> None:
    """Positions of thousands of keys must not wait for the collection of cycles."""
    theirs = context_of(vllm, "r", None, {A: 16})
    kept = BorrowedContext.borrow(theirs)
    gone = ref(theirs)
    gc.disable()
    try:
        del theirs
        assert gone() is None
    finally:
        gc.enable()
    assert kept.get_offload_key_position(A) is None
    assert kept.get_offload_key_positions([A]) is None
    kept.set_state(state := Shared())
    assert kept.get_state(Shared) is state
