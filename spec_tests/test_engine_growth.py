"""The engine that counts what a policy holds (POL-4)."""

import heapq
import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from weakref import ReferenceType, WeakKeyDictionary, ref

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext, make_offload_key
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.capabilities import Capabilities
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import Breach, PolicyTrial
from stateful_models.engines.churn import Held, Passed
from stateful_models.engines.growth import LONGEST, Growth
from stateful_models.gallery.broken_policies.base import Plain, Victims
from stateful_models.gallery.broken_policies.clearing import Pol6OldGhosts
from stateful_models.gallery.broken_policies.growth import (
    Pol4CountsEveryKey,
    Pol4CountsRequests,
    Pol4GhostsBehindTheLiving,
    Pol4KeepsContexts,
    Pol4UntrimmedGhosts,
)
from stateful_models.hosts import VLLM_021
from stateful_models.levels import QUICK


def tried(
    cls: type[CachePolicy],
    capabilities: Capabilities | None = None,
    longest: int = LONGEST,
) -> PolicyTrial[CachePolicy]:
    trial = PolicyTrial(
        Driver[CachePolicy](cls),
        lambda capacity: (),
        capabilities=capabilities or Capabilities(),
        level=evolve(QUICK, churn=1_500),
    )
    Growth(longest=longest).run(trial)
    return trial


def breach_of(cls: type[CachePolicy], kind: Kind) -> Breach:
    """Of what has no bound, and need not be followed as far as what may have one."""
    return tried(cls, longest=2).breaches["POL-4", kind]


@pytest.mark.parametrize("cls", [LRUCachePolicy, ARCCachePolicy, Plain])
def test_policies_that_forget_are_acquitted(cls: type[CachePolicy]) -> None:
    trial = tried(cls)
    assert trial.breaches == {}
    assert trial.tried == {"POL-4"}
    assert trial.reach["churn"]
    assert trial.notes == []


@pytest.mark.parametrize(
    ("cls", "what", "where"),
    [
        (Pol4CountsEveryKey, "keys", "_uses"),
        (Pol4CountsRequests, "requests", "_offers"),
        (Pol4KeepsContexts, "requests", "_seen"),
        (Pol4UntrimmedGhosts, "keys", "_ghosts"),
        (Pol4GhostsBehindTheLiving, "keys", "_queue"),
    ],
)
def test_what_grows_is_found_with_figures_and_a_place(
    cls: type[CachePolicy], what: str, where: str
) -> None:
    breach = breach_of(cls, Kind.LIVENESS)
    message = breach.message
    # Reports show what was seen, and that is all of it.
    assert breach.seen in ("", message)
    figures = re.fullmatch(
        rf"held ([\d,]+) {what} after ([\d,]+) keys had passed, ([\d,]+) after ([\d,]+), "
        rf"most of them in `{where}`",
        message,
    )
    assert figures is not None
    held, passed, held_later, passed_later = (int(n.replace(",", "")) for n in figures.groups())
    assert held_later > 1.8 * held
    assert passed_later > 1.8 * passed


class Numbers(Plain):
    """Holds neither a key nor a request, but a number for each."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.hashes: set[int] = set()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.hashes.add(int.from_bytes(key))

    @override
    def clear(self) -> None:
        super().clear()
        self.hashes.clear()


class Callbacks(Plain):
    """Holds each key in a callback."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.callbacks: list[object] = []

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)

        def later() -> OffloadKey:
            return key

        self.callbacks.append(later)


class Chunks(Plain):
    """Holds every chunk that it ever gave up."""

    __slots__ = ("gone",)

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.gone: list[ChunkStatus] = []

    @override
    def take(self, victims: Sequence[OffloadKey]) -> Victims:
        taken = super().take(victims)
        self.gone += [chunk for _, chunk in taken]
        return taken


class Unknown(Plain):
    """Remembers only what it was told of and never got: misses of offers that fail."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.missed: set[OffloadKey] = set()

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.missed.update(keys)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.missed.discard(key)


@pytest.mark.parametrize(
    ("cls", "what"),
    [(Numbers, "objects"), (Callbacks, "keys"), (Chunks, "chunks"), (Unknown, "keys")],
)
def test_in_whatever_form_it_is_held(cls: type[CachePolicy], what: str) -> None:
    assert f" {what} after " in breach_of(cls, Kind.LIVENESS).message


class LazyHeap(Plain):
    """Entries in a heap go stale, and are thrown out when there are too many."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.heap: list[tuple[int, OffloadKey]] = []
        self.uses = 0

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.uses += 1
        heapq.heappush(self.heap, (self.uses, key))
        if len(self.heap) > 4 * self.cache_capacity:
            self.heap = [entry for entry in self.heap if entry[1] in self.chunks]
            heapq.heapify(self.heap)

    @override
    def clear(self) -> None:
        super().clear()
        self.heap.clear()


class OfLiveRequests(Plain):
    """What requests have seen is held until they finish."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.seen: dict[str, list[OffloadKey]] = {}

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.seen.setdefault(req_context.req_id, []).extend(keys)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        del self.seen[req_context.req_id]

    @override
    def clear(self) -> None:
        super().clear()
        self.seen.clear()


class Weak(Plain):
    """What it keeps for a request goes with the request's context."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.contexts: list[ReferenceType[ReqContext]] = []
        self.of: WeakKeyDictionary[CachePolicy, str] = WeakKeyDictionary()

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.contexts = [one for one in self.contexts if one() is not None]
        self.contexts.append(ref(req_context))


class Tracker(Plain):
    """Remembers a fixed number of keys, more than a short churn has."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.tracked: OrderedDict[OffloadKey, int] = OrderedDict()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.tracked[key] = 1
        while len(self.tracked) > 2_000:
            self.tracked.popitem(last=False)

    @override
    def clear(self) -> None:
        super().clear()
        self.tracked.clear()


@pytest.mark.parametrize("cls", [LazyHeap, OfLiveRequests, Weak])
def test_what_is_cleaned_up_in_the_end_is_no_growth(cls: type[CachePolicy]) -> None:
    assert tried(cls).breaches == {}


def test_a_bound_of_its_own_is_advice_however_late_it_is_reached() -> None:
    trial = tried(Tracker)
    assert set(trial.breaches) == {("POL-4", Kind.ADVICE)}
    breach = trial.breaches["POL-4", Kind.ADVICE]
    assert breach.message.startswith("held 2,000 keys")
    assert "4 x capacity + 64" in breach.expected


def test_the_declared_bound_counts() -> None:
    assert tried(Tracker, Capabilities(growth=130)).breaches == {}


def test_what_a_clear_leaves_is_advice() -> None:
    trial = tried(Pol6OldGhosts)
    assert set(trial.breaches) == {("POL-4", Kind.ADVICE)}
    assert "are still held after it, most of them in `b1`" in trial.notes[0]


class Archive(Plain):
    """Forgets what it evicts, and never what a clear took."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.archive: list[OffloadKey] = []

    @override
    def clear(self) -> None:
        self.archive += self.chunks
        super().clear()


def test_unless_every_clear_leaves_more() -> None:
    breach = breach_of(Archive, Kind.LIVENESS)
    assert "keys were left after the 2nd clear" in breach.message


def test_a_host_that_never_clears_is_not_held_against_the_policy() -> None:
    driver = Driver[CachePolicy](Archive)
    driver.host = VLLM_021
    trial = PolicyTrial(driver, lambda capacity: (), level=evolve(QUICK, churn=1_500))
    Growth().run(trial)
    assert trial.breaches == {}
    assert trial.tried == {"POL-4"}


class Refuses(Plain):
    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        return None


class Raises(Plain):
    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        raise LookupError("touched")


@pytest.mark.parametrize(
    ("cls", "why"), [(Refuses, "only 0 evictions came about"), (Raises, "it failed")]
)
def test_what_never_evicts_was_not_tried(cls: type[CachePolicy], why: str) -> None:
    trial = tried(cls)
    assert trial.breaches == {}
    assert trial.tried == set()
    assert not trial.reach["churn"]
    assert trial.declined["POL-4"].endswith(why)


def test_things_are_counted_once_and_not_through_what_is_the_hosts() -> None:
    passed = Passed()
    one, two = (passed.key(make_offload_key(name, 0)) for name in (b"one", b"two"))
    context = ReqContext(passed.request("r"))
    context.set_offload_key_position(two, 16)
    chunk = ChunkStatus(0)
    held = passed.held_by([one, (bytes(bytearray(one)), one[:-4]), {"r": context}, {chunk: chunk}])
    assert held[:3] == (1, 1, 1)
    assert passed.held_by(ref(context)) == Held(0, 0, 0, 0, 1)
    assert passed.held_by([one, [two]], beside=[one]).keys == 1


class Owner:
    def __init__(self, value: object) -> None:
        self.value = value

    def method(self) -> object:
        return self.value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def holders(key: OffloadKey) -> dict[str, object]:
    def closure() -> object:
        return key

    def default(value: object = key) -> object:
        return value

    def keyword(*, value: object = key) -> object:
        return value

    def generator() -> Iterator[object]:
        held = key
        yield None
        yield held

    started = generator()
    next(started)
    return {
        "closure": closure,
        "default": default,
        "keyword": keyword,
        "generator": started,
        "partial": partial(print, key),
        "method": Owner(key).method,
        "slot": Slotted(key),
        "key of a dict": {key: None},
        "deque": deque([key]),
        "iterator": iter([key]),
    }


@pytest.mark.parametrize("name", holders(make_offload_key(b"one", 0)))
def test_whatever_python_can_hold_a_key_in_is_searched(name: str) -> None:
    passed = Passed()
    key = passed.key(make_offload_key(b"one", 0))
    assert passed.held_by([holders(key)[name]]).keys == 1


def test_modules_and_classes_are_not() -> None:
    passed = Passed()
    passed.key(MODULE_KEY)
    assert passed.held_by([re, test_modules_and_classes_are_not, OfClass()]).keys == 0


MODULE_KEY = make_offload_key(b"of the module", 0)


class OfClass:
    shared = (MODULE_KEY,)
