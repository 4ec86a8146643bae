"""What a policy or a caller can do to break the books, and does not."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from typing import cast

import pytest
from typing_extensions import override

from kvoffload import (
    BlockIDsLoadStoreSpec,
    ChunkNotFoundError,
    ChunkStatus,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    InvalidKeyError,
    InvalidValueError,
    KVOffloadError,
    LookupResult,
    NotPinnedError,
    OffloadKey,
    PolicyContractError,
    ReqContext,
    RequestFinishedError,
    UnknownTicketError,
    make_offload_key,
)
from kvoffload.policies.lru import LRUCachePolicy

Victims = list[tuple[OffloadKey, ChunkStatus]]


def key(number: int, group: int = 0) -> OffloadKey:
    return make_offload_key(bytes([number]) * 8, group)


def put(manager: CPUOffloadingManager, keys: Sequence[OffloadKey], name: str = "r") -> None:
    context = ReqContext(name)
    output = manager.prepare_store(keys, context)
    assert output is not None
    manager.complete_store(keys, context, ticket=output.ticket)


class KeepingNothing(LRUCachePolicy):
    """Empties each list that it is given, once it has read it."""

    @override
    def insert_all(
        self, keys: Sequence[OffloadKey], chunks: Sequence[ChunkStatus], req_context: ReqContext
    ) -> None:
        super().insert_all(list(keys), list(chunks), req_context)
        for given in (keys, chunks):
            cast("list[object]", given).clear()

    @override
    def mark_all_evictable(self, keys: Sequence[OffloadKey]) -> None:
        super().mark_all_evictable(list(keys))
        cast("list[object]", keys).clear()

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        super().touch(list(keys), req_context)
        cast("list[object]", keys).clear()


def test_lists_given_to_a_policy_are_its_own() -> None:
    manager = CPUOffloadingManager(3, KeepingNothing, enable_events=True)
    put(manager, [key(1), key(2)])
    manager.touch([key(1)], ReqContext("t"))
    assert [event.keys for event in manager.take_events()] == [[key(1), key(2)]]
    load = manager.prepare_load([key(1), key(2)], ReqContext("l"))
    assert load.block_ids.tolist() == [0, 1]
    manager.check()


class AlwaysEqual(ChunkStatus):
    @override
    def __eq__(self, other: object) -> bool:
        return True

    @override
    def __hash__(self) -> int:
        return 0


class Forging(LRUCachePolicy):
    """Gives a chunk of its own, with another's slot, for the victim's."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return [(key(2), AlwaysEqual(0, 0))]


def test_a_chunk_that_only_looks_the_same_is_not_believed() -> None:
    manager = CPUOffloadingManager(2, Forging)
    put(manager, [key(1), key(2)])
    with pytest.raises(PolicyContractError, match="not resident with that chunk"):
        manager.prepare_store([key(3)], ReqContext("s"))
    manager.check()


def test_a_context_that_is_none_pins_nothing() -> None:
    manager = CPUOffloadingManager(2)
    put(manager, [key(1)])
    with pytest.raises(AttributeError):
        manager.prepare_load([key(1)], cast("ReqContext", None), record_access=False)
    manager.check()


@pytest.mark.parametrize("look_alike", [memoryview(key(1)), bytearray(key(1)), "k" * 12, None])
def test_what_is_no_key_is_refused_although_it_may_equal_one(look_alike: object) -> None:
    manager = CPUOffloadingManager(2)
    put(manager, [key(1)])
    forged, context = cast("OffloadKey", look_alike), ReqContext("r")
    calls: list[Callable[[], object]] = [
        lambda: manager.lookup(forged, context),
        lambda: manager.prepare_load([forged], context),
        lambda: manager.touch([forged], context),
        lambda: manager.prepare_store([forged], context),
        lambda: manager.complete_load([forged], context),
        lambda: manager.complete_store([forged], context),
    ]
    for call in calls:
        with pytest.raises(InvalidKeyError):
            call()
    manager.check()


ERRORS: list[KVOffloadError] = [
    InvalidValueError("num_chunks", -1, "an int >= 0"),
    InvalidKeyError(b"k", "too short"),
    ChunkNotFoundError("prepare_load", b"key"),
    NotPinnedError("complete_load", b"key", 0, 1),
    UnknownTicketError("complete_load", 7),
    RequestFinishedError("prepare_load", "r", b"key"),
    PolicyContractError("Mine", "evict", "POL-2", "too few"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_the_way_to_another_process(error: KVOffloadError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_block_ids_stay_read_only_in_a_copy() -> None:
    spec: BlockIDsLoadStoreSpec
    for spec in (pickle.loads(pickle.dumps(CPULoadStoreSpec([1, 2]))), CPULoadStoreSpec([1, 2])):
        with pytest.raises(ValueError, match="read-only"):
            spec.block_ids[0] = 3


class Calling(LRUCachePolicy):
    """Calls its manager back out of a hook."""

    manager: CPUOffloadingManager | None = None

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        if self.manager is not None:
            self.manager.reset_cache()


@pytest.mark.clause("STORE-10")
def test_a_hook_must_not_call_its_manager_back() -> None:
    manager = CPUOffloadingManager(2, Calling)
    put(manager, [key(1)])
    cast("Calling", manager.policy).manager = manager
    with pytest.raises(PolicyContractError, match="reset_cache of its own manager"):
        manager.prepare_load([key(1)], ReqContext("l"))
    assert manager.lookup(key(1), ReqContext("l")) is LookupResult.HIT
    manager.check()
    manager.reset_cache()
    put(manager, [key(2)])


class Interrupted(LRUCachePolicy):
    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        if req_context.req_id == "interrupted":
            raise KeyboardInterrupt


@pytest.mark.clause("STORE-10")
def test_an_interrupted_hook_leaves_the_books_as_they_were() -> None:
    manager = CPUOffloadingManager(2, Interrupted)
    put(manager, [key(1)])
    with pytest.raises(KeyboardInterrupt):
        manager.prepare_load([key(1)], ReqContext("interrupted"))
    manager.check()
    with pytest.raises(PolicyContractError, match="interrupted"):
        manager.prepare_load([key(1)], ReqContext("next"))
    manager.reset_cache()
    put(manager, [key(1)])


class Unspeakable(LRUCachePolicy):
    class Error(Exception):
        @override
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        raise self.Error


@pytest.mark.clause("STORE-10")
def test_an_exception_without_a_text_is_told_by_its_name() -> None:
    manager = CPUOffloadingManager(2, Unspeakable)
    with pytest.raises(PolicyContractError, match="it raised Error") as caught:
        manager.touch([key(1)], ReqContext("t"))
    assert isinstance(caught.value.__cause__, Unspeakable.Error)


class OnlyOnce(LRUCachePolicy):
    made = 0

    def __init__(self, cache_capacity: int) -> None:
        OnlyOnce.made += 1
        if OnlyOnce.made == 2:
            raise OSError("no room")
        super().__init__(cache_capacity)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        raise RuntimeError("broken")


@pytest.mark.clause("STORE-10")
def test_a_policy_that_cannot_be_made_anew_is_named_and_the_next_reset_tries_again() -> None:
    OnlyOnce.made = 0
    manager = CPUOffloadingManager(2, OnlyOnce)
    put(manager, [key(1)])
    with pytest.raises(PolicyContractError, match="touch"):
        manager.touch([key(1)], ReqContext("t"))
    with pytest.raises(PolicyContractError, match="__init__"):
        manager.reset_cache()
    assert manager.lookup(key(1), ReqContext("l")) is LookupResult.HIT
    manager.reset_cache()
    put(manager, [key(2)])


def test_a_context_keeps_neither_manager_nor_chunks_alive() -> None:
    manager = CPUOffloadingManager(300)
    contexts = [ReqContext(f"r{number}") for number in range(50)]
    for number, context in enumerate(contexts):
        context.set_offload_key_position(key(number), 16)
        assert manager.prepare_store([key(number)], context) is not None
    copy.deepcopy(contexts[0])
    policy = weakref.ref(manager.policy)
    del manager
    gc.collect()
    assert policy() is None


def test_words_are_not_taken_for_truth_values() -> None:
    with pytest.raises(InvalidValueError, match="enable_events"):
        CPUOffloadingManager(1, enable_events=cast("bool", "false"))
    manager = CPUOffloadingManager(1)
    context = ReqContext("r")
    manager.prepare_store([key(1)], context)
    with pytest.raises(InvalidValueError, match="success"):
        manager.complete_store([key(1)], context, success=cast("bool", None))
    assert manager.lookup(key(1), context) is LookupResult.HIT_PENDING
    with pytest.raises(InvalidValueError, match="group_idx"):
        make_offload_key(b"hash", True)
