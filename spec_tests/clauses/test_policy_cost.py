"""POL-8: the cost of an eviction in visits: reads of `ref_cnt`, hashes and comparisons of keys."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from random import Random

import pytest

from kvoffload import CachePolicy, CachePolicyFactory, ChunkStatus, OffloadKey, ReqContext
from spec_tests.clauses.helpers import request
from spec_tests.lots import by_lot

ALL = pytest.mark.parametrize("name", CachePolicyFactory.names())
# Queues that give what was used another round pay for that when it comes up; in the long run that
# is a constant for each use, and no more.
ROUNDS = ("sieve", "sieve-tail", "s3fifo", "s3fifo-tail")
STEADY = pytest.mark.parametrize(
    "name", [name for name in CachePolicyFactory.names() if name not in ROUNDS]
)
MANY = 10_000
"""So many are pinned that one walk over them is far beyond what an eviction may visit."""


class Tally:
    """Visits while `counting`, which is during the `call`-th eviction."""

    counting = False
    visits = 0
    call = 0


class CountedKey(bytes):
    """A key whose hashes and comparisons are visits."""

    def __hash__(self) -> int:
        if Tally.counting:
            Tally.visits += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        if Tally.counting:
            Tally.visits += 1
        return super().__eq__(other)

    def __lt__(self, other: bytes) -> bool:
        if Tally.counting:
            Tally.visits += 1
        return super().__lt__(other)

    def __gt__(self, other: bytes) -> bool:
        if Tally.counting:
            Tally.visits += 1
        return super().__gt__(other)


class CountedChunk(ChunkStatus):
    """A chunk whose reads of `ref_cnt` are visits. `met`: in how many evictions since its pin."""

    met = 0
    last_met = 0

    def __getattribute__(self, name: str) -> object:
        if name == "ref_cnt" and Tally.counting:
            Tally.visits += 1
            if self.last_met != Tally.call:
                self.last_met = Tally.call
                self.met += 1
        return super().__getattribute__(name)


def count_of(chunk: CountedChunk) -> int:
    """Its `ref_cnt`, which the test itself reads so often that it must not take long."""
    count: int = object.__getattribute__(chunk, "ref_cnt")
    return count


def counted(count: int, prefix: str = "k") -> list[OffloadKey]:
    return [OffloadKey(CountedKey(b"%b%07d" % (prefix.encode(), n))) for n in range(count)]


class Meter:
    """Calls a policy as a manager does, and keeps the account that POL-8 speaks of."""

    def __init__(self, name: str, capacity: int) -> None:
        cls = CachePolicyFactory.get_cache_policy_cls(name)
        self.policy: CachePolicy = cls(cache_capacity=capacity)
        self.chunks: dict[OffloadKey, CountedChunk] = {}
        self.work = 0
        self.protected = 0
        self.visits = 0
        self.calls = 0

    @contextmanager
    def counting(self) -> Generator[None]:
        Tally.visits = 0
        Tally.call += 1
        Tally.counting = True
        try:
            yield
        finally:
            Tally.counting = False

    def pending(self, keys: Sequence[OffloadKey], context: ReqContext | None = None) -> None:
        context = context or request("meter")
        for key in keys:
            self.chunks[key] = chunk = CountedChunk(len(self.chunks))
            self.policy.insert(key, chunk, context)
        self.work += len(keys)

    def complete(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            self.chunks[key].ref_cnt = 0
            self.policy.mark_evictable(key)
            self.work += 1

    def store(self, keys: Sequence[OffloadKey], context: ReqContext | None = None) -> None:
        self.pending(keys, context)
        self.complete(keys)

    def fail(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            del self.chunks[key]
            self.policy.remove(key)

    def pin(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            chunk = self.chunks[key]
            chunk.ref_cnt = 1
            chunk.met = 0
            self.policy.mark_non_evictable(key)
            self.work += 1

    def unpin(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            chunk = self.chunks[key]
            assert chunk.met <= 1, "a pinned chunk was met more than once"
            chunk.ref_cnt = 0
            self.policy.mark_evictable(key)
            self.work += 1

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        self.policy.touch(keys, request("toucher"))
        self.use(keys)

    def access(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        self.policy.on_request_access(keys, context)
        self.use(keys)

    def finish(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        self.policy.on_request_finished([keys], set(), set(keys), context)
        self.use(keys)

    def use(self, keys: Sequence[OffloadKey]) -> None:
        """A use gives a chunk another place, pinned or not, and there it is met anew."""
        self.work += len(keys)
        for key in keys:
            if key in self.chunks:
                self.chunks[key].met = 0

    def evict(self, n: int, protected: Iterable[OffloadKey] = ()) -> list[OffloadKey] | None:
        kept = set(protected)
        with self.counting():
            victims = self.policy.evict(n, kept)
        self.calls += 1
        self.visits += Tally.visits
        self.protected += len(kept)
        if victims is None:
            return None
        self.work += len(victims)
        keys = [key for key, _ in victims]
        for key in keys:
            del self.chunks[key]
        return keys

    def pinned(self) -> list[OffloadKey]:
        return [key for key, chunk in self.chunks.items() if count_of(chunk) > 0]

    def idle(self) -> list[OffloadKey]:
        return [key for key, chunk in self.chunks.items() if count_of(chunk) == 0]

    def check(self) -> None:
        """The budget of the clause, over the run so far."""
        assert self.visits <= 8 * self.work + self.protected
        for key in self.pinned():
            assert self.chunks[key].met <= 1, "a pinned chunk was met more than once"


@pytest.mark.clause("POL-8")
@ALL
def test_evicting_beside_many_pinned_chunks_does_not_walk_them_each_time(name: str) -> None:
    meter = Meter(name, MANY + 10)
    cold = counted(MANY, "cold")
    meter.store(cold)
    meter.pin(cold)
    meter.store(counted(10, "warm"))
    meter.evict(1)
    # From now on nothing is left to be learnt about the pinned ones.
    for key in counted(1_000, "new"):
        before = meter.visits
        assert meter.evict(1) is not None
        assert meter.visits - before <= 64
        meter.store([key])
    meter.check()


@pytest.mark.clause("POL-8")
@ALL
def test_nor_does_evicting_in_vain(name: str) -> None:
    meter = Meter(name, MANY + 10)
    cold, offer = counted(MANY, "cold"), counted(10, "offer")
    meter.store(cold)
    meter.pin(cold)
    meter.store(offer)
    for _ in range(200):
        assert meter.evict(1, offer) is None
    # A first walk over the pinned, and then no more than over the offer.
    assert meter.visits <= 8 * MANY + 200 * 8 * len(offer)
    meter.check()


@pytest.mark.clause("POL-8")
@ALL
def test_nor_do_pins_at_the_cold_end_that_come_back(name: str) -> None:
    meter = Meter(name, 1_000)
    keys = counted(1_000)
    meter.store(keys)
    for number in range(20):
        meter.pin(keys[:900])
        for key in counted(40, f"new{number}-"):
            assert meter.evict(1) is not None
            meter.store([key])
        meter.unpin(reversed(keys[:900]))
    assert meter.calls == 800
    meter.check()


@pytest.mark.clause("POL-8")
@STEADY
def test_one_eviction_does_not_pay_for_thousands_of_touches_before_it(name: str) -> None:
    meter = Meter(name, 1_000)
    keys = counted(1_000)
    meter.store(keys)
    for start in range(0, 1_000, 10):
        for _ in range(10):
            meter.touch(keys[start : start + 10])
    for _ in range(10):
        before = meter.visits
        assert meter.evict(1) is not None
        assert meter.visits - before <= 16
    meter.check()


@pytest.mark.clause("POL-8")
@STEADY
def test_nor_for_thousands_of_requests_before_it(name: str) -> None:
    meter = Meter(name, 500)
    keys = counted(500)
    meter.store(keys)
    for number in range(2_000):
        seen = keys[number % 490 : number % 490 + 10]
        context = request(str(number), seen)
        meter.access(seen, context)
        meter.finish(seen, context)
    for _ in range(10):
        before = meter.visits
        assert meter.evict(1) is not None
        assert meter.visits - before <= 64
    meter.check()


@pytest.mark.clause("POL-8")
@ALL
def test_nor_for_thousands_of_pins_and_releases_before_it(name: str) -> None:
    meter = Meter(name, 100)
    keys = counted(100)
    meter.store(keys)
    for _ in range(100):
        meter.pin(keys)
        meter.unpin(keys)
    before = meter.visits
    assert meter.evict(1) is not None
    assert meter.visits - before <= 16
    meter.check()


@pytest.mark.clause("POL-8")
@ALL
@pytest.mark.parametrize("n", [1, 100, 2_000])
def test_evicting_many_at_once_costs_a_constant_each(name: str, n: int) -> None:
    meter = Meter(name, 4_000)
    keys = counted(4_000)
    meter.store(keys)
    meter.pin(keys[::2])
    assert meter.evict(n) is not None
    # W-TinyLFU compares two that could go.
    assert meter.visits <= 8 * max(n, 2 if name.startswith("wtinylfu") else 1)
    meter.check()


@pytest.mark.clause("POL-8")
@ALL
def test_refusing_time_and_again_visits_no_more_than_is_protected(name: str) -> None:
    meter = Meter(name, 4_000)
    meter.store(counted(1_000, "pinned"))
    meter.pin(list(meter.chunks))
    mine = counted(20, "mine")
    meter.store(mine)
    for _ in range(500):
        assert meter.evict(1, [*mine, *counted(1, "new")]) is None
    assert meter.visits <= 8 * 1_020 + meter.protected


@pytest.mark.clause("POL-8")
@ALL
@pytest.mark.parametrize("idle", by_lot([1, 10, 100], one_of=3))
def test_nor_does_refusing_walk_what_others_have_pinned(name: str, idle: int) -> None:
    """n is at most the offer, whose keys are protected; so the few idle ones are at most these."""
    meter = Meter(name, 4_000)
    meter.store(counted(1_000, "pinned"))
    meter.pin(list(meter.chunks))
    meter.store(counted(idle, "other"))
    for _ in range(500):
        assert meter.evict(idle + 1, counted(idle + 1, "offer")) is None
    assert meter.visits <= 8 * (1_000 + idle + meter.protected)


@pytest.mark.clause("POL-8")
@ALL
def test_each_protected_key_is_visited_once_a_call(name: str) -> None:
    meter = Meter(name, 4_000)
    offer = counted(500, "offer")
    meter.store(offer)
    meter.store(counted(400, "other"))
    for _ in range(300):
        assert meter.evict(1, offer) is not None
    meter.check()


@pytest.mark.clause("POL-8")
@ALL
@pytest.mark.parametrize("seed", by_lot(range(2), one_of=2))
def test_a_long_life_stays_within_the_budget(name: str, seed: int) -> None:
    capacity, rng = 300, Random(seed)
    meter = Meter(name, capacity)
    universe = counted(900)
    running: list[tuple[ReqContext, list[OffloadKey]]] = []
    refused = 0
    for step in range(1_500):
        start = rng.randrange(890)
        prompt = universe[start : start + 10]
        if len(running) < 30:
            running.append((request(str(step), prompt if rng.random() < 0.7 else []), []))
        context, seen = rng.choice(running)
        meter.access([key for key in prompt if key not in seen], context)
        seen += [key for key in prompt if key not in seen]
        absent = [key for key in prompt if key not in meter.chunks]
        lacking = len(meter.chunks) + len(absent) - capacity
        if lacking > 0 and lacking <= len(meter.idle()):
            refused += meter.evict(lacking, prompt) is None
        if len(meter.chunks) + len(absent) <= capacity:
            meter.pending(absent, context)
            cut = rng.randint(0, len(absent))
            meter.complete(absent[:cut])
            meter.fail(absent[cut:])
        idle = meter.idle()
        meter.pin(rng.sample(idle, min(len(idle), rng.choice([0, 3, 20]))))
        pinned = meter.pinned()
        meter.unpin(rng.sample(pinned, len(pinned) if step % 50 == 0 else min(len(pinned), 5)))
        meter.touch(rng.sample(universe, rng.choice([0, 0, 5])))
        if len(running) == 30:
            over, seen = running.pop(rng.randrange(30))
            meter.finish(seen, over)
    assert meter.calls > 300
    meter.check()


@pytest.mark.clause("POL-8")
@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_cost_a_constant_for_each_use(name: str) -> None:
    meter = Meter(name, 1_000)
    keys = counted(1_000)
    meter.store(keys)
    for _ in range(4):
        meter.touch(keys)
    before = meter.visits
    assert meter.evict(1) is not None
    assert meter.visits - before <= 8 * 1_000
    for _ in range(100):
        before = meter.visits
        assert meter.evict(1) is not None
        assert meter.visits - before <= 16
    meter.check()


# The runs of LRU: places kept open in the middle of the order


@pytest.mark.clause("POL-8")
def test_keys_that_join_running_requests_late_cost_evictions_no_walk() -> None:
    meter = Meter("lru", 10_000)
    running: list[tuple[ReqContext, list[OffloadKey]]] = []
    for number in range(500):
        prompt = counted(10, f"r{number:03}-")
        context = request(str(number), prompt)
        meter.store(prompt[:1], context)
        running.append((context, prompt))
    # Each joins in its old place, newest first, so that none is at the end of its run.
    for context, prompt in reversed(running):
        meter.store(prompt[5:], context)
        meter.store(prompt[1:5], context)
    for _ in range(5_000):
        before = meter.visits
        assert meter.evict(1) is not None
        assert meter.visits - before <= 64
    meter.check()


@pytest.mark.clause("POL-8")
def test_runs_that_evictions_have_passed_may_be_joined_and_cost_no_walk() -> None:
    meter = Meter("lru", 20_000)
    running: list[tuple[ReqContext, list[OffloadKey]]] = []
    for number in range(300):
        prompt = counted(12, f"r{number:03}-")
        context = request(str(number), prompt)
        meter.store(prompt[:2], context)
        running.append((context, prompt))
    meter.store(counted(100, "other"))
    # All runs are passed now.
    assert meter.evict(650) is not None
    for round_number in range(2, 12):
        for context, prompt in running:
            joining = prompt[round_number : round_number + 1]
            meter.store(joining, context)
            meter.pin(joining)
        for _, prompt in reversed(running):
            meter.unpin(prompt[round_number : round_number + 1])
        for _ in range(290):
            assert meter.evict(1) is not None
    meter.check()


@pytest.mark.clause("POL-8")
def test_pinned_members_of_runs_are_visited_once_a_pin_in_any_order_of_release() -> None:
    meter = Meter("lru", 20_000)
    rng = Random(5)
    running: list[tuple[ReqContext, list[OffloadKey]]] = []
    for number in range(200):
        prompt = counted(10, f"r{number:03}-")
        context = request(str(number), prompt)
        meter.store(prompt, context)
        running.append((context, prompt))
    members = [key for _, prompt in running for key in prompt]
    meter.pin(members)
    spare = counted(3_000, "spare")
    meter.store(spare)
    for _ in range(30):
        released = rng.sample(meter.pinned(), 50)
        meter.unpin(released)
        assert set(meter.evict(25) or []) <= set(members)
        meter.pin([key for key in released if key in meter.chunks][:10])
        assert meter.evict(20) is not None
    meter.check()


@pytest.mark.clause("POL-8")
def test_finished_requests_that_store_again_and_contexts_that_go_cost_no_walk() -> None:
    meter = Meter("lru", 5_000)
    kept: list[tuple[ReqContext, list[OffloadKey]]] = []
    for number in range(1_000):
        prompt = counted(4, f"r{number:04}-")
        context = request(str(number), prompt)
        meter.store(prompt[:2], context)
        meter.finish(prompt[:2], context)
        # One in five contexts outlives its finish, and its request stores once more later on.
        if number % 5 == 0:
            kept.append((context, prompt))
        if len(kept) > 20:
            late, late_prompt = kept.pop(0)
            meter.store(late_prompt[2:], late)
        if number > 100:
            before = meter.visits
            assert meter.evict(1) is not None
            assert meter.visits - before <= 64
    assert meter.evict(1_000) is not None
    meter.check()
