"""STORE-10: the manager's index is the authority, and a policy that errs is named and survived."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import ClassVar

import pytest
from typing_extensions import override

from kvoffload import (
    CachePolicy,
    ChunkStatus,
    CPUOffloadingManager,
    LookupResult,
    OffloadKey,
    PolicyContractError,
    ReqContext,
)
from spec_tests.clauses.helpers import (
    LETTERS,
    A,
    B,
    C,
    D,
    E,
    F,
    believed,
    books,
    in_flight,
    pin,
    prepare,
    put,
    ready,
    request,
    resident,
    slots,
)
from spec_tests.clauses.policies import FIFOPolicy, Victims


class Lying(FIFOPolicy):
    """Answers `evict` wrongly while `lie` is set; what it says is taken from its own books."""

    lie: ClassVar[bool] = False

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.answer(n, protected) if self.lie else super().evict(n, protected)

    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        raise NotImplementedError

    def take(self, *keys: OffloadKey) -> Victims:
        return [(key, self.chunks.pop(key)) for key in keys]


class TooFew(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.take(A)


class TooMany(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.take(A, B, C)


class NoVictims(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return []


class Protected(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.take(A, D)


class Pinned(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.take(A, E)


class Pending(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.take(A, F)


class Repeated(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return self.take(A) * 2


class NotResident(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return [*self.take(A), (OffloadKey(b"nobody"), ChunkStatus(1, 0))]


class NobodyAtAll(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        nothing: ChunkStatus = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] # the lie
        return [*self.take(A), (OffloadKey(b"nobody"), nothing)]


class AnothersChunk(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return [*self.take(A), (B, ChunkStatus(self.chunks[B].chunk_id, 0))]


class SwappedChunks(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        (a, chunk_a), (b, chunk_b) = self.take(A, B)
        return [(a, chunk_b), (b, chunk_a)]


class Refusing(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return None


class RemovingAndRefusing(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        self.take(A, B)
        return None


class NotPairs(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        answer: list[OffloadKey] = [key for key, _ in self.take(A, B)]
        return answer  # type: ignore[return-value]  # pyright: ignore[reportReturnType] # the lie


class NotAList(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return 2  # type: ignore[return-value]  # pyright: ignore[reportReturnType] # the lie


class RaisingLate(Lying):
    """Its answer raises when it is read."""

    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        def victims() -> Iterator[tuple[OffloadKey, ChunkStatus]]:
            yield from self.take(A)
            raise PolicyFaultError

        return victims()  # type: ignore[return-value]  # pyright: ignore[reportReturnType] # the lie


class UnprotectingItself(Lying):
    @override
    def answer(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        if isinstance(protected, set):
            protected.clear()
        return self.take(A, D)


LIES: list[tuple[type[Lying], str]] = [
    (TooFew, "POL-2"),
    (TooMany, "POL-2"),
    (NoVictims, "POL-2"),
    (Protected, "POL-2"),
    (Pinned, "POL-2"),
    (Pending, "POL-2"),
    (Repeated, "POL-2"),
    (NotResident, "POL-2"),
    (NobodyAtAll, "POL-2"),
    (AnothersChunk, "POL-2"),
    (SwappedChunks, "POL-2"),
    (NotPairs, "POL-2"),
    (NotAList, "POL-2"),
    (RaisingLate, "POL-2"),
    (UnprotectingItself, "POL-2"),
    (Refusing, "POL-3"),
    (RemovingAndRefusing, "POL-3"),
]


class PolicyFaultError(Exception):
    """What a faulty policy raises."""


class Raising(FIFOPolicy):
    """Raises out of the hook named by `at`; its own books are right as long as it does not."""

    at: ClassVar[str] = ""
    # On the second key of a call about several, so that the first was already told.
    after: ClassVar[int] = 0

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.calls = 0

    def fault(self, hook: str) -> None:
        if hook == self.at:
            self.calls += 1
            if self.calls > self.after:
                raise PolicyFaultError(hook)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.fault("insert")
        super().insert(key, chunk, req_context)

    @override
    def remove(self, key: OffloadKey) -> None:
        self.fault("remove")
        super().remove(key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.fault("touch")

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        self.fault("evict")
        return super().evict(n, protected)

    @override
    def clear(self) -> None:
        self.fault("clear")
        super().clear()

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.fault("on_store_miss")

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.fault("on_request_access")

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        self.fault("on_request_finished")

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self.fault("mark_evictable")

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.fault("mark_non_evictable")


class Scene:
    """Six of six slots taken: A to D idle, E pinned, F pending, all by requests of their own."""

    def __init__(self, policy_cls: type[CachePolicy]) -> None:
        self.manager = manager = CPUOffloadingManager(6, policy_cls, enable_events=True)
        put(manager, [A, B, C, D, E])
        self.loader, self.storer = request("loader"), request("storer")
        self.load = pin(manager, [E], self.loader)
        self.store = prepare(manager, [F], self.storer)
        self.heard = believed(manager.take_events())

    def finish_transfers(self, *, success: bool = True) -> None:
        self.manager.complete_load([E], self.loader, ticket=self.load.ticket)
        self.manager.complete_store([F], self.storer, success, ticket=self.store.ticket)


G_AND_H = LETTERS[6:]

# Which call of the manager leads to which hook of the policy; each is to raise.
LEADS_TO: list[tuple[str, Callable[[Scene], object]]] = [
    ("on_store_miss", lambda s: s.manager.prepare_store([*G_AND_H, D], request())),
    ("on_request_access", lambda s: s.manager.prepare_store([*G_AND_H, D], request())),
    ("evict", lambda s: s.manager.prepare_store([*G_AND_H, D], request())),
    ("insert", lambda s: s.manager.prepare_store([*G_AND_H, D], request())),
    ("on_request_access", lambda s: s.manager.prepare_load([A, E], request())),
    ("mark_non_evictable", lambda s: s.manager.prepare_load([A, E, B], request())),
    ("mark_evictable", lambda s: s.manager.complete_load([E], s.loader, ticket=s.load.ticket)),
    ("mark_evictable", lambda s: s.manager.complete_load([E], s.loader)),
    ("mark_evictable", lambda s: s.manager.complete_store([F], s.storer, ticket=s.store.ticket)),
    ("mark_evictable", lambda s: s.manager.complete_store([F], s.storer)),
    ("remove", lambda s: s.manager.complete_store([F], s.storer, False, ticket=s.store.ticket)),
    ("remove", lambda s: s.manager.complete_store([F], s.storer, success=False)),
    ("touch", lambda s: s.manager.touch([A], request())),
    ("on_request_finished", lambda s: s.manager.on_request_finished(s.storer)),
    ("clear", lambda s: s.manager.reset_cache()),
]


def lied_to(policy_cls: type[Lying], monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(policy_cls)
    monkeypatch.setattr(policy_cls, "lie", True)
    return scene


def faulty(hook: str, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(Raising)
    monkeypatch.setattr(Raising, "at", hook)
    return scene


@pytest.mark.clause("STORE-10")
@pytest.mark.parametrize(
    ("policy_cls", "clause"), LIES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_wrong_answer_of_evict_is_named_and_changes_nothing(
    policy_cls: type[Lying], clause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = lied_to(policy_cls, monkeypatch)
    before = books(scene.manager)
    with pytest.raises(PolicyContractError) as caught:
        scene.manager.prepare_store([*G_AND_H, D], request())
    error = caught.value
    assert (error.policy, error.call, error.clause) == (policy_cls.__name__, "evict", clause)
    assert all(part in str(error) for part in (policy_cls.__name__, "evict", clause))
    assert books(scene.manager) == before
    assert scene.manager.take_events() == []
    assert scene.manager.outstanding("r") == ()


@pytest.mark.clause("STORE-10")
@pytest.mark.parametrize(("hook", "lead"), LEADS_TO)
def test_an_exception_out_of_a_hook_is_named_and_changes_nothing(
    hook: str, lead: Callable[[Scene], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = faulty(hook, monkeypatch)
    before = books(scene.manager)
    outstanding = [scene.manager.outstanding(r) for r in ("loader", "storer", "r")]
    with pytest.raises(PolicyContractError) as caught:
        lead(scene)
    assert (caught.value.policy, caught.value.call) == ("Raising", hook)
    assert isinstance(caught.value.__cause__, PolicyFaultError)
    assert "PolicyFaultError" in str(caught.value)
    assert books(scene.manager) == before
    assert scene.manager.take_events() == []
    assert [scene.manager.outstanding(r) for r in ("loader", "storer", "r")] == outstanding


@pytest.mark.clause("STORE-10")
@pytest.mark.parametrize("hook", ["insert", "mark_evictable", "mark_non_evictable", "remove"])
def test_nor_does_one_in_the_middle_of_several_keys(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(Raising)
    manager, context = scene.manager, request()
    call: Callable[[], object]
    monkeypatch.setattr(Raising, "after", 1)
    if hook == "insert":
        call = partial(manager.prepare_store, list(G_AND_H), context)
    elif hook == "mark_non_evictable":
        call = partial(manager.prepare_load, [A, B], context)
    else:
        ticket = prepare(manager, list(G_AND_H), context).ticket
        success = hook == "mark_evictable"
        call = partial(manager.complete_store, list(G_AND_H), context, success, ticket=ticket)
    monkeypatch.setattr(Raising, "at", hook)
    manager.take_events()
    before = books(manager)
    with pytest.raises(PolicyContractError):
        call()
    assert books(manager) == before
    assert manager.take_events() == []


def broken(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = lied_to(Pending, monkeypatch)
    with pytest.raises(PolicyContractError):
        scene.manager.prepare_store(list(G_AND_H), request())
    return scene


NEED_THE_POLICY: dict[str, Callable[[CPUOffloadingManager], object]] = {
    "prepare_store": lambda manager: manager.prepare_store([A], request()),
    "prepare_load": lambda manager: manager.prepare_load([A], request()),
    "touch": lambda manager: manager.touch([A], request()),
    "on_new_request": lambda manager: manager.on_new_request(request()),
    "on_request_finished": lambda manager: manager.on_request_finished(request()),
}


@pytest.mark.clause("STORE-10")
@pytest.mark.parametrize("call", NEED_THE_POLICY)
def test_calls_that_need_the_policy_are_refused_afterwards(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = broken(monkeypatch)
    before = books(scene.manager)
    with pytest.raises(PolicyContractError, match="until reset_cache") as caught:
        NEED_THE_POLICY[call](scene.manager)
    assert (caught.value.policy, caught.value.call) == ("Pending", "evict")
    assert isinstance(caught.value.__cause__, PolicyContractError)
    assert books(scene.manager) == before


@pytest.mark.clause("STORE-10")
@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("ticketed", [True, False])
def test_look_ups_completions_stats_and_events_work_afterwards(
    success: bool, ticketed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = broken(monkeypatch)
    manager = scene.manager
    assert manager.lookup(A, request()) is LookupResult.HIT
    assert manager.lookup(F, request()) is LookupResult.HIT_PENDING
    assert in_flight(manager) == (1, 1)
    if ticketed:
        scene.finish_transfers(success=success)
    else:
        manager.complete_load([E], scene.loader)
        manager.complete_store([F], scene.storer, success)
    assert in_flight(manager) == (0, 0)
    assert manager.outstanding("loader") == manager.outstanding("storer") == ()
    assert believed(manager.take_events(), scene.heard) == set(ready(manager, LETTERS))
    assert ready(manager, [F]) == ([F] if success else [])
    manager.check()


@pytest.mark.clause("STORE-10")
@pytest.mark.parametrize(("hook", "lead"), LEADS_TO)
def test_what_failed_to_complete_can_be_completed_again(
    hook: str, lead: Callable[[Scene], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = faulty(hook, monkeypatch)
    with pytest.raises(PolicyContractError):
        lead(scene)
    scene.finish_transfers()
    assert in_flight(scene.manager) == (0, 0)
    assert ready(scene.manager, LETTERS) == [A, B, C, D, E, F]
    assert scene.manager.stale_completions == 0
    scene.manager.check()


@pytest.mark.clause("STORE-10")
@pytest.mark.parametrize(("hook", "lead"), LEADS_TO)
def test_a_reset_recovers_with_a_new_policy(
    hook: str, lead: Callable[[Scene], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = faulty(hook, monkeypatch)
    with pytest.raises(PolicyContractError):
        lead(scene)
    scene.manager.reset_cache()
    monkeypatch.setattr(Raising, "at", "")
    manager = scene.manager
    assert resident(manager, LETTERS) == []
    assert manager.generation == 1
    assert believed(manager.take_events(), scene.heard) == set()
    context = request()
    assert slots(put(manager, [A, B, C, D, E, F], context).store_spec) == [0, 1, 2, 3, 4, 5]
    assert put(manager, list(G_AND_H), context).evicted_keys == [A, B]
    pin(manager, [C], context)
    manager.on_request_finished(context)
    manager.check()


@pytest.mark.clause("STORE-10")
def test_residency_is_not_asked_of_the_policy() -> None:
    class Forgetful(FIFOPolicy):
        @override
        def get(self, key: OffloadKey) -> ChunkStatus | None:
            raise PolicyFaultError("get")

    manager = CPUOffloadingManager(2, Forgetful)
    put(manager, [A])
    assert manager.lookup(A, request()) is LookupResult.HIT
    assert slots(pin(manager, [A])) == [0]
    assert put(manager, [A, B]).keys_to_store == [B]


@pytest.mark.clause("STORE-10")
def test_a_policy_that_forgot_a_key_does_not_unmake_it() -> None:
    class Dropping(FIFOPolicy):
        @override
        def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
            return None

    manager = CPUOffloadingManager(1, Dropping)
    put(manager, [A])
    assert manager.lookup(A, request()) is LookupResult.HIT
    with pytest.raises(PolicyContractError) as caught:
        manager.prepare_store([B], request())
    assert caught.value.clause == "POL-3"
    assert manager.lookup(A, request()) is LookupResult.HIT


@pytest.mark.clause("STORE-10")
def test_a_policy_that_declares_it_may_refuse_is_not_blamed() -> None:
    class Choosy(FIFOPolicy):
        may_refuse = "newcomers may be worth less than what is here"

        @override
        def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
            return None

    manager = CPUOffloadingManager(2, Choosy, enable_events=True)
    put(manager, [A, B])
    manager.take_events()
    before = books(manager)
    assert manager.prepare_store([C], request()) is None
    assert books(manager) == before
    assert manager.take_events() == []
    assert slots(pin(manager, [B, A])) == [1, 0]


@pytest.mark.clause("STORE-10")
def test_refusing_is_right_when_too_few_are_idle_outside_the_offer() -> None:
    manager = CPUOffloadingManager(2, Refusing)
    put(manager, [A, B])
    pin(manager, [A])
    assert manager.prepare_store([C, D], request()) is None
    assert manager.prepare_store([B, C], request()) is None
    assert slots(pin(manager, [B])) == [1]
