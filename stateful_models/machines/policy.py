"""The policy machine: a policy under the calls of its host, against a model if it has one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from typing_extensions import override

from kvoffload import CachePolicy, InvariantError, OffloadKey
from stateful_models import operations as op
from stateful_models.capabilities import Capabilities, stated_by
from stateful_models.drivers import Driver, registered
from stateful_models.engines.runs import PolicyRun, run_program
from stateful_models.engines.shrinking import shrink
from stateful_models.hosting import PolicyHost
from stateful_models.invariants import Finding, Invariant, PolicyBooks, policy_invariants
from stateful_models.judge import Violation
from stateful_models.levels import QUICK
from stateful_models.machines.failures import BrokenRunError
from stateful_models.machines.hints import RequestHints, names_asked
from stateful_models.machines.testing import refuse_lost_rules
from stateful_models.machines.universe import (
    KEYS,
    Requests,
    masked,
    masks,
    request_slots,
    some_keys,
)
from stateful_models.models import ARCModel, LRUModel, PolicyModel, PolicyOracle, difference
from stateful_models.programs import HostOperation, Program, keys
from stateful_models.reach import Reach
from stateful_models.steps import Step
from stateful_models.trial.wording import program_lines

P = TypeVar("P", bound=CachePolicy)


class _MachineDriver(Driver[P]):
    """The policy that a machine makes."""

    @property
    @override
    def capabilities(self) -> Capabilities:
        return stated_by(self.build(1))


class PolicyMachine(RuleBasedStateMachine, Generic[P]):
    """Subclass it, override `make_driver` or `make_policy`, and run it with `machine_test`.

        class TestMine(PolicyMachine[MyPolicy]):
            def make_policy(self, capacity: int) -> MyPolicy:
                return MyPolicy(cache_capacity=capacity)

        test_mine = machine_test(TestMine)

    The policy is called as the host of its driver calls it, and every request is announced first,
    with hints that the driver's `contexts` describe, or with wrong ones. Without a model
    (`make_model`) it is held to what its capabilities promise and to what `make_invariants` adds;
    at the end every pin is released, and everything must be evictable. As it is, it tries LRU.
    Rules can be added, and overridden by rules; one that is overridden by a plain method, which
    Hypothesis would leave out without a word, is refused when the class is made (TypeError).
    """

    # Classes of machines are no classes of tests, whatever they are called.
    __test__: ClassVar[bool] = False
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
        "request with hints",
        "refused eviction beside pins",
    )
    """What a run must come to; `reach.missing(SITUATIONS)` tells what it did not."""
    _asked: ClassVar[tuple[str, ...] | None] = None
    """The names of hints that the policy asks for, once they were looked for."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.reach = Reach()
        cls._asked = None
        refuse_lost_rules(cls)

    def __init__(self) -> None:
        super().__init__()
        # Nothing to end: not started yet, or failed on the way.
        self.over: bool = True

    def make_policy(self, capacity: int) -> P:
        """The policy on trial, for a cache of `capacity` chunks."""
        # Only where nothing is overridden is P whatever the smoke test tries.
        return cast("P", registered("lru").build(capacity))

    def make_driver(self) -> Driver[P]:
        """How the policy is built and called; by default `make_policy` and the calls of 0.33."""

        def build(cache_capacity: int) -> P:
            return self.make_policy(cache_capacity)

        return _MachineDriver(build)

    def make_model(self, capacity: int) -> PolicyModel | None:
        """A model that predicts its victims, None if there is none."""
        return None

    def make_invariants(self, capacity: int) -> Sequence[Invariant[PolicyBooks]]:
        """Invariants that judge beside the usual; new ones each time, as they keep state."""
        return ()

    @initialize(capacity=st.sampled_from((3, 4, 5, 6, 2, 1)), data=st.data())
    def start(self, capacity: int, data: st.DataObject) -> None:
        """Build the policy, its host and its judge."""
        cls = type(self)
        if cls._asked is None:
            cls._asked = names_asked(self.make_driver())
        driver = self.make_driver()
        model = self.make_model(capacity)
        self.hints: RequestHints = RequestHints(driver.contexts(), cls._asked)
        self.run: PolicyRun[P] = PolicyRun(
            driver, capacity, self._judges(driver, capacity, model), reach=self.reach
        )
        self.host: PolicyHost = self.run.host
        self.may_refuse: bool = driver.capabilities.may_refuse is not None
        self.model: PolicyModel | None = model
        self.requests: Requests = Requests()
        self.over = False
        for slot in range(3):
            self._place(self.requests[slot], slot, data)

    @rule(slot=request_slots, data=st.data())
    def new_request(self, slot: int, data: st.DataObject) -> None:
        """Another request comes, and the one whose place it takes is heard of no more."""
        self._place(self.requests.replace(slot), slot, data)

    @rule(key=st.sampled_from(KEYS))
    def get(self, key: OffloadKey) -> None:
        """Look a key up."""
        self.play(op.Lookup(self.requests[0], key))

    @rule(slot=request_slots, keys=some_keys)
    def offer(self, slot: int, keys: list[OffloadKey]) -> None:
        """Offer any keys."""
        self.play(op.PrepareStore(self._running(slot), tuple(keys)))

    @rule(slot=request_slots, mask=masks)
    def offer_new(self, slot: int, mask: int) -> None:
        """Offer keys that are not resident."""
        new = [key for key in KEYS if key not in self.host.ref_cnt]
        self.play(op.PrepareStore(self._running(slot), masked(new, mask)))

    @rule(slot=request_slots, first=st.integers(0, len(KEYS) - 1), number=st.integers(1, 2))
    def offer_few(self, slot: int, first: int, number: int) -> None:
        """Offer a key or two, for which there is likely to be room."""
        few = (KEYS + KEYS)[first : first + number]
        self.play(op.PrepareStore(self._running(slot), few))

    @rule(slot=request_slots, first=st.integers(0, len(KEYS) - 1), number=st.integers(1, 3))
    def store(self, slot: int, first: int, number: int) -> None:
        """Store some keys and be done with it, so that chunks are idle."""
        self._store(slot, first, number)

    @rule(
        slot=request_slots,
        index=st.integers(0, len(KEYS) - 1),
        more=st.integers(1, 2),
        filled=st.booleans(),
        reading=st.booleans(),
    )
    def offer_in_vain(self, slot: int, index: int, more: int, filled: bool, reading: bool) -> None:
        """Enough chunks are idle, but so many of them in the offer that evicting must fail.

        Perhaps the cache is filled for it, and one of its chunks is being read.
        """
        if filled:
            self._settle()
            self._store(slot, index, self.host.state.free)
        if reading and not self.host.pinned and len(self.host.idle) > 1:
            read = self.host.idle[index % len(self.host.idle)]
            self.play(op.PrepareLoad(self._running(slot), (read,)))
        idle, room = self.host.idle, self.host.state.free
        new = [key for key in KEYS if key not in self.host.ref_cnt]
        lacking = min(more, len(new) - room, len(idle))
        if lacking > 0:
            turned = [idle[(index + place) % len(idle)] for place in range(len(idle))]
            # One fewer than are lacking could go.
            offered = turned[: len(idle) - lacking + 1]
            self.play(op.PrepareStore(self._running(slot), (*offered, *new[: room + lacking])))

    @rule()
    def settle(self) -> None:
        """Everything that is in flight ends well."""
        self._settle()

    @rule(mask=masks, success=st.sampled_from((True, True, False)), backwards=st.booleans())
    def complete(self, mask: int, success: bool, backwards: bool) -> None:
        """Some of the stores in flight end, in either order."""
        keys = masked(self.host.pending, mask)
        ordered = keys[::-1] if backwards else keys
        self.play(op.CompleteStore(self.requests[0], ordered, success))

    @rule(slot=request_slots, mask=masks)
    def load(self, slot: int, mask: int) -> None:
        """Pin keys that are ready."""
        self.play(op.PrepareLoad(self._running(slot), masked(self.host.ready, mask)))

    @rule(slot=request_slots, index=st.integers(0, len(KEYS) - 1))
    def load_one(self, slot: int, index: int) -> None:
        """Pin one key that is ready, so that others remain to be evicted."""
        if ready := self.host.ready:
            self.play(op.PrepareLoad(self._running(slot), (ready[index % len(ready)],)))

    @rule(mask=masks, backwards=st.booleans())
    def release(self, mask: int, backwards: bool) -> None:
        """Release some pins, in either order."""
        keys = masked(self.host.pinned, mask)
        self.play(op.CompleteLoad(self.requests[0], keys[::-1] if backwards else keys))

    @rule(slot=request_slots, keys=some_keys)
    def touch(self, slot: int, keys: list[OffloadKey]) -> None:
        """Touch any keys."""
        self.play(op.Touch(self._running(slot), tuple(keys)))

    @rule(slot=request_slots, replaced=st.sampled_from((True, True, False)), data=st.data())
    def finish(self, slot: int, replaced: bool, data: st.DataObject) -> None:
        """A request ends, and perhaps makes way for another."""
        self.play(op.FinishRequest(self.requests[slot]))
        if replaced:
            self._place(self.requests.replace(slot), slot, data)

    @precondition(lambda self: len(self.run.played) > 12)
    @rule(dice=st.integers(0, 3))
    def reset(self, dice: int) -> None:
        """Reset, rarely enough for something to be there."""
        if not dice:
            self.reach.note("reset with work in flight", any(self.host.ref_cnt.values()))
            self.play(op.Reset())

    @precondition(lambda self: self.run.subject.driver.host_events() is not None)
    @rule(data=st.data())
    def host_event(self, data: st.DataObject) -> None:
        """An extra call of the host, where the driver has any."""
        events = self.run.subject.driver.host_events()
        if events is not None:
            self.play(data.draw(events))

    def play(self, operation: HostOperation) -> None:
        """Play an operation, and hold what comes of it against everything that is known."""
        __tracebackhide__ = True
        self.run.play(operation, KEYS)
        refused = any(
            isinstance(step.operation, op.Evict) and step.result is None
            for step in self.run.played[-1].steps
        )
        self.reach.note("refused eviction beside pins", refused and bool(self.host.pinned))
        self._object(self._inside())

    def _judges(
        self, driver: Driver[P], capacity: int, model: PolicyModel | None
    ) -> list[Invariant[PolicyBooks]]:
        own = list(self.make_invariants(capacity))
        if model is not None:
            own.append(Predicted(model))
        return [*policy_invariants(driver.capabilities, capacity), *own]

    def _object(self, inside: str | None) -> None:
        __tracebackhide__ = True
        found = list(map(_told, self.run.violations))
        found += [inside] if inside is not None else []
        if found:
            self.over = True
            shown = program_lines(self.run.played, self.run.violations)
            raise BrokenRunError("\n".join([*found, "the program:", *shown]), self._shorter)

    def _shorter(self) -> str | None:
        """The message on the shortest program found that breaks the same."""
        driver = self.make_driver()

        def played(program: Program) -> PolicyRun[P]:
            return run_program(
                driver,
                program,
                lambda capacity: self._judges(driver, capacity, self.make_model(capacity)),
            )

        # What a rule does beside playing operations is no part of a program.
        shortest = played(self.run.program)
        if not shortest.violations:
            return None
        first = shortest.violations[0]

        def still_fails(program: Program) -> Program | None:
            nonlocal shortest
            run = played(program)
            if (first.clause, first.kind) not in ((one.clause, one.kind) for one in run.violations):
                return None
            shortest = run
            return program.cut(len(run.program))

        shrink(shortest.program, still_fails, QUICK.shrinking)
        found = map(_told, shortest.violations)
        shown = program_lines(shortest.played, shortest.violations)
        return "\n".join([*found, "the shortest program found:", *shown])

    # A rule that is left out (`machine_test(without=...)`) is None: nothing may call one.
    def _settle(self) -> None:
        self.play(op.CompleteStore(self.requests[0], tuple(self.host.pending)))
        self.play(op.CompleteLoad(self.requests[0], tuple(self.host.pinned)))

    def _store(self, slot: int, first: int, number: int) -> None:
        new = [key for key in KEYS[first:] + KEYS[:first] if key not in self.host.ref_cnt]
        request, some = self._running(slot), tuple(new[:number])
        self.play(op.PrepareStore(request, some))
        self.play(op.CompleteStore(request, some))

    def _running(self, slot: int) -> op.RequestId:
        """The request in this place, or the next that has not finished, if there is one."""
        requests = [self.requests[(slot + more) % 3] for more in range(3)]
        return next((one for one in requests if not self.host.finished(one)), requests[0])

    def _place(self, request: op.RequestId, slot: int, data: st.DataObject) -> None:
        self.play(op.NewRequest(request, self.hints.draw(data, request)))
        self.play(op.SetPositions(request, Requests.positions(slot)))

    def _inside(self) -> str | None:
        # A policy that can check its own structures is asked to, after every call.
        check: object = getattr(self.run.policy, "check", None)
        if callable(check):
            try:
                check()
            except InvariantError as broken:
                return str(broken)
        return None

    def teardown(self) -> None:
        """End every transfer, and evict everything that is left."""
        if self.over:
            return
        self._settle()
        if not self.may_refuse:
            fresh = keys(" ".join(f"new{number}" for number in range(self.host.capacity)))
            self.run.play(op.PrepareStore("last", fresh), (*KEYS, *fresh))
        self.run.end()
        self._object(self._inside())


def _told(found: Violation) -> str:
    """What was broken. The calls that led there stand in the program."""
    promise = f"\n  {found.promise}" if found.promise else ""
    return f"{found.clause}: {found.message}{promise}"


class Predicted(Invariant[PolicyBooks]):
    """Every answer is the one that a model gives."""

    def __init__(self, model: PolicyModel) -> None:
        self._oracle = PolicyOracle(model)

    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        wrong = difference(self._oracle.predict(step.operation), step)
        if wrong is not None:
            yield Finding("MODEL", wrong)


class LRUPolicyMachine(PolicyMachine[CachePolicy]):
    """LRU against its model (LRU-1, LRU-2)."""

    def make_policy(self, capacity: int) -> CachePolicy:
        return registered("lru").build(capacity)

    def make_model(self, capacity: int) -> PolicyModel:
        return LRUModel(capacity)


class ARCPolicyMachine(PolicyMachine[CachePolicy]):
    """ARC against its model (ARC-1 to ARC-5)."""

    SITUATIONS: ClassVar[tuple[str, ...]] = (*PolicyMachine.SITUATIONS, "ghost hit")

    def make_policy(self, capacity: int) -> CachePolicy:
        return registered("arc").build(capacity)

    def make_model(self, capacity: int) -> PolicyModel:
        return ARCModel(capacity)

    def teardown(self) -> None:
        if not self.over:
            super().teardown()
            model = self.model
            self.reach.note("ghost hit", isinstance(model, ARCModel) and model.ghost_hits > 0)
