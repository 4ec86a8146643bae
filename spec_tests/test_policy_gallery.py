"""The broken policies are named for what they break; the legal ones break nothing.

Both are held to the laws of `policy_laws`, which share nothing with the engines.
"""

import subprocess
import sys
from collections.abc import Iterable, Set
from itertools import count, product
from pathlib import Path

import pytest
from attrs import fields
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.factory import REQUIRED_METHODS
from spec_tests.lots import by_lot
from spec_tests.policy_laws import LAWS, UNIVERSE, Host, Make
from stateful_models.capabilities import NONE, Capabilities
from stateful_models.contract import CLAUSES, Kind
from stateful_models.drivers import Driver
from stateful_models.gallery.broken_policies import liveness
from stateful_models.gallery.broken_policies.adaptive import Adaptive
from stateful_models.gallery.broken_policies.base import Plain, Victims
from stateful_models.gallery.broken_policies.clearing import Numbered, Pol6OldPlaceAfterRemoval
from stateful_models.gallery.broken_policies.clocks import Timed
from stateful_models.gallery.broken_policies.determinism import Pol5KeepsTheList, Pol5SetOrder
from stateful_models.gallery.broken_policies.hints import Prioritised
from stateful_models.gallery.broken_policies.hooks import Pol7ReadsTwice
from stateful_models.gallery.broken_policies.lines import Lined
from stateful_models.gallery.broken_policies.ranked import Ranked
from stateful_models.gallery.broken_policies.wrappers import Pol3WrapperSwallows
from stateful_models.gallery.legal_policies.admission_gate import PATIENCE, AdmissionGate
from stateful_models.gallery.legal_policies.group_evictor import GroupEvictor
from stateful_models.gallery.legal_policies.s3_fifo import S3FIFO
from stateful_models.gallery.legal_policies.sessions import Sessions
from stateful_models.gallery.legal_policies.ttl import LONG_S, SHORT_S, TimeToLive
from stateful_models.gallery.legal_policies.wrapper import Forwarding
from stateful_models.gallery.policies import (
    BROKEN_POLICIES,
    LEGAL_POLICIES,
    POLICY_BUGS,
    GalleryDriver,
)
from stateful_models.machines import PolicyMachine
from stateful_models.models import ARCModel, LRUModel, PolicyModel

ROOT = Path(__file__).resolve().parents[1]

# The kinds of reported bugs that a cache policy by itself can have.
POLICY_BUG_ROWS = (
    *("POL1", "POL2", "POL3", "POL4", "POL6", "POL12", "POL13", "POL15", "POL17", "POL20"),
    *("POL21", "POL24", "POL34", "POL35"),
)
# What broken ones start from must be right, or their one mistake is not the only one.
BASES = (Plain, Lined, Numbered, Prioritised, Timed, Forwarding, Ranked, Adaptive)
FACTORIES: dict[str, Make] = {
    **{name: legal.factory for name, legal in LEGAL_POLICIES.items()},
    **{base.__name__: base for base in BASES},
}
CLAIMS: dict[str, Capabilities] = {
    **{name: legal.claims for name, legal in LEGAL_POLICIES.items()},
    "Ranked": Capabilities(lru=True),
    "Adaptive": Capabilities(arc=True),
}


def claims_of(name: str) -> Capabilities:
    return CLAIMS.get(name, NONE)


def told_by_processes(program: str) -> set[str]:
    """What processes of several hash seeds print."""
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }


def insert(policy: CachePolicy, keys: Iterable[OffloadKey], context: ReqContext) -> None:
    for slot, key in enumerate(keys):
        chunk = ChunkStatus(slot)
        policy.insert(key, chunk, context)
        chunk.ref_cnt = 0
        policy.mark_evictable(key)


def evicted(policy: CachePolicy, n: int, protected: Iterable[OffloadKey] = ()) -> list[OffloadKey]:
    return [key for key, _ in policy.evict(n, set(protected)) or ()]


# The broken ones


def test_every_broken_policy_is_named_for_its_clause() -> None:
    for policy_cls, exhibit in BROKEN_POLICIES.items():
        assert exhibit.clause in CLAUSES
        CLAUSES[exhibit.clause].part(exhibit.kind)
        assert policy_cls.__name__.upper().startswith(exhibit.clause.replace("-", ""))
        assert policy_cls.__doc__
        assert policy_cls.__doc__ not in {base.__doc__ for base in policy_cls.__mro__[1:]}
    names = [policy_cls.__name__ for policy_cls in BROKEN_POLICIES]
    mistakes = [(one.clause, one.mistake) for one in BROKEN_POLICIES.values()]
    assert len(set(names)) == len(names) >= 90
    assert len(set(mistakes)) == len(mistakes)


def test_every_clause_of_policies_has_a_broken_one() -> None:
    demands = {
        (name, part.kind)
        for name, clause in CLAUSES.items()
        if name.startswith(("POL-", "LRU-", "ARC-"))
        for part in clause.parts
    }
    shown = {(one.clause, one.kind or CLAUSES[one.clause].kind) for one in BROKEN_POLICIES.values()}
    # That a plateau is too high, though it is one, is advice that needs no exhibit of its own.
    assert demands - shown == {("POL-4", Kind.ADVICE)}


def test_every_kind_of_reported_bug_has_a_broken_one() -> None:
    assert sorted(POLICY_BUGS) == sorted(POLICY_BUG_ROWS)


def test_a_claim_is_made_by_whoever_breaks_it() -> None:
    needed = {"LRU": "lru", "ARC": "arc", "POL-8": "cost", "POL-9": "release_order"}
    for policy_cls, exhibit in BROKEN_POLICIES.items():
        made = {field.name for field in fields(Capabilities)} - {
            field.name
            for field in fields(Capabilities)
            if getattr(exhibit.claims, field.name) == field.default
        }
        claim = needed.get(exhibit.clause) or needed.get(exhibit.clause[:3])
        if exhibit.kind is Kind.CLAIM:
            claim = "fresh_reinsertion"
        assert made - {"tail_first"} == ({claim} if claim else set()), policy_cls


@pytest.mark.parametrize("policy_cls", BROKEN_POLICIES)
def test_a_broken_policy_is_built_as_any_other(policy_cls: type[CachePolicy]) -> None:
    exhibit = BROKEN_POLICIES[policy_cls]
    policy = policy_cls(cache_capacity=2)
    key, context = UNIVERSE[0], ReqContext("r")
    assert policy.get(key) is None
    assert (exhibit.around is not None) == isinstance(policy, Forwarding)
    driver = GalleryDriver(policy_cls)
    assert driver.capabilities == exhibit.claims
    if exhibit.around is not None:
        inner = Plain(2)
        wrapper = exhibit.around(2, inner)
        inner.insert(key, chunk := ChunkStatus(0), context)
        assert wrapper.get(key) is chunk


# Which law shows a mistake, where the laws can; a clock goes on by itself, for those that read one.
SHOWN_BY: dict[str, tuple[str, ...]] = {
    "POL-1": ("answers",),
    "POL-2": ("answers", "refusal"),
    "POL-3": ("answers",),
    "POL-4": ("growth",),
    "POL-5": ("repetition",),
    "POL-6": ("clear",),
    "POL-7": ("answers", "hints", "odd input"),
}
# They do not return; they need another process; an inner policy that raises; a host that uses a
# list again; a law of claimants; a generator.
NOT_SHOWN: tuple[type[CachePolicy], ...] = (
    *(liveness.Pol7LoopsForEver, liveness.Pol7SleepsForEver, liveness.Pol7WaitsForReal),
    *(Pol5SetOrder, Pol3WrapperSwallows, Pol5KeepsTheList, Pol6OldPlaceAfterRemoval),
    Pol7ReadsTwice,
)
SHOWN = [
    policy_cls
    for policy_cls, exhibit in BROKEN_POLICIES.items()
    if exhibit.clause in SHOWN_BY and policy_cls not in NOT_SHOWN
]


def maker(policy_cls: type[CachePolicy]) -> Make:
    if issubclass(policy_cls, Timed):
        return lambda capacity: policy_cls(capacity, clock=count(0.0, 50.0).__next__)
    return policy_cls


@pytest.mark.parametrize("policy_cls", SHOWN)
def test_a_law_convicts_what_breaks_it(policy_cls: type[CachePolicy]) -> None:
    """So the laws can fail, and the mistakes are there."""
    failures: list[str] = []
    for law in SHOWN_BY[BROKEN_POLICIES[policy_cls].clause]:
        try:
            LAWS[law](maker(policy_cls))
        except Exception:
            failures.append(law)
    assert failures


@pytest.mark.parametrize(
    "policy_cls",
    [cls for cls, one in BROKEN_POLICIES.items() if "answers" not in SHOWN_BY.get(one.clause, ())],
)
def test_whatever_else_is_wrong_the_answers_are_sound(policy_cls: type[CachePolicy]) -> None:
    """One mistake each: what breaks another clause breaks none of POL-1, POL-2 and POL-3."""
    LAWS["answers"](policy_cls)


def test_a_swallowed_error_looks_like_a_refusal() -> None:
    class Failing(Plain):
        @override
        def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
            raise LookupError

    inner = Failing(1)
    assert Pol3WrapperSwallows(1, inner).evict(1, set()) is None
    with pytest.raises(LookupError):
        Forwarding(1, inner).evict(1, set())


def test_a_list_that_was_kept_is_read_too_late() -> None:
    keys, context = list(UNIVERSE[:2]), ReqContext("r")
    policy = Pol5KeepsTheList(2)
    insert(policy, keys, context)
    handed = [keys[0]]
    policy.touch(handed, context)
    handed[:] = []
    assert evicted(policy, 1) == [keys[0]]


def test_a_generator_that_is_read_twice_is_empty() -> None:
    keys, context = UNIVERSE[:2], ReqContext("r")
    policies = Plain(2), Pol7ReadsTwice(2)
    for policy in policies:
        insert(policy, keys, context)
        policy.touch(iter(keys[:1]), context)
    assert [evicted(policy, 1) for policy in policies] == [[keys[1]], [keys[0]]]


def test_a_removed_key_comes_back_to_its_old_place() -> None:
    keys, context = UNIVERSE[:2], ReqContext("r")
    policies = Numbered(2), Pol6OldPlaceAfterRemoval(2)
    for policy in policies:
        insert(policy, keys, context)
        policy.remove(keys[0])
        insert(policy, keys[:1], context)
    assert [evicted(policy, 1) for policy in policies] == [[keys[1]], [keys[0]]]


def test_the_order_of_a_set_differs_between_processes() -> None:
    program = (
        "from spec_tests.policy_laws import Host\n"
        "from stateful_models.gallery.broken_policies.determinism import Pol5SetOrder\n"
        "print([Host(Pol5SetOrder(5), 5, seed).play(80) for seed in range(8)])"
    )
    assert len(told_by_processes(program)) > 1


# The legal ones, and what broken ones start from


def test_the_oddities_say_what_they_are() -> None:
    for name, legal in LEGAL_POLICIES.items():
        policy = legal.factory(3)
        assert all(hasattr(policy, method) for method in REQUIRED_METHODS)
        assert name == name.lower()
        assert legal.oddity
        assert getattr(policy, "may_refuse", None) == legal.claims.may_refuse
        driver = GalleryDriver(legal.factory)
        assert driver.capabilities == legal.claims
        assert type(driver.build(3)) is type(policy)
        assert (driver.build_around(Plain(3), 3) is None) == (legal.around is None)
    oddities = [legal.oddity for legal in LEGAL_POLICIES.values()]
    assert len(set(oddities)) == len(oddities) == 18


# Drawn for each policy by itself, so that each meets some of the laws in CI.
@pytest.mark.parametrize(
    "law_and_name",
    by_lot(product(LAWS, FACTORIES), one_of=3, within=lambda law_and_name: law_and_name[1]),
    ids="-".join,
)
def test_every_law_holds(law_and_name: tuple[str, str]) -> None:
    """POL-1 to POL-7."""
    law, name = law_and_name
    LAWS[law](FACTORIES[name])


@pytest.mark.parametrize("name", by_lot([*LEGAL_POLICIES, "Ranked", "Adaptive"], one_of=5))
def test_the_policy_machine_acquits(name: str) -> None:
    """POL-1, POL-2, POL-3 and POL-7; LRU-1, LRU-2 and ARC-1 to ARC-5 where they are claimed."""
    claims = claims_of(name)

    class ClaimingDriver(GalleryDriver):
        @property
        @override
        def capabilities(self) -> Capabilities:
            return claims

    class Machine(PolicyMachine[CachePolicy]):
        @override
        def make_driver(self) -> Driver[CachePolicy]:
            return ClaimingDriver(FACTORIES[name])

        @override
        def make_model(self, capacity: int) -> PolicyModel | None:
            if claims.lru:
                return LRUModel(capacity)
            return ARCModel(capacity) if claims.arc else None

    run_state_machine_as_test(Machine, settings=settings(max_examples=60))
    # One that refuses when it likes is not asked to come to everything in so few examples.
    assert claims.may_refuse or not Machine.reach.missing(Machine.SITUATIONS)


def test_other_hash_seeds_give_the_same_victims() -> None:
    """POL-5, in other processes."""
    program = (
        "from spec_tests.test_policy_gallery import FACTORIES, Host\n"
        "print([Host(make(5), 5, seed).play(80) for make in FACTORIES.values()"
        " for seed in range(8)])"
    )
    assert len(told_by_processes(program)) == 1


# What makes each of the delicate ones odd


def test_a_refusal_of_the_gate_ends() -> None:
    a, b, c, d = UNIVERSE[:4]
    gate = AdmissionGate(2)
    insert(gate, (a, b), ReqContext("r0"))
    gate.on_store_miss([c], ReqContext("r1"))
    assert not evicted(gate, 1, {c})
    gate.on_store_miss([c], ReqContext("r2"))
    assert evicted(gate, 1, {c}) == [a]
    for n in range(PATIENCE):
        assert not evicted(gate, 1, {d})
        gate.touch([b], ReqContext(f"r{n}"))
    assert evicted(gate, 1, {d}) == [b]


def test_a_group_leaves_as_a_whole() -> None:
    a, b, c, d = UNIVERSE[:4]
    policy = GroupEvictor(4)
    insert(policy, (a, b, c), ReqContext("r0"))
    insert(policy, (d,), ReqContext("r1"))
    assert evicted(policy, 1, {b}) == [a, c]
    assert evicted(policy, 2) == [b, d]


def test_what_has_expired_goes_first_and_is_found_until_then() -> None:
    now = 0.0
    a, b, c = UNIVERSE[:3]
    policy = TimeToLive(3, clock=lambda: now)
    context = ReqContext("r")
    insert(policy, (a, b), context)
    policy.touch([a], context)
    policy.touch([b], context)
    insert(policy, (c,), context)
    now = SHORT_S + 1
    pinned = policy.get(c)
    assert pinned is not None
    pinned.ref_cnt = 1
    assert evicted(policy, 1) == [a]
    now += LONG_S
    assert evicted(policy, 1) == [b]
    assert policy.evict(1, set()) is None
    pinned.ref_cnt = 0
    assert evicted(policy, 1) == [c]
    insert(policy, (a, b), context)
    policy.touch([a], context)
    insert(policy, (c,), context)
    now += SHORT_S + 1
    assert evicted(policy, 3) == [b, c, a]


def test_a_session_that_is_over_goes_first() -> None:
    a, b, c, d = UNIVERSE[:4]
    policy = Sessions(4)
    dear = ReqContext("r0", {"session_id": "s", "priority": 5})
    last = ReqContext("r1", {"session_id": "t", "priority": 2**70, "last_turn": True})
    insert(policy, (a,), dear)
    insert(policy, (b,), last)
    insert(policy, (c, d), ReqContext("r2"))
    policy.on_request_finished([[b]], {b}, set(), last)
    assert evicted(policy, 4) == [b, c, d, a]


def test_without_hints_sessions_are_plain() -> None:
    for seed in range(30):
        hosts = [Host(make(5), 5, seed) for make in (Sessions, Plain)]
        for host in hosts:
            host.hints = (None,)
            host.contexts = [host.new_context() for _ in range(3)]
        assert hosts[0].play(80) == hosts[1].play(80)


def test_s3_fifo_learns_from_its_ghosts() -> None:
    a, b, c, d, e = UNIVERSE[:5]
    policy, context = S3FIFO(4), ReqContext("r")
    insert(policy, (a, b, c, d), context)
    assert evicted(policy, 1) == [a]
    insert(policy, (a,), context)
    # It came back as a ghost, into main: newcomers go before it.
    policy.touch([b, b], context)
    assert evicted(policy, 1) == [c]
    insert(policy, (e,), context)
    # Used twice while it was in small, b went to main behind a.
    assert evicted(policy, 4) == [d, e, a, b]
