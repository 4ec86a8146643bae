"""The engine of wrappers: whatever a wrapper is told arrives inside (POL-1, 2, 3, 6, 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

import pytest
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from spec_tests.lots import by_lot
from spec_tests.tiny_policies import Lru, trial_of
from stateful_models.capabilities import NONE, Capabilities
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import Breach, PolicyTrial
from stateful_models.engines.recording import METHODS, Fault, InjectedError, RecordingPolicy
from stateful_models.engines.wrapper import Wrapper
from stateful_models.gallery.legal_policies.wrapper import Forwarding
from stateful_models.hosts import PROTOCOLS, VLLM_021, HostProtocol
from stateful_models.programs import keys

Victims = list[tuple[OffloadKey, ChunkStatus]]


class Around(Forwarding):
    """Hands everything on, to an LRU of these tests unless to another."""

    def __init__(self, cache_capacity: int, inner: CachePolicy | None = None) -> None:
        super().__init__(cache_capacity, Lru(cache_capacity) if inner is None else inner)


class AroundDriver(Driver[Around]):
    @override
    def build_around(self, inner: CachePolicy, capacity: int) -> Around:
        return self.target(capacity, inner)


def tried(
    target: type[Around], host: HostProtocol = PROTOCOLS[0], capabilities: Capabilities = NONE
) -> PolicyTrial[Around]:
    driver = AroundDriver(target)
    driver.host = host
    trial = trial_of(driver, capabilities)
    Wrapper().run(trial)
    return trial


def broken(target: type[Around], host: HostProtocol = PROTOCOLS[0]) -> Breach:
    trial = tried(target, host)
    (breach,) = trial.breaches.values()
    assert breach.program is not None
    assert len(breach.program) <= 8
    return breach


class Counts(Around):
    """Looks things up inside, copies what it hands on, and counts."""

    def __init__(self, cache_capacity: int, inner: CachePolicy | None = None) -> None:
        super().__init__(cache_capacity, inner)
        self.known = 0

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.known += self.inner.get(key) is None
        super().insert(key, chunk, req_context)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        super().touch(iter(tuple(keys)), req_context)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = super().evict(n, frozenset(protected))
        return None if victims is None else list(victims)


class Tells(Around):
    """Says in its own words what went wrong inside."""

    @override
    def remove(self, key: OffloadKey) -> None:
        try:
            super().remove(key)
        except Exception as error:
            raise RuntimeError(f"no removal of {key!r}") from error


@pytest.mark.parametrize("target", [Around, Counts, Tells])
@pytest.mark.parametrize("host", by_lot(PROTOCOLS, one_of=3), ids=[host.name for host in PROTOCOLS])
def test_what_hands_everything_on_is_acquitted(target: type[Around], host: HostProtocol) -> None:
    trial = tried(target, host)
    assert not trial.breaches
    assert trial.reach["failure inside a wrapper"]
    assert {"POL-1", "POL-2", "POL-7"} <= trial.tried
    assert ("POL-6" in trial.tried) == host.clears


def test_what_wraps_nothing_is_not_tried() -> None:
    trial = trial_of(Driver(Around))
    Wrapper().run(trial)
    assert trial.declined == {"wrapper": "the driver builds it around no other policy"}
    assert not trial.tried
    assert trial.programs == 0


def without(method: str) -> type[Around]:
    """A wrapper that forgets a method."""

    def nothing(self: Around, *arguments: object) -> None:
        return None

    return type(f"Forgets_{method}", (Around,), {method: nothing})


def twice(method: str) -> type[Around]:
    """A wrapper that hands a call on twice."""

    def again(self: Around, *arguments: object) -> object:
        getattr(self.inner, method)(*arguments)
        answer: object = getattr(self.inner, method)(*arguments)
        return answer

    return type(f"Repeats_{method}", (Around,), {method: again})


def silent(method: str) -> type[Around]:
    """A wrapper to which nothing is an error."""

    def hushed(self: Around, *arguments: object) -> object:
        try:
            answer: object = getattr(self.inner, method)(*arguments)
        except InjectedError:
            return None
        return answer

    return type(f"Hushes_{method}", (Around,), {method: hushed})


def host_of(method: str) -> HostProtocol:
    # A touch comes from a host that touches at every step.
    return VLLM_021 if method == "touch" else PROTOCOLS[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_does_not_arrive_is_found(method: str) -> None:
    breach = broken(without(method), host_of(method))
    assert breach.clause == METHODS[method]
    assert f"{method} did not arrive inside" in breach.message


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_arrives_twice_is_found(method: str) -> None:
    breach = broken(twice(method), host_of(method))
    assert breach.clause == METHODS[method]
    assert f"{method} arrived inside 2 times" in breach.message


@pytest.mark.parametrize("method", METHODS)
def test_an_error_that_is_swallowed_is_found(method: str) -> None:
    breach = broken(silent(method), host_of(method))
    assert breach.clause == ("POL-3" if method == "evict" else METHODS[method])
    assert f"{method} failed inside, and no error came out" in breach.message


class DropsHook(Around):
    """Was written before there was this hook, so that its default applies."""

    on_store_miss = CachePolicy.on_store_miss


class OtherContext(Around):
    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, ReqContext(req_context.req_id))


class OtherChunk(Around):
    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, ChunkStatus(chunk.chunk_id), req_context)


class NoProtection(Around):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return super().evict(n, set())


class OtherOrder(Around):
    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        super().on_request_access(sorted(keys), req_context)


class TurnsVictims(Around):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = super().evict(n, protected)
        return None if victims is None else victims[::-1]


class HidesPending(Around):
    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        found = super().get(key)
        return None if found is not None and found.ref_cnt < 0 else found


class TouchesToo(Around):
    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        missed = list(keys)
        super().on_store_miss(missed, req_context)
        self.inner.touch(missed, req_context)


class Mutes(Around):
    """Pins everything that is marked, which the policy inside cannot but believe."""

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        super().mark_evictable(key)
        chunk = self.inner.get(key)
        if chunk is not None and key[0] % 2:
            chunk.ref_cnt = 1


@pytest.mark.parametrize(
    ("target", "clause", "words"),
    [
        (DropsHook, "POL-7", "on_store_miss did not arrive inside, but touch"),
        (OtherContext, "POL-1", "insert arrived inside with another context"),
        (OtherChunk, "POL-1", "insert arrived inside with another chunk"),
        (NoProtection, "POL-2", "evict arrived inside with [] instead of ["),
        (OtherOrder, "POL-7", "on_request_access arrived inside with ["),
        (TurnsVictims, "POL-2", "evict answered ["),
        (HidesPending, "POL-1", "get answered slot 0 inside, and None came out"),
        (TouchesToo, "POL-7", "on_store_miss arrived inside, and touch too"),
        (Mutes, "POL-2", "where the policy inside stands alone"),
    ],
)
def test_what_is_changed_on_its_way_is_found(target: type[Around], clause: str, words: str) -> None:
    breach = broken(target)
    assert breach.clause == clause
    assert words in breach.message
    if target is Mutes:
        assert breach.kind is Kind.HOST


class Gate(Around):
    """Lets nothing through for a while, as it says."""

    def __init__(self, cache_capacity: int, inner: CachePolicy | None = None) -> None:
        super().__init__(cache_capacity, inner)
        self.asked = 0

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        self.asked += 1
        return super().evict(n, protected) if self.asked % 2 else None


def test_a_gate_may_refuse_where_it_says_so() -> None:
    assert broken(Gate).clause == "POL-2"
    assert not tried(Gate, capabilities=Capabilities(may_refuse="now and then")).breaches


def test_the_recording_policy_fails_where_it_is_told_to() -> None:
    (key,) = keys("a")
    inside = RecordingPolicy(2, Fault("get", 2))
    assert inside.get(key) is None
    with pytest.raises(InjectedError, match="get fails on purpose"):
        inside.get(key)
    calls, raised = inside.drain()
    assert [call.method for call in calls] == ["get", "get"]
    assert raised
    assert inside.drain() == ([], False)
    assert inside.failed


def test_every_method_of_a_policy_is_recorded() -> None:
    hooks = {name for name in vars(CachePolicy) if not name.startswith("_")}
    assert set(METHODS) == hooks - {"may_refuse", "insert_all", "mark_all_evictable"}
    make: Callable[[int], CachePolicy] = RecordingPolicy
    assert set(METHODS) <= set(dir(make(1)))
