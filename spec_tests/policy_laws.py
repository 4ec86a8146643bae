"""Laws of cache policies, judged by a small host of their own.

It shares nothing with the engines of the kit, which are tried on the same policies. A law asserts,
or lets what a policy raises come out.
"""

import gc
import random
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, ModuleType
from typing import TypeAlias, cast

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext, make_offload_key
from kvoffload.policies.hooks import PolicyHooks
from stateful_models.capabilities import NONE, SPARE_KEYS, stated_by

Make: TypeAlias = Callable[[int], CachePolicy]
"""Makes a policy of a capacity."""

HOSTILE_VALUES: tuple[object, ...] = (
    *(None, "", "high", b"bytes", True, False, 0, -1, 2**70, -(10**400), 1e308, -0.0),
    *(float("nan"), float("inf"), -float("inf"), [], ["s"], {}, {"a": 1}, set[int](), object()),
)
UNIVERSE = tuple(make_offload_key(b"k%d" % (n // 2), n % 2) for n in range(14))


HINTS: tuple[dict[str, object] | None, ...] = (
    None,
    {"session_id": "s1", "priority": 1},
    {"session_id": "s2", "priority": 0, "last_turn": True},
)


class Host:
    """Calls a policy in an order that `seed` draws, and keeps the books of a manager.

    `trace` is what came of it: every eviction with its victims.
    """

    def __init__(self, policy: CachePolicy, capacity: int, seed: int) -> None:
        self.hooks = PolicyHooks(policy)
        self.policy = policy
        self.capacity = capacity
        self.chance = random.Random(seed)
        self.chunks: dict[OffloadKey, ChunkStatus] = {}
        self.hints = HINTS
        self.contexts = [self.new_context() for _ in range(3)]
        self.may_evict_more = stated_by(policy).may_evict_more is not None
        self.refusals_asked = False
        self.trace: list[tuple[OffloadKey, ...] | None] = []

    def new_context(self) -> ReqContext:
        context = ReqContext(f"req-{self.chance.randrange(10**9)}", self.chance.choice(self.hints))
        if self.chance.random() < 0.5:
            for n, key in enumerate(UNIVERSE):
                context.set_offload_key_position(key, 16 * (n // 2 + 1))
        return context

    def count(self, *, idle: bool, outside: Iterable[OffloadKey] = ()) -> int:
        return sum(
            (chunk.ref_cnt == 0) is idle for key, chunk in self.chunks.items() if key not in outside
        )

    def play(self, length: int) -> list[tuple[OffloadKey, ...] | None]:
        for _ in range(length):
            moves = (self.offer, self.offer, self.complete, self.load, self.end)
            self.chance.choice(moves)()
            if self.chance.random() < 0.02:
                self.chunks.clear()
                self.hooks.clear()
        return self.trace

    def offer(self) -> None:
        self.offer_keys(self.chance.sample(UNIVERSE, self.chance.randint(1, 4)))

    def offer_keys(self, keys: list[OffloadKey]) -> None:
        context = self.chance.choice(self.contexts)
        new = [key for key in keys if self.policy.get(key) is None]
        assert new == [key for key in keys if key not in self.chunks]
        if new:
            self.hooks.on_store_miss(list(new), context)
        if self.chance.random() < 0.3:
            self.hooks.touch(list(keys), context)
        if self.hooks.on_request_access is not None:
            self.hooks.on_request_access(list(keys), context)
        lacking = len(self.chunks) + len(new) - self.capacity
        if lacking > 0 and not self.make_room(lacking, set(keys)):
            return
        for key in new:
            self.chunks[key] = ChunkStatus(len(self.chunks))
            self.hooks.insert(key, self.chunks[key], context)

    def make_room(self, lacking: int, protected: set[OffloadKey]) -> bool:
        if self.refusals_asked:
            too_many = self.count(idle=True, outside=protected) + 1
            assert self.hooks.evict(too_many, set(protected)) is None
        victims = self.hooks.evict(lacking, set(protected))
        self.trace.append(None if victims is None else tuple(key for key, _ in victims))
        if victims is None:
            if self.hooks.may_refuse is None:
                assert self.count(idle=True, outside=protected) < lacking
            return False
        assert len(dict(victims)) == len(victims)
        assert len(victims) >= lacking
        assert len(victims) == lacking or self.may_evict_more
        for key, chunk in victims:
            assert key not in protected
            assert chunk.ref_cnt == 0
            assert self.chunks.pop(key) is chunk
        return True

    def complete(self) -> None:
        """Some stores and some loads end; one store in five fails."""
        for key, chunk in list(self.chunks.items()):
            if chunk.ref_cnt == 0 or self.chance.random() < 0.3:
                continue
            if chunk.ref_cnt < 0 and self.chance.random() < 0.2:
                del self.chunks[key]
                self.policy.remove(key)
                continue
            chunk.ref_cnt = chunk.ref_cnt - 1 if chunk.ref_cnt > 0 else 0
            if chunk.ref_cnt == 0 and self.hooks.mark_all_evictable is not None:
                self.hooks.mark_all_evictable([key])

    def load(self) -> None:
        ready = [key for key, chunk in self.chunks.items() if chunk.is_ready]
        for key in self.chance.sample(ready, min(len(ready), 2)):
            chunk = self.chunks[key]
            chunk.ref_cnt += 1
            if chunk.ref_cnt == 1 and self.hooks.mark_all_non_evictable is not None:
                self.hooks.mark_all_non_evictable([key])

    def end(self) -> None:
        """A request ends that has seen any keys, and another takes its place."""
        slot = self.chance.randrange(len(self.contexts))
        seen = self.chance.sample(UNIVERSE, 4)
        groups = [[key for key in seen if key[-1] == group] for group in (0, 1)]
        reused, inserted = set(seen[:2]), set(seen[2:3])
        self.hooks.on_request_finished(
            [keys for keys in groups if keys], inserted, reused, self.contexts[slot]
        )
        self.contexts[slot] = self.new_context()

    def settle(self) -> None:
        for key, chunk in self.chunks.items():
            if chunk.ref_cnt:
                chunk.ref_cnt = 0
                if self.hooks.mark_all_evictable is not None:
                    self.hooks.mark_all_evictable([key])


def reachable(thing: object) -> Iterator[object]:
    """Everything that an object holds, classes and code aside."""
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen and not isinstance(each, (type, ModuleType, FunctionType)):
            seen.add(id(each))
            yield each
            waiting += gc.get_referents(each)
            if isinstance(each, dict):
                # The collector is not told of keys that are all text, as they refer to nothing.
                waiting += list(cast("dict[object, object]", each))


def keys_held(policy: CachePolicy) -> int:
    """Distinct keys and request ids that a policy holds."""
    return len(
        {
            each
            for each in reachable(policy)
            if (isinstance(each, bytes) and each.startswith(b"churn"))
            or (isinstance(each, str) and each.startswith("req-"))
        }
    )


def check_answers(make: Make) -> None:
    """POL-1, POL-2, POL-3 and POL-7: the host asserts at every call."""
    evictions = refusals = 0
    for seed in range(60):
        capacity = 1 + seed % 7
        host = Host(make(capacity), capacity, seed)
        trace = host.play(80)
        evictions += sum(victims is not None for victims in trace)
        refusals += sum(victims is None for victims in trace)
        for key in UNIVERSE:
            assert host.policy.get(key) is host.chunks.get(key)
        host.settle()
        if host.chunks:
            assert host.make_room(len(host.chunks), set())
        assert not host.chunks
        assert all(host.policy.get(key) is None for key in UNIVERSE)
    assert evictions > 200
    assert refusals > 20


def check_repetition(make: Make) -> None:
    """POL-5, in one process."""
    for seed in range(20):
        first, second = (Host(make(5), 5, seed).play(80) for _ in range(2))
        assert first == second


def check_clear(make: Make) -> None:
    """POL-6."""
    for seed in range(30):
        capacity = 2 + seed % 6
        used = make(capacity)
        Host(used, capacity, seed).play(60)
        used.clear()
        fresh = make(capacity)
        later = Host(used, capacity, seed + 100).play(60)
        assert later == Host(fresh, capacity, seed + 100).play(60)


def check_refusal(make: Make) -> None:
    """POL-2: evictions that must be refused change no later choice."""
    for seed in range(30):
        capacity = 2 + seed % 6
        asked, spared = (Host(make(capacity), capacity, seed) for _ in range(2))
        asked.refusals_asked = True
        assert asked.play(80) == spared.play(80)


def check_growth(make: Make) -> None:
    """POL-4: after thousands of keys and requests the plateau is that of hundreds."""
    capacity = 8
    policy = make(capacity)
    host = Host(policy, capacity, 0)
    held: list[int] = []
    for n in range(1_600):
        keys = [make_offload_key(b"churn%d" % (2 * n + m), m) for m in range(2)]
        host.offer_keys(keys)
        # Every tenth prompt comes back once, while it may still be remembered.
        if n % 10 == 9:
            host.offer_keys([make_offload_key(b"churn%d" % (2 * n - 8), 0)])
        host.settle()
        host.end()
        if n in (400, 800, 1_599):
            host.contexts = [host.new_context() for _ in host.contexts]
            gc.collect()
            held.append(keys_held(policy))
    bound = NONE.growth * capacity + SPARE_KEYS
    assert max(held) <= bound
    assert max(held) - min(held) <= 2 * capacity
    policy.clear()
    gc.collect()
    host.chunks.clear()
    assert keys_held(policy) == 0


def check_hints(make: Make) -> None:
    """POL-7: no hint raises or ends evicting."""
    hints: list[object] = [None, [], "text", 7]
    hints += [{field: value} for value in HOSTILE_VALUES for field in ("session_id", "priority")]
    hints += [{"last_turn": value, "session_id": "s"} for value in HOSTILE_VALUES]
    for capacity in (1, 4):
        host = Host(make(capacity), capacity, 1)
        for carried in hints:
            host.contexts = [host.new_context()]
            # Past the check of the attribute, as contexts of other hosts have none.
            object.__setattr__(host.contexts[0], "kv_transfer_params", carried)
            host.offer()
            host.settle()
            host.end()
        if host.chunks:
            assert host.make_room(len(host.chunks), set())
        assert not host.chunks


def check_odd_input(make: Make) -> None:
    """POL-7: nothing, strangers, repetitions and iterators."""
    policy = make(3)
    hooks, context = PolicyHooks(policy), ReqContext("r")
    a, b, stranger = UNIVERSE[0], UNIVERSE[1], UNIVERSE[2]
    for keys in ((), (stranger,), (a, a, stranger, a)):
        hooks.touch(keys, context)
        hooks.on_store_miss(list(keys), context)
        hooks.on_request_finished([keys], set(), set(keys), context)
    hooks.on_request_finished([], set(), set(), context)
    policy.remove(stranger)
    chunks = [ChunkStatus(0), ChunkStatus(1)]
    for key, chunk in zip((a, b), chunks, strict=True):
        hooks.insert(key, chunk, context)
    # Hosts pass sequences; the interface says no more than iterables.
    touch = cast("Callable[[Iterable[OffloadKey], ReqContext], None]", hooks.touch)
    touch(iter((a, stranger, a)), context)
    for key, chunk in zip((a, b), chunks, strict=True):
        chunk.ref_cnt = 0
        if hooks.mark_all_evictable is not None:
            hooks.mark_all_evictable([key])
    touch(iter((a, b)), context)
    assert policy.get(stranger) is None
    assert [policy.get(key) for key in (a, b)] == chunks
    assert sorted(dict(hooks.evict(2, set()) or ())) == sorted((a, b))


LAWS: dict[str, Callable[[Make], None]] = {
    law.__name__.removeprefix("check_").replace("_", " "): law
    for law in (
        *(check_answers, check_repetition, check_clear, check_refusal, check_growth),
        *(check_hints, check_odd_input),
    )
}
