"""POL-1 to POL-7 and POL-9: what LRU and ARC promise as any policy does."""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import permutations
from random import Random
from types import FunctionType, MethodType, ModuleType

import pytest

from kvoffload import CachePolicy, CachePolicyFactory, ChunkStatus, OffloadKey, ReqContext
from spec_tests.clauses.helpers import LETTERS, A, B, C, D, E, F, G, H, many, request
from spec_tests.clauses.policies import PolicyHost

NAMES = ["lru", "arc"]
BOTH = pytest.mark.parametrize("name", NAMES)


def new_policy(name: str, capacity: int = 8) -> CachePolicy:
    return CachePolicyFactory.get_cache_policy_cls(name)(cache_capacity=capacity)


def hosted(name: str, capacity: int = 8) -> PolicyHost:
    return PolicyHost(new_policy(name, capacity))


class Program:
    """A random but lawful life of a policy; `victims` are all that it evicted, in order."""

    def __init__(self, host: PolicyHost, capacity: int, seed: int) -> None:
        self.host = host
        self.capacity = capacity
        self.rng = Random(seed)
        self.victims: list[OffloadKey] = []
        self.refused = 0
        self.running: list[ReqContext] = []
        self.seen: dict[str, list[OffloadKey]] = {}
        self.begun = 0

    def run(self, steps: int, universe: list[OffloadKey]) -> "Program":
        for _ in range(steps):
            self.step(universe)
        return self

    def begin(self, universe: list[OffloadKey]) -> None:
        prompt = self.rng.sample(universe, 6) if self.rng.random() < 0.7 else []
        self.running.append(request(f"r{self.begun}", prompt))
        self.seen[f"r{self.begun}"] = []
        self.begun += 1
        if len(self.running) > 4:
            over = self.running.pop(self.rng.randrange(4))
            seen = self.seen.pop(over.req_id)
            cut = self.rng.randint(0, len(seen))
            self.host.finish([seen], over, inserted=seen[:cut], reused=seen[cut:])

    def step(self, universe: list[OffloadKey]) -> None:
        host, rng = self.host, self.rng
        if not self.running or rng.random() < 0.1:
            self.begin(universe)
        context = rng.choice(self.running)
        offer = rng.sample(universe, rng.randint(1, 3))
        pending = [k for k, chunk in host.chunks.items() if chunk.ref_cnt < 0]
        pinned = [k for k, chunk in host.chunks.items() if chunk.ref_cnt > 0]
        draw = rng.random()
        if draw < 0.45:
            absent = [k for k in offer if k not in host.chunks]
            host.miss(*absent)
            self.see(offer, context)
            lacking = len(host.chunks) + len(absent) - self.capacity
            if lacking > 0:
                if lacking > len(host.idle()):
                    return
                allowed = [k for k in host.idle() if k not in offer]
                victims = host.evict(lacking, offer)
                if victims is None:
                    assert len(allowed) < lacking, "it refused what it could do (POL-3)"
                    self.refused += 1
                    return
                assert len(victims) == lacking
                assert set(victims) <= set(allowed)
                self.victims += victims
            host.pending(absent, context)
        elif draw < 0.65 and pending:
            chosen = rng.sample(pending, 1)
            (host.complete if rng.random() < 0.8 else host.fail)(chosen)
        elif draw < 0.78 and host.idle():
            chosen = rng.sample(host.idle(), 1)
            self.see(chosen, context)
            host.pin(chosen)
        elif draw < 0.92 and pinned:
            host.unpin(rng.sample(pinned, 1))
        elif draw < 0.97:
            host.touch(*offer)

    def see(self, keys: list[OffloadKey], context: ReqContext) -> None:
        seen = self.seen[context.req_id]
        first = [k for k in keys if k not in seen]
        self.host.access(first, context)
        seen += first


# POL-1


@pytest.mark.clause("POL-1")
@BOTH
def test_get_gives_the_very_chunk_until_it_goes(name: str) -> None:
    host = hosted(name)
    get = host.policy.get
    host.pending([A, B, C, D])
    assert [get(key) for key in (A, B, C, D)] == [host.chunks[key] for key in (A, B, C, D)]
    host.fail([A])
    assert get(A) is None
    host.complete([B, C, D])
    host.pin([C])
    assert host.evict(2) == [B, D]
    assert get(B) is get(D) is None
    assert get(C) is host.chunks[C]
    host.policy.clear()
    assert get(C) is None


@pytest.mark.clause("POL-1")
@BOTH
def test_get_gives_nothing_for_ghosts_and_strangers(name: str) -> None:
    host = hosted(name)
    host.store([A])
    host.evict(1)
    host.miss(A)
    host.touch(A, B)
    assert host.policy.get(A) is None
    assert host.policy.get(B) is None


@pytest.mark.clause("POL-1")
@pytest.mark.clause("POL-2")
@pytest.mark.clause("POL-3")
@BOTH
@pytest.mark.parametrize("capacity", [3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_a_long_life_loses_and_doubles_nothing(name: str, capacity: int, seed: int) -> None:
    host = hosted(name, capacity)
    program = Program(host, capacity, seed)
    for _ in range(600):
        program.step(list(LETTERS))
        for key in LETTERS:
            assert host.policy.get(key) is host.chunks.get(key)
    assert len(program.victims) > 50
    assert program.refused > 0


# POL-2


@pytest.mark.clause("POL-2")
@BOTH
def test_evict_gives_exactly_n_and_removes_exactly_these(name: str) -> None:
    host = hosted(name)
    host.store(LETTERS)
    for n in (3, 1, 4):
        before = set(host.chunks)
        victims = host.evict(n)
        assert victims is not None
        assert len(set(victims)) == len(victims) == n
        assert {key for key in LETTERS if host.policy.get(key)} == before - set(victims)


@pytest.mark.clause("POL-2")
@BOTH
def test_evict_takes_neither_protected_nor_pinned_nor_pending(name: str) -> None:
    host = hosted(name)
    host.store([A, B, C, D])
    host.pending([E, F])
    host.pin([B])
    assert host.evict(2, {C, G}) == [A, D]
    assert host.evict(1, {C}) is None
    assert host.evict(1) == [C]
    assert host.evict(1) is None


@pytest.mark.clause("POL-2")
@BOTH
@pytest.mark.parametrize("protected", [(), (A,), (B, D), (A, B, C, D, E)])
def test_refusing_changes_no_later_choice(name: str, protected: tuple[OffloadKey, ...]) -> None:
    def choices(*, refused: bool) -> list[OffloadKey]:
        host = hosted(name)
        host.store([A, B, C, D, E])
        host.finish([[B, A]], reused=[B, A])
        host.pin([C, A])
        for _ in range(3 if refused else 0):
            assert host.evict(4, protected) is None
        assert {key for key in LETTERS if host.policy.get(key)} == {A, B, C, D, E}
        host.unpin([A, C])
        host.store([F])
        return host.evict_all()

    assert choices(refused=True) == choices(refused=False)


# POL-3


@pytest.mark.clause("POL-3")
@BOTH
def test_evict_succeeds_with_just_enough_idle_chunks(name: str) -> None:
    host = hosted(name)
    host.store([A, B, C, D, E])
    host.finish([[A, C]], reused=[A, C])
    host.pin([B])
    host.pending([F])
    assert sorted(host.evict(3, {D}) or []) == [A, C, E]


@pytest.mark.clause("POL-3")
@BOTH
def test_a_chunk_that_was_passed_while_pinned_is_found_when_it_is_released(name: str) -> None:
    host = hosted(name)
    host.store([A, B, C])
    host.pin([A, B])
    assert host.evict(1) == [C]
    assert host.evict(1) is None
    host.unpin([B])
    assert host.evict(1) == [B]
    host.unpin([A])
    assert host.evict(1) == [A]


@pytest.mark.clause("POL-3")
@BOTH
def test_neither_declares_that_it_may_refuse(name: str) -> None:
    assert new_policy(name).may_refuse is None


# POL-4


def held_keys(policy: CachePolicy) -> int:
    """How many keys can be reached from a policy's attributes."""
    found: set[OffloadKey] = set()
    seen: set[int] = set()
    todo: list[object] = list(vars(policy).values())
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, (type, ModuleType, FunctionType, MethodType)):
            continue
        seen.add(id(item))
        if isinstance(item, bytes):
            found.add(OffloadKey(item))
        todo += gc.get_referents(item)
    return len(found - {b""})


@pytest.mark.clause("POL-4")
@BOTH
def test_what_a_policy_holds_does_not_grow(name: str) -> None:
    capacity = 16

    def plateau(churn: int) -> int:
        host = hosted(name, capacity)
        universe = many(churn)
        program = Program(host, capacity, 7)
        for start in range(0, churn - 40, 4):
            program.run(6, universe[start : start + 40])
        assert len(program.victims) > churn // 6
        return held_keys(host.policy)

    once, twice = plateau(2_000), plateau(4_000)
    assert once >= capacity // 2, "nothing was found; the search is broken"
    assert max(once, twice) <= 4 * capacity + 64


@pytest.mark.clause("POL-4")
@BOTH
def test_a_pinned_chunk_at_the_cold_end_holds_nothing_back(name: str) -> None:
    capacity = 8
    host = hosted(name, capacity)
    host.store([A])
    host.pin([A])
    for key in many(4_000):
        while len(host.chunks) >= capacity:
            assert host.evict(1) is not None
        host.miss(key)
        host.store([key], request("one", [key]))
    assert held_keys(host.policy) <= 4 * capacity + 64


# POL-5


def victims_of(name: str, seed: int) -> list[OffloadKey]:
    return Program(hosted(name, 5), 5, seed).run(500, list(LETTERS)).victims


@pytest.mark.clause("POL-5")
@BOTH
def test_the_same_calls_give_the_same_victims(name: str) -> None:
    assert victims_of(name, 3) == victims_of(name, 3)
    assert victims_of(name, 3) != victims_of(name, 4)


@pytest.mark.clause("POL-5")
@BOTH
def test_they_do_so_in_other_processes(name: str) -> None:
    script = (
        "from spec_tests.clauses.test_policy_contract import victims_of\n"
        f"print(victims_of({name!r}, 3))"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert answers == [f"{victims_of(name, 3)}\n"] * 2


# POL-6


@pytest.mark.clause("POL-6")
@BOTH
@pytest.mark.parametrize("seed", range(6))
def test_a_cleared_policy_behaves_as_a_new_one(name: str, seed: int) -> None:
    host = hosted(name, 5)
    past = Program(host, 5, seed).run(300, list(LETTERS))
    # The requests of then live on and come back.
    host.clear()
    cleared, fresh = Program(host, 5, seed + 50), Program(hosted(name, 5), 5, seed + 50)
    cleared.running = list(past.running)
    fresh.running = [copy_of(context) for context in past.running]
    for program in (cleared, fresh):
        program.seen = {context.req_id: [] for context in past.running}
        program.begun = 1_000
        program.run(400, list(LETTERS))
    assert cleared.victims == fresh.victims
    assert len(cleared.victims) > 40


def copy_of(context: ReqContext) -> ReqContext:
    """The same request, but for all that anybody keeps in it."""
    copy = ReqContext(context.req_id)
    for key in LETTERS:
        end = context.get_offload_key_position(key)
        if end is not None:
            copy.set_offload_key_position(key, end)
    return copy


@pytest.mark.clause("POL-6")
@BOTH
@pytest.mark.parametrize("positions", [False, True])
def test_removing_and_inserting_equals_a_fresh_insertion(name: str, positions: bool) -> None:
    def order(*, twice: bool) -> list[OffloadKey]:
        host = hosted(name)
        context = request("r", [A, B, C, H] if positions else [])
        host.store([H], context)
        if twice:
            host.pending([B], context)
        host.store([A], context)
        host.store([D])
        if twice:
            host.fail([B])
        host.store([B, C], context)
        host.store([E])
        return host.evict_all()

    assert order(twice=True) == order(twice=False)


# POL-7

HINTS: list[object] = [
    None,
    {},
    [],
    "text",
    b"bytes",
    float("nan"),
    float("inf"),
    -1,
    2**200,
    {"deep": [{"er": {}}]},
    {1, 2},
    object(),
]
HINT_NAMES = ["kv_hints", "session_id", "priority", "expected_gap", "role", "last_turn"]


def hinted(hint: object) -> Iterator[ReqContext]:
    yield ReqContext("none", None)
    params: list[dict[str, object]] = [{}, dict.fromkeys(HINT_NAMES, hint), {"kv_hints": [hint]}]
    for number, given in enumerate(params):
        yield ReqContext(f"hinted{number}", given)


@pytest.mark.clause("POL-7")
@BOTH
@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: type(hint).__name__ + repr(hint)[:12])
def test_no_hook_raises_or_stops_evictions_whatever_the_hints(name: str, hint: object) -> None:
    for context in hinted(hint):
        host = hosted(name, 4)
        host.store([A, B], context)
        host.policy.touch([A], context)
        host.policy.on_store_miss([C], context)
        host.access([A, C], context)
        host.pin([A])
        host.unpin([A])
        host.pending([C], context)
        host.fail([C])
        host.finish([[A, B, C]], context, inserted=[B, C], reused=[A])
        assert sorted(host.evict(2) or []) == [A, B]


def each(hook: Callable[[OffloadKey], object], keys: list[OffloadKey]) -> None:
    for key in keys:
        hook(key)


Hook = Callable[[CachePolicy, list[OffloadKey], ReqContext], object]
HOOKS: dict[str, Hook] = {
    "touch": lambda policy, keys, context: policy.touch(keys, context),
    "on_store_miss": lambda policy, keys, context: policy.on_store_miss(keys, context),
    "on_request_access": lambda policy, keys, context: policy.on_request_access(keys, context),
    "finished, inserted": lambda policy, keys, context: policy.on_request_finished(
        [keys], set(keys), set(), context
    ),
    "finished, reused": lambda policy, keys, context: policy.on_request_finished(
        [keys, keys], set(), set(keys), context
    ),
    "finished, neither": lambda policy, keys, context: policy.on_request_finished(
        [[], keys], set(), set(), context
    ),
    "mark_evictable": lambda policy, keys, _: each(policy.mark_evictable, keys),
    "mark_non_evictable": lambda policy, keys, _: each(policy.mark_non_evictable, keys),
    "get": lambda policy, keys, _: each(policy.get, keys),
    "remove": lambda policy, keys, _: each(
        policy.remove, [key for key in keys if policy.get(key) is None]
    ),
}


@pytest.mark.clause("POL-7")
@pytest.mark.clause("TOUCH-1")
@BOTH
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize(
    "keys",
    [[], [H], [D], [E], [A], [G], [A, A, H, H, D, D, E, E, G], list(LETTERS)],
    ids=["none", "unknown", "pending", "pinned", "idle", "ghost", "repeated", "all"],
)
def test_no_hook_raises_changes_membership_or_stops_evictions(
    name: str, hook: str, positions: bool, keys: list[OffloadKey]
) -> None:
    host = hosted(name, 6)
    context = request("r", LETTERS if positions else [])
    host.store([G, A, B, C, E], context)
    host.pin([E])
    assert host.evict(1, {A, B, C}) == [G]
    host.pending([D], context)
    for _ in range(2):
        HOOKS[hook](host.policy, keys, context)
        for key in LETTERS:
            assert host.policy.get(key) is host.chunks.get(key)
    assert sorted(host.evict(3) or []) == [A, B, C]
    assert host.evict(1) is None
    host.complete([D])
    host.unpin([E])
    assert sorted(host.evict(2) or []) == [D, E]


@pytest.mark.clause("POL-7")
@BOTH
def test_one_shot_iterables_will_do(name: str) -> None:
    def order(*, one_shot: bool) -> list[OffloadKey]:
        def given(*keys: OffloadKey) -> Iterator[OffloadKey] | list[OffloadKey]:
            return iter(keys) if one_shot else list(keys)

        host = hosted(name, 6)
        context = request("r", [C, A])
        host.store([A, B, C, D])
        host.policy.touch(given(B, A), context)
        host.policy.on_store_miss(given(E), context)
        host.policy.on_request_access(given(C, D), context)
        return host.evict_all()

    assert order(one_shot=True) == order(one_shot=False)


# POL-9


@pytest.mark.clause("POL-9")
@BOTH
@pytest.mark.parametrize("swept", [False, True])
def test_the_order_of_releases_decides_nothing(name: str, swept: bool) -> None:
    def order(releases: tuple[OffloadKey, ...]) -> list[OffloadKey]:
        host = hosted(name)
        host.store([A, B, C, D, E])
        host.finish([[B, D]], reused=[B, D])
        host.pin([A, B, C, D])
        if swept:
            # Whoever is pinned is met, and passed over.
            assert host.evict(2) is None
            assert host.evict(1) == [E]
        host.unpin(releases)
        return host.evict_all()

    orders = {tuple(order(releases)) for releases in permutations([A, B, C, D])}
    assert len(orders) == 1


@pytest.mark.clause("POL-9")
@BOTH
def test_when_pins_are_released_decides_nothing(name: str) -> None:
    """Released before or between evictions, a chunk goes in its turn among those still there."""
    host = hosted(name)
    host.store([A, B, C, D, E, F])
    host.pin([A, B, C])
    assert host.evict(1) == [D]
    host.unpin([C])
    assert host.evict(1) == [C]
    host.unpin([A])
    host.pin([E])
    host.unpin([B])
    assert host.evict(1) == [A]
    host.unpin([E])
    assert host.evict_all() == [B, E, F]


@pytest.mark.clause("POL-9")
@BOTH
def test_a_chunk_released_and_pinned_again_keeps_its_turn(name: str) -> None:
    host = hosted(name)
    host.store([A, B, C, D])
    host.pin([A, B])
    assert host.evict(1) == [C]
    host.unpin([B, A])
    host.pin([A])
    assert host.evict(1) == [B]
    host.unpin([A])
    assert host.evict_all() == [A, D]


@pytest.mark.clause("POL-9")
@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_nor_does_it_in_a_long_life(name: str, seed: int) -> None:
    """Two hosts make the same calls, but release in opposite order what is released together."""

    def victims(*, backwards: bool) -> list[OffloadKey]:
        rng, host = Random(seed), hosted(name, 12)
        gone: list[OffloadKey] = []
        universe = many(20)
        for step in range(400):
            context = request(f"r{step}", universe[: step % 20])
            absent = [key for key in rng.sample(universe, 3) if key not in host.chunks]
            lacking = len(host.chunks) + len(absent) - 12
            if lacking <= len(host.idle()):
                if lacking > 0:
                    gone += host.evict(lacking) or []
                host.miss(*absent)
                host.store(absent, context)
            host.pin(rng.sample(host.idle(), min(3, len(host.idle()))))
            pinned = sorted(key for key, chunk in host.chunks.items() if chunk.ref_cnt > 0)
            released = rng.sample(pinned, min(4, len(pinned)) if step % 2 else 0)
            host.unpin(reversed(released) if backwards else released)
            host.finish([released], context, reused=released)
        return gone

    forwards = victims(backwards=False)
    assert victims(backwards=True) == forwards
    assert len(forwards) > 100


@pytest.mark.clause("POL-9")
@BOTH
@pytest.mark.parametrize("chunk_order", list(permutations([0, 1, 2])))
def test_nor_do_completions_of_stores(name: str, chunk_order: tuple[int, ...]) -> None:
    host = hosted(name)
    host.pending([A, B, C])
    host.complete([[A, B, C][index] for index in chunk_order])
    assert host.evict_all() == [A, B, C]
    assert isinstance(host.policy.get(A), ChunkStatus) is False
