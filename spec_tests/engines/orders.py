"""Our policies, called directly: every order of calls that a host could make, and tight ones.

A manager asks for victims only when there are enough, in the order in which its own books let it.
Here the calls come as they like: too many victims are asked for, pins come and go in any order,
most of the cache is pinned for long, and requests end with nobody telling. Each answer is held
against the model of the order.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from math import isclose
from typing import ClassVar, Final, NamedTuple, cast

from kvoffload import (
    CachePolicy,
    CachePolicyFactory,
    ChunkStatus,
    InvalidValueError,
    OffloadKey,
    ReqContext,
    make_offload_key,
)
from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lines import LinePolicy
from kvoffload.policies.lru import LRUCachePolicy
from kvoffload.policies.s3fifo import S3FIFOCachePolicy, S3FIFOTailCachePolicy
from kvoffload.policies.slru import SLRUCachePolicy, SLRUTailCachePolicy
from kvoffload.policies.wtinylfu import WTinyLFUCachePolicy, WTinyLFUTailCachePolicy
from stateful_models.capabilities import BUILT_IN
from stateful_models.models import (
    ARCModel,
    LRUModel,
    PolicyModel,
    S3FIFOModel,
    SLRUModel,
    WTinyLFUModel,
)

KEYS: Final = tuple(make_offload_key(b"k%d" % n, n % 2) for n in range(18))
CAPACITIES: Final = (1, 2, 3, 5, 8, 12)
REQUESTS: Final = 3
SLACK: Final = 150


class RoomyS3FIFO(S3FIFOCachePolicy):
    """So many chunks in S that in a small cache there are several."""

    small_share: ClassVar[float] = 0.5


class RoomyWTinyLFU(WTinyLFUCachePolicy):
    """As many in the window as in the main part, and in either segment."""

    window_share: ClassVar[float] = 0.5
    protected_share: ClassVar[float] = 0.5


class RoomySLRU(SLRUCachePolicy):
    """As many in either segment."""

    protected_share: ClassVar[float] = 0.5


class RoomyS3FIFOTail(S3FIFOTailCachePolicy):
    """The same, the tail first."""

    small_share: ClassVar[float] = 0.5


class RoomyWTinyLFUTail(WTinyLFUTailCachePolicy):
    """The same, the tail first."""

    window_share: ClassVar[float] = 0.5
    protected_share: ClassVar[float] = 0.5


class RoomySLRUTail(SLRUTailCachePolicy):
    """The same, the tail first."""

    protected_share: ClassVar[float] = 0.5


class Subject(NamedTuple):
    """A policy, and the model that predicts it."""

    policy_cls: type[CachePolicy]
    model: Callable[[int], PolicyModel]


def subject_of(name: str) -> Subject:
    """A registered policy, or one of the roomy ones."""
    if name in ROOMY:
        return ROOMY[name]
    claims = BUILT_IN[name]
    model = claims.model or (ARCModel if claims.arc else LRUModel)
    return Subject(CachePolicyFactory.get_cache_policy_cls(name), model)


ROOMY: Final = {
    "roomy s3fifo": Subject(RoomyS3FIFO, partial(S3FIFOModel, small_percent=50)),
    "roomy s3fifo-tail": Subject(
        RoomyS3FIFOTail, partial(S3FIFOModel, tail_first=True, small_percent=50)
    ),
    "roomy wtinylfu": Subject(
        RoomyWTinyLFU, partial(WTinyLFUModel, window_percent=50, protected_percent=50)
    ),
    "roomy wtinylfu-tail": Subject(
        RoomyWTinyLFUTail,
        partial(WTinyLFUModel, tail_first=True, window_percent=50, protected_percent=50),
    ),
    "roomy slru": Subject(RoomySLRU, partial(SLRUModel, protected_percent=50)),
    "roomy slru-tail": Subject(
        RoomySLRUTail, partial(SLRUModel, tail_first=True, protected_percent=50)
    ),
}
"""Policies with other shares, which say more where caches are small."""

NAMES: Final = (*BUILT_IN, *ROOMY)


class Orders:
    """A policy beside its model. Raises AssertionError as soon as they differ.

    It is the one of that name, or a `policy_cls` that is to choose as that one does.
    """

    def __init__(
        self,
        name: str,
        capacity: int,
        seed: int,
        policy_cls: type[CachePolicy] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.capacity = capacity
        subject = subject_of(name)
        policy = (policy_cls or subject.policy_cls)(cache_capacity=capacity)
        if not isinstance(policy, LRUCachePolicy | ARCCachePolicy | LinePolicy):
            raise AssertionError(f"{name} is {policy!r}")
        if policy.cache_capacity != capacity:
            raise AssertionError(f"{policy.cache_capacity} of {capacity} chunks")
        self.policy = policy
        self.model = subject.model(capacity)
        self.chunks: dict[OffloadKey, ChunkStatus] = {}
        self.ends: dict[str, dict[OffloadKey, int]] = {}
        self.seen: dict[str, list[OffloadKey]] = {}
        self.contexts: list[ReqContext] = []
        self.named = 0
        self.calls: list[str] = []
        for _ in range(REQUESTS):
            self.contexts.append(self.arrive())

    def run(self, rounds: int, *, clears: bool = True) -> None:
        """Make calls, `clear` among them or not.

        At the end everything is evicted one by one: that shows the whole order.
        """
        actions = (
            (self.offer, 10),
            (self.complete, 8),
            (self.pin, 8),
            (self.unpin, 8),
            (self.touch, 4),
            (self.access, 4),
            # Where requests are short, all that began while the oldest chunks came is over.
            (self.finish, self.random.choice((2, 8, 20))),
            (self.evict, 3),
            (self.place, 3),
            (self.again, 3),
            (self.unknown, 1),
            (self.insert_again, 0.5),
            (self.clear, 0.15 if clears else 0.0),
        )
        calls = [call for call, _ in actions]
        for call in self.random.choices(calls, [weight for _, weight in actions], k=rounds):
            call()
            self.look()
        self.ready([key for key, chunk in self.chunks.items() if chunk.ref_cnt < 0])
        while pinned := [key for key, chunk in self.chunks.items() if chunk.ref_cnt > 0]:
            self.release(pinned)
        while self.chunks:
            self.take(1, set())
            self.look()

    def arrive(self) -> ReqContext:
        """Another request, which knows where all of its keys end, or some, or none."""
        context = ReqContext(f"r{self.named}")
        self.named += 1
        self.ends[context.req_id] = {}
        self.seen[context.req_id] = []
        self.tell_ends(context, self.random.choice((0.0, 0.5, 1.0, 1.0)))
        return context

    def tell_ends(self, context: ReqContext, share: float) -> None:
        shift = self.random.choice((1, 1, 2))
        for number, key in enumerate(KEYS):
            if self.random.random() < share:
                end = 16 * (shift + number % 7)
                context.set_offload_key_position(key, end)
                self.ends[context.req_id][key] = end

    def place(self) -> None:
        """A request learns where some keys end, and of some that it was told wrongly."""
        self.tell_ends(self.random.choice(self.contexts), 0.3)

    def some(self, keys: Sequence[OffloadKey], most: int = 4) -> list[OffloadKey]:
        """Some of `keys`, each once, in any order or in theirs."""
        chance = self.random
        picked = chance.sample(keys, min(len(keys), chance.randint(1, most)))
        return sorted(picked, key=KEYS.index) if chance.random() < 0.6 else picked

    def idle(self) -> list[OffloadKey]:
        return [key for key, chunk in self.chunks.items() if chunk.ref_cnt == 0]

    def demand(self, holds: bool, what: object) -> None:
        """Raise AssertionError with the calls so far unless something holds."""
        if not holds:
            raise AssertionError("\n".join([str(what), *self.calls[-60:]]))

    def note(self, *call: object) -> None:
        self.calls.append(" ".join(map(str, call)))

    def look(self) -> None:
        """What can be seen without a call that changes anything."""
        policy = self.policy
        for key in KEYS:
            found = policy.get(key)
            self.demand(found is self.chunks.get(key), f"get {key!r}")
            if found is not None:
                self.demand(found.is_ready == (found.ref_cnt >= 0), f"{key!r}: {found}")
        if isinstance(policy, ARCCachePolicy) and isinstance(self.model, ARCModel):
            right = isclose(policy.target, self.model.target, abs_tol=1e-9)
            self.demand(right, f"target {policy.target}, expected {self.model.target}")
        policy.check()

    def take(self, count: int, protected: set[OffloadKey]) -> bool:
        """Ask for victims; whether there were enough."""
        self.note("evict", count, protected)
        expected = self.model.evict(count, protected)
        victims = self.policy.evict(count, protected)
        if expected is None or victims is None:
            self.demand(expected is None and victims is None, f"{victims}, expected {expected}")
            return False
        got = [key for key, _ in victims]
        self.demand(got == expected, f"victims {got}, expected {expected}")
        for key, chunk in victims:
            self.demand(self.chunks.pop(key) is chunk, f"another chunk for {key!r}")
        return True

    def evict(self) -> None:
        """Any number of victims, often more than there are."""
        chance = self.random
        protected = set(chance.sample(KEYS, chance.choice((0, 0, 2, 5))))
        count = len([key for key in self.idle() if key not in protected])
        self.take(max(0, count + chance.choice((0, 1, 1, -1, -2))), protected)

    def offer(self) -> None:
        """Store some keys that are not resident, and make room for them."""
        chance = self.random
        context = chance.choice(self.contexts)
        request = context.req_id
        absent = [key for key in KEYS if key not in self.chunks]
        new = self.some(absent, min(4, self.capacity))
        self.note("offer", request, new)
        self.policy.on_store_miss(list(new), context)
        self.model.miss(new)
        self.first_access(context, new)
        protected = {*new, *chance.sample(KEYS, 2)} if chance.random() < 0.5 else set(new)
        needed = len(self.chunks) + len(new) - self.capacity
        if needed > 0 and not self.take(needed, protected):
            return
        chunks = [ChunkStatus(KEYS.index(key)) for key in new]
        self.chunks.update(zip(new, chunks, strict=True))
        if chance.random() < 0.7:
            self.policy.insert_all(new, chunks, context)
        else:
            for key, chunk in zip(new, chunks, strict=True):
                self.policy.insert(key, chunk, context)
        for key in new:
            self.model.insert(key, request, self.ends[request])

    def complete(self) -> None:
        """Some stores end, well or not."""
        pending = [key for key, chunk in self.chunks.items() if chunk.ref_cnt < 0]
        if not pending:
            return
        keys = self.some(pending)
        if self.random.random() < 0.8:
            self.ready(keys)
            return
        for key in keys:
            self.note("remove", key)
            del self.chunks[key]
            self.policy.remove(key)
            self.model.remove(key)

    def ready(self, keys: list[OffloadKey]) -> None:
        self.note("ready", keys)
        for key in keys:
            self.chunks[key].ref_cnt = 0
            self.model.mark_evictable(key)
        self.mark(keys)

    def mark(self, keys: list[OffloadKey]) -> None:
        """Tell the policy what has become idle, at once or one by one."""
        if self.random.random() < 0.7:
            self.policy.mark_all_evictable(keys)
        else:
            for key in keys:
                self.policy.mark_evictable(key)

    def pin(self) -> None:
        """Pin some that are ready; some are pinned already."""
        ready = [key for key, chunk in self.chunks.items() if chunk.ref_cnt >= 0]
        if not ready:
            return
        keys = self.some(ready)
        context = self.random.choice(self.contexts)
        self.note("pin", context.req_id, keys)
        for key in keys:
            if self.chunks[key].ref_cnt == 0:
                self.policy.mark_non_evictable(key)
                self.model.mark_non_evictable(key)
            self.chunks[key].ref_cnt += 1
        self.first_access(context, keys)

    def unpin(self) -> None:
        """Release some, in any order."""
        pinned = [key for key, chunk in self.chunks.items() if chunk.ref_cnt > 0]
        if pinned:
            self.release(self.some(pinned))

    def release(self, keys: list[OffloadKey]) -> None:
        self.note("release", keys)
        idle: list[OffloadKey] = []
        for key in keys:
            self.chunks[key].ref_cnt -= 1
            if self.chunks[key].ref_cnt == 0:
                idle.append(key)
                self.model.mark_evictable(key)
        self.mark(idle)

    def touch(self) -> None:
        """Touch any keys, repetitions too; what is not resident may be a ghost."""
        keys = self.random.choices(KEYS, k=self.random.randint(0, 4))
        self.note("touch", keys)
        self.policy.touch(list(keys), self.random.choice(self.contexts))
        self.model.touch(keys)

    def access(self) -> None:
        """A request sees keys for the first time, resident or not."""
        self.first_access(self.random.choice(self.contexts), self.some(KEYS, 5))

    def again(self) -> None:
        """A request hears other ends of keys that it has seen, and sees some of them again."""
        context = self.random.choice(self.contexts)
        request = context.req_id
        seen = [key for key in self.seen[request] if key in self.chunks]
        if seen:
            for key in self.some(seen):
                end = 16 * self.random.randint(1, 8)
                context.set_offload_key_position(key, end)
                self.ends[request][key] = end
            keys = self.some(seen)
            self.note("access again", request, keys, self.ends[request])
            self.policy.on_request_access(list(keys), context)
            self.model.access(keys, request, self.ends[request])

    def first_access(self, context: ReqContext, keys: list[OffloadKey]) -> None:
        request = context.req_id
        new = [key for key in keys if key not in self.seen[request]]
        if self.random.random() < 0.25:
            # A host may tell it again, once it has begun another generation.
            new = keys
        self.seen[request] += [key for key in new if key not in self.seen[request]]
        if new:
            self.note("access", request, new, self.ends[request])
            self.policy.on_request_access(list(new), context)
            self.model.access(new, request, self.ends[request])

    def finish(self) -> None:
        """A request ends, and its context with it; of some nobody tells the policy."""
        chance = self.random
        place = chance.randrange(REQUESTS)
        context = self.contexts[place]
        request = context.req_id
        if chance.random() < 0.7:
            seen = self.seen[request]
            groups = [[k for k in seen if k[-1:] == bytes([n])] for n in (0, 1)]
            groups = [group for group in groups if group]
            ends = self.ends[request]
            for group in groups:
                if all(key in ends for key in group):
                    group.sort(key=lambda key: ends[key])
            marks = {key: chance.randrange(3) for key in seen}
            inserted = {key for key, mark in marks.items() if mark == 1}
            reused = {key for key, mark in marks.items() if mark == 2}
            self.note("finish", request, groups, inserted, reused)
            self.policy.on_request_finished(groups, set(inserted), set(reused), context)
            self.model.finish(groups, inserted, reused, ends)
        if chance.random() < 0.8:
            self.contexts[place] = self.arrive()

    def unknown(self) -> None:
        """Marks of keys that are not resident change nothing (POL-7)."""
        absent = [key for key in KEYS if key not in self.chunks]
        self.policy.mark_all_evictable(self.some(absent))
        self.policy.mark_evictable(absent[0])
        self.policy.mark_non_evictable(absent[0])
        self.policy.remove(absent[0])

    def insert_again(self) -> None:
        """A key that is resident is refused, and nothing of its batch comes in."""
        if not self.chunks:
            return
        chance = self.random
        key = chance.choice(list(self.chunks))
        context = chance.choice(self.contexts)
        absent = [key for key in KEYS if key not in self.chunks]
        self.note("insert again", key)
        for keys in ([key], [absent[0], key]) if self.refuses_whole else ([key],):
            try:
                if len(keys) == 1 and chance.random() < 0.5:
                    self.policy.insert(key, ChunkStatus(99), context)
                else:
                    self.policy.insert_all(keys, [ChunkStatus(99)] * len(keys), context)
            except InvalidValueError as error:
                right = error.field == "key" and error.value == key
                self.demand(right, f"{error!r} does not name {key!r}")
            else:
                self.demand(False, f"{key!r} was inserted a second time")

    @property
    def refuses_whole(self) -> bool:
        """Whether a batch that cannot come in whole leaves nothing behind; LRU goes one by one."""
        return isinstance(self.policy, ARCCachePolicy)

    def clear(self) -> None:
        """Everything goes, whatever its pins."""
        self.note("clear")
        self.chunks.clear()
        self.policy.clear()
        self.model.clear()
        for seen in self.seen.values():
            seen.clear()


def held(root: object) -> int:
    """How many objects of ours and entries of containers a policy holds on to."""
    waiting, known = [root], {id(root)}
    count = 0
    while waiting:
        one = waiting.pop()
        children: list[object] = []
        if isinstance(one, dict):
            table = cast("dict[object, object]", one)
            children = [*table.keys(), *table.values()]
        elif isinstance(one, list | tuple | set | deque):
            children = list(cast("Collection[object]", one))
        elif type(one).__module__.startswith("kvoffload."):
            slots = [n for cls in type(one).__mro__ for n in getattr(cls, "__slots__", ())]
            names = {*slots, *getattr(one, "__dict__", {})} - {"__weakref__"}
            children = [getattr(one, name) for name in sorted(names) if hasattr(one, name)]
        count += len(children)
        for child in children:
            if id(child) not in known:
                known.add(id(child))
                waiting.append(child)
    return count


def try_growth(seeds: Iterable[int], rounds: int) -> None:
    """What a policy holds in the end, everything evicted, is bounded (POL-4)."""
    for seed in seeds:
        for name in NAMES:
            orders = Orders(name, 3, seed)
            orders.run(200)
            early = held(orders.policy)
            orders.run(rounds, clears=False)
            # The queues of ghosts may be longer by their stale entries.
            if (late := held(orders.policy)) > early + SLACK:
                raise AssertionError(f"{name} holds {early} things early and {late} late")


def try_no_ghosts() -> None:
    """S3-FIFO with every chunk in S has no room for a ghost: what comes back is new."""

    class AllSmall(S3FIFOCachePolicy):
        small_share: ClassVar[float] = 1.0

    policy, request = AllSmall(2), ReqContext("r")
    first, second = KEYS[:2]

    def insert(key: OffloadKey, slot: int) -> None:
        policy.insert(key, chunk := ChunkStatus(slot), request)
        chunk.ref_cnt = 0
        policy.mark_evictable(key)

    def evicted() -> list[OffloadKey]:
        return [key for key, _ in policy.evict(1, set()) or ()]

    insert(first, 0)
    insert(second, 1)
    assert evicted() == [first]
    insert(first, 0)
    assert evicted() == [second], "what had gone was remembered"


def try_orders(seeds: Iterable[int], rounds: int) -> None:
    """All policies, at several capacities. Raises AssertionError."""
    try_no_ghosts()
    for seed in seeds:
        for name in NAMES:
            Orders(name, CAPACITIES[seed % len(CAPACITIES)], seed).run(rounds)
