"""The policy machine: a policy under the calls of its host, against a model if it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvoffload import CachePolicy, CachePolicyFactory, InvariantError, OffloadKey
from stateful_models import operations as op
from stateful_models.drivers import PolicyHost
from stateful_models.invariants import Invariant, PolicyBooks, PolicyContract
from stateful_models.judge import Judge
from stateful_models.machines.universe import (
    HINTS,
    KEYS,
    Requests,
    masked,
    masks,
    request_slots,
    some_keys,
)
from stateful_models.models import ARCModel, LRUModel, PolicyModel, PolicyOracle, difference
from stateful_models.policy_subject import PolicySubject
from stateful_models.reach import Reach
from stateful_models.steps import Step, Victims


class PolicyMachine(RuleBasedStateMachine):
    """Subclass it, override `make_policy`, and run it as any state machine of Hypothesis.

    The policy is called as vLLM 0.33 calls it. Without a model (`make_model`) it is held to
    POL-1, POL-2, POL-3 and POL-7, and to what `make_invariants` adds; at the end every pin is
    released, and everything must be evictable.
    """

    reach: ClassVar[Reach] = Reach()
    SITUATIONS: ClassVar[tuple[str, ...]] = (
        "eviction",
        "eviction beside pins",
        "eviction beside pending chunks",
        "refused eviction",
        "failed store",
        "finished request",
        "reset with work in flight",
        "touch of a key that is not resident",
        "chunk pinned twice",
    )
    """What a run must come to; `reach.missing(SITUATIONS)` tells what it did not."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.reach = Reach()

    def __init__(self) -> None:
        super().__init__()
        # Nothing to end: not started yet, or failed on the way.
        self.over: bool = True

    def make_policy(self, capacity: int) -> CachePolicy:
        """The policy on trial, for a cache of `capacity` chunks. Override this."""
        return CachePolicyFactory.get_cache_policy_cls("lru")(cache_capacity=capacity)

    def make_model(self, capacity: int) -> PolicyModel | None:
        """A model that predicts its victims, None if there is none."""
        return None

    def make_invariants(self, capacity: int) -> Sequence[Invariant[PolicyBooks]]:
        """Invariants that judge beside `PolicyContract`; new ones each time, as they keep state."""
        return ()

    @initialize(capacity=st.sampled_from((3, 4, 5, 6, 2, 1)))
    def start(self, capacity: int) -> None:
        """Build the policy, its host and its judge."""
        policy = self.make_policy(capacity)
        model = self.make_model(capacity)
        self.subject: PolicySubject = PolicySubject(policy)
        self.oracle: PolicyOracle | None = None if model is None else PolicyOracle(model)
        may_refuse: object = getattr(policy, "may_refuse", None)
        self.judge: Judge[PolicyBooks] = Judge(
            [PolicyContract(may_refuse=may_refuse is not None), *self.make_invariants(capacity)],
            PolicyBooks(),
        )
        self.may_refuse: bool = may_refuse is not None
        self.host: PolicyHost = PolicyHost(capacity, self.perform)
        self.requests: Requests = Requests()
        self.program: list[Step] = []
        self.over = False
        for slot in range(3):
            self.host.place(self.requests[slot], Requests.positions(slot))

    @rule(slot=request_slots, hints=st.sampled_from(HINTS))
    def new_request(self, slot: int, hints: dict[str, object] | None) -> None:
        """A request comes with the parameters of its client."""
        self.perform(op.NewRequest(self.requests[slot], hints))

    @rule(key=st.sampled_from(KEYS))
    def get(self, key: OffloadKey) -> None:
        """Look a key up."""
        self.host.get(key)

    @rule(slot=request_slots, keys=some_keys)
    def offer(self, slot: int, keys: list[OffloadKey]) -> None:
        """Offer any keys."""
        self.host.offer(self.requests[slot], keys)

    @rule(slot=request_slots, mask=masks)
    def offer_new(self, slot: int, mask: int) -> None:
        """Offer keys that are not resident."""
        new = [key for key in KEYS if key not in self.host.ref_cnt]
        self.host.offer(self.requests[slot], masked(new, mask))

    @rule(slot=request_slots, first=st.integers(0, len(KEYS) - 1), number=st.integers(1, 2))
    def offer_few(self, slot: int, first: int, number: int) -> None:
        """Offer a key or two, for which there is likely to be room."""
        self.host.offer(self.requests[slot], (KEYS + KEYS)[first : first + number])

    @rule()
    def settle(self) -> None:
        """Everything that is in flight ends well."""
        self.host.complete(self.host.pending)
        self.host.release(self.host.pinned)

    @rule(mask=masks, success=st.sampled_from((True, True, False)), backwards=st.booleans())
    def complete(self, mask: int, success: bool, backwards: bool) -> None:
        """Some of the stores in flight end, in either order."""
        keys = masked(self.host.pending, mask)
        self.reach.note("failed store", bool(keys) and not success)
        self.host.complete(keys[::-1] if backwards else keys, success=success)

    @rule(slot=request_slots, mask=masks)
    def load(self, slot: int, mask: int) -> None:
        """Pin keys that are ready."""
        self.host.load(self.requests[slot], masked(self.host.ready, mask))
        self.reach.note("chunk pinned twice", any(n > 1 for n in self.host.ref_cnt.values()))

    @rule(slot=request_slots, index=st.integers(0, len(KEYS) - 1))
    def load_one(self, slot: int, index: int) -> None:
        """Pin one key that is ready, so that others remain to be evicted."""
        if ready := self.host.ready:
            self.host.load(self.requests[slot], (ready[index % len(ready)],))

    @rule(mask=masks, backwards=st.booleans())
    def release(self, mask: int, backwards: bool) -> None:
        """Release some pins, in either order."""
        keys = masked(self.host.pinned, mask)
        self.host.release(keys[::-1] if backwards else keys)

    @rule(slot=request_slots, keys=some_keys)
    def touch(self, slot: int, keys: list[OffloadKey]) -> None:
        """Touch any keys."""
        absent = any(key not in self.host.ref_cnt for key in keys)
        self.reach.note("touch of a key that is not resident", absent)
        self.host.touch(self.requests[slot], keys)

    @rule(slot=request_slots, replaced=st.booleans())
    def finish(self, slot: int, replaced: bool) -> None:
        """A request ends, and perhaps makes way for another."""
        self.host.finish(self.requests[slot])
        if replaced:
            self.host.place(self.requests.replace(slot), Requests.positions(slot))

    @precondition(lambda self: len(self.program) > 20)
    @rule(dice=st.integers(0, 3))
    def reset(self, dice: int) -> None:
        """Reset, rarely enough for something to be there."""
        if not dice:
            self.reach.note("reset with work in flight", any(self.host.ref_cnt.values()))
            self.host.reset()

    def perform(self, operation: op.Operation) -> Step:
        """Perform an operation, and hold what comes of it against everything that is known."""
        counts = self.host.ref_cnt.values() if self.program else ()
        pinned, pending = any(n > 0 for n in counts), any(n < 0 for n in counts)
        step = self.subject.perform(operation)
        self.program.append(step)
        found = [str(violation) for violation in self.judge.judge(step)]
        found += self._inside()
        if self.oracle is not None:
            wrong = difference(self.oracle.predict(operation), step)
            found += [wrong] if wrong is not None else []
        if found:
            self.over = True
            program = "\n".join(map(str, self.program))
            raise AssertionError("\n".join([*found, "the program:", program]))
        if isinstance(operation, op.Evict):
            evicted = isinstance(step.result, Victims)
            self.reach.note("eviction", evicted)
            self.reach.note("refused eviction", not evicted)
            self.reach.note("eviction beside pins", evicted and pinned)
            self.reach.note("eviction beside pending chunks", evicted and pending)
        self.reach.note("finished request", isinstance(operation, op.RequestFinished))
        return step

    def _inside(self) -> list[str]:
        # A policy that can check its own structures is asked to, after every call.
        check: object = getattr(self.subject.policy, "check", None)
        if callable(check):
            try:
                check()
            except InvariantError as broken:
                return [str(broken)]
        return []

    def teardown(self) -> None:
        """End every transfer, and evict everything that is left."""
        if self.over:
            return
        self.host.complete(self.host.pending)
        self.host.release(self.host.pinned)
        if self.may_refuse:
            return
        for key in KEYS:
            self.host.get(key)
        if self.host.ref_cnt:
            self.perform(op.Evict(len(self.host.ref_cnt)))
        for key in KEYS:
            self.host.get(key)


class LRUPolicyMachine(PolicyMachine):
    """LRU against its model (LRU-1, LRU-2)."""

    def make_policy(self, capacity: int) -> CachePolicy:
        return CachePolicyFactory.get_cache_policy_cls("lru")(cache_capacity=capacity)

    def make_model(self, capacity: int) -> PolicyModel:
        return LRUModel(capacity)


class ARCPolicyMachine(PolicyMachine):
    """ARC against its model (ARC-1 to ARC-5)."""

    SITUATIONS: ClassVar[tuple[str, ...]] = (*PolicyMachine.SITUATIONS, "ghost hit")

    def make_policy(self, capacity: int) -> CachePolicy:
        return CachePolicyFactory.get_cache_policy_cls("arc")(cache_capacity=capacity)

    def make_model(self, capacity: int) -> PolicyModel:
        return ARCModel(capacity)

    def teardown(self) -> None:
        if not self.over:
            super().teardown()
            model = None if self.oracle is None else self.oracle.model
            self.reach.note("ghost hit", isinstance(model, ARCModel) and model.ghost_hits > 0)
