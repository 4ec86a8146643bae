"""The native policy interface, which has no clause of its own: forms, defaults, and the factory.

Which call comes when is STORE-8's and FIN-1's; here is how it reaches a policy.
"""

from collections.abc import Iterable, Set
from typing import cast

import pytest
from typing_extensions import override

from kvoffload import (
    CachePolicy,
    CachePolicyFactory,
    ChunkStatus,
    CPUOffloadingManager,
    DuplicatePolicyError,
    NotAPolicyError,
    OffloadKey,
    ReqContext,
    UnknownPolicyError,
)
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.clauses.helpers import A, B, C, D, evict_order, pin, put, request
from spec_tests.clauses.policies import FIFOPolicy, Victims, recorded


def made_of(policy_cls: type[object]) -> type[CachePolicy]:
    # Having the methods is enough; no type can say so for a class that is none.
    return cast("type[CachePolicy]", policy_cls)


class OldForms:
    """Not derived from anything, two-argument insert, one-argument touch, nothing optional."""

    touched: list[tuple[OffloadKey, ...]]

    def __init__(self, cache_capacity: int) -> None:
        self.chunks: dict[OffloadKey, ChunkStatus] = {}
        OldForms.touched = []

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.chunks.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        self.chunks[key] = chunk

    def remove(self, key: OffloadKey) -> None:
        self.chunks.pop(key, None)

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        keys = tuple(keys)
        OldForms.touched.append(keys)
        for key in reversed(keys):
            if key in self.chunks:
                self.chunks[key] = self.chunks.pop(key)

    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = [
            item
            for item in self.chunks.items()
            if item[1].ref_cnt == 0 and item[0] not in protected
        ][:n]
        for key, _ in victims:
            del self.chunks[key]
        return victims if len(victims) == n else None

    def clear(self) -> None:
        self.chunks.clear()


def test_a_class_of_the_old_forms_is_served() -> None:
    manager = CPUOffloadingManager(2, made_of(OldForms))
    put(manager, [A, B])
    manager.touch([A], request())
    assert put(manager, [C]).evicted_keys == [B]
    context = request()
    prepared = manager.prepare_store([D], context)
    assert prepared is not None
    manager.complete_store([D], context, success=False, ticket=prepared.ticket)
    pin(manager, [C], context)
    manager.reset_cache()
    assert put(manager, [A, B]).evicted_keys == []


def test_without_on_store_miss_misses_are_touched() -> None:
    manager = CPUOffloadingManager(2, made_of(OldForms))
    put(manager, [A, B])
    assert OldForms.touched == [(A, B)]


def test_without_on_request_finished_each_group_is_touched_once() -> None:
    manager = CPUOffloadingManager(4, made_of(OldForms))
    context = request("r", [B, A])
    other = OffloadKey(A[:-1] + b"\x01")
    put(manager, [A, other, B], context)
    OldForms.touched.clear()
    manager.on_request_finished(context)
    assert OldForms.touched == [(B, A), (other,)]


def test_the_inherited_defaults_pass_on_misses_and_groups() -> None:
    class Touching(FIFOPolicy):
        touched: list[tuple[tuple[OffloadKey, ...], str]]

        @override
        def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
            self.touched.append((tuple(keys), req_context.req_id))

    Touching.touched = []
    manager = CPUOffloadingManager(4, Touching)
    context = request()
    put(manager, [B, A], context)
    pin(manager, [A], context)
    manager.on_request_finished(context)
    assert Touching.touched == [((B, A), "r"), ((B, A), "r")]


def test_a_derived_class_may_have_the_old_forms_too() -> None:
    class Mixed(FIFOPolicy):
        touched: list[OffloadKey]

        def touch(self, keys: Iterable[OffloadKey]) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride] # the old form
            self.touched.extend(keys)

        def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride] # the old form
            self.chunks[key] = chunk

    Mixed.touched = []
    manager = CPUOffloadingManager(1, Mixed)
    context = request()
    put(manager, [A], context)
    manager.on_request_finished(context)
    assert Mixed.touched == [A, A]
    assert put(manager, [B]).evicted_keys == [A]


def test_marks_are_told_after_the_count_changed() -> None:
    manager, policy = recorded(2)
    put(manager, [A])
    context = request()
    first, second = pin(manager, [A, A], context), pin(manager, [A], context)
    manager.complete_load([A, A], context, ticket=first.ticket)
    manager.complete_load([A], context, ticket=second.ticket)
    assert policy.marked_at == [(A, 0), (A, 0)]
    assert [call.hook for call in policy.calls if call.hook.startswith("mark")] == [
        "mark_evictable",
        "mark_non_evictable",
        "mark_evictable",
    ]


def test_overriding_insert_alone_is_honoured_though_there_is_a_bulk_form() -> None:
    class Counting(LRUCachePolicy):
        inserted: list[OffloadKey]

        @override
        def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
            self.inserted.append(key)
            super().insert(key, chunk, req_context)

    Counting.inserted = []
    manager = CPUOffloadingManager(2, Counting)
    context = request("r", [A, B])
    put(manager, [A, B], context)
    assert Counting.inserted == [A, B]
    assert evict_order(manager, 2) == [B, A]


def test_overriding_mark_evictable_alone_is_honoured() -> None:
    class Counting(ARCCachePolicy):
        marked: list[OffloadKey]

        @override
        def mark_evictable(self, key: OffloadKey) -> None:
            self.marked.append(key)
            super().mark_evictable(key)

    Counting.marked = []
    put(CPUOffloadingManager(2, Counting), [A, B])
    assert Counting.marked == [A, B]


def test_a_method_set_on_the_object_is_honoured() -> None:
    class Patched(LRUCachePolicy):
        inserted: list[OffloadKey]

        def __init__(self, cache_capacity: int) -> None:
            super().__init__(cache_capacity)
            plain = self.insert

            def insert(key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
                self.inserted.append(key)
                plain(key, chunk, req_context)

            self.insert = insert  # type: ignore[method-assign]  # what a plug-in does to an object

    Patched.inserted = []
    put(CPUOffloadingManager(2, Patched), [A, B])
    assert Patched.inserted == [A, B]


def test_a_bulk_form_below_the_single_one_is_used() -> None:
    class Bulk(FIFOPolicy):
        batches: list[list[OffloadKey]]

        @override
        def insert_all(
            self,
            keys: Iterable[OffloadKey],
            chunks: Iterable[ChunkStatus],
            req_context: ReqContext,
        ) -> None:
            keys = list(keys)
            self.batches.append(keys)
            self.chunks.update(zip(keys, chunks, strict=True))

    Bulk.batches = []
    manager = CPUOffloadingManager(3, Bulk)
    put(manager, [A, B])
    put(manager, [C])
    assert Bulk.batches == [[A, B], [C]]
    assert put(manager, [D]).evicted_keys == [A]


def test_a_policy_is_made_with_its_capacity() -> None:
    _, policy = recorded(7)
    assert policy.cache_capacity == 7


@pytest.mark.parametrize("ref_cnt", [-1, 0, 3])
def test_a_chunk_is_true_and_knows_whether_it_is_ready(ref_cnt: int) -> None:
    chunk = ChunkStatus(0, ref_cnt)
    assert bool(chunk)
    assert chunk.is_ready is (ref_cnt >= 0)
    assert chunk.chunk_id == 0
    assert ChunkStatus(5).ref_cnt == -1


# The factory


def test_policies_are_found_by_name() -> None:
    assert CachePolicyFactory.get_cache_policy_cls("lru") is LRUCachePolicy
    assert CachePolicyFactory.get_cache_policy_cls("arc") is ARCCachePolicy
    assert {"lru", "arc"} <= set(CachePolicyFactory.names())


def test_policies_out_of_tree_are_found_by_module() -> None:
    manager = CPUOffloadingManager(1, "FIFOPolicy", "spec_tests.clauses.policies")
    put(manager, [A])
    assert put(manager, [B]).evicted_keys == [A]


def test_an_unknown_name_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(UnknownPolicyError, match=r"'nope'.*lru.*arc"):
        CPUOffloadingManager(1, "nope")
    with pytest.raises(UnknownPolicyError, match="Nope"):
        CPUOffloadingManager(1, "Nope", "spec_tests.clauses.policies")


def test_a_duplicate_name_is_refused() -> None:
    with pytest.raises(DuplicatePolicyError, match="'lru'"):
        CachePolicyFactory.register_cache_policy("lru", "somewhere", "Else")
    assert CachePolicyFactory.get_cache_policy_cls("lru") is LRUCachePolicy


def test_a_registered_name_is_loaded_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CachePolicyFactory, "_registry", {})
    CachePolicyFactory.register_cache_policy("later", "no.such.module", "Policy")
    assert CachePolicyFactory.names() == ("later",)
    with pytest.raises(ModuleNotFoundError):
        CachePolicyFactory.get_cache_policy_cls("later")
    CachePolicyFactory.register_cache_policy("fifo", "spec_tests.clauses.policies", "FIFOPolicy")
    assert CachePolicyFactory.get_cache_policy_cls("fifo") is FIFOPolicy


class Half:
    def __init__(self, cache_capacity: int) -> None: ...

    def get(self, key: OffloadKey) -> None: ...

    def touch(self, keys: Iterable[OffloadKey]) -> None: ...


class Abstract(CachePolicy):
    pass


class WithoutCapacity(FIFOPolicy):
    def __init__(self) -> None:
        super().__init__(0)


@pytest.mark.parametrize(
    ("candidate", "lacking"),
    [
        (Half, ["insert", "remove", "evict", "clear"]),
        (Abstract, ["get", "insert", "remove", "touch", "evict", "clear"]),
        (WithoutCapacity, ["cache_capacity"]),
        (3, ["3"]),
    ],
)
def test_what_is_no_policy_is_refused_with_what_it_lacks(
    candidate: type[object], lacking: list[str]
) -> None:
    with pytest.raises(NotAPolicyError) as caught:
        CPUOffloadingManager(1, made_of(candidate))
    assert all(part in str(caught.value) for part in lacking)
    assert ("touch" in str(caught.value)) == ("touch" in lacking)
